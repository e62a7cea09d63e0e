#ifndef FL_OFFLOAD_IO_BACKEND_H
#define FL_OFFLOAD_IO_BACKEND_H

#include <stdbool.h>

#include "offload/io.h"
#include "runtime/base/file.h"

/* Between io.c and its backends. io.c owns files, alignment, covers, short reads and messages; a
 * backend moves bytes: it is handed one raw read at a time and gives back its index and what the
 * kernel said (bytes or -errno). */

typedef struct fl_io_file {
    const char *path; /* own copy */
    int fd;
    fl_file_id id; /* at open */
    bool direct;
} fl_io_file;

typedef struct fl_io_req {
    fl_extent x;
    uint64_t tag;
    uint8_t *dst;
    uint64_t start;    /* file offset of the cover */
    uint64_t cover;    /* its bytes */
    uint64_t got;      /* of these, from the start; a multiple of align while more is wanted */
    int stuck;         /* completions in a row without progress */
    int errors;        /* failures that may pass */
    uint64_t since_ns; /* when it was submitted */
    /* the raw read that the backend is to do next */
    uint8_t *raw_dst;
    uint32_t raw_bytes;
    uint64_t raw_offset;
} fl_io_req;

typedef struct fl_io_event {
    int req;
    int64_t res; /* bytes, or -errno */
} fl_io_event;

typedef struct fl_io_ops {
    const char *name;
    bool direct; /* wants O_DIRECT */
    /* Sets io->impl. Errors: FL_E_UNSUPPORTED, message with cause and advice. */
    fl_status (*open)(fl_io *io, fl_err *err);
    void (*close)(fl_io *io); /* nothing is in flight, or the backend is broken */
    /* Takes io->req[req]; it starts now or with the next flush or reap. Returns 0 or an errno that
     * makes the backend unusable. */
    int (*queue)(fl_io *io, int req);
    int (*flush)(fl_io *io); /* the same; NULL: queue starts it */
    /* Up to max events. While there is none it waits until that time of fl_clock_ns; 0: it does
     * not wait. Returns their number or -errno (unusable). */
    int (*reap)(fl_io *io, fl_io_event *ev, int max, uint64_t until_ns);
    /* May be NULL. Returns 0 or an errno. */
    int (*enroll)(fl_io *io, void *base, uint64_t bytes);
    void (*unenroll)(fl_io *io);
} fl_io_ops;

struct fl_io {
    const fl_io_ops *ops;
    void *impl; /* the backend's own; NULL when the kernel took it away */
    fl_io_file *file;
    int n_files;
    int depth;
    uint32_t align;
    fl_io_req *req; /* [depth] */
    int *free_req;  /* stack of free indices */
    int n_free;
    fl_io_event *event; /* [depth] */
    int broken;         /* errno that ended the backend */
    uint64_t busy_since_ns;
    uint64_t limit_ns; /* fl_io_set_limit */
    uint64_t moved_ns; /* when a read was submitted or the backend told of one, last */
    fl_io_stats stats;
    char note[1024], fallback[512];
};

extern const fl_io_ops fl_io_uring_ops, fl_io_pread_ops, fl_io_buffered_ops, fl_io_fake_ops;

#endif
