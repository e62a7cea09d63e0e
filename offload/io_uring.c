#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "offload/io_backend.h"
#include "runtime/base/clock.h"

#if __has_include(<liburing.h>) && !defined(FL_MINIMAL)
#include <liburing.h>

static const uint64_t BUFFER_MAX = UINT64_C(1) << 30; /* the kernel's limit for one */

typedef struct ring {
    struct io_uring u;
    bool files; /* registered: requests name an index */
    uint8_t *base;
    uint64_t bytes; /* registered memory, in buffers of BUFFER_MAX */
} ring;

static fl_status refused(int sys, const char *step, fl_err *err)
{
    struct rlimit lim = {0};
    (void)getrlimit(RLIMIT_MEMLOCK, &lim);
    if (sys == ENOMEM)
        return FL_FAIL(
            err, FL_E_UNSUPPORTED, sys,
            "io_uring refused (%s: %s): the memory lock limit is %llu KiB, raise it with "
            "ulimit -l unlimited",
            step, strerror(sys), (unsigned long long)lim.rlim_cur / 1024);
    return FL_FAIL(err, FL_E_UNSUPPORTED, sys, "io_uring refused (%s: %s)%s", step, strerror(sys),
                   sys == EPERM    ? ": a container's seccomp profile or sysctl "
                                     "kernel.io_uring_disabled forbids it"
                   : sys == ENOSYS ? ": this kernel has none"
                                   : "");
}

static void prepare(const ring *g, const fl_io *io, const fl_io_req *r, struct io_uring_sqe *s)
{
    const int fd = g->files ? r->x.file : io->file[r->x.file].fd;
    bool fixed = false;
    if (g->bytes && r->raw_dst >= g->base && r->raw_dst < g->base + g->bytes) {
        const uint64_t at = (uint64_t)(r->raw_dst - g->base), end = at + r->raw_bytes;
        fixed = end <= g->bytes && at / BUFFER_MAX == (end - 1) / BUFFER_MAX;
        if (fixed)
            io_uring_prep_read_fixed(s, fd, r->raw_dst, r->raw_bytes, r->raw_offset,
                                     (int)(at / BUFFER_MAX));
    }
    if (!fixed) io_uring_prep_read(s, fd, r->raw_dst, r->raw_bytes, r->raw_offset);
    if (g->files) s->flags |= IOSQE_FIXED_FILE;
}

/* A ring may be granted and reads on it refused: one real read decides. */
static int probe(ring *g, const fl_io *io)
{
    void *p;
    int rc = posix_memalign(&p, 4096, io->align);
    if (rc) return rc;
    const fl_io_req r = {.raw_dst = p, .raw_bytes = io->align};
    struct io_uring_sqe *s = io_uring_get_sqe(&g->u);
    struct io_uring_cqe *c = NULL;
    prepare(g, io, &r, s);
    do rc = io_uring_submit_and_wait(&g->u, 1);
    while (rc == -EINTR || rc == -EAGAIN);
    if (rc >= 0) rc = io_uring_wait_cqe(&g->u, &c);
    rc = rc < 0 ? -rc : c->res < 0 ? -c->res : 0;
    if (c) io_uring_cqe_seen(&g->u, c);
    free(p);
    return rc;
}

