/* The plan: exact to the byte, at both ends of the cap, over random models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "offload/plan.h"
#include "offload/slots.h"

static uint64_t seed = 20260101;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static void check_classes(const fl_plan *p, uint64_t largest)
{
    uint64_t bytes = 0;
    int n = 0;
    assert_int_equal(p->n_classes > 0, largest > 0);
    for (int c = 0; c < p->n_classes; c++) {
        const fl_slot_class *k = &p->slot_class[c];
        assert_true(k->count > 0 && (c == 0 || k->bytes > p->slot_class[c - 1].bytes));
        n += k->count;
        bytes += (uint64_t)k->count * k->bytes;
    }
    if (largest) assert_int_equal(p->slot_class[p->n_classes - 1].bytes, largest);
    assert_int_equal(p->n_slots, n);
    assert_int_equal(p->slots_bytes, bytes);
}

/* What the load takes, counted from the tiers alone. */
static uint64_t recount(const fl_plan *p, int *n_resident, int *n_total)
{
    uint64_t fixed = 0, kept = 0, slot = 0;
    *n_resident = *n_total = 0;
    for (int i = 0; i < p->in.n_items; i++) fixed += p->in.item[i].bytes;
    for (int i = 0; i < p->in.n_layer * p->in.n_expert; i++) {
        const uint64_t b = p->in.expert_bytes[i];
        *n_total += b != 0;
        if (p->tier[i] == FL_TIER_DEVICE) {
            kept += b;
            *n_resident += b != 0;
        } else {
            assert_true(b > 0);
            if (b > slot) slot = b;
        }
    }
    assert_int_equal(p->fixed_bytes, fixed);
    assert_int_equal(p->resident_bytes, kept);
    check_classes(p, slot);
    return fixed + kept + p->slots_bytes;
}

/* The host tier, counted from the tiers and the sizes that went in. */
static void check_host(const fl_plan *p, const uint64_t *host_bytes)
{
    uint64_t arena = 0, file = 0, cap = p->in.host_cap;
    int n_host = 0;
    for (int i = 0; i < p->in.n_layer * p->in.n_expert; i++) {
        assert_true(p->tier[i] <= FL_TIER_DEVICE);
        n_host += p->tier[i] == FL_TIER_HOST;
        if (p->tier[i] == FL_TIER_HOST) arena += host_bytes[i];
        if (p->tier[i] == FL_TIER_FILE && host_bytes) file += host_bytes[i];
    }
    if (p->in.host_is_device && !p->in.host_asked)
        cap = cap > p->device_bytes ? cap - p->device_bytes : 0;
    assert_int_equal(p->n_host, n_host);
    assert_int_equal(p->arena_bytes, arena);
    assert_int_equal(p->host_bytes, p->staging_bytes + arena);
    assert_true(arena == 0 || p->host_bytes <= cap);
    assert_int_equal(p->full_host_cap, p->host_bytes + file);
    /* None stays in the file that would have fitted. */
    for (int i = 0; i < p->in.n_layer * p->in.n_expert; i++)
        if (p->tier[i] == FL_TIER_FILE && host_bytes)
            assert_true(p->host_bytes + host_bytes[i] > cap);
}

static void check(const fl_plan *p)
{
    int n_resident, n_total;
    assert_int_equal(p->device_bytes, recount(p, &n_resident, &n_total));
    assert_true(p->device_bytes <= p->in.device_cap);
    assert_int_equal(p->n_resident, n_resident);
    assert_int_equal(p->n_total, n_total);
    const int n_stream = n_total - n_resident;
    const int k = p->in.top_k > 2 ? p->in.top_k : 2;
    assert_true(n_stream == 0 ? p->n_slots == 0 : p->n_slots >= 1);
    if (p->n_slots) /* as many as of the largest size would take the same bytes */
        assert_true(p->slots_bytes / p->slot_class[p->n_classes - 1].bytes <=
                    (uint64_t)(4 * k > p->in.n_expert ? 2 * k : p->in.n_expert / 2));
    assert_true(p->n_slots <= n_stream);
    /* Fewer slots than a token wants only where all memory is slots already. */
    if (p->n_slots < k && p->n_slots < n_stream)
        assert_true(p->in.device_cap - p->fixed_bytes <
                    (uint64_t)k * p->largest_bytes + p->pinned_bytes);
    assert_int_equal(p->staging_bytes, (uint64_t)p->n_stages * p->stage_bytes);
    assert_int_equal(p->stage_bytes % 4096, 0);
    assert_true(n_total == 0 ? p->n_stages == 0 : p->n_stages >= 1);
}

