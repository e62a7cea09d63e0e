#include <stdlib.h>

#include "bench/support/cases.h"
#include "bench/support/random.h"

/* Everything but products: rows of floats, the recurrence of one GDN head, attention of the query
 * heads that share a kv head. */

enum { COLS = 2048, DIM = 128, T = 32, KEYS = 2048, HEAD = 256, HEADS = 8 };

typedef struct vectors {
    float *a, *b, *c, *y; /* [4 COLS] */
    fl_act *act;
    fl_gdn_args gdn;
    fl_attn_args attn;
    float *out; /* [T][HEADS][HEAD] */
    fl_attn_part part[2];
    int64_t kv_bytes;
    volatile double sum;
} vectors;

static void call_quantize(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    if (!k->act_quantize(v->a, COLS, v->act)) abort();
}
static void call_rmsnorm(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    k->rmsnorm(v->a, v->b, COLS, 1e-6f, v->y);
}
static void call_l2norm(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    for (int i = 0; i < COLS; i += DIM) k->l2norm(v->a + i, DIM, 1.0f, v->y + i);
}
static void call_silu(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    k->silu_mul(v->a, v->b, COLS, v->y);
}
static void call_sigmoid(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    k->sigmoid_mul(v->a, v->b, COLS, v->y);
}
static void call_conv(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    const float *const row[4] = {v->a, v->a + COLS, v->b, v->b + COLS};
    k->conv4_silu(row, v->c, COLS, v->y);
}
static void call_axpy(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    k->axpy(1e-3f, v->a, COLS, v->c);
}
static void call_exp_sum(const fl_kernels *k, void *arg, int sample)
{
    vectors *v = arg;
    (void)sample;
    v->sum = k->exp_sum(v->a, COLS, 1.0f, NULL);
}
static void read_row(void *arg, int sample)
{
    const vectors *v = arg;
    (void)sample;
    bench_read(v->a, COLS * 4);
}

static void call_gdn(const fl_kernels *k, void *arg, int sample)
{
    const vectors *v = arg;
    (void)sample;
    k->gdn_scan(&v->gdn);
}
static void read_state(void *arg, int sample)
{
    const vectors *v = arg;
    (void)sample;
    bench_read(v->gdn.s, DIM * DIM * 4);
}

static void call_attention(const fl_kernels *k, void *arg, int sample)
{
    const vectors *v = arg;
    (void)sample;
    k->attention(&v->attn, v->out, HEADS * HEAD);
}
static void call_chunk(const fl_kernels *k, void *arg, int sample)
{
    const vectors *v = arg;
    k->attention_chunk(&v->attn, sample % (KEYS / FL_ATTN_CHUNK), &v->part[0]);
}
static void call_join(const fl_kernels *k, void *arg, int sample)
{
    const vectors *v = arg;
    (void)sample;
    k->attention_join(&v->part[1], &v->part[0], HEADS, HEAD);
}
static void read_cache(void *arg, int sample)
{
    const vectors *v = arg;
    (void)sample;
    bench_read(v->attn.k, v->kv_bytes);
}

static void bench_rows(const bench_tiers *t, vectors *v)
{
#define ENTRY(NAME) #NAME, offsetof(fl_kernels, NAME)
    static const struct {
        const char *entry;
        size_t member;
        void (*call)(const fl_kernels *k, void *arg, int sample);
    } simple[] = {{ENTRY(act_quantize), call_quantize},
                  {ENTRY(rmsnorm), call_rmsnorm},
                  {ENTRY(l2norm), call_l2norm},
                  {ENTRY(silu_mul), call_silu},
                  {ENTRY(sigmoid_mul), call_sigmoid},
                  {ENTRY(conv4_silu), call_conv},
                  {ENTRY(axpy), call_axpy},
                  {ENTRY(exp_sum), call_exp_sum}};
#undef ENTRY
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++) {
        const bench_case c = {.entry = simple[i].entry,
                              .type = "f32",
                              .memory = "cache",
                              .rows = 1,
                              .bytes = COLS * 4,
                              .ops = COLS,
                              .member = simple[i].member,
                              .call = simple[i].call,
                              .read = read_row,
                              .arg = v};
        bench_measure(t, &c);
    }
}

static void bench_gdn(const bench_tiers *t, vectors *v, uint64_t *seed)
{
    float *s = bench_floats(DIM * DIM, 0.1f, seed), *qkv = bench_floats(3 * T * DIM, 0.08f, seed);
    float *o = bench_floats(T * DIM, 1, seed), *gate = bench_floats(T, 0.4f, seed);
    for (int i = 0; i < T; i++) gate[i] += 0.5f;
    v->gdn = (fl_gdn_args){.s = s,
                           .dk = DIM,
                           .dv = DIM,
                           .q = qkv,
                           .k = qkv + T * DIM,
                           .v = qkv + 2 * T * DIM,
                           .q_stride = DIM,
                           .k_stride = DIM,
                           .v_stride = DIM,
                           .decay = gate,
                           .beta = gate,
                           .gate_stride = 1,
                           .o = o,
                           .o_stride = DIM};
    for (int rows = 1; rows <= T; rows += T - 1) {
        v->gdn.n_rows = rows;
        const bench_case c = {.entry = "gdn_scan",
                              .type = "f32",
                              .memory = "cache",
                              .rows = rows,
                              .bytes = DIM * DIM * 4,
                              .ops = (int64_t)rows * 3 * DIM * DIM,
                              .member = offsetof(fl_kernels, gdn_scan),
                              .call = call_gdn,
                              .read = read_state,
                              .arg = v};
        bench_measure(t, &c);
    }
    free(s);
    free(qkv);
    free(o);
    free(gate);
}

