#include "offload/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "offload/slots.h"

static const uint64_t MiB = 1024 * 1024;

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static unsigned long long up_mib(uint64_t bytes) { return bytes / MiB + (bytes % MiB != 0); }
static int n_keys(const fl_plan *p) { return p->in.n_layer * p->in.n_expert; }

/* ---- sizes ---- */

static fl_status sum_sizes(fl_plan *p, const uint64_t *host_bytes, fl_err *err)
{
    const fl_plan_input *in = &p->in;
    uint64_t host = 0;
    bool over = false;
    for (int i = 0; i < in->n_items; i++)
        over |= __builtin_add_overflow(p->fixed_bytes, in->item[i].bytes, &p->fixed_bytes);
    for (int i = 0; i < n_keys(p); i++) {
        const uint64_t b = in->expert_bytes[i];
        if (b % 64)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "plan: expert %d of layer %d has %llu bytes, expected a multiple of 64",
                           i % in->n_expert, i / in->n_expert, (unsigned long long)b);
        over |= __builtin_add_overflow(p->expert_bytes, b, &p->expert_bytes);
        over |= host_bytes && __builtin_add_overflow(host, host_bytes[i], &host);
        p->n_total += b != 0;
        p->largest_bytes = max_u64(p->largest_bytes, b);
    }
    /* Slots and staging are products of the largest size: keep them far from overflow too. */
    over |= __builtin_add_overflow(p->fixed_bytes, p->expert_bytes, &p->full_device_cap);
    if (over || p->largest_bytes > UINT64_MAX / 4 / FL_PLAN_MAX_STAGES || host > UINT64_MAX / 4)
        return FL_FAIL(err, FL_E_ARG, 0, "plan: the sizes of the model overflow 64 bits");
    return FL_OK;
}

static fl_status refuse_device(const fl_plan *p, uint64_t need, fl_err *err)
{
    const fl_plan_input *in = &p->in;
    const fl_plan_item *big = NULL;
    const bool pins = in->pin_layers > 0 || in->pin_experts > 0;
    for (int i = 0; i < in->n_items; i++)
        if (!big || in->item[i].bytes > big->bytes) big = &in->item[i];
    return FL_FAIL(err, in->cap_asked ? FL_E_ARG : FL_E_NOMEM, 0,
                   "device memory: needs at least %llu bytes (%.1f MiB: %.1f fixed, of which %s "
                   "%.1f, and %.1f for %s), the cap is %llu bytes (%.1f MiB); "
                   "--vram %lluM would do%s%s",
                   (unsigned long long)need, (double)need / MiB, (double)p->fixed_bytes / MiB,
                   big ? big->name : "nothing", big ? (double)big->bytes / MiB : 0.0,
                   (double)(need - p->fixed_bytes) / MiB,
                   pins ? "pinned experts and one more" : "one expert",
                   (unsigned long long)in->device_cap, (double)in->device_cap / MiB, up_mib(need),
                   in->less ? ", " : "", in->less ? in->less : "");
}

static fl_status check_host_cap(const fl_plan *p, fl_err *err)
{
    const fl_plan_input *in = &p->in;
    if (!in->host_asked || in->host_cap == 0 || in->host_cap >= p->staging_bytes) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0,
                   "host memory: the staging buffers for reads need %llu bytes (%.1f MiB), the cap "
                   "is %llu bytes (%.1f MiB); --ram %lluM would do, more of it keeps experts; "
                   "--ram 0 keeps none",
                   (unsigned long long)p->staging_bytes, (double)p->staging_bytes / MiB,
                   (unsigned long long)in->host_cap, (double)in->host_cap / MiB,
                   up_mib(p->staging_bytes));
}

/* ---- order ---- */

typedef struct ranked {
    uint32_t heat;
    int32_t turn; /* place in the round robin over the layers */
    int32_t key;
    int32_t place; /* in the order below */
    bool pinned;
} ranked;