static fl_status at(fl_plan_input *in, uint64_t cap, fl_plan *p, fl_err *err)
{
    in->device_cap = cap;
    const fl_status st = fl_plan_make(in, p, err);
    if (st != FL_OK) return st;
    check(p);
    check_host(p, in->host_bytes);
    return st;
}

static void test_random(void **state)
{
    (void)state;
    uint64_t sizes[12 * 20];
    for (int round = 0; round < 3000; round++) {
        fl_plan_input in = {.n_layer = 1 + (int)rnd(12), .n_expert = 1 + (int)rnd(20)};
        in.top_k = (int)rnd((uint32_t)in.n_expert + 1);
        in.expert_bytes = sizes;
        in.n_items = (int)rnd(4);
        for (int i = 0; i < in.n_items; i++)
            in.item[i] = (fl_plan_item){.name = "x", .bytes = rnd(100000)};
        const bool uniform = rnd(2), dense_first = rnd(3) == 0;
        for (int l = 0; l < in.n_layer; l++) {
            const uint64_t by_layer = 64 * (uint64_t)(1 + rnd(500));
            for (int e = 0; e < in.n_expert; e++)
                sizes[l * in.n_expert + e] = uniform                 ? 64 * 77
                                             : dense_first && l == 0 ? 0
                                             : rnd(8) == 0           ? 64 * (uint64_t)rnd(500)
                                                                     : by_layer;
        }
        fl_plan p, q;
        fl_err err = {0};
        assert_int_equal(at(&in, UINT64_MAX, &p, &err), FL_OK);
        const uint64_t lo = p.min_device_cap, hi = p.full_device_cap;
        assert_int_equal(p.n_resident, p.n_total);
        assert_int_equal(p.device_bytes, hi);
        fl_plan_free(&p);

        assert_int_equal(at(&in, hi, &p, &err), FL_OK);
        assert_int_equal(p.n_resident, p.n_total);
        fl_plan_free(&p);
        if (hi > lo) {
            assert_int_equal(at(&in, hi - 1, &p, &err), FL_OK);
            assert_true(p.n_resident < p.n_total);
            fl_plan_free(&p);
        }
        assert_int_equal(at(&in, lo, &p, &err), FL_OK);
        assert_int_equal(p.min_device_cap, lo);
        fl_plan_free(&p);
        if (lo > 0) {
            assert_int_equal(at(&in, lo - 1, &p, &err), FL_E_NOMEM);
            assert_int_equal(p.min_device_cap, lo);
            assert_int_equal(p.full_device_cap, hi);
            assert_null(p.tier);
        }
        for (int i = 0; i < 4 && hi > lo; i++) {
            const uint64_t cap = lo + rnd((uint32_t)(hi - lo));
            assert_int_equal(at(&in, cap, &p, NULL), FL_OK);
            assert_int_equal(at(&in, cap, &q, NULL), FL_OK);
            assert_memory_equal(p.tier, q.tier, (size_t)in.n_layer * (size_t)in.n_expert);
            if (uniform) {
                assert_true(cap - p.device_bytes < 64 * 77);
                int least = in.n_expert, most = 0;
                for (int l = 0; l < in.n_layer; l++) {
                    int n = 0;
                    for (int e = 0; e < in.n_expert; e++)
                        n += fl_plan_tier(&p, l, e) == FL_TIER_DEVICE;
                    if (n < least) least = n;
                    if (n > most) most = n;
                }
                assert_true(most - least <= 1);
            }
            fl_plan_free(&p);
            fl_plan_free(&q);
        }
    }
}

/* ---- pins ---- */

static bool is_pinned(const fl_plan_input *in, int layer, int expert)
{
    int hotter = 0;
    for (int e = 0; e < in->n_expert; e++) {
        const uint32_t h = in->heat ? in->heat[layer * in->n_expert + e] : 0;
        const uint32_t own = in->heat ? in->heat[layer * in->n_expert + expert] : 0;
        hotter += h > own || (h == own && e < expert);
    }
    return layer < in->pin_layers || hotter < in->pin_experts;
}