static fl_status uring_open(fl_io *io, fl_err *err)
{
    ring *g = calloc(1, sizeof *g);
    int *fds = calloc((size_t)io->n_files, sizeof *fds);
    fl_status st = FL_OK;
    if (!g || !fds) {
        st = FL_FAIL(err, FL_E_NOMEM, errno, "i/o ring: out of memory");
        goto out;
    }
    /* Completions are taken in when the owner enters the kernel, not by interrupting it while it
     * computes. Older kernels know neither flag. The ring is not bound to one thread by
     * SINGLE_ISSUER: the thread that loads may not be the one that runs. */
    int rc = io_uring_queue_init((unsigned)io->depth, &g->u,
                                 IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (rc == -EINVAL) rc = io_uring_queue_init((unsigned)io->depth, &g->u, 0);
    if (rc < 0) {
        st = refused(-rc, "setup", err);
        goto out;
    }
    for (int i = 0; i < io->n_files; i++) fds[i] = io->file[i].fd;
    g->files = io_uring_register_files(&g->u, fds, (unsigned)io->n_files) == 0;
    rc = probe(g, io);
    if (rc) {
        io_uring_queue_exit(&g->u);
        st = refused(rc, "first read", err);
        goto out;
    }
    io->impl = g;
    g = NULL;
out:
    free(fds);
    free(g);
    return st;
}

static void uring_close(fl_io *io)
{
    ring *g = io->impl;
    io_uring_queue_exit(&g->u);
    free(g);
    io->impl = NULL;
}

static int uring_queue(fl_io *io, int req)
{
    ring *g = io->impl;
    struct io_uring_sqe *s = io_uring_get_sqe(&g->u); /* the ring holds `depth` */
    if (!s) return EBUSY;
    prepare(g, io, &io->req[req], s);
    io_uring_sqe_set_data64(s, (uint64_t)req);
    return 0;
}

/* The kernel has no memory for a request now, or its completions wait to be taken. */
static bool later(int rc) { return rc == -EAGAIN || rc == -EBUSY; }

static bool fatal(int rc) { return rc < 0 && !later(rc) && rc != -EINTR && rc != -ETIME; }

/* What the kernel does not take now stays in the submission ring until the next call. */
static int uring_flush(fl_io *io)
{
    ring *g = io->impl;
    const int rc = io_uring_sq_ready(&g->u) ? io_uring_submit(&g->u) : 0;
    return fatal(rc) ? -rc : 0;
}

/* Submits what waits and sleeps until a completion, in one call of the kernel. */
static int submit_and_sleep(ring *g, uint64_t ns)
{
    static const struct timespec nap = {.tv_nsec = 1000000};
    struct io_uring_cqe *c;
    const struct timespec t = fl_clock_time(ns);
    struct __kernel_timespec most = {.tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec};
    const int rc = io_uring_submit_and_wait_timeout(&g->u, &c, 1, &most, NULL);
    if (later(rc)) nanosleep(&nap, NULL);
    return fatal(rc) ? rc : 0;
}

static int uring_reap(fl_io *io, fl_io_event *ev, int max, uint64_t until_ns)
{
    ring *g = io->impl;
    struct io_uring_cqe *c;
    int n = 0, rc;
    /* Submits again while it waits: what the kernel refused may be all that there is. */
    while (until_ns && io_uring_peek_cqe(&g->u, &c) != 0) {
        const uint64_t now = fl_clock_ns();
        if (now >= until_ns) break;
        rc = submit_and_sleep(g, until_ns - now);
        if (rc < 0) return rc;
    }
    rc = uring_flush(io); /* what was queued runs while the caller takes in the rest */
    if (rc) return -rc;
    while (n < max && io_uring_peek_cqe(&g->u, &c) == 0) {
        ev[n++] = (fl_io_event){.req = (int)io_uring_cqe_get_data64(c), .res = c->res};
        io_uring_cqe_seen(&g->u, c);
    }
    return n;
}

static int uring_enroll(fl_io *io, void *base, uint64_t bytes)
{
    ring *g = io->impl;
    struct iovec v[64];
    unsigned n = 0;
    for (uint64_t at = 0; at < bytes; at += BUFFER_MAX) {
        if (n == 64) return E2BIG;
        v[n++] = (struct iovec){.iov_base = (uint8_t *)base + at,
                                .iov_len = bytes - at < BUFFER_MAX ? bytes - at : BUFFER_MAX};
    }
    const int rc = io_uring_register_buffers(&g->u, v, n);
    if (rc < 0) return -rc;
    g->base = base;
    g->bytes = bytes;
    return 0;
}

static void uring_unenroll(fl_io *io)
{
    ring *g = io->impl;
    if (g->bytes) (void)io_uring_unregister_buffers(&g->u);
    g->base = NULL;
    g->bytes = 0;
}

const fl_io_ops fl_io_uring_ops = {.name = "uring",
                                   .direct = true,
                                   .open = uring_open,
                                   .close = uring_close,
                                   .queue = uring_queue,
                                   .flush = uring_flush,
                                   .reap = uring_reap,
                                   .enroll = uring_enroll,
                                   .unenroll = uring_unenroll};
#else
static fl_status uring_open(fl_io *io, fl_err *err)
{
    (void)io;
    return FL_FAIL(err, FL_E_UNSUPPORTED, ENOSYS, "io_uring refused: built without liburing");
}

const fl_io_ops fl_io_uring_ops = {.name = "uring", .direct = true, .open = uring_open};
#endif
