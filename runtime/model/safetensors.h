#ifndef FL_MODEL_SAFETENSORS_H
#define FL_MODEL_SAFETENSORS_H

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* One safetensors file's header, checked: u64 length N, N bytes of JSON
 * {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}, then data. Read
 * by a scanner of its own that accepts exactly this shape of JSON. */
typedef struct fl_safetensors fl_safetensors;

/* Numbers for data types that ggml does not have; at or above FL_TYPE_LIMIT. */
typedef enum fl_foreign_type {
    FL_FOREIGN_BOOL = 1000,
    FL_FOREIGN_U8,
    FL_FOREIGN_U16,
    FL_FOREIGN_U32,
    FL_FOREIGN_U64,
    FL_FOREIGN_F8_E4M3,
    FL_FOREIGN_F8_E5M2,
    FL_FOREIGN_OTHER /* a name this program does not know; the size is not checked */
} fl_foreign_type;

typedef struct fl_safetensor {
    fl_str name;     /* escapes resolved; without NUL and control characters */
    uint32_t type;   /* fl_type or fl_foreign_type */
    int n_dims;      /* 1..4; [] is listed as [1] */
    int64_t ne[4];   /* ggml order: the last of "shape" first; outer dimensions beyond the fourth
                        are multiplied into ne[3] */
    uint64_t offset; /* absolute in the file */
    uint64_t bytes;
} fl_safetensor;

/* Parses the header of an open file; every length is checked against file_bytes before anything
 * is allocated. */
FL_CHECKED fl_status fl_safetensors_open(fl_safetensors **out, int fd, uint64_t file_bytes,
                                         const char *path, fl_err *err);
/* The same from memory that holds the whole file (fuzzing, tests). */
FL_CHECKED fl_status fl_safetensors_parse(fl_safetensors **out, const uint8_t *data, uint64_t n,
                                          const char *path, fl_err *err);
void fl_safetensors_close(fl_safetensors **s);

size_t fl_safetensors_n(const fl_safetensors *s);
const fl_safetensor *fl_safetensors_at(const fl_safetensors *s, size_t i);
/* The text of "license" in __metadata__; {NULL, 0} when there is none. */
fl_str fl_safetensors_license(const fl_safetensors *s);
/* Spelling of a foreign type ("F8_E4M3"), or NULL. */
const char *fl_foreign_type_name(uint32_t type);

#endif