static void check_pins(const fl_plan *p, const fl_plan_input *in)
{
    int n = 0;
    for (int l = 0; l < in->n_layer; l++)
        for (int e = 0; e < in->n_expert; e++) {
            if (!is_pinned(in, l, e)) continue;
            assert_int_equal(fl_plan_tier(p, l, e), FL_TIER_DEVICE);
            n += in->expert_bytes[l * in->n_expert + e] != 0;
        }
    assert_int_equal(p->n_pinned, n);
}

/* What a refusal of pins names is taken, and then works: the number of pins, or the budget. */
static void take_advice(fl_plan_input *in, const fl_err *err)
{
    const int layers = in->pin_layers, experts = in->pin_experts;
    const uint64_t cap = in->device_cap;
    const char *would = strrchr(err->msg, ';'), *vram = strstr(err->msg, "--vram ");
    unsigned long long m = 0;
    int n = 0;
    fl_plan p;
    assert_true(would && vram);
    if (sscanf(would, "; --gpu-layers %d", &n) == 1)
        in->pin_layers = n;
    else if (sscanf(would, "; --gpu-experts %d", &n) == 1)
        in->pin_experts = n;
    if (in->pin_layers != layers || in->pin_experts != experts) {
        assert_true(in->pin_layers < layers || in->pin_experts < experts);
        assert_int_equal(at(in, cap, &p, NULL), FL_OK);
        check_pins(&p, in);
        fl_plan_free(&p);
    }
    in->pin_layers = layers;
    in->pin_experts = experts;
    assert_int_equal(sscanf(vram, "--vram %lluM", &m), 1);
    assert_int_equal(at(in, m << 20, &p, NULL), FL_OK);
    check_pins(&p, in);
    fl_plan_free(&p);
}

static void test_pins(void **state)
{
    (void)state;
    uint64_t sizes[8 * 12];
    uint32_t heat[8 * 12];
    int refused = 0, by_number = 0;
    for (int round = 0; round < 3000; round++) {
        fl_plan_input in = {.n_layer = 1 + (int)rnd(8), .n_expert = 1 + (int)rnd(12), .top_k = 1};
        for (int i = 0; i < in.n_layer * in.n_expert; i++) {
            sizes[i] = round % 2 ? 64 * 77 : 64 * (uint64_t)rnd(500);
            heat[i] = rnd(5);
        }
        in.expert_bytes = sizes;
        if (rnd(2)) in.heat = heat;
        in.pin_layers = rnd(3) ? (int)rnd((uint32_t)in.n_layer + 3) : 0;
        in.pin_experts = rnd(2) ? (int)rnd((uint32_t)in.n_expert + 3) : 0;
        in.item[0] = (fl_plan_item){.name = "x", .bytes = rnd(100000)};
        in.n_items = 1;
        fl_plan p;
        fl_err err = {0};
        assert_int_equal(at(&in, UINT64_MAX, &p, NULL), FL_OK);
        const uint64_t lo = p.min_device_cap, hi = p.full_device_cap;
        fl_plan_free(&p);
        for (int i = 0; i < 4; i++) {
            const uint64_t cap = i ? lo + rnd((uint32_t)(hi - lo) + 1) : lo;
            assert_int_equal(at(&in, cap, &p, NULL), FL_OK);
            check_pins(&p, &in);
            fl_plan_free(&p);
        }
        if (!lo) continue;
        const uint64_t less = lo - 1 - rnd((uint32_t)lo);
        const fl_status st = at(&in, less, &p, &err);
        assert_int_equal(p.min_device_cap, lo);
        assert_int_equal(st, strstr(err.msg, "--gpu") ? FL_E_ARG : FL_E_NOMEM);
        if (st != FL_E_ARG) continue;
        refused++;
        by_number += strstr(err.msg, "; --gpu") != NULL;
        take_advice(&in, &err);
    }
    assert_true(refused > 100 && by_number > 100);
}

