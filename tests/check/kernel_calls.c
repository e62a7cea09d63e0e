/* One call of every entry of the tiers that callgrind can run, each inside measured(), for
 * tests/check/instructions.sh. A line per call, in order: entry, type or -, tier, rows, and by what
 * its instructions are divided: weights, elements for what has none, key elements per head. */
#include <stdlib.h>

#include "tests/support/kern.h"
#include "tests/support/test.h"

enum { COLS = 1024, WEIGHT_ROWS = 16, MAX_ROWS = 32, N = 4096 };
enum { HEAD = 128, HEADS = 4, KEYS = 512, STEPS = 8 };

static const fl_kernels *k; /* the tier at work */
static fl_mat w;
static fl_act act[MAX_ROWS * COLS / 256];
static float *x, *y; /* [MAX_ROWS * COLS] */
static int n_rows;

typedef void (*call_fn)(void);

/* What callgrind counts: by this name. */
void measured(call_fn f);
__attribute__((noinline, noclone)) void measured(call_fn f)
{
    f();
    __asm__ volatile(""); /* no tail call: the function must be left after f */
}

static void measure(const char *entry, const char *type, int64_t units, call_fn f)
{
    f(); /* symbols are bound */
    measured(f);
    printf("%s %s %s %d %lld\n", entry, type, k->name, n_rows, (long long)units);
}

static void mul_law(void) { k->mul_law(&w, 0, WEIGHT_ROWS, act, n_rows, y, WEIGHT_ROWS); }
static void mul_float(void) { k->mul_float(&w, 0, WEIGHT_ROWS, x, COLS, n_rows, y, WEIGHT_ROWS); }

static void products(const uint32_t *types, bool law)
{
    static const int rows[] = {1, 4, MAX_ROWS};
    static uint8_t data[WEIGHT_ROWS * COLS * 4];
    for (; *types != UINT32_MAX; types++) {
        const fl_type_info *t = fl_type_get(*types);
        w = (fl_mat){data, *types, WEIGHT_ROWS, COLS, 1.0f};
        fl_rnd_blocks(*types, data, WEIGHT_ROWS * COLS, 0);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            n_rows = rows[i];
            if (law)
                measure("mul_law", t->name, WEIGHT_ROWS * COLS, mul_law);
            else
                measure("mul_float", t->name, WEIGHT_ROWS * COLS, mul_float);
        }
    }
}

static void act_quantize(void)
{
    if (!k->act_quantize(x, N, act)) abort();
}
static void rmsnorm(void) { k->rmsnorm(x, x, N, 1e-6f, y); }
static void l2norm(void) { k->l2norm(x, N, 1.0f, y); }
static void silu_mul(void) { k->silu_mul(x, x + N, N, y); }
static void sigmoid_mul(void) { k->sigmoid_mul(x, x + N, N, y); }
static void conv4_silu(void)
{
    const float *const row[4] = {x, x + N, x + 2 * N, x + 3 * N};
    k->conv4_silu(row, x + 4 * N, N / 4, y);
}
static void axpy(void) { k->axpy(0.5f, x, N, y); }
static void exp_sum(void) { (void)k->exp_sum(x, N, 1.0f, y); }

static float state[HEAD * HEAD];
static void gdn_scan(void)
{
    const fl_gdn_args a = {.s = state,
                           .dk = HEAD,
                           .dv = HEAD,
                           .n_rows = STEPS,
                           .q = x,
                           .k = x + N,
                           .v = x + 2 * N,
                           .q_stride = HEAD,
                           .k_stride = HEAD,
                           .v_stride = HEAD,
                           .decay = x + 3 * N,
                           .beta = x + 3 * N + STEPS,
                           .gate_stride = 1,
                           .o = y,
                           .o_stride = HEAD};
    k->gdn_scan(&a);
}

static uint8_t keys[KEYS * HEAD * 2], values[KEYS * HEAD * 2];
static void attention(void)
{
    int64_t n_keys[MAX_ROWS];
    for (int r = 0; r < n_rows; r++) n_keys[r] = KEYS;
    const fl_attn_args a = {.q = x,
                            .q_stride = HEADS * HEAD,
                            .n_rows = n_rows,
                            .n_kv = 1,
                            .n_q = HEADS,
                            .head_dim = HEAD,
                            .k = keys,
                            .v = values,
                            .kv_stride = HEAD,
                            .kv_type = w.type,
                            .n_keys = n_keys,
                            .scale = 0.1f};
    k->attention(&a, y, HEADS * HEAD);
}

static void others(void)
{
    n_rows = 1;
    measure("act_quantize", "-", N, act_quantize);
    measure("rmsnorm", "-", N, rmsnorm);
    measure("l2norm", "-", N, l2norm);
    measure("silu_mul", "-", N, silu_mul);
    measure("sigmoid_mul", "-", N, sigmoid_mul);
    measure("conv4_silu", "-", N / 4, conv4_silu);
    measure("axpy", "-", N, axpy);
    measure("exp_sum", "-", N, exp_sum);
    measure("gdn_scan", "-", HEAD * HEAD * STEPS, gdn_scan);
    static const uint32_t kv[] = {FL_TYPE_F16, FL_TYPE_Q8_0};
    for (int i = 0; i < 4; i++) {
        w.type = kv[i / 2];
        n_rows = i % 2 ? 4 : 1;
        fl_rnd_blocks(w.type, keys, KEYS * HEAD, 0);
        fl_rnd_blocks(w.type, values, KEYS * HEAD, 0);
        measure("attention", fl_type_get(w.type)->name, HEADS * KEYS * HEAD, attention);
    }
}

int main(void)
{
    static const uint32_t floats[] = {FL_TYPE_F32, FL_TYPE_F16, FL_TYPE_BF16, UINT32_MAX};
    static const char *const names[] = {"reference", "avx2"};
    x = malloc(MAX_ROWS * COLS * sizeof *x);
    y = malloc(MAX_ROWS * COLS * sizeof *y);
    if (!x || !y) return 1;
    fl_rnd_floats(x, MAX_ROWS * COLS, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fl_kernels table;
        if (!fl_kernels_init(&table, names[i]) || strcmp(table.name, names[i]) != 0) continue;
        k = &table;
        if (!fl_law_quantize(x, MAX_ROWS * COLS, act)) return 1;
        products(fl_law_types, true);
        products(floats, false);
        others();
    }
    free(x);
    free(y);
    return 0;
}
