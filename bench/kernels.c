/* Speed of the kernels, one thread. One JSON object a line:
 *   {"entry":"mul_law","type":"q4_k","tier":"avx2","rows":32,"memory":"cache","bytes":1179648,
 *    "ops":67108864,"ns":[...]}
 * bytes: what a call reads of its large operand; ops: multiply-adds; ns: raw samples, one a call.
 * "memory":"fresh" walks matrices that no cache holds; the "read" lines are a plain read of the
 * same bytes in the same run, to divide by.
 * usage: build/release/bench/kernels [SAMPLES]   (default 15) */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "runtime/base/clock.h"

enum { COLS = 2048, ROWS = 1024, MAX_ROWS = 32, FRESH_MATRICES = 96, MAX_SAMPLES = 1000 };

static uint64_t seed = 88172645463325252ull;
static uint32_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}
static float uniform(void) { return (float)(rnd() & 0xffffff) * 0x1p-23f - 1.0f; }

static void *take(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p) {
        fprintf(stderr, "bench: out of memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

static float *floats(int64_t n, float scale)
{
    float *p = take((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = uniform() * scale;
    return p;
}

typedef struct line {
    const char *entry, *type, *tier, *memory;
    int rows;
    int64_t bytes, ops;
} line;

static int n_samples = 15;

static void report(const line *l, const int64_t *ns)
{
    printf("{\"entry\":\"%s\",\"type\":\"%s\",\"tier\":\"%s\",\"rows\":%d,\"memory\":\"%s\","
           "\"bytes\":%lld,\"ops\":%lld,\"ns\":[",
           l->entry, l->type, l->tier, l->rows, l->memory, (long long)l->bytes, (long long)l->ops);
    for (int i = 0; i < n_samples; i++) printf("%s%lld", i ? "," : "", (long long)ns[i]);
    printf("]}\n");
    fflush(stdout);
}

/* A call to be timed; `sample` counts up, so that fresh memory can be walked. */
typedef void (*call_fn)(void *arg, int sample);

static void measure(const line *l, call_fn call, void *arg)
{
    int64_t ns[MAX_SAMPLES];
    call(arg, 0);
    for (int i = 0; i < n_samples; i++) {
        uint64_t t = fl_clock_ns();
        call(arg, i);
        ns[i] = (int64_t)(fl_clock_ns() - t);
    }
    report(l, ns);
}

typedef struct product {
    const fl_kernels *k;
    fl_mat w;
    const uint8_t *pool; /* n_matrices matrices of `bytes` */
    int64_t bytes, n_matrices;
    const fl_act *act;
    const float *x;
    float *y;
    int n_rows;
} product;

static void call_product(void *arg, int sample)
{
    product *p = arg;
    p->w.data = p->pool + sample % p->n_matrices * p->bytes;
    if (fl_type_get(p->w.type)->law == FL_LAW_FLOAT)
        p->k->mul_float(&p->w, 0, ROWS, p->x, COLS, p->n_rows, p->y, ROWS);
    else
        p->k->mul_law(&p->w, 0, ROWS, p->act, p->n_rows, p->y, ROWS);
}

static volatile uint64_t sink;

static void call_read(void *arg, int sample)
{
    const product *p = arg;
    const uint8_t *at = p->pool + sample % p->n_matrices * p->bytes;
    uint64_t s[8] = {0};
    for (int64_t i = 0; i + 64 <= p->bytes; i += 64) {
        uint64_t v[8];
        memcpy(v, at + i, 64);
        for (int j = 0; j < 8; j++) s[j] ^= v[j];
    }
    sink += s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

static void bench_products(const fl_kernels *k)
{
    static const uint8_t types[] = {FL_TYPE_Q4_K, FL_TYPE_Q8_0,   FL_TYPE_Q6_K,
                                    FL_TYPE_Q5_K, FL_TYPE_IQ4_XS, FL_TYPE_Q4_0,
                                    FL_TYPE_BF16, FL_TYPE_F16,    FL_TYPE_F32};
    static const int rows[] = {1, 4, MAX_ROWS};
    float *x = floats(MAX_ROWS * COLS, 1.0f), *y = floats(MAX_ROWS * ROWS, 1.0f);
    fl_act *act = take(MAX_ROWS * (COLS / 256) * sizeof *act);
    if (!k->act_quantize(x, MAX_ROWS * COLS, act)) exit(1);
    for (size_t t = 0; t < sizeof types; t++) {
        int64_t bytes = ROWS * (int64_t)fl_type_row_bytes(types[t], COLS);
        uint8_t *pool = take((size_t)(FRESH_MATRICES * bytes));
        /* Small halves everywhere: finite scales whatever field they fall into. */
        for (int64_t i = 0; i < bytes; i++) pool[i] = (uint8_t)(rnd() & (i & 1 ? 0x2b : 0xff));
        for (int m = 1; m < FRESH_MATRICES; m++) memcpy(pool + m * bytes, pool, (size_t)bytes);
        const char *name = fl_type_get(types[t])->name;
        product p = {k, {pool, types[t], ROWS, COLS, 1.0f}, pool, bytes, 1, act, x, y, 1};
        const char *entry = fl_type_get(types[t])->law == FL_LAW_FLOAT ? "mul_float" : "mul_law";
        for (int r = 0; r < 3; r++) {
            p.n_rows = rows[r];
            line l = {
                entry, name, k->name, "cache", rows[r], bytes, (int64_t)ROWS * COLS * rows[r]};
            measure(&l, call_product, &p);
        }
        p.n_matrices = FRESH_MATRICES;
        p.n_rows = 1;
        line l = {entry, name, k->name, "fresh", 1, bytes, (int64_t)ROWS * COLS};
        measure(&l, call_product, &p);
        l.entry = "read";
        l.ops = 0;
        measure(&l, call_read, &p);
        free(pool);
    }
    free(x);
    free(y);
    free(act);
}

typedef struct vectors {
    const fl_kernels *k;
    float *a, *b, *c, *y;
    fl_act *act;
    fl_gdn_args gdn;
    fl_attn_args attn;
} vectors;

static void call_quantize(void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    if (!v->k->act_quantize(v->a, COLS, v->act)) exit(1);
}
static void call_rmsnorm(void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    v->k->rmsnorm(v->a, v->b, COLS, 1e-6f, v->y);
}
static void call_silu(void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    v->k->silu_mul(v->a, v->b, COLS, v->y);
}
static void call_conv(void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    const float *const row[4] = {v->a, v->a + COLS, v->b, v->b + COLS};
    v->k->conv4_silu(row, v->c, COLS, v->y);
}
static void call_gdn(void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    v->k->gdn_scan(&v->gdn);
}
static void call_attention(void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    v->k->attention(&v->attn, v->y, 0);
}

static void bench_vectors(const fl_kernels *k)
{
    enum { DIM = 128, T = 32, KEYS = 2048, HEAD = 256, HEADS = 8 };
    vectors v = {.k = k};
    v.a = floats(4 * COLS, 1.0f);
    v.b = floats(4 * COLS, 1.0f);
    v.c = floats(4 * COLS, 1.0f);
    v.y = floats(4 * COLS, 1.0f);
    v.act = take(COLS / 256 * sizeof *v.act);
    const struct {
        const char *entry;
        call_fn call;
    } simple[] = {{"act_quantize", call_quantize},
                  {"rmsnorm", call_rmsnorm},
                  {"silu_mul", call_silu},
                  {"conv4_silu", call_conv}};
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++) {
        line l = {simple[i].entry, "f32", k->name, "cache", 1, COLS * 4, COLS};
        measure(&l, simple[i].call, &v);
    }
    float *s = floats(DIM * DIM, 0.1f), *qkv = floats(3 * T * DIM, 0.08f), *o = floats(T * DIM, 1);
    float *gate = floats(T, 0.4f);
    for (int i = 0; i < T; i++) gate[i] += 0.5f;
    v.gdn = (fl_gdn_args){s,   DIM, DIM,  1,    0, 0, qkv, qkv + T * DIM, qkv + 2 * T * DIM, DIM,
                          DIM, DIM, gate, gate, 1, o, DIM};
    for (int rows = 1; rows <= T; rows += T - 1) {
        v.gdn.n_rows = rows;
        line l = {"gdn_scan",
                  "f32",
                  k->name,
                  "cache",
                  rows,
                  DIM * DIM * 4,
                  (int64_t)rows * 4 * DIM * DIM};
        measure(&l, call_gdn, &v);
    }
    const int64_t n_keys = KEYS;
    float *q = floats(HEADS * HEAD, 1.0f);
    float *values = floats(2 * KEYS * HEAD, 1.0f);
    uint8_t *kv = take((size_t)2 * KEYS * HEAD * sizeof(float));
    static const uint32_t types[] = {FL_TYPE_F16, FL_TYPE_Q8_0, FL_TYPE_F32};
    for (int i = 0; i < 3; i++) {
        const fl_type_info *t = fl_type_get(types[i]);
        const int64_t bytes = (int64_t)fl_type_row_bytes(types[i], KEYS * HEAD);
        t->quantize(values, kv, 2 * KEYS * HEAD);
        v.attn = (fl_attn_args){.q = q,
                                .n_rows = 1,
                                .n_q = HEADS,
                                .head_dim = HEAD,
                                .k = kv,
                                .v = kv + bytes,
                                .kv_stride = HEAD,
                                .kv_type = types[i],
                                .n_keys = &n_keys,
                                .scale = 0.0625f};
        line l = {
            "attention", t->name, k->name, "cache", 1, 2 * bytes, (int64_t)2 * KEYS * HEAD * HEADS};
        measure(&l, call_attention, &v);
    }
    void *all[] = {v.a, v.b, v.c, v.y, v.act, s, qkv, o, gate, q, kv, values};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_samples = atoi(argv[1]);
    if (n_samples < 1 || n_samples > MAX_SAMPLES) {
        fprintf(stderr, "usage: %s [SAMPLES from 1 to %d]\n", argv[0], MAX_SAMPLES);
        return 2;
    }
    for (const char *const *t = fl_kernels_tiers() + 1; *t; t++) {
        fl_kernels k;
        if (!fl_kernels_init(&k, *t) || strcmp(k.name, *t) != 0) continue;
        bench_products(&k);
        bench_vectors(&k);
    }
    return 0;
}