/* The host tier takes from what the device leaves: to the byte, for any pair of caps. */
static void test_host_tier(void **state)
{
    (void)state;
    uint64_t sizes[6 * 10], host[6 * 10];
    for (int round = 0; round < 2000; round++) {
        fl_plan_input in = {.n_layer = 1 + (int)rnd(6), .n_expert = 1 + (int)rnd(10), .top_k = 1};
        const int n = in.n_layer * in.n_expert;
        uint64_t all = 0;
        for (int i = 0; i < n; i++) {
            sizes[i] = rnd(10) ? 64 * (uint64_t)(1 + rnd(500)) : 0;
            host[i] = sizes[i] ? (sizes[i] + 4095) / 4096 * 4096 + 4096 * (uint64_t)rnd(4) : 0;
            all += host[i];
        }
        in.expert_bytes = sizes;
        in.host_bytes = host;
        in.host_is_device = rnd(2);
        in.host_asked = rnd(2);
        fl_plan p;
        fl_err err = {0};
        assert_int_equal(at(&in, UINT64_MAX, &p, NULL), FL_OK);
        const uint64_t lo = p.min_device_cap, hi = p.full_device_cap;
        assert_int_equal(p.n_host, 0); /* all on the device: nothing is kept twice */
        fl_plan_free(&p);
        if (hi == lo) continue;
        const uint64_t cap = lo + rnd((uint32_t)(hi - lo));
        in.host_cap = 0;
        assert_int_equal(at(&in, cap, &p, NULL), FL_OK);
        assert_int_equal(p.n_host, 0);
        const uint64_t staging = p.staging_bytes, full = p.full_host_cap;
        fl_plan_free(&p);
        in.host_cap = staging + rnd((uint32_t)(all + 8192));
        assert_int_equal(at(&in, cap, &p, NULL), FL_OK);
        fl_plan_free(&p);
        in.host_cap = staging - 1 - rnd((uint32_t)staging - 1);
        assert_int_equal(at(&in, cap, &p, &err), in.host_asked ? FL_E_ARG : FL_OK);
        fl_plan_free(&p);
        in.host_asked = true;
        in.host_cap = full; /* what a plan names holds everything, one byte less does not */
        assert_int_equal(at(&in, cap, &p, NULL), FL_OK);
        assert_int_equal(p.n_host + p.n_resident, p.n_total);
        fl_plan_free(&p);
        in.host_cap = full - 1;
        assert_int_equal(at(&in, cap, &p, NULL), FL_OK);
        assert_true(p.n_host + p.n_resident < p.n_total);
        fl_plan_free(&p);
    }
}

/* The hottest experts are on the device, the next in host memory, the coldest in the file. */
static void test_heat(void **state)
{
    (void)state;
    enum { LAYERS = 5, EXPERTS = 8, N = LAYERS * EXPERTS };
    uint64_t sizes[N], host[N];
    uint32_t heat[N];
    for (int i = 0; i < N; i++) {
        sizes[i] = 4096;
        host[i] = 8192;
        heat[i] = (uint32_t)((i * 7) % N); /* all different */
    }
    fl_plan_input in = {.n_layer = LAYERS, .n_expert = EXPERTS, .top_k = 2, .host_asked = true};
    in.expert_bytes = sizes;
    in.host_bytes = host;
    in.heat = heat;
    fl_plan p;
    in.host_cap = (16 * (4096 + 24576)) + 10 * 8192;
    assert_int_equal(at(&in, (15 + 2) * 4096, &p, NULL), FL_OK);
    assert_int_equal(p.n_slots, 2);
    for (int i = 0; i < N; i++)
        assert_int_equal(p.tier[i], heat[i] >= N - 15        ? FL_TIER_DEVICE
                                    : heat[i] >= N - 15 - 10 ? FL_TIER_HOST
                                                             : FL_TIER_FILE);
    fl_plan_free(&p);
    /* Equal heat is no heat. */
    fl_plan q;
    for (int i = 0; i < N; i++) heat[i] = 9;
    assert_int_equal(at(&in, 17 * 4096, &p, NULL), FL_OK);
    in.heat = NULL;
    assert_int_equal(at(&in, 17 * 4096, &q, NULL), FL_OK);
    assert_memory_equal(p.tier, q.tier, N);
    fl_plan_free(&p);
    fl_plan_free(&q);
}

