#ifndef FL_OFFLOAD_IO_H
#define FL_OFFLOAD_IO_H

#include "runtime/base/text.h"

/* Reads of file extents into host memory, many at once. Backends:
 *   "uring"     io_uring with O_DIRECT
 *   "pread"     threads with O_DIRECT, where the kernel refuses io_uring
 *   "fake"      reads on the owner's thread; tests make it give short reads, errors, another order,
 *               stalls (offload/io_fake.h)
 *   "buffered"  the pread threads through the page cache, to compare (bench/io.c); no value of --io
 * One thread owns an fl_io; another may take over while nothing is in flight.
 *
 * O_DIRECT reads the aligned cover of an extent: the destination is `dst`, which is aligned to
 * fl_io_align and has room for fl_io_cover(io, ...) bytes; the extent's first byte is found at
 * dst + (offset % align). A short read at the end of the file is success when the extent itself
 * is complete. Where O_DIRECT is refused the backend reads through the page cache, drops the pages
 * behind it and says so in fl_io_note.
 *
 * A read error that may pass (the drive's, or of a lack of memory) is tried again three times, with
 * pauses of 1, 4 and 16 ms. A file that is written to, cut or extended while it is open fails all
 * reads from then on: its bytes are not those that were indexed. Held by tests/offload/test_io.c.
 */
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
    uint64_t bytes;       /* bytes delivered (extents, not covers) */
    uint64_t reads;       /* extents completed */
    uint64_t short_reads; /* continued where they stopped */
    uint64_t retries;     /* interrupted and failed reads that were queued again */
    uint64_t busy_ns;     /* time with at least one read in flight, until its completion was seen:
                             bytes / busy_ns is the running rate in GB/s */
} fl_io_stats;

/* backend NULL = the best that works, announced by fl_io_backend and fl_io_note. A backend asked
 * for by name that the machine refuses is FL_E_UNSUPPORTED, an unknown name FL_E_ARG; a path that
 * is no readable regular file fails as fl_file_open does. depth: reads in flight, 1 to 1,024. */
FL_CHECKED fl_status fl_io_open(fl_io **out, const char *backend, const char *const *paths,
                                int n_paths, int depth, fl_err *err);
/* Waits for what is in flight; of a drive that hangs, beyond the limit, everything is left as it
 * is: the kernel may still write. */
void fl_io_close(fl_io **io);
const char *fl_io_backend(const fl_io *io);
/* One line about the fallbacks that were taken ("io_uring refused: ...; reading with pread
 * threads"), or NULL. */
const char *fl_io_note(const fl_io *io);
/* The part of it that costs speed on this machine: the backend that was refused, the first file
 * without O_DIRECT. NULL when there is none. */
const char *fl_io_fallback(const fl_io *io);
uint32_t fl_io_align(const fl_io *io); /* of memory and offsets: a power of two, 512 to 4,096 */
int fl_io_depth(const fl_io *io);
/* Bytes that a read of [offset, offset + bytes) needs at dst: the aligned cover. */
uint64_t fl_io_cover(const fl_io *io, uint64_t offset, uint64_t bytes);

/* Advice: most reads will go to [base, base + bytes), page-aligned anonymous memory that stays
 * until unregister or close; io_uring then maps it once instead of at each read. Nothing may be in
 * flight. A refusal (memory lock limit) only adds to fl_io_note. */
void fl_io_register(fl_io *io, void *base, uint64_t bytes);
void fl_io_unregister(fl_io *io);

/* A drive that hangs: fl_io_wait gives up after that long without any completion. 0, as after open:
 * never. */
void fl_io_set_limit(fl_io *io, uint64_t ns);
/* A line for each read in flight: file, offset, bytes, age. */
void fl_io_describe(const fl_io *io, fl_text *out);

/* Queues a read of x->bytes > 0 bytes. FL_E_BUSY when `depth` reads are in flight (err is left
 * alone); FL_E_FORMAT when the extent passes the end that the file had at open. */
FL_CHECKED fl_status fl_io_submit(fl_io *io, const fl_extent *x, void *dst, uint64_t tag,
                                  fl_err *err);
/* Starts what was queued now instead of with the next wait. A failure is told by that. */
void fl_io_flush(fl_io *io);
/* Waits for at least `min` completions (0 = poll; never more than are in flight) and gives up to
 * `max`. The returned status is that of the first failed read among them, with path and offset in
 * err; all given entries are complete either way. A file that was changed, a read error that
 * stays, and a ring that the kernel took away are FL_E_IO. FL_E_STALLED: nothing was completed for
 * the limit's time and *n is 0; what is in flight stays so, dst must stay, and a later wait may get
 * it. With some completed, fewer than min may be given instead. */
FL_CHECKED fl_status fl_io_wait(fl_io *io, fl_io_done *done, int min, int max, int *n, fl_err *err);
int fl_io_in_flight(const fl_io *io);
fl_io_stats fl_io_get_stats(const fl_io *io);

#endif
