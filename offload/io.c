#include "offload/io.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/io_backend.h"
#include "runtime/base/clock.h"

enum { ALIGN_MIN = 512, ALIGN_MAX = 4096, MAX_STUCK = 64, MAX_DEPTH = 1024 };
static const uint64_t RAW_MAX = UINT64_C(1) << 30; /* the kernel moves at most 2 GiB at once */

static void append(char *to, size_t room, const char *text)
{
    const size_t n = strlen(to);
    snprintf(to + n, room - n, "%s%s", n ? "; " : "", text);
}

__attribute__((format(printf, 3, 4))) static void add_note(fl_io *io, bool fallback,
                                                           const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    append(io->note, sizeof io->note, text);
    if (fallback) append(io->fallback, sizeof io->fallback, text);
}

/* ---- files ---- */

static uint32_t pow2_between(uint64_t v)
{
    uint32_t p = ALIGN_MIN;
    while (p < v && p < (1u << 30)) p *= 2;
    return p;
}

/* What the file system asks of direct reads; 0 = it says that it has none. Where it says nothing,
 * a page serves every block size in use. */
static uint32_t asked_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx sx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 && (sx.stx_mask & STATX_DIOALIGN)) {
        if (!sx.stx_dio_mem_align || !sx.stx_dio_offset_align) return 0;
        const uint64_t a = sx.stx_dio_mem_align, b = sx.stx_dio_offset_align;
        return pow2_between(a > b ? a : b);
    }
#else
    (void)fd;
#endif
    return ALIGN_MAX;
}

/* One real read: some file systems grant the flag and refuse the read. */
static int probe(int fd, uint32_t align)
{
    void *p;
    int rc = posix_memalign(&p, ALIGN_MAX, align);
    if (rc) return rc;
    if (pread(fd, p, align, 0) < 0) rc = errno;
    free(p);
    return rc;
}

static void try_direct(fl_io *io, fl_io_file *f)
{
    int rc = EINVAL;
    uint32_t align = asked_align(f->fd);
    const int flags = fcntl(f->fd, F_GETFL);
    if (align && align <= ALIGN_MAX && flags >= 0) {
        rc = fcntl(f->fd, F_SETFL, flags | O_DIRECT) < 0 ? errno : 0;
        const bool granted = rc == 0;
        if (granted) rc = probe(f->fd, align);
        if (granted && rc == EINVAL && align < ALIGN_MAX) rc = probe(f->fd, align = ALIGN_MAX);
    }
    f->direct = rc == 0;
    if (f->direct) {
        if (align > io->align) io->align = align;
        return;
    }
    if (flags >= 0 && fcntl(f->fd, F_SETFL, flags) < 0) rc = errno;
    add_note(io, f == io->file || io->file[0].direct,
             "%s: O_DIRECT refused (%s), reading through the page cache and dropping pages behind",
             f->path, strerror(rc));
}

static fl_status open_files(fl_io *io, const char *const *paths, fl_err *err)
{
    for (int i = 0; i < io->n_files; i++) {
        fl_io_file *f = &io->file[i];
        FL_TRY(fl_file_open(paths[i], &f->fd, NULL, err));
        FL_TRY(fl_file_identify(f->fd, paths[i], &f->id, err));
        f->path = strdup(paths[i]);
        if (!f->path) return FL_FAIL(err, FL_E_NOMEM, errno, "%s: out of memory", paths[i]);
        if (io->ops->direct) try_direct(io, f);
        /* Read-ahead beyond an extent is work for bytes that nobody asked for. */
        if (!f->direct) (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
    }
    return FL_OK;
}

/* ---- open and close ---- */

static const fl_io_ops *find_ops(const char *name)
{
    static const fl_io_ops *const all[] = {&fl_io_uring_ops, &fl_io_pread_ops, &fl_io_buffered_ops,
                                           &fl_io_fake_ops};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}

static fl_status start_backend(fl_io *io, bool may_fall_back, fl_err *err)
{
    fl_err why = {0};
    fl_status st = io->ops->open(io, &why);
    if (st == FL_OK) return FL_OK;
    if (!may_fall_back || st != FL_E_UNSUPPORTED) return FL_FAIL(err, st, why.sys, "%s", why.msg);
    add_note(io, true, "%s; reading with pread threads", why.msg);
    io->ops = &fl_io_pread_ops;
    return io->ops->open(io, err);
}

fl_status fl_io_open(fl_io **out, const char *backend, const char *const *paths, int n_paths,
                     int depth, fl_err *err)
{
    assert(n_paths > 0 && depth > 0 && depth <= MAX_DEPTH);
    *out = NULL;
    const fl_io_ops *ops = find_ops(backend ? backend : "uring");
    if (!ops)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "i/o backend \"%s\": expected uring, pread, fake or buffered", backend);
    fl_status st;
    fl_io *io = calloc(1, sizeof *io);
    if (!io) return FL_FAIL(err, FL_E_NOMEM, errno, "i/o: out of memory");
    io->ops = ops;
    io->n_files = n_paths;
    io->depth = depth;
    io->align = ALIGN_MIN;
    io->file = calloc((size_t)n_paths, sizeof *io->file);
    io->req = calloc((size_t)depth, sizeof *io->req);
    io->free_req = calloc((size_t)depth, sizeof *io->free_req);
    io->event = calloc((size_t)depth, sizeof *io->event);
    if (!io->file || !io->req || !io->free_req || !io->event) {
        st = FL_FAIL(err, FL_E_NOMEM, errno, "i/o: out of memory for %d reads", depth);
        goto out;
    }
    for (int i = 0; i < n_paths; i++) io->file[i].fd = -1;
    for (int i = 0; i < depth; i++) io->free_req[io->n_free++] = depth - 1 - i;
    FL_GO(open_files(io, paths, err));
    FL_GO(start_backend(io, !backend, err));
    *out = io;
    io = NULL;
out:
    fl_io_close(&io);
    return st;
}

