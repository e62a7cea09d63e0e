#include "offload/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t MiB = 1024 * 1024;

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The i-th expert of the order in which experts become resident: round robin over the layers. */
static size_t nth(const fl_plan *p, int i)
{
    const int layer = i % p->in.n_layer, expert = i / p->in.n_layer;
    return (size_t)layer * (size_t)p->in.n_expert + (size_t)expert;
}

static fl_status sum_sizes(fl_plan *p, uint64_t *largest, fl_err *err)
{
    const fl_plan_input *in = &p->in;
    bool over = false;
    for (int i = 0; i < in->n_items; i++)
        over |= __builtin_add_overflow(p->fixed_bytes, in->item[i].bytes, &p->fixed_bytes);
    *largest = 0;
    for (int i = 0; i < in->n_layer * in->n_expert; i++) {
        const uint64_t b = in->expert_bytes[i];
        if (b % 64)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "plan: expert %d of layer %d has %llu bytes, expected a multiple of 64",
                           i % in->n_expert, i / in->n_expert, (unsigned long long)b);
        over |= __builtin_add_overflow(p->expert_bytes, b, &p->expert_bytes);
        p->n_total += b != 0;
        *largest = max_u64(*largest, b);
    }
    /* Slots and staging are products of the largest size: keep them far from overflow too. */
    over |= __builtin_add_overflow(p->fixed_bytes, p->expert_bytes, &p->full_device_cap);
    if (over || *largest > UINT64_MAX / 4 / FL_PLAN_MAX_STAGES)
        return FL_FAIL(err, FL_E_ARG, 0, "plan: the sizes of the model overflow 64 bits");
    p->min_device_cap = p->fixed_bytes + *largest;
    return FL_OK;
}

static fl_status refuse(const fl_plan *p, uint64_t largest, fl_err *err)
{
    const fl_plan_input *in = &p->in;
    const fl_plan_item *big = NULL;
    for (int i = 0; i < in->n_items; i++)
        if (!big || in->item[i].bytes > big->bytes) big = &in->item[i];
    return FL_FAIL(err, in->cap_asked ? FL_E_ARG : FL_E_NOMEM, 0,
                   "device memory: needs at least %llu bytes (%.1f MiB: %.1f fixed, of which %s "
                   "%.1f, and %.1f for one expert), the cap is %llu bytes (%.1f MiB); "
                   "--vram %lluM would do%s%s",
                   (unsigned long long)p->min_device_cap, (double)p->min_device_cap / MiB,
                   (double)p->fixed_bytes / MiB, big ? big->name : "nothing",
                   big ? (double)big->bytes / MiB : 0.0, (double)largest / MiB,
                   (unsigned long long)in->device_cap, (double)in->device_cap / MiB,
                   (unsigned long long)(p->min_device_cap / MiB + (p->min_device_cap % MiB != 0)),
                   in->less ? ", " : "", in->less ? in->less : "");
}

static uint64_t choose_slots(const fl_plan *p, uint64_t largest)
{
    const uint64_t room = (p->in.device_cap - p->fixed_bytes) / largest;
    const uint64_t k = p->in.top_k > 2 ? (uint64_t)p->in.top_k : 2;
    return min_u64(room, min_u64(max_u64(room / 8, k), 2 * k));
}

/* Takes the longest run of the order that fits beside the slots. The slots' size is that of the
 * largest expert behind the run, so the need does not simply grow with the run: look from its
 * long end. */
static void choose_resident(fl_plan *p, uint64_t max_slots)
{
    const int n = p->in.n_layer * p->in.n_expert;
    const uint64_t room = p->in.device_cap - p->fixed_bytes;
    uint64_t kept = p->expert_bytes, slot = 0, n_stream = 0;
    int run = n;
    while (run > 0 && kept + min_u64(max_slots, n_stream) * slot > room) {
        const uint64_t b = p->in.expert_bytes[nth(p, --run)];
        kept -= b;
        n_stream += b != 0;
        slot = max_u64(slot, b);
    }
    for (int i = 0; i < run; i++) p->resident[nth(p, i)] = 1;
    uint64_t left = room - kept - min_u64(max_slots, n_stream) * slot;
    for (int i = run; i < n; i++) {
        const uint64_t b = p->in.expert_bytes[nth(p, i)];
        if (b > left) continue;
        p->resident[nth(p, i)] = 1;
        left -= b;
    }
}