static void test_host_message(void **state)
{
    (void)state;
    uint64_t sizes[4] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
    fl_plan_input in = {.n_layer = 2, .n_expert = 2, .top_k = 1, .host_asked = true};
    in.expert_bytes = in.host_bytes = sizes;
    in.host_cap = 1000;
    fl_plan p;
    fl_err err = {0};
    assert_int_equal(at(&in, 2 << 20, &p, &err), FL_E_ARG);
    assert_non_null(strstr(err.msg, "the staging buffers for reads need 4292608 bytes (4.1 MiB)"));
    assert_non_null(strstr(err.msg, "the cap is 1000 bytes (0.0 MiB); --ram 5M would do"));
    in.host_cap = 5 << 20; /* and it does */
    assert_int_equal(at(&in, 2 << 20, &p, NULL), FL_OK);
    fl_plan_free(&p);
    in.host_cap = 0;
    assert_int_equal(at(&in, 2 << 20, &p, NULL), FL_OK);
    fl_plan_free(&p);
}

/* The shape that this program is for: 40 layers of 256 experts, 8 at a time, about 20 GB. */
static void test_large_model(void **state)
{
    (void)state;
    enum { LAYERS = 40, EXPERTS = 256 };
    static uint64_t sizes[LAYERS * EXPERTS];
    const uint64_t small = 3 * 2048 * 512 / 256 * 144, large = small + 2048 * 512 / 256 * 66;
    for (int i = 0; i < LAYERS * EXPERTS; i++) sizes[i] = i / EXPERTS % 2 ? small : large;
    fl_plan_input in = {.n_layer = LAYERS, .n_expert = EXPERTS, .top_k = 8, .n_items = 2};
    in.expert_bytes = sizes;
    in.item[0] = (fl_plan_item){.name = "dense weights", .bytes = UINT64_C(1800) << 20};
    in.item[1] = (fl_plan_item){.name = "KV cache", .bytes = UINT64_C(640) << 20};
    fl_plan p;
    assert_int_equal(at(&in, UINT64_C(16) << 30, &p, NULL), FL_OK);
    /* Slots of both sizes in the bytes of 128 large ones. */
    assert_int_equal(p.n_classes, 2);
    assert_int_equal(p.n_slots, 137);
    assert_true(128 * large - p.slots_bytes < large);
    assert_true(p.n_resident > 7000 && p.n_resident < p.n_total);
    assert_true(p.in.device_cap - p.device_bytes < small);
    fl_plan_free(&p);
    /* Tiny card: everything is slots, still one token at a time. */
    assert_int_equal(at(&in, (UINT64_C(2440) << 20) + 8 * large, &p, NULL), FL_OK);
    assert_int_equal(p.n_slots, 8);
    fl_plan_free(&p);
}

static void test_slot_classes(void **state)
{
    (void)state;
    fl_slot_class out[FL_PLAN_MAX_CLASSES];
    /* Shares by bytes; what rounding leaves goes to the largest. */
    fl_slot_class two[] = {{100, 30}, {200, 15}};
    assert_int_equal(fl_slot_classes(two, 2, 4200, 8, out), 2);
    assert_int_equal(out[0].count, 21);
    assert_int_equal(out[1].count, 10);
    /* A class with too few slots for a token joins the next; all of it may be fewer. */
    fl_slot_class few[] = {{100, 30}, {200, 15}};
    assert_int_equal(fl_slot_classes(few, 2, 2000, 8, out), 1);
    assert_int_equal(out[0].bytes, 200);
    assert_int_equal(out[0].count, 10);
    fl_slot_class rare[] = {{100, 90}, {150, 3}, {160, 90}};
    assert_int_equal(fl_slot_classes(rare, 3, 5000, 8, out), 2);
    assert_int_equal(out[1].bytes, 160);
    fl_slot_class whole[] = {{100, 3}, {200, 100}};
    assert_int_equal(fl_slot_classes(whole, 2, 20300, 8, out), 2);
    assert_int_equal(out[0].count, 3);
    assert_int_equal(out[1].count, 100);
    /* Far more sizes than classes. */
    for (int round = 0; round < 500; round++) {
        fl_slot_class many[40];
        const int n = 1 + (int)rnd(40), least = 1 + (int)rnd(8);
        for (int i = 0; i < n; i++)
            many[i] = (fl_slot_class){.bytes = 1000 + 64 * (uint64_t)i, .count = 1 + (int)rnd(30)};
        const uint64_t largest = many[n - 1].bytes, budget = largest * (1 + rnd(100));
        const int got = fl_slot_classes(many, n, budget, least, out);
        uint64_t used = 0;
        assert_true(got >= 1 && got <= FL_PLAN_MAX_CLASSES);
        assert_int_equal(out[got - 1].bytes, largest);
        for (int i = 0; i < got; i++) {
            assert_true(out[i].count >= 1);
            used += out[i].bytes * (uint64_t)out[i].count;
        }
        assert_true(used <= budget);
    }
}

