#include "runtime/model/identity.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/hash.h"

enum { PIECE = 1 << 20, TENSOR_HEAD = 4096 };

typedef struct identity {
    const fl_source *src;
    fl_hasher *hash;
    uint8_t *buf; /* [PIECE] */
} identity;

/* A count before the bytes, so that bytes cannot move from one part to the next unseen. */
static void add(identity *id, const void *p, uint64_t n)
{
    fl_hasher_add(id->hash, &n, sizeof n);
    fl_hasher_add(id->hash, p, n);
}

static fl_status add_file(identity *id, int fd, const char *path, uint64_t n, fl_err *err)
{
    for (uint64_t at = 0; at < n; at += PIECE) {
        const uint64_t m = n - at < PIECE ? n - at : PIECE;
        FL_TRY(fl_file_read_at(fd, id->buf, m, at, path, err));
        add(id, id->buf, m);
    }
    return FL_OK;
}

/* Bytes of a file before its first tensor; a first shard may have none. */
static uint64_t header_bytes(const fl_source *src, int file)
{
    uint64_t n = fl_source_file_bytes(src, file);
    for (size_t i = 0; i < fl_source_n_tensors(src); i++) {
        const fl_tensor *t = fl_source_tensor(src, i);
        if (t->file == file && t->offset < n) n = t->offset;
    }
    return n;
}

static fl_status add_tensors(identity *id, fl_err *err)
{
    for (size_t i = 0; i < fl_source_n_tensors(id->src); i++) {
        const fl_tensor *t = fl_source_tensor(id->src, i);
        const uint64_t n = t->bytes < TENSOR_HEAD ? t->bytes : TENSOR_HEAD;
        FL_TRY(fl_source_read(id->src, t, 0, id->buf, n, err));
        add(id, id->buf, n);
    }
    return FL_OK;
}

/* The settings, whatever their spacing. */
static fl_status add_json(identity *id, const fl_json *j, fl_err *err)
{
    char *text = j ? fl_json_dump(j, 0) : strdup("");
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "identity of the model: no memory");
    add(id, text, strlen(text));
    free(text);
    return FL_OK;
}

static fl_status add_tokenizer(identity *id, fl_err *err)
{
    const char *path = fl_source_tokenizer_path(id->src);
    int fd = -1;
    uint64_t n = 0;
    if (!path) return FL_OK;
    FL_TRY(fl_file_open(path, &fd, &n, err));
    const fl_status st = add_file(id, fd, path, n, err);
    close(fd);
    return st;
}

fl_status fl_model_identity(const fl_source *src, uint64_t *out, fl_err *err)
{
    identity id = {src, fl_hasher_create(), malloc(PIECE)};
    fl_status st = FL_OK;
    if (!id.hash || !id.buf) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "identity of the model: no memory"));
    for (int f = 0; f < fl_source_n_files(src); f++)
        FL_GO(add_file(&id, fl_source_fd(src, f), fl_source_paths(src)[f], header_bytes(src, f),
                       err));
    FL_GO(add_tensors(&id, err));
    FL_GO(add_json(&id, fl_source_config(src), err));
    FL_GO(add_json(&id, fl_source_generation_config(src), err));
    FL_GO(add_tokenizer(&id, err));
    *out = fl_hasher_value(id.hash);
out:
    fl_source_forget(src);
    fl_hasher_destroy(&id.hash);
    free(id.buf);
    return st;
}
