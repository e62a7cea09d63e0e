#ifndef FL_BASE_FILE_H
#define FL_BASE_FILE_H

#include "runtime/base/status.h"

/* Reads exactly n bytes at `offset`, retrying short reads; end of file is FL_E_FORMAT. `path` is
 * only for the message. */
FL_CHECKED fl_status fl_file_read_at(int fd, void *dst, uint64_t n, uint64_t offset,
                                     const char *path, fl_err *err);
/* Opens a regular file for reading; a folder, a missing file, a device give one clear line.
 * *size (may be NULL) gets its length in bytes. */
FL_CHECKED fl_status fl_file_open(const char *path, int *fd, uint64_t *size, fl_err *err);

/* Which file it is, and when its bytes were last written. */
typedef struct fl_file_id {
    uint64_t dev, ino, bytes;
    int64_t written_s, written_ns;
} fl_file_id;

FL_CHECKED fl_status fl_file_identify(int fd, const char *path, fl_file_id *id, fl_err *err);
/* FL_E_IO, with what is different, when the open file was written to, cut or extended since. */
FL_CHECKED fl_status fl_file_same(int fd, const char *path, const fl_file_id *was, fl_err *err);
/* The same, and also when `path` now leads to another file or to none. */
FL_CHECKED fl_status fl_file_in_place(int fd, const char *path, const fl_file_id *was, fl_err *err);

/* Whole file into malloc'ed memory with a NUL behind it (caller frees); refuses more than
 * `limit` bytes. */
FL_CHECKED fl_status fl_file_load(const char *path, uint64_t limit, char **data, uint64_t *size,
                                  fl_err *err);

/* The name to write under: behind symbolic links, so that a link stays one and the file it names is
 * what changes. malloc'ed. FL_E_IO: a link that leads to no file. */
FL_CHECKED fl_status fl_file_target(const char *path, char **out, fl_err *err);

/* Removes the file when SIGINT, SIGTERM, SIGHUP or SIGPIPE ends the process, until it is unguarded;
 * a signal that is ignored or handled is left alone. The name is borrowed; at most 32 at once, open
 * output files among them. */
void fl_file_guard(const char *path);
void fl_file_unguard(const char *path);

/* An output file that appears under its name only when complete: written to PATH.tmp.PID,
 * fsynced and renamed by commit; discard (or commit's failure) removes the temporary, which is
 * guarded. What a killed process left (its PID dead, its lock gone) is removed when PATH is
 * opened again. PATH may be a symbolic link: the file it leads to is replaced (the temporary lies
 * beside it), the link stays; a link that leads nowhere is FL_E_IO. */
typedef struct fl_outfile fl_outfile;
/* What open refuses before it touches anything: FL_E_ARG for an empty name, a folder, a device. */
FL_CHECKED fl_status fl_outfile_check(const char *path, fl_err *err);
FL_CHECKED fl_status fl_outfile_open(fl_outfile **out, const char *path, fl_err *err);
FL_CHECKED fl_status fl_outfile_write(fl_outfile *f, const void *data, uint64_t n, fl_err *err);
/* Overwrites bytes written before (headers filled in at the end). */
FL_CHECKED fl_status fl_outfile_write_at(fl_outfile *f, const void *data, uint64_t n,
                                         uint64_t offset, fl_err *err);
/* The next n bytes from another file, copied inside the kernel (shared, where the file system can)
 * or, where that is refused, through memory. FL_E_FORMAT when the other file ends before. */
FL_CHECKED fl_status fl_outfile_copy(fl_outfile *f, int from, uint64_t offset, uint64_t n,
                                     const char *from_path, fl_err *err);
uint64_t fl_outfile_tell(const fl_outfile *f);
/* Path of the temporary, for verification by re-reading before commit. */
const char *fl_outfile_tmp_path(const fl_outfile *f);
FL_CHECKED fl_status fl_outfile_flush(fl_outfile *f, fl_err *err);
FL_CHECKED fl_status fl_outfile_commit(fl_outfile **f, fl_err *err);
void fl_outfile_discard(fl_outfile **f);

#define FL_OUTFILE_PART ".part"
/* The same for work that outlives a process: the temporary is PATH.part, which no signal removes
 * and which is locked while it is open (another holder: FL_E_IO). It is cut to `at` bytes, which it
 * must have, and writing goes on there; 0 starts anew. Its bytes go to the disk while it grows. */
FL_CHECKED fl_status fl_outfile_open_part(fl_outfile **out, const char *path, uint64_t at,
                                          fl_err *err);
/* Flushed and fsynced, still open. */
FL_CHECKED fl_status fl_outfile_sync(fl_outfile *f, fl_err *err);
/* Closes the file of open_part, synced, and leaves PATH.part. *f becomes NULL whatever the outcome.
 */
FL_CHECKED fl_status fl_outfile_suspend(fl_outfile **f, fl_err *err);

#endif
