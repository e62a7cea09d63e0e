#ifndef FL_MODEL_GGUF_WRITE_H
#define FL_MODEL_GGUF_WRITE_H

#include <stdatomic.h>

#include "runtime/base/status.h"
#include "runtime/base/str.h"
#include "runtime/model/gguf.h"

/* Writes one GGUF v3 file as a stream: metadata and tensor table first, then the data of each
 * tensor in the order of its declaration, in pieces of any size. Memory: the header and one
 * buffer, never a tensor. The file appears under its name only when complete and re-read:
 *
 *   create, put_* (metadata), add_tensor..., layout, begin, write..., commit
 *
 * One thread. Every failure after create leaves what stood under the name before; discard (or a
 * failed commit) removes the temporary. Held by tests/model/test_gguf_write.c. */
typedef struct fl_gguf_writer fl_gguf_writer;

enum { FL_GGUF_ALIGN = 4096 }; /* default alignment of every tensor: pages and O_DIRECT */

/* `alignment` must be a power of two of at least 8 (0 = FL_GGUF_ALIGN); it is written as
 * general.alignment by begin. Nothing is created on disk yet. */
FL_CHECKED fl_status fl_gguf_writer_create(fl_gguf_writer **out, const char *path,
                                           uint32_t alignment, fl_err *err);

/* Metadata, in the order of the calls. A lack of memory is remembered and reported by layout; so is
 * a key given twice. Keys and strings are copied. */
void fl_gguf_put_u32(fl_gguf_writer *w, const char *key, uint32_t v);
void fl_gguf_put_i32(fl_gguf_writer *w, const char *key, int32_t v);
void fl_gguf_put_f32(fl_gguf_writer *w, const char *key, float v);
void fl_gguf_put_bool(fl_gguf_writer *w, const char *key, bool v);
void fl_gguf_put_str(fl_gguf_writer *w, const char *key, const char *text, size_t n);
void fl_gguf_put_strings(fl_gguf_writer *w, const char *key, const fl_str *v, uint64_t n);
void fl_gguf_put_i32s(fl_gguf_writer *w, const char *key, const int32_t *v, uint64_t n);
void fl_gguf_put_bools(fl_gguf_writer *w, const char *key, const bool *v, uint64_t n);
/* A value of another file, byte for byte, under `key`. */
void fl_gguf_put_copy(fl_gguf_writer *w, const char *key, const fl_kv *kv);
/* True when the key was put before. */
bool fl_gguf_has_key(const fl_gguf_writer *w, const char *key);

/* Declares the next tensor. `type` must be in the table of formats and divide ne[0]; names are
 * at most 63 bytes and unique. */
FL_CHECKED fl_status fl_gguf_add_tensor(fl_gguf_writer *w, const char *name, uint32_t type,
                                        int n_dims, const int64_t *ne, fl_err *err);

/* Fixes what lies where; nothing may be put or added any more. Done by begin when it was not. A
 * lack of memory in put_* and a key given twice come out here. */
FL_CHECKED fl_status fl_gguf_writer_layout(fl_gguf_writer *w, fl_err *err);
/* Bytes of all files together; before layout those of one file with what was declared so far. */
uint64_t fl_gguf_writer_bytes(const fl_gguf_writer *w);
/* Known after layout: files and their final names; a number that stands for every header, thus for
 * metadata, names, types, shapes and parts. */
int fl_gguf_writer_parts(const fl_gguf_writer *w);
const char *fl_gguf_writer_part(const fl_gguf_writer *w, int i);
uint64_t fl_gguf_writer_identity(const fl_gguf_writer *w);
/* After layout, of one file: its header as begin would write it, padded; malloc'ed, *n bytes. */
FL_CHECKED fl_status fl_gguf_writer_header(const fl_gguf_writer *w, void **out, uint64_t *n,
                                           fl_err *err);

/* Opens the temporary, checks the free space of its file system against the whole size and writes
 * the header. */
FL_CHECKED fl_status fl_gguf_writer_begin(fl_gguf_writer *w, fl_err *err);

/* ---- large files: before layout ---- */

/* The temporaries are NAME.part and outlive this process (fl_outfile_open_part): a failed commit
 * and discard remove them, suspend and a kill leave them for resume. */
void fl_gguf_writer_keep(fl_gguf_writer *w);
/* Files of at most `most` bytes each (a larger tensor has one of its own), at most 1,000, named as
 * llama.cpp names them: PATH without .gguf, -00001-of-00003.gguf; the first has the metadata, all
 * have split.no, split.count and split.tensors.count. What fits in one file becomes PATH. Needs
 * keep. All are renamed at the very end, one after the other: a kill between two renames leaves
 * some under their names, and resume renames the rest. */
void fl_gguf_writer_split(fl_gguf_writer *w, uint64_t most);
/* Name of file i (from 0) of n of that kind, malloc'ed; NULL when memory is out. */
char *fl_gguf_part_name(const char *path, int i, int n);
/* begin, with what an earlier writer of the same identity left: hash[n] of its first n tensors.
 * They are read again; writing goes on behind the last of those that are as they were written. */
FL_CHECKED fl_status fl_gguf_writer_resume(fl_gguf_writer *w, const uint64_t *hash, size_t n,
                                           fl_err *err);
/* The tensor that is written next or now. */
size_t fl_gguf_writer_next(const fl_gguf_writer *w);
/* XXH3 of a tensor that was written, padding included. */
uint64_t fl_gguf_writer_hash(const fl_gguf_writer *w, size_t i);
/* What was written so far is on the disk. */
FL_CHECKED fl_status fl_gguf_writer_sync(fl_gguf_writer *w, fl_err *err);
/* Ends the writer and leaves the temporaries. *w becomes NULL whatever the outcome. */
FL_CHECKED fl_status fl_gguf_writer_suspend(fl_gguf_writer **w, fl_err *err);

/* ---- writing ---- */

/* The next `n` bytes of tensor data. A piece may not cross the end of a tensor (assert); padding
 * is written where a tensor ends. */
FL_CHECKED fl_status fl_gguf_writer_write(fl_gguf_writer *w, const void *data, uint64_t n,
                                          fl_err *err);
/* The next tensor, whole, from another file where it lies at `offset` (fl_outfile_copy): its bytes
 * are not seen here, so commit cannot compare them and re-reads the tensor table alone. */
FL_CHECKED fl_status fl_gguf_writer_copy(fl_gguf_writer *w, int from, uint64_t offset,
                                         const char *from_path, fl_err *err);
/* Hands buffered bytes to the kernel. */
FL_CHECKED fl_status fl_gguf_writer_flush(fl_gguf_writer *w, fl_err *err);
/* When *stop is not 0 (a signal handler may set it), commit ends with FL_E_CANCELED at any point
 * before the rename. It must outlive the writer. */
void fl_gguf_writer_stop_on(fl_gguf_writer *w, const atomic_int *stop);
/* All tensors must be complete (assert). Flushes to the disk, re-reads the whole file past the page
 * cache where that can be, compares the tensor table and the XXH3 of header and tensors with what
 * was written, then renames. *w becomes NULL whatever the outcome; a failure removes the
 * temporaries, but not FL_E_CANCELED those of a kept run. */
FL_CHECKED fl_status fl_gguf_writer_commit(fl_gguf_writer **w, fl_err *err);
void fl_gguf_writer_discard(fl_gguf_writer **w);

#endif