/* Every figure of the result follows from `resident` and the number of slots wanted. */
static void derive(fl_plan *p, uint64_t max_slots)
{
    for (int i = 0; i < p->in.n_layer * p->in.n_expert; i++) {
        const uint64_t b = p->in.expert_bytes[i];
        if (p->resident[i]) {
            p->resident_bytes += b;
            p->n_resident += b != 0;
        } else {
            p->slot_bytes = max_u64(p->slot_bytes, b);
        }
    }
    p->n_slots = (int)min_u64(max_slots, (uint64_t)(p->n_total - p->n_resident));
    p->device_bytes = p->fixed_bytes + p->resident_bytes + (uint64_t)p->n_slots * p->slot_bytes;
    assert(p->device_bytes <= p->in.device_cap);
}

static void size_staging(fl_plan *p, uint64_t largest)
{
    if (!p->n_total) return;
    p->n_stages = p->n_total < FL_PLAN_MAX_STAGES ? p->n_total : FL_PLAN_MAX_STAGES;
    p->stage_bytes = (largest + FL_PLAN_STAGE_SLACK + 4095) & ~(uint64_t)4095;
    p->staging_bytes = (uint64_t)p->n_stages * p->stage_bytes;
}

fl_status fl_plan_make(const fl_plan_input *in, fl_plan *out, fl_err *err)
{
    *out = (fl_plan){.in = *in};
    out->in.expert_bytes = NULL;
    assert(in->n_items >= 0 && in->n_items <= FL_PLAN_MAX_ITEMS);
    if (in->n_layer < 0 || in->n_expert < 0 || in->top_k < 0 || in->top_k > in->n_expert ||
        (int64_t)in->n_layer * in->n_expert > INT32_MAX)
        return FL_FAIL(err, FL_E_ARG, 0, "plan: %d layers of %d experts, %d at a time: not a model",
                       in->n_layer, in->n_expert, in->top_k);
    const size_t n = (size_t)in->n_layer * (size_t)in->n_expert;
    uint64_t *sizes = malloc(n * sizeof *sizes + 1);
    out->resident = calloc(n + 1, 1);
    out->in.expert_bytes = sizes;
    fl_status st = FL_OK;
    uint64_t largest = 0;
    if (!sizes || !out->resident) {
        st = FL_FAIL(err, FL_E_NOMEM, errno, "plan: out of memory for %zu experts", n);
        goto out;
    }
    if (n) memcpy(sizes, in->expert_bytes, n * sizeof *sizes);
    FL_GO(sum_sizes(out, &largest, err));
    if (in->device_cap < out->min_device_cap) {
        st = refuse(out, largest, err);
        goto out;
    }
    uint64_t max_slots = 0;
    if (in->device_cap >= out->full_device_cap) {
        memset(out->resident, 1, n);
    } else {
        max_slots = choose_slots(out, largest);
        choose_resident(out, max_slots);
    }
    derive(out, max_slots);
    size_staging(out, largest);
out:
    if (st != FL_OK) {
        const fl_plan caps = {.min_device_cap = out->min_device_cap,
                              .full_device_cap = out->full_device_cap};
        fl_plan_free(out);
        out->min_device_cap = caps.min_device_cap;
        out->full_device_cap = caps.full_device_cap;
    }
    return st;
}

void fl_plan_free(fl_plan *p)
{
    free((void *)(uintptr_t)p->in.expert_bytes);
    free(p->resident);
    *p = (fl_plan){0};
}
