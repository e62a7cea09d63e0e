#include "offload/measure_link.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/clock.h"
#include "runtime/base/samples.h"

enum { LEAST = 5 }; /* copies of a size */
static const uint64_t SMALLEST = 64 << 10, BUDGET_NS = 40000000;

typedef struct link_run {
    fl_device *dev;
    void *to;
    void *from; /* host memory */
} link_run;

static fl_status time_copies(const link_run *r, uint64_t bytes, uint64_t *ns, fl_err *err)
{
    fl_samples s = {0};
    while (fl_samples_want(&s, LEAST, BUDGET_NS)) {
        fl_ticket t;
        const uint64_t start = fl_clock_ns();
        FL_TRY(fl_device_copy_async(r->dev, r->to, r->from, bytes, &t, err));
        FL_TRY(fl_device_wait(r->dev, t, err));
        fl_samples_add(&s, fl_clock_ns() - start);
    }
    *ns = s.least_ns;
    return FL_OK;
}

/* Rate between the two largest sizes. */
static uint64_t slope(const fl_link_rates *l, const uint64_t *ns)
{
    const int i = l->n - 1;
    if (i > 0 && ns[i] > ns[i - 1])
        return fl_rate_per_s(l->sample[i].bytes - l->sample[i - 1].bytes, ns[i] - ns[i - 1]);
    return fl_rate_per_s(l->sample[i].bytes, ns[i]);
}

/* What the smallest copies take beyond their bytes. */
static uint64_t start_cost(const fl_link_rates *l, const uint64_t *ns, uint64_t bytes_s)
{
    const uint64_t moving =
        bytes_s ? (uint64_t)((double)l->sample[0].bytes * 1e9 / (double)bytes_s) : 0;
    return ns[0] > moving ? ns[0] - moving : 0;
}

static fl_status measure(const link_run *r, fl_link_rates *out, uint64_t room, fl_err *err)
{
    uint64_t pageable[FL_LINK_SIZES] = {0}, pinned[FL_LINK_SIZES] = {0};
    for (int i = 0; i < out->n; i++)
        FL_TRY(time_copies(r, out->sample[i].bytes, &pageable[i], err));
    const uint64_t held = fl_device_pin(r->dev, r->from, room);
    fl_status st = FL_OK;
    out->pinned = held == room;
    for (int i = 0; st == FL_OK && out->pinned && i < out->n; i++)
        st = time_copies(r, out->sample[i].bytes, &pinned[i], err);
    fl_device_unpin(r->dev, r->from, held);
    FL_TRY(st);
    for (int i = 0; i < out->n; i++) {
        out->sample[i].pageable_bytes_s = fl_rate_per_s(out->sample[i].bytes, pageable[i]);
        out->sample[i].pinned_bytes_s = fl_rate_per_s(out->sample[i].bytes, pinned[i]);
    }
    out->pageable_bytes_s = slope(out, pageable);
    out->bytes_s = out->pinned ? slope(out, pinned) : out->pageable_bytes_s;
    out->start_ns = start_cost(out, out->pinned ? pinned : pageable, out->bytes_s);
    return FL_OK;
}

fl_status fl_link_measure(fl_device *dev, fl_link_rates *out, fl_err *err)
{
    const fl_budget *b = fl_device_budget(dev);
    link_run r = {.dev = dev};
    uint64_t room = 0, bytes = SMALLEST;
    *out = (fl_link_rates){0};
    for (; out->n < FL_LINK_SIZES && bytes <= (b->cap - b->used) / 2; bytes *= 4)
        out->sample[out->n++].bytes = room = bytes;
    if (out->n == 0) return FL_OK;
    r.from = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r.from == MAP_FAILED)
        return FL_FAIL(err, FL_E_NOMEM, errno, "measuring the link: no memory: %s",
                       strerror(errno));
    memset(r.from, 1, room);
    fl_status st = fl_device_alloc(dev, room, "measuring the link", &r.to, err);
    if (st == FL_OK) st = measure(&r, out, room, err);
    fl_device_free(dev, &r.to);
    munmap(r.from, room);
    return st;
}
