#include "offload/host.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/pages.h"

enum { PAGE = 4096, TAG_PARTS = 4 };

typedef struct resident {
    uint64_t at; /* offset in the arena */
    uint8_t state;
    uint8_t n_reading; /* parts */
    bool bad;          /* one of them failed */
} resident;

struct fl_host {
    fl_device *dev;
    fl_io *io;
    const fl_plan *plan;
    const fl_expert_place *place;
    uint8_t *memory;
    resident *expert; /* [n_keys]; of other tiers: unused */
    int n_keys;
    int next; /* turn that is looked at next: expert 0 of each layer, expert 1 of each layer, ... */
    int n_left; /* experts neither there nor failed */
    uint64_t since_ns;
    fl_host_stats stats;
};

static uint64_t part_place(const fl_extent *x)
{
    return x->bytes ? (x->offset % PAGE + x->bytes + PAGE - 1) / PAGE * PAGE : 0;
}

uint64_t fl_host_place_bytes(const fl_expert_place *x)
{
    uint64_t n = 0;
    for (int k = 0; k < FL_EXPERT_PARTS; k++) n += part_place(&x->part[k]);
    return n;
}

static uint8_t *part_at(const fl_host *h, int32_t key, int part)
{
    uint8_t *p = h->memory + h->expert[key].at;
    for (int k = 0; k < part; k++) p += part_place(&h->place[key].part[k]);
    return p;
}

static fl_status take_arena(fl_host *h, fl_err *err)
{
    const uint64_t bytes = h->plan->arena_bytes;
    void *m = fl_pages_take(bytes);
    if (!m)
        return FL_FAIL(err, FL_E_NOMEM, errno,
                       "host memory: the machine refused %llu bytes for experts: %s; lower --ram",
                       (unsigned long long)bytes, strerror(errno));
    h->memory = m;
    h->stats.bytes = bytes;
    fl_io_register(h->io, m, bytes);
    h->stats.pinned = fl_device_pin(h->dev, m, bytes);
    return FL_OK;
}

fl_status fl_host_create(fl_host **out, fl_device *dev, fl_io *io, const fl_plan *plan,
                         const fl_expert_place *place, fl_err *err)
{
    assert(plan->arena_bytes > 0 && fl_io_depth(io) >= FL_EXPERT_PARTS);
    *out = NULL;
    fl_host *h = calloc(1, sizeof *h);
    const int n = plan->in.n_layer * plan->in.n_expert;
    resident *expert = calloc((size_t)n, sizeof *expert);
    fl_status st = FL_OK;
    if (!h || !expert) {
        free(expert);
        free(h);
        return FL_FAIL(err, FL_E_NOMEM, errno, "host tier: out of memory for %d experts", n);
    }
    *h = (fl_host){.dev = dev,
                   .io = io,
                   .plan = plan,
                   .place = place,
                   .expert = expert,
                   .n_keys = n,
                   .n_left = plan->n_host,
                   .since_ns = fl_clock_ns()};
    uint64_t at = 0;
    for (int k = 0; k < n; k++) {
        if (plan->tier[k] != FL_TIER_HOST) continue;
        expert[k].at = at;
        at += fl_host_place_bytes(&place[k]);
    }
    assert(at == plan->arena_bytes);
    FL_GO(take_arena(h, err));
    *out = h;
    h = NULL;
out:
    fl_host_destroy(&h);
    return st;
}

/* ---- loading ---- */

static void part_done(fl_host *h, const fl_io_done *done)
{
    const int32_t key = (int32_t)(done->tag / TAG_PARTS);
    resident *e = &h->expert[key];
    assert(e->state == FL_HOST_READS && e->n_reading > 0);
    e->bad |= done->status != FL_OK;
    if (--e->n_reading > 0) return;
    e->state = e->bad ? FL_HOST_FAILED : FL_HOST_THERE;
    h->stats.failed += e->bad;
    for (int k = 0; k < FL_EXPERT_PARTS && !e->bad; k++)
        h->stats.bytes_loaded += h->place[key].part[k].bytes;
    if (--h->n_left == 0) h->stats.load_ns = fl_clock_ns() - h->since_ns;
}

