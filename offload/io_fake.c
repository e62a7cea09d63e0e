#include "offload/io_fake.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "offload/io_backend.h"
#include "runtime/base/clock.h"

typedef struct pending {
    int req;
    int hold;        /* polls until it may complete */
    uint64_t due_ns; /* not before that */
} pending;

typedef struct fake {
    fl_io_fake_config cfg;
    uint64_t rng;
    int bad_file; /* where fail_at struck */
    uint64_t bad_offset;
    int bad_left; /* times that this place fails yet */
    uint64_t n_failed;
    pending *queue; /* [depth], oldest first */
    int n;
} fake;

static uint32_t below(fake *f, uint32_t n)
{
    f->rng = f->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((f->rng >> 33) % n);
}

static bool chance(fake *f, int per_1024) { return per_1024 > 0 && (int)below(f, 1024) < per_1024; }

static fl_status fake_open(fl_io *io, fl_err *err)
{
    fake *f = calloc(1, sizeof *f);
    if (f) f->queue = calloc((size_t)io->depth, sizeof *f->queue);
    if (!f || !f->queue) {
        free(f);
        return FL_FAIL(err, FL_E_NOMEM, errno, "fake i/o: out of memory");
    }
    f->cfg.fail_at = -1;
    io->impl = f;
    return FL_OK;
}

static void fake_close(fl_io *io)
{
    fake *f = io->impl;
    free(f->queue);
    free(f);
    io->impl = NULL;
}

static int fake_queue(fl_io *io, int req)
{
    fake *f = io->impl;
    pending p = {.req = req};
    if (chance(f, f->cfg.stall_chance)) {
        const uint64_t now = fl_clock_ns(), ns = f->cfg.stall_ns;
        p.hold = f->cfg.stall_polls;
        p.due_ns = !ns ? 0 : now > UINT64_MAX - ns ? UINT64_MAX : now + ns;
    }
    f->queue[f->n++] = p;
    return 0;
}

static bool fails(fake *f, const fl_io_req *r)
{
    if (f->cfg.fail_at == 0) {
        f->cfg.fail_at = -1;
        f->bad_file = r->x.file;
        f->bad_offset = r->raw_offset;
        f->bad_left = f->cfg.fail_more;
        return true;
    }
    if (f->bad_left > 0 && r->x.file == f->bad_file && r->raw_offset == f->bad_offset) {
        f->bad_left--;
        return true;
    }
    if (f->cfg.fail_at > 0) f->cfg.fail_at--;
    return chance(f, f->cfg.fail_chance);
}

static int64_t fake_read(fl_io *io, fake *f, int req)
{
    const fl_io_req *r = &io->req[req];
    if (chance(f, f->cfg.again_chance)) return below(f, 2) ? -EAGAIN : -EINTR;
    if (fails(f, r)) {
        f->n_failed++;
        return -f->cfg.fail_errno;
    }
    const ssize_t got =
        pread(io->file[r->x.file].fd, r->raw_dst, r->raw_bytes, (off_t)r->raw_offset);
    if (got < 0) return -errno;
    if (got > 0 && chance(f, f->cfg.short_chance)) {
        /* What was not delivered must not be in the buffer by luck. */
        const uint32_t cut = below(f, (uint32_t)got);
        for (ssize_t i = cut; i < got; i++) r->raw_dst[i] = 0xa5;
        return cut;
    }
    return got;
}

static bool is_ready(const pending *p, uint64_t now) { return p->hold == 0 && p->due_ns <= now; }

/* Sleeps until a read is due; those that wait for polls are looked at again at once. */
static void sleep_until_due(const fake *f, uint64_t until_ns)
{
    for (int i = 0; i < f->n; i++)
        if (f->queue[i].due_ns < until_ns) until_ns = f->queue[i].due_ns;
    const struct timespec t = fl_clock_time(until_ns);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static int fake_reap(fl_io *io, fl_io_event *ev, int max, uint64_t until_ns)
{
    fake *f = io->impl;
    int n = 0;
    for (;;) {
        int ready = 0;
        const uint64_t now = fl_clock_ns();
        for (int i = 0; i < f->n; i++) {
            if (f->queue[i].hold > 0) f->queue[i].hold--;
            ready += is_ready(&f->queue[i], now);
        }
        while (n < max && ready > 0) {
            int skip = f->cfg.reorder ? (int)below(f, (uint32_t)ready) : 0, at = 0;
            while (!is_ready(&f->queue[at], now) || skip-- > 0) at++;
            const int req = f->queue[at].req;
            for (int i = at + 1; i < f->n; i++) f->queue[i - 1] = f->queue[i];
            f->n--;
            ready--;
            ev[n++] = (fl_io_event){.req = req, .res = fake_read(io, f, req)};
            /* Not all at once: the owner must cope with some now and some later. */
            if (f->cfg.reorder && below(f, 3) == 0) break;
        }
        if (n || now >= until_ns) return n;
        sleep_until_due(f, until_ns);
    }
}

const fl_io_ops fl_io_fake_ops = {.name = "fake",
                                  .direct = true,
                                  .open = fake_open,
                                  .close = fake_close,
                                  .queue = fake_queue,
                                  .reap = fake_reap};

void fl_io_fake_set(fl_io *io, const fl_io_fake_config *cfg)
{
    assert(io->ops == &fl_io_fake_ops);
    fake *f = io->impl;
    f->cfg = *cfg;
    f->rng = cfg->seed;
    f->bad_left = 0;
    f->n_failed = 0;
    for (int i = 0; i < f->n && !cfg->stall_ns; i++) f->queue[i].due_ns = 0;
}

uint64_t fl_io_fake_failed(const fl_io *io)
{
    const fake *f = io->impl;
    assert(io->ops == &fl_io_fake_ops);
    return f->n_failed;
}