static int by_heat(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->heat != y->heat) return x->heat > y->heat ? -1 : 1;
    return (x->turn > y->turn) - (x->turn < y->turn);
}

/* The keys in the order in which they get the faster tiers. */
static void rank(const fl_plan *p, const uint32_t *heat, ranked *order)
{
    for (int i = 0; i < n_keys(p); i++) {
        const int layer = i % p->in.n_layer, expert = i / p->in.n_layer;
        const int32_t key = layer * p->in.n_expert + expert;
        order[i] = (ranked){.heat = heat ? heat[key] : 0, .turn = i, .key = key};
    }
    if (heat) qsort(order, (size_t)n_keys(p), sizeof *order, by_heat);
    for (int i = 0; i < n_keys(p); i++) order[i].place = i;
}

/* ---- pins ---- */

static int pinned_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->pinned != y->pinned) return x->pinned ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

static int least(int a, int b) { return a < b ? a : b; }

/* Marks all experts of the first `layers` layers, and in each layer the first `experts` of the
 * order. The least device memory that then works: beside the pinned ones one slot, if others are
 * left, that holds any of them. */
static uint64_t pin(fl_plan *p, ranked *order, int layers, int experts)
{
    const int n_expert = p->in.n_expert;
    uint64_t slot = 0;
    p->pinned_bytes = 0;
    p->n_pinned = 0;
    for (int i = 0; i < n_keys(p); i++) order[i].pinned = order[i].key / n_expert < layers;
    for (int layer = least(layers, p->in.n_layer); experts > 0 && layer < p->in.n_layer; layer++)
        for (int i = 0, n = 0; i < n_keys(p) && n < experts; i++) {
            if (order[i].key / n_expert != layer) continue;
            order[i].pinned = true;
            n++;
        }
    for (int i = 0; i < n_keys(p); i++) {
        const uint64_t b = p->in.expert_bytes[order[i].key];
        if (order[i].pinned) {
            p->pinned_bytes += b;
            p->n_pinned += b != 0;
        } else {
            slot = max_u64(slot, b);
        }
    }
    return p->fixed_bytes + p->pinned_bytes + slot;
}

/* What is too much are the pins: says how many of them would do. */
static fl_status refuse_pins(fl_plan *p, ranked *order, fl_err *err)
{
    const fl_plan_input *in = &p->in;
    const uint64_t need = p->min_device_cap;
    const bool by_layer = in->pin_layers > 0;
    int n = by_layer ? least(in->pin_layers, in->n_layer) : least(in->pin_experts, in->n_expert);
    const int asked = by_layer ? in->pin_layers : in->pin_experts;
    const char *knob = by_layer ? "--gpu-layers" : "--gpu-experts";
    uint64_t then = need;
    while (n > 0 && then > in->device_cap) {
        n--;
        then = by_layer ? pin(p, order, n, in->pin_experts) : pin(p, order, 0, n);
    }
    if (then <= in->device_cap)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s %d: with the experts that it keeps in device memory it needs at least "
                       "%llu bytes (%.1f MiB), the cap is %llu bytes (%.1f MiB); %s %d or --vram "
                       "%lluM would do",
                       knob, asked, (unsigned long long)need, (double)need / MiB,
                       (unsigned long long)in->device_cap, (double)in->device_cap / MiB, knob, n,
                       up_mib(need));
    return FL_FAIL(
        err, FL_E_ARG, 0,
        "--gpu-layers %d and --gpu-experts %d: with the experts that they keep in device "
        "memory it needs at least %llu bytes (%.1f MiB), the cap is %llu bytes (%.1f "
        "MiB); --vram %lluM would do, or fewer of both",
        in->pin_layers, in->pin_experts, (unsigned long long)need, (double)need / MiB,
        (unsigned long long)in->device_cap, (double)in->device_cap / MiB, up_mib(need));
}