void fl_io_close(fl_io **iop)
{
    fl_io *io = *iop;
    if (!io) return;
    fl_io_done done;
    int n;
    /* Failures of reads that nobody waits for any more have nobody to tell. */
    while (io->impl && fl_io_in_flight(io)) {
        if (fl_io_wait(io, &done, 1, 1, &n, NULL) != FL_E_STALLED) continue;
        *iop = NULL;
        return;
    }
    if (io->impl) io->ops->close(io);
    for (int i = 0; io->file && i < io->n_files; i++) {
        if (io->file[i].fd >= 0) close(io->file[i].fd);
        free((char *)(uintptr_t)io->file[i].path);
    }
    free(io->event);
    free(io->free_req);
    free(io->req);
    free(io->file);
    free(io);
    *iop = NULL;
}

const char *fl_io_backend(const fl_io *io) { return io->ops->name; }
const char *fl_io_note(const fl_io *io) { return io->note[0] ? io->note : NULL; }
const char *fl_io_fallback(const fl_io *io) { return io->fallback[0] ? io->fallback : NULL; }
uint32_t fl_io_align(const fl_io *io) { return io->align; }
int fl_io_depth(const fl_io *io) { return io->depth; }
int fl_io_in_flight(const fl_io *io) { return io->depth - io->n_free; }

uint64_t fl_io_cover(const fl_io *io, uint64_t offset, uint64_t bytes)
{
    const uint64_t mask = io->align - 1;
    return ((offset & mask) + bytes + mask) & ~mask;
}

fl_io_stats fl_io_get_stats(const fl_io *io)
{
    fl_io_stats s = io->stats;
    if (fl_io_in_flight(io)) s.busy_ns += fl_clock_ns() - io->busy_since_ns;
    return s;
}

void fl_io_register(fl_io *io, void *base, uint64_t bytes)
{
    assert(fl_io_in_flight(io) == 0);
    if (!io->ops->enroll || io->broken) return;
    const int rc = io->ops->enroll(io, base, bytes);
    if (!rc) return;
    struct rlimit lim = {0};
    (void)getrlimit(RLIMIT_MEMLOCK, &lim);
    add_note(io, false,
             "%" PRIu64 " bytes of buffers not registered with io_uring (%s; the memory lock limit "
             "is %llu KiB, see ulimit -l), reading without",
             bytes, strerror(rc), (unsigned long long)lim.rlim_cur / 1024);
}

void fl_io_unregister(fl_io *io)
{
    assert(fl_io_in_flight(io) == 0);
    if (io->ops->unenroll && io->impl) io->ops->unenroll(io);
}

/* ---- reads ---- */

/* Hands the missing part of a request to the backend. */
static int queue(fl_io *io, int i)
{
    fl_io_req *r = &io->req[i];
    const uint64_t left = r->cover - r->got;
    r->raw_dst = r->dst + r->got;
    r->raw_offset = r->start + r->got;
    r->raw_bytes = (uint32_t)(left < RAW_MAX ? left : RAW_MAX);
    return io->ops->queue(io, i);
}

/* The kernel took the backend away. Its reads are given up as failed; their memory stays mapped
 * until the kernel lets go, so nothing is written where it must not be. */