static void test_message(void **state)
{
    (void)state;
    uint64_t sizes[4] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
    fl_plan_input in = {.n_layer = 2, .n_expert = 2, .top_k = 1, .n_items = 2};
    in.expert_bytes = sizes;
    in.item[0] = (fl_plan_item){.name = "dense weights", .bytes = 1000};
    in.item[1] = (fl_plan_item){.name = "KV cache", .bytes = 5 << 20};
    fl_plan p;
    fl_err err = {0};
    assert_int_equal(at(&in, 3 << 20, &p, &err), FL_E_NOMEM);
    assert_non_null(strstr(err.msg, "6292456 bytes")); /* need */
    assert_non_null(strstr(err.msg, "3145728 bytes")); /* cap */
    assert_non_null(strstr(err.msg, "KV cache 5.0"));
    assert_non_null(strstr(err.msg, "--vram 7M"));
    assert_null(strstr(err.msg, "less"));
    in.cap_asked = true;
    in.less = "fewer layers need less";
    err = (fl_err){0};
    assert_int_equal(at(&in, 3 << 20, &p, &err), FL_E_ARG);
    assert_non_null(strstr(err.msg, "--vram 7M would do, fewer layers need less"));
    in.cap_asked = false;
    /* The value it names works. */
    assert_int_equal(at(&in, 7 << 20, &p, NULL), FL_OK);
    fl_plan_free(&p);
    /* A need of whole MiB is not rounded further. */
    in.item[0].bytes = 1 << 20;
    err = (fl_err){0};
    assert_int_equal(at(&in, 0, &p, &err), FL_E_NOMEM);
    assert_non_null(strstr(err.msg, "--vram 7M"));
}

static void test_bad_input(void **state)
{
    (void)state;
    uint64_t sizes[2] = {64, 65};
    fl_plan_input in = {.n_layer = 1, .n_expert = 2, .top_k = 1, .device_cap = UINT64_MAX};
    in.expert_bytes = sizes;
    fl_plan p;
    fl_err err = {0};
    assert_int_equal(fl_plan_make(&in, &p, &err), FL_E_ARG);
    assert_non_null(strstr(err.msg, "expert 1 of layer 0"));
    sizes[0] = sizes[1] = UINT64_C(1) << 63;
    assert_int_equal(fl_plan_make(&in, &p, NULL), FL_E_ARG);
    sizes[0] = sizes[1] = 64;
    in.item[0] = (fl_plan_item){.name = "x", .bytes = UINT64_MAX - 100};
    in.n_items = 1;
    assert_int_equal(fl_plan_make(&in, &p, NULL), FL_E_ARG);
    in.n_items = 0;
    in.top_k = 3;
    assert_int_equal(fl_plan_make(&in, &p, NULL), FL_E_ARG);
    in.n_layer = in.n_expert = 1 << 20;
    assert_int_equal(fl_plan_make(&in, &p, NULL), FL_E_ARG);
    assert_null(p.tier);
    fl_plan_free(&p);
    /* A model without experts is all fixed. */
    in = (fl_plan_input){.device_cap = 10, .n_items = 1, .item = {{"dense weights", 10}}};
    assert_int_equal(fl_plan_make(&in, &p, NULL), FL_OK);
    assert_int_equal(p.device_bytes, 10);
    assert_int_equal(p.n_slots + p.n_total + p.n_stages, 0);
    fl_plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),       cmocka_unit_test(test_pins),
        cmocka_unit_test(test_host_tier),    cmocka_unit_test(test_heat),
        cmocka_unit_test(test_host_message), cmocka_unit_test(test_large_model),
        cmocka_unit_test(test_slot_classes), cmocka_unit_test(test_message),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
