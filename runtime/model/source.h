#ifndef FL_MODEL_SOURCE_H
#define FL_MODEL_SOURCE_H

#include <stdbool.h>

#include "quant/format.h"
#include "runtime/base/json.h"
#include "runtime/base/str.h"
#include "runtime/model/gguf.h"

/* A model's files, opened: a GGUF (single or split) or a safetensors folder (one file or
 * shards). Only headers are read. Immutable after open. */
typedef struct fl_source fl_source;

typedef enum fl_source_kind { FL_SOURCE_GGUF, FL_SOURCE_SAFETENSORS } fl_source_kind;

typedef struct fl_tensor {
    const char *name; /* as the file names it */
    uint32_t type;    /* fl_type, fl_foreign_type (safetensors.h) or an unknown number */
    int n_dims;
    int64_t ne[4];   /* ggml order: ne[0] fastest; unused ones are 1 */
    int32_t file;    /* which file */
    uint64_t offset; /* absolute, in bytes */
    uint64_t bytes;
} fl_tensor;

/* `path`: a .gguf file (any shard of a split model), a folder with *.safetensors and
 * config.json, or one .safetensors file with config.json beside it. Text files, HTML pages,
 * empty files, folders without a model, missing or renamed shards, truncated files: one clear
 * line each. Memory used is bounded by the header sizes, which are checked against the files. */
FL_CHECKED fl_status fl_source_open(fl_source **out, const char *path, fl_err *err);
void fl_source_close(fl_source **src);
/* FL_E_IO when a file was changed since it was opened, or its name leads to another one by now. */
FL_CHECKED fl_status fl_source_check(const fl_source *s, fl_err *err);

/* Gives back what reading heads and samples left in the page cache: under a memory cap it takes the
 * place of experts. */
void fl_source_forget(const fl_source *s);

fl_source_kind fl_source_kind_of(const fl_source *s);
int fl_source_n_files(const fl_source *s);
const char *const *fl_source_paths(const fl_source *s);
int fl_source_fd(const fl_source *s, int file); /* buffered, read only */
uint64_t fl_source_file_bytes(const fl_source *s, int file);
size_t fl_source_n_tensors(const fl_source *s);
const fl_tensor *fl_source_tensor(const fl_source *s, size_t i); /* in file order */
const fl_tensor *fl_source_find(const fl_source *s, const char *name);
/* GGUF metadata of the first shard; NULL for safetensors. */
const fl_gguf *fl_source_gguf(const fl_source *s);
/* config.json / generation_config.json / tokenizer.json beside safetensors; NULL when absent or
 * for GGUF. tokenizer.json is given as a path since it is large. */
const fl_json *fl_source_config(const fl_source *s);
const fl_json *fl_source_generation_config(const fl_source *s);
const char *fl_source_tokenizer_path(const fl_source *s);
/* True when `path` leads to one of the files of the model: its weights, or beside safetensors a
 * file that says something of it (configs, tokenizer, chat template, index, model card). Told by
 * device and inode, so links and spellings do not matter. */
bool fl_source_has_file(const fl_source *s, const char *path);

/* "license" in the __metadata__ of the first safetensors file that has one; NULL when none has,
 * and for GGUF (general.license). */
const char *fl_source_license(const fl_source *s);

/* Name of a tensor's type for messages ("q4_k", "F8_E4M3", "type 99") into buf; returns buf. */
const char *fl_source_type_name(uint32_t type, char buf[32]);

/* Reads `n` bytes at `skip` of a tensor's data. */
FL_CHECKED fl_status fl_source_read(const fl_source *s, const fl_tensor *t, uint64_t skip,
                                    void *dst, uint64_t n, fl_err *err);

#endif