/* The device memory does not do. */
static fl_status refuse(fl_plan *p, ranked *order, fl_err *err)
{
    const uint64_t need = p->min_device_cap;
    const uint64_t bare = pin(p, order, 0, 0);
    fl_status st;
    if (p->in.device_cap >= bare)
        st = refuse_pins(p, order, err);
    else
        st = refuse_device(p, need, err);
    p->min_device_cap = need;
    return st;
}

/* ---- device ---- */

static uint64_t choose_slots(const fl_plan *p)
{
    const uint64_t room = p->in.device_cap - p->fixed_bytes - p->pinned_bytes;
    const uint64_t most = max_u64(room / p->largest_bytes, 1); /* what is not pinned may be small */
    const uint64_t k = p->in.top_k > 2 ? (uint64_t)p->in.top_k : 2;
    const uint64_t wanted = max_u64(2 * k, (uint64_t)p->in.n_expert / 2);
    return min_u64(most, min_u64(max_u64(most / 8, k), wanted));
}

/* Takes the longest run of the order that fits beside the slots. The slots' size is that of the
 * largest expert behind the run, so the need does not simply grow with the run: look from its
 * long end. */
static void choose_resident(fl_plan *p, const ranked *order, uint64_t max_slots)
{
    const int n = n_keys(p);
    const uint64_t room = p->in.device_cap - p->fixed_bytes;
    uint64_t kept = p->expert_bytes, slot = 0, n_stream = 0;
    int run = n;
    while (run > 0 && kept + min_u64(max_slots, n_stream) * slot > room) {
        const uint64_t b = p->in.expert_bytes[order[--run].key];
        kept -= b;
        n_stream += b != 0;
        slot = max_u64(slot, b);
    }
    for (int i = 0; i < run; i++) p->tier[order[i].key] = FL_TIER_DEVICE;
    uint64_t left = room - kept - min_u64(max_slots, n_stream) * slot;
    for (int i = run; i < n; i++) {
        const uint64_t b = p->in.expert_bytes[order[i].key];
        if (b > left) continue;
        p->tier[order[i].key] = FL_TIER_DEVICE;
        left -= b;
    }
}

enum { MAX_SIZES = 64 };

/* One more expert of that size that streams. A file with more sizes than MAX_SIZES has the largest
 * ones counted as one. */
static int note_size(fl_slot_class *size, int n, uint64_t bytes)
{
    int at = n;
    while (at > 0 && size[at - 1].bytes >= bytes) at--;
    if (at < n && (size[at].bytes == bytes || n == MAX_SIZES)) {
        size[at].count++;
        return n;
    }
    if (n == MAX_SIZES) {
        size[n - 1].bytes = bytes;
        size[n - 1].count++;
        return n;
    }
    for (int i = n; i > at; i--) size[i] = size[i - 1];
    size[at] = (fl_slot_class){.bytes = bytes, .count = 1};
    return n + 1;
}

/* Every figure of device memory follows from `tier` and the slots wanted: of the largest size. */
static void derive_device(fl_plan *p, uint64_t max_slots)
{
    fl_slot_class size[MAX_SIZES];
    int n = 0;
    for (int i = 0; i < n_keys(p); i++) {
        const uint64_t b = p->in.expert_bytes[i];
        if (p->tier[i] == FL_TIER_DEVICE) {
            p->resident_bytes += b;
            p->n_resident += b != 0;
        } else {
            n = note_size(size, n, b);
        }
    }
    const uint64_t slots = min_u64(max_slots, (uint64_t)(p->n_total - p->n_resident));
    if (slots)
        p->n_classes = fl_slot_classes(size, n, slots * size[n - 1].bytes,
                                       p->in.top_k > 2 ? p->in.top_k : 2, p->slot_class);
    for (int c = 0; c < p->n_classes; c++) {
        p->n_slots += p->slot_class[c].count;
        p->slots_bytes += p->slot_class[c].bytes * (uint64_t)p->slot_class[c].count;
    }
    p->device_bytes = p->fixed_bytes + p->resident_bytes + p->slots_bytes;
    assert(p->device_bytes <= p->in.device_cap);
}