static void give_up(fl_io *io, int sys)
{
    io->broken = sys;
    if (io->impl) io->ops->close(io);
    io->impl = NULL;
}

static fl_status broken(const fl_io *io, fl_err *err)
{
    return FL_FAIL(err, FL_E_IO, io->broken, "i/o backend %s stopped working: %s", io->ops->name,
                   strerror(io->broken));
}

fl_status fl_io_submit(fl_io *io, const fl_extent *x, void *dst, uint64_t tag, fl_err *err)
{
    assert(x->file >= 0 && x->file < io->n_files && x->bytes > 0);
    assert((uintptr_t)dst % io->align == 0);
    if (!io->n_free) return FL_E_BUSY;
    if (io->broken) return broken(io, err);
    const fl_io_file *f = &io->file[x->file];
    if (x->bytes > f->id.bytes || x->offset > f->id.bytes - x->bytes)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: %" PRIu64 " bytes at offset %" PRIu64 " wanted, the file has %" PRIu64
                       " bytes: it is truncated",
                       f->path, x->bytes, x->offset, f->id.bytes);
    const int i = io->free_req[--io->n_free];
    const uint64_t phase = x->offset & (io->align - 1);
    io->req[i] = (fl_io_req){.x = *x,
                             .tag = tag,
                             .dst = dst,
                             .start = x->offset - phase,
                             .cover = fl_io_cover(io, x->offset, x->bytes)};
    io->req[i].since_ns = io->moved_ns = fl_clock_ns();
    if (io->n_free == io->depth - 1) io->busy_since_ns = io->moved_ns;
    const int rc = queue(io, i);
    if (rc) {
        io->req[i].dst = NULL;
        io->free_req[io->n_free++] = i;
        give_up(io, rc);
        return broken(io, err);
    }
    return FL_OK;
}

/* A read that brought nothing new: the end of the file, or a kernel that wants to be asked again.
 */
static fl_status no_progress(fl_io *io, fl_io_req *r, fl_err *err)
{
    const fl_io_file *f = &io->file[r->x.file];
    FL_TRY(fl_file_same(f->fd, f->path, &f->id, err));
    if (++r->stuck < MAX_STUCK) return FL_E_BUSY;
    return FL_FAIL(err, FL_E_IO, 0,
                   "%s: read of %" PRIu64 " bytes at offset %" PRIu64 " stops at %" PRIu64
                   " and does not go on",
                   f->path, r->x.bytes, r->x.offset, r->start + r->got);
}

/* Errors of a drive, a cable, a network, or of a kernel short of memory: they may pass. */
static bool may_pass(int sys)
{
    static const int list[] = {EIO, ENODATA, EILSEQ, ETIMEDOUT, EREMOTEIO, ENOLINK, ENOMEM};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i] == sys) return true;
    return false;
}

/* After a failed read: a pause, longer each time. False when it failed for the last time. */
static bool try_again(fl_io *io, fl_io_req *r, int sys)
{
    static const long pause_ns[] = {1000000, 4000000, 16000000};
    if (!may_pass(sys) || r->errors == (int)(sizeof pause_ns / sizeof *pause_ns)) return false;
    nanosleep(&(struct timespec){.tv_nsec = pause_ns[r->errors++]}, NULL);
    io->stats.retries++;
    return true;
}

/* Takes in what the kernel said. FL_OK: the extent is complete; FL_E_BUSY: ask for the rest. */
static fl_status advance(fl_io *io, fl_io_req *r, int64_t res, fl_err *err)
{
    const fl_io_file *f = &io->file[r->x.file];
    if (res == -EINTR || res == -EAGAIN) {
        io->stats.retries++;
        if (++r->stuck < MAX_STUCK) return FL_E_BUSY;
    }
    if (res < 0 && try_again(io, r, (int)-res)) return FL_E_BUSY;
    if (res < 0)
        return FL_FAIL(err, FL_E_IO, (int)-res,
                       "%s: read of %" PRIu64 " bytes at offset %" PRIu64 " failed%s: %s", f->path,
                       r->x.bytes, r->x.offset, r->errors ? " again and again" : "",
                       strerror((int)-res));
    const uint64_t reached = r->got + (uint64_t)res;
    if (reached >= (r->x.offset - r->start) + r->x.bytes)
        return fl_file_same(f->fd, f->path, &f->id, err);
    io->stats.short_reads++;
    /* Direct reads go on at an aligned offset; what lies behind it is read again. */
    const uint64_t got = reached & ~(uint64_t)(io->align - 1);
    if (got == r->got) return no_progress(io, r, err);
    r->got = got;
    r->stuck = 0;
    return FL_E_BUSY;
}

