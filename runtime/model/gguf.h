#ifndef FL_MODEL_GGUF_H
#define FL_MODEL_GGUF_H

#include <stdbool.h>

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* One GGUF file's header (v2 and v3, little endian): metadata and tensor table, checked. */
typedef struct fl_gguf fl_gguf;

typedef enum fl_gguf_type {
    FL_GGUF_U8,
    FL_GGUF_I8,
    FL_GGUF_U16,
    FL_GGUF_I16,
    FL_GGUF_U32,
    FL_GGUF_I32,
    FL_GGUF_F32,
    FL_GGUF_BOOL,
    FL_GGUF_STRING,
    FL_GGUF_ARRAY,
    FL_GGUF_U64,
    FL_GGUF_I64,
    FL_GGUF_F64
} fl_gguf_type;

typedef struct fl_kv {
    fl_str key;
    uint32_t type;       /* fl_gguf_type; FL_GGUF_ARRAY for arrays */
    uint32_t elem_type;  /* arrays only */
    uint64_t count;      /* arrays: elements; else 1 */
    const uint8_t *data; /* raw little-endian bytes of the value, inside the header */
    uint64_t data_bytes;
} fl_kv;

typedef struct fl_gguf_tensor {
    fl_str name;
    uint32_t type;
    int n_dims;
    int64_t ne[4];
    uint64_t offset; /* relative to data_start */
    uint64_t bytes;  /* 0 for a type whose size is unknown */
} fl_gguf_tensor;

/* Parses a header from an open file of file_bytes bytes. Every length is checked against what
 * the file can hold before anything is allocated. */
FL_CHECKED fl_status fl_gguf_open(fl_gguf **out, int fd, uint64_t file_bytes, const char *path,
                                  fl_err *err);
/* The same from memory that holds the whole file (fuzzing, tests). */
FL_CHECKED fl_status fl_gguf_parse(fl_gguf **out, const uint8_t *data, uint64_t n, const char *path,
                                   fl_err *err);
void fl_gguf_close(fl_gguf **g);

uint32_t fl_gguf_version(const fl_gguf *g);
uint64_t fl_gguf_alignment(const fl_gguf *g);
uint64_t fl_gguf_data_start(const fl_gguf *g);
size_t fl_gguf_n_kv(const fl_gguf *g);
const fl_kv *fl_gguf_kv_at(const fl_gguf *g, size_t i);
const fl_kv *fl_gguf_find(const fl_gguf *g, const char *key); /* NULL when absent */
size_t fl_gguf_n_tensors(const fl_gguf *g);
const fl_gguf_tensor *fl_gguf_tensor_at(const fl_gguf *g, size_t i);

/* Typed reads; any integer type serves as integer, any number as number; def when kv is NULL or
 * of another kind. For arrays the variants with an index. */
int64_t fl_kv_int(const fl_kv *kv, int64_t def);
double fl_kv_num(const fl_kv *kv, double def);
bool fl_kv_bool(const fl_kv *kv, bool def);
fl_str fl_kv_str(const fl_kv *kv); /* {NULL, 0} when absent */
int64_t fl_kv_int_at(const fl_kv *kv, uint64_t i, int64_t def);
double fl_kv_num_at(const fl_kv *kv, uint64_t i, double def);
/* Fills out[count] with the strings of an array of strings; false when it is none. */
bool fl_kv_strings(const fl_kv *kv, fl_str *out);

#endif
