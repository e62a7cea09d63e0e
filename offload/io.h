#ifndef FL_OFFLOAD_IO_H
#define FL_OFFLOAD_IO_H

#include "runtime/base/status.h"

/* Reads of file extents into host memory, many at once. Backends: "uring" (io_uring with
 * O_DIRECT), "pread" (threads, when the kernel refuses io_uring), "fake" (tests: short reads,
 * errors, reordering, stalls). One thread owns an fl_io.
 *
 * O_DIRECT reads the aligned cover of an extent: the destination is `dst`, which has room for
 * fl_io_cover(io, ...) bytes and the io's alignment; the extent's first byte is found at
 * dst + (offset % align). A short read at the end of the file is success when the extent itself
 * is complete. Where O_DIRECT is refused the backend reads buffered and says so in fl_io_note. */
typedef struct fl_io fl_io;

typedef struct fl_extent {
    int32_t file;    /* index into the paths given at open */
    uint64_t offset; /* bytes */
    uint64_t bytes;
} fl_extent;

typedef struct fl_io_done {
    uint64_t tag;
    const void *data; /* the extent's first byte inside dst */
    fl_status status; /* FL_OK, or the read failed; message in `err` of fl_io_wait */
} fl_io_done;

typedef struct fl_io_stats {
    uint64_t bytes; /* bytes delivered (extents, not covers) */
    uint64_t reads; /* extents completed */
    uint64_t short_reads, retries;
    uint64_t busy_ns; /* time with at least one read in flight */
} fl_io_stats;

/* backend NULL = best that works, announced by fl_io_backend and fl_io_note. */
FL_CHECKED fl_status fl_io_open(fl_io **out, const char *backend, const char *const *paths,
                                int n_paths, int depth, fl_err *err);
void fl_io_close(fl_io **io); /* waits for what is in flight */
const char *fl_io_backend(const fl_io *io);
/* One line about a fallback that was taken ("io_uring refused: ...; using pread threads"), or
 * NULL. */
const char *fl_io_note(const fl_io *io);
uint32_t fl_io_align(const fl_io *io); /* alignment of memory and offsets, >= 512 */
/* Bytes that a read of [offset, offset + bytes) needs at dst. */
uint64_t fl_io_cover(const fl_io *io, uint64_t offset, uint64_t bytes);

/* Queues a read; FL_E_BUSY when `depth` reads are in flight. */
FL_CHECKED fl_status fl_io_submit(fl_io *io, const fl_extent *x, void *dst, uint64_t tag,
                                  fl_err *err);
/* Waits for at least `min` completions (0 = poll) and gives up to `max`. The returned status is
 * that of the first failed read among them, with path and offset in err; all given entries are
 * complete either way. */
FL_CHECKED fl_status fl_io_wait(fl_io *io, fl_io_done *done, int min, int max, int *n, fl_err *err);
int fl_io_in_flight(const fl_io *io);
fl_io_stats fl_io_get_stats(const fl_io *io);

#endif