/* ---- host ---- */

static void size_staging(fl_plan *p)
{
    if (!p->n_total) return;
    p->n_stages = p->n_total < FL_PLAN_MAX_STAGES ? p->n_total : FL_PLAN_MAX_STAGES;
    p->stage_bytes = (p->largest_bytes + FL_PLAN_STAGE_SLACK + 4095) & ~(uint64_t)4095;
    p->staging_bytes = (uint64_t)p->n_stages * p->stage_bytes;
}

/* Gives the host tier what does not stay on the device. */
static void choose_host(fl_plan *p, const ranked *order, const uint64_t *host_bytes)
{
    uint64_t cap = p->in.host_cap;
    if (p->in.host_is_device && !p->in.host_asked)
        cap = cap > p->device_bytes ? cap - p->device_bytes : 0;
    uint64_t left = cap > p->staging_bytes ? cap - p->staging_bytes : 0;
    p->full_host_cap = p->staging_bytes;
    for (int i = 0; i < n_keys(p) && host_bytes; i++) {
        const int32_t key = order[i].key;
        if (p->tier[key] != FL_TIER_FILE) continue;
        assert(host_bytes[key] % 4096 == 0 && host_bytes[key] >= p->in.expert_bytes[key]);
        p->full_host_cap += host_bytes[key];
        if (host_bytes[key] > left) continue;
        left -= host_bytes[key];
        p->tier[key] = FL_TIER_HOST;
        p->n_host++;
        p->arena_bytes += host_bytes[key];
    }
    p->host_bytes = p->staging_bytes + p->arena_bytes;
}

/* ---- all of it ---- */

static void place_experts(fl_plan *p, const ranked *order)
{
    uint64_t max_slots = 0;
    if (p->in.device_cap >= p->full_device_cap) {
        memset(p->tier, FL_TIER_DEVICE, (size_t)n_keys(p));
    } else {
        max_slots = choose_slots(p);
        choose_resident(p, order, max_slots);
    }
    derive_device(p, max_slots);
}

fl_status fl_plan_make(const fl_plan_input *in, fl_plan *out, fl_err *err)
{
    *out = (fl_plan){.in = *in};
    out->in.expert_bytes = out->in.host_bytes = NULL;
    out->in.heat = NULL;
    assert(in->n_items >= 0 && in->n_items <= FL_PLAN_MAX_ITEMS);
    if (in->n_layer < 0 || in->n_expert < 0 || in->top_k < 0 || in->top_k > in->n_expert ||
        (int64_t)in->n_layer * in->n_expert > INT32_MAX)
        return FL_FAIL(err, FL_E_ARG, 0, "plan: %d layers of %d experts, %d at a time: not a model",
                       in->n_layer, in->n_expert, in->top_k);
    const size_t n = (size_t)n_keys(out);
    uint64_t *sizes = malloc(n * sizeof *sizes + 1);
    ranked *order = malloc(n * sizeof *order + 1);
    out->tier = calloc(n + 1, 1);
    out->in.expert_bytes = sizes;
    fl_status st = FL_OK;
    if (!sizes || !order || !out->tier) {
        st = FL_FAIL(err, FL_E_NOMEM, errno, "plan: out of memory for %zu experts", n);
        goto out;
    }
    if (n) memcpy(sizes, in->expert_bytes, n * sizeof *sizes);
    FL_GO(sum_sizes(out, in->host_bytes, err));
    rank(out, in->heat, order);
    out->min_device_cap = pin(out, order, in->pin_layers, in->pin_experts);
    if (in->device_cap < out->min_device_cap) FL_GO(refuse(out, order, err));
    qsort(order, n, sizeof *order, pinned_first);
    size_staging(out);
    FL_GO(check_host_cap(out, err));
    place_experts(out, order);
    choose_host(out, order, in->host_bytes);
out:
    free(order);
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
    free(p->tier);
    *p = (fl_plan){0};
}
