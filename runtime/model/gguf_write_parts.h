#ifndef FL_MODEL_GGUF_WRITE_PARTS_H
#define FL_MODEL_GGUF_WRITE_PARTS_H

#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/model/gguf_write.h"

/* The GGUF writer's inside: gguf_write.c declares and writes, gguf_check.c reads again. */

enum { FL_GW_NAME_MAX = 63 };

typedef struct fl_gw_tensor {
    char name[FL_GW_NAME_MAX + 1];
    uint32_t type;
    int n_dims;
    int64_t ne[4];
    uint64_t offset, bytes; /* offset relative to the data of its part */
    uint64_t hash;          /* of its bytes and the padding behind them, once written */
} fl_gw_tensor;

/* One file: the whole, or one of a split. */
typedef struct fl_gw_part {
    char *path, *tmp;     /* tmp: of a kept file, path + FL_OUTFILE_PART */
    size_t first, n;      /* its tensors */
    uint64_t data_start;  /* bytes of the header, padded */
    uint64_t data_bytes;  /* padded */
    uint64_t header_hash; /* of the data_start bytes */
} fl_gw_part;

typedef struct fl_gw_bytes {
    uint8_t *p;
    size_t n, cap;
    bool failed;
} fl_gw_bytes;

struct fl_gguf_writer {
    char *path;
    uint32_t alignment;
    uint64_t split;   /* most bytes of a part; 0: one file */
    bool kept;        /* fl_gguf_writer_keep */
    fl_gw_bytes kv;   /* serialised metadata */
    fl_gw_bytes keys; /* the keys, each with its NUL */
    uint64_t n_kv;
    char twice[128]; /* first key that was given twice, or "" */
    fl_gw_tensor *tensor;
    size_t n_tensors, cap_tensors;
    fl_gw_part *part; /* [n_parts] once laid out */
    int n_parts;
    bool begun;
    int at;                 /* part being written */
    fl_outfile *file;       /* of that part; NULL: not open yet, or closed */
    const atomic_int *stop; /* or NULL */
    size_t current;         /* tensor being written */
    uint64_t done;          /* its bytes so far */
    bool unseen;            /* some bytes were copied by the kernel */
    fl_hasher *hash;        /* of the tensor being written */
};

static inline uint64_t fl_gw_pad(const fl_gguf_writer *w, uint64_t v)
{
    return (v + w->alignment - 1) & ~(uint64_t)(w->alignment - 1);
}
/* Where tensor i of a part ends in the file, padding included. */
static inline uint64_t fl_gw_end(const fl_gguf_writer *w, const fl_gw_part *p, size_t i)
{
    const fl_gw_tensor *t = &w->tensor[i];
    return p->data_start + fl_gw_pad(w, t->offset + t->bytes);
}

fl_status fl_gw_check_stop(const fl_gguf_writer *w, fl_err *err);

/* Reads the header and the first n tensors of a part in the file `path` and compares them with
 * their hashes. *good: tensors before the first that differs; -1: the header does. A file that is
 * too short ends early likewise. Errors are those of reading. */
FL_CHECKED fl_status fl_gw_compare(const fl_gguf_writer *w, const fl_gw_part *p, const char *path,
                                   size_t n, int64_t *good, fl_err *err);
/* Names, types, shapes and places in `path` as a reader sees them: FL_E_IO when they are others. */
FL_CHECKED fl_status fl_gw_check_table(const fl_gguf_writer *w, const fl_gw_part *p,
                                       const char *path, fl_err *err);

#endif