static void bench_cache(const bench_tiers *t, vectors *v, const char *type)
{
    const bench_case c = {.entry = "attention",
                          .type = type,
                          .memory = "cache",
                          .rows = v->attn.n_rows,
                          .bytes = v->kv_bytes,
                          .ops = (int64_t)2 * KEYS * HEAD * HEADS * v->attn.n_rows,
                          .member = offsetof(fl_kernels, attention),
                          .not_reference = v->attn.n_rows > 1,
                          .call = call_attention,
                          .read = read_cache,
                          .arg = v};
    bench_measure(t, &c);
    if (v->attn.n_rows > 1) return;
    bench_case chunk = c;
    chunk.entry = "attention_chunk";
    chunk.bytes = v->kv_bytes = c.bytes / (KEYS / FL_ATTN_CHUNK);
    chunk.ops = c.ops / (KEYS / FL_ATTN_CHUNK);
    chunk.member = offsetof(fl_kernels, attention_chunk);
    chunk.call = call_chunk;
    bench_measure(t, &chunk);
}

static void bench_join(const bench_tiers *t, vectors *v)
{
    v->kv_bytes = HEADS * HEAD * 4;
    const bench_case c = {.entry = "attention_join",
                          .type = "f32",
                          .memory = "cache",
                          .rows = 1,
                          .bytes = v->kv_bytes,
                          .ops = HEADS * HEAD,
                          .member = offsetof(fl_kernels, attention_join),
                          .call = call_join,
                          .read = read_cache,
                          .arg = v};
    bench_measure(t, &c);
}

static void bench_attention(const bench_tiers *t, vectors *v, uint64_t *seed)
{
    static const uint32_t types[] = {FL_TYPE_F16, FL_TYPE_Q8_0, FL_TYPE_F32};
    enum { HEAD_VALUES = HEADS * HEAD };
    float *q = bench_floats(T * HEAD_VALUES, 1.0f, seed);
    float *values = bench_floats(2 * KEYS * HEAD, 1.0f, seed), *parts[2];
    uint8_t *kv = bench_take((size_t)2 * KEYS * HEAD * sizeof(float));
    int64_t n_keys[T];
    for (int i = 0; i < T; i++) n_keys[i] = KEYS;
    for (int i = 0; i < 2; i++) {
        float *p = parts[i] = bench_floats(HEADS * (HEAD + 2), 1.0f, seed);
        v->part[i] = (fl_attn_part){p, p + HEADS, p + 2 * HEADS, HEADS};
        for (int h = 0; h < HEADS; h++) v->part[i].sum[h] = 1.0f;
    }
    v->out = bench_floats(T * HEAD_VALUES, 1.0f, seed);
    for (int i = 0; i < 3; i++) {
        const fl_type_info *info = fl_type_get(types[i]);
        const int64_t bytes = (int64_t)fl_type_row_bytes(types[i], KEYS * HEAD);
        info->quantize(values, kv, 2 * KEYS * HEAD);
        for (int rows = 1; rows <= T; rows += T - 1) {
            v->kv_bytes = 2 * bytes;
            v->attn = (fl_attn_args){.q = q,
                                     .q_stride = HEAD_VALUES,
                                     .n_rows = rows,
                                     .n_kv = 1,
                                     .n_q = HEADS,
                                     .head_dim = HEAD,
                                     .k = kv,
                                     .v = kv + bytes,
                                     .kv_stride = HEAD,
                                     .kv_type = types[i],
                                     .n_keys = n_keys,
                                     .scale = 0.0625f};
            bench_cache(t, v, info->name);
        }
    }
    bench_join(t, v);
    free(q);
    free(values);
    free(parts[0]);
    free(parts[1]);
    free(v->out);
    free(kv);
}

void bench_vectors(const bench_tiers *t)
{
    uint64_t seed = 88172645463325252ull;
    vectors v = {.a = bench_floats(4 * COLS, 1.0f, &seed),
                 .b = bench_floats(4 * COLS, 1.0f, &seed),
                 .c = bench_floats(4 * COLS, 1.0f, &seed),
                 .y = bench_floats(4 * COLS, 1.0f, &seed),
                 .act = bench_take(COLS / 256 * sizeof(fl_act))};
    bench_rows(t, &v);
    bench_gdn(t, &v, &seed);
    bench_attention(t, &v, &seed);
    free(v.a);
    free(v.b);
    free(v.c);
    free(v.y);
    free(v.act);
}