/* FL_E_STALLED: nothing came. */
static fl_status collect(fl_host *h, bool block, fl_err *err)
{
    fl_io_done done[FL_EXPERT_PARTS];
    for (int n = 1; n > 0; block = false) {
        /* Whoever needs an expert that failed will read the file and be told why it cannot be. */
        fl_err why = {0};
        const fl_status st = fl_io_wait(h->io, done, block, FL_EXPERT_PARTS, &n, &why);
        for (int i = 0; i < n; i++) part_done(h, &done[i]);
        if (st == FL_E_STALLED) return FL_FAIL(err, st, why.sys, "%s", why.msg);
    }
    return FL_OK;
}

/* Starts all parts of an expert; there is room for them. */
static void read_expert(fl_host *h, int32_t key)
{
    resident *e = &h->expert[key];
    e->state = FL_HOST_READS;
    e->n_reading = 1; /* until all are submitted */
    for (int k = 0; k < FL_EXPERT_PARTS && !e->bad; k++) {
        const fl_extent *x = &h->place[key].part[k];
        if (!x->bytes) continue;
        const uint64_t tag = (uint64_t)key * TAG_PARTS + (uint64_t)k;
        if (fl_io_submit(h->io, x, part_at(h, key, k), tag, NULL) == FL_OK)
            e->n_reading++;
        else
            e->bad = true;
    }
    part_done(h, &(fl_io_done){.tag = (uint64_t)key * TAG_PARTS});
}

static int room(const fl_host *h) { return fl_io_depth(h->io) - fl_io_in_flight(h->io); }

void fl_host_hurry(fl_host *h, int32_t key)
{
    if (h->expert[key].state == FL_HOST_WAITS && room(h) >= FL_EXPERT_PARTS) read_expert(h, key);
}

/* Half of the depth is left to what is hurried. */
static void submit(fl_host *h)
{
    const int n_layer = h->plan->in.n_layer;
    const int least =
        fl_io_depth(h->io) / 2 > FL_EXPERT_PARTS ? fl_io_depth(h->io) / 2 : FL_EXPERT_PARTS;
    for (; h->next < h->n_keys && room(h) >= least; h->next++) {
        const int32_t key = h->next % n_layer * h->plan->in.n_expert + h->next / n_layer;
        if (h->plan->tier[key] == FL_TIER_HOST && h->expert[key].state == FL_HOST_WAITS)
            read_expert(h, key);
    }
}

static fl_status move_on(fl_host *h, bool block, fl_err *err)
{
    if (h->n_left == 0) return FL_OK;
    submit(h);
    FL_TRY(collect(h, block && fl_io_in_flight(h->io) > 0, err));
    submit(h);
    return FL_OK;
}

void fl_host_poll(fl_host *h)
{
    if (move_on(h, false, NULL) != FL_OK) return; /* only a wait stalls */
}

fl_status fl_host_wait(fl_host *h, fl_err *err) { return move_on(h, true, err); }

/* ---- questions ---- */

bool fl_host_is_loaded(const fl_host *h) { return h->n_left == 0; }

fl_host_state fl_host_state_of(const fl_host *h, int32_t key)
{
    return (fl_host_state)h->expert[key].state;
}

const uint8_t *fl_host_part(const fl_host *h, int32_t key, int part)
{
    const fl_extent *x = &h->place[key].part[part];
    assert(h->expert[key].state == FL_HOST_THERE);
    return x->bytes ? part_at(h, key, part) + x->offset % fl_io_align(h->io) : NULL;
}

fl_host_stats fl_host_get_stats(const fl_host *h)
{
    fl_host_stats s = h->stats;
    if (h->n_left) s.load_ns = fl_clock_ns() - h->since_ns;
    return s;
}

void fl_host_destroy(fl_host **hp)
{
    fl_host *h = *hp;
    if (!h) return;
    while (fl_io_in_flight(h->io)) {
        if (collect(h, true, NULL) == FL_OK) continue;
        *hp = NULL;
        return;
    }
    if (h->memory) {
        fl_device_unpin(h->dev, h->memory, h->stats.pinned);
        fl_io_unregister(h->io);
        fl_pages_give(h->memory, h->stats.bytes);
    }
    free(h->expert);
    free(h);
    *hp = NULL;
}