static void finish(fl_io *io, int i, fl_status st, fl_io_done *done)
{
    fl_io_req *r = &io->req[i];
    const fl_io_file *f = &io->file[r->x.file];
    *done = (fl_io_done){.tag = r->tag, .data = r->dst + (r->x.offset - r->start), .status = st};
    if (st == FL_OK) {
        io->stats.bytes += r->x.bytes;
        io->stats.reads++;
    }
    if (!f->direct)
        (void)posix_fadvise(f->fd, (off_t)r->start, (off_t)r->cover, POSIX_FADV_DONTNEED);
    r->dst = NULL;
    io->free_req[io->n_free++] = i;
    if (io->n_free == io->depth) io->stats.busy_ns += fl_clock_ns() - io->busy_since_ns;
}

/* One event; true when it completed a request. */
static bool take_event(fl_io *io, const fl_io_event *ev, fl_io_done *done, fl_err *err)
{
    fl_status st = advance(io, &io->req[ev->req], ev->res, err);
    if (st == FL_E_BUSY) {
        const int rc = queue(io, ev->req);
        if (!rc) return false;
        give_up(io, rc);
        st = broken(io, err);
    }
    finish(io, ev->req, st, done);
    return true;
}

void fl_io_flush(fl_io *io)
{
    if (!io->ops->flush || io->broken) return;
    const int rc = io->ops->flush(io);
    if (rc) give_up(io, rc);
}

/* ---- waiting ---- */

void fl_io_set_limit(fl_io *io, uint64_t ns) { io->limit_ns = ns; }

static const fl_io_req *oldest(const fl_io *io)
{
    const fl_io_req *first = NULL;
    for (int i = 0; i < io->depth; i++)
        if (io->req[i].dst && (!first || io->req[i].since_ns < first->since_ns))
            first = &io->req[i];
    return first;
}

static fl_status stalled(const fl_io *io, fl_err *err)
{
    const fl_io_req *r = oldest(io);
    const uint64_t now = fl_clock_ns();
    return FL_FAIL(err, FL_E_STALLED, 0,
                   "%s: read of %" PRIu64 " bytes at offset %" PRIu64
                   " takes %.1f s by now, and none of %d reads was completed for %.1f s: the drive "
                   "hangs",
                   io->file[r->x.file].path, r->x.bytes, r->x.offset,
                   (double)(now - r->since_ns) * 1e-9, fl_io_in_flight(io),
                   (double)(now - io->moved_ns) * 1e-9);
}

void fl_io_describe(const fl_io *io, fl_text *out)
{
    const uint64_t now = fl_clock_ns();
    for (int i = 0; i < io->depth; i++) {
        const fl_io_req *r = &io->req[i];
        if (!r->dst) continue;
        fl_text_printf(out,
                       "read by %s: %s: %" PRIu64 " bytes at offset %" PRIu64 ", %" PRIu64
                       " of them there, for %.1f s\n",
                       io->ops->name, io->file[r->x.file].path, r->x.bytes, r->x.offset, r->got,
                       (double)(now - r->since_ns) * 1e-9);
    }
}

static int fail_all(fl_io *io, fl_io_done *done, int max)
{
    int n = 0;
    for (int i = 0; i < io->depth && n < max; i++)
        if (io->req[i].dst) finish(io, i, FL_E_IO, &done[n++]);
    return n;
}

fl_status fl_io_wait(fl_io *io, fl_io_done *done, int min, int max, int *n, fl_err *err)
{
    fl_status first = FL_OK;
    *n = 0;
    assert(min <= max);
    if (min > fl_io_in_flight(io)) min = fl_io_in_flight(io);
    bool polled = false;
    while (*n < max && fl_io_in_flight(io) && (*n < min || !polled)) {
        if (io->broken) {
            *n += fail_all(io, done + *n, max - *n);
            return first != FL_OK ? first : broken(io, err);
        }
        const uint64_t until = *n >= min      ? 0
                               : io->limit_ns ? io->moved_ns + io->limit_ns
                                              : UINT64_MAX;
        const int got = io->ops->reap(io, io->event, max - *n, until);
        if (got < 0) {
            give_up(io, -got);
            continue;
        }
        polled = got == 0;
        if (got) io->moved_ns = fl_clock_ns();
        if (!got && *n < min) return *n ? first : stalled(io, err);
        for (int k = 0; k < got; k++) {
            fl_io_done d;
            if (!take_event(io, &io->event[k], &d, first == FL_OK ? err : NULL)) continue;
            if (first == FL_OK) first = d.status;
            done[(*n)++] = d;
        }
    }
    return first;
}
