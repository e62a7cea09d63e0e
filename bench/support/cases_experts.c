#include <stdlib.h>
#include <string.h>

#include "bench/support/cases.h"
#include "bench/support/random.h"

/* One row through whole experts as they lie in a file: all gate matrices, all up, all down. A call
 * is every expert once, in an order of its own: more than half a gigabyte. */

enum { D = 2048, FF = 512, BYTES = 512 << 20, MAX_EXPERTS = 512, SAMPLES = 9 };

typedef struct experts {
    uint32_t type;
    uint8_t *gate, *up, *down;
    int64_t bytes; /* of a matrix */
    int n, order[MAX_EXPERTS];
    float *g, *u, *y;
    fl_act *in, *mid; /* [D / 256], [FF / 256] */
} experts;

static void call_experts(const fl_kernels *k, void *arg, int sample)
{
    experts *x = arg;
    (void)sample;
    for (int i = 0; i < x->n; i++) {
        const int64_t at = x->order[i] * x->bytes;
        const fl_mat gate = {x->gate + at, x->type, FF, D, 1.0f};
        const fl_mat up = {x->up + at, x->type, FF, D, 1.0f};
        const fl_mat down = {x->down + at, x->type, D, FF, 1.0f};
        k->mul_law(&gate, 0, FF, x->in, 1, x->g, FF);
        k->mul_law(&up, 0, FF, x->in, 1, x->u, FF);
        k->silu_mul(x->g, x->u, FF, x->g);
        if (!k->act_quantize(x->g, FF, x->mid)) abort();
        k->mul_law(&down, 0, D, x->mid, 1, x->y, D);
    }
}

static void read_experts(void *arg, int sample)
{
    const experts *x = arg;
    (void)sample;
    for (int i = 0; i < x->n; i++) {
        const int64_t at = x->order[i] * x->bytes;
        bench_read(x->gate + at, x->bytes);
        bench_read(x->up + at, x->bytes);
        bench_read(x->down + at, x->bytes);
    }
}

/* The same bytes in each expert, every one in memory of its own. */
static uint8_t *fill(const experts *x, uint64_t *seed)
{
    uint8_t *p = bench_take((size_t)(x->n * x->bytes));
    for (int64_t i = 0; i < x->bytes; i++)
        p[i] = (uint8_t)(bench_random(seed) >> 16 & (i & 1 ? 0x2b : 0xff));
    for (int e = 1; e < x->n; e++) memcpy(p + e * x->bytes, p, (size_t)x->bytes);
    return p;
}

static void bench_type(const bench_tiers *t, experts *x, uint64_t *seed)
{
    x->bytes = FF * (int64_t)fl_type_row_bytes(x->type, D);
    x->n = (int)(BYTES / (3 * x->bytes)) + 1;
    for (int i = 0; i < x->n; i++) {
        const int j = (int)(bench_random(seed) >> 33) % (i + 1);
        x->order[i] = x->order[j];
        x->order[j] = i;
    }
    x->gate = fill(x, seed);
    x->up = fill(x, seed);
    x->down = fill(x, seed);
    const bench_case c = {.entry = "experts",
                          .type = fl_type_get(x->type)->name,
                          .memory = "fresh",
                          .rows = 1,
                          .bytes = 3 * x->bytes * x->n,
                          .ops = 3 * (int64_t)D * FF * x->n,
                          .member = offsetof(fl_kernels, mul_law),
                          .on_bytes = true,
                          .not_reference = true,
                          .call = call_experts,
                          .read = read_experts,
                          .arg = x};
    bench_measure(t, &c);
    free(x->gate);
    free(x->up);
    free(x->down);
}

void bench_experts(const bench_tiers *t)
{
    static const uint32_t types[] = {FL_TYPE_Q4_K, FL_TYPE_Q6_K, FL_TYPE_Q8_0};
    if (!bench_wanted(t, "experts")) return;
    uint64_t seed = 88172645463325252ull;
    bench_tiers own = *t;
    if (own.samples > SAMPLES) own.samples = SAMPLES;
    static experts x;
    float *row = bench_floats(D, 1.0f, &seed);
    x.g = bench_floats(FF, 1.0f, &seed);
    x.u = bench_floats(FF, 1.0f, &seed);
    x.y = bench_floats(D, 1.0f, &seed);
    x.in = bench_take(D / 256 * sizeof *x.in);
    x.mid = bench_take(FF / 256 * sizeof *x.mid);
    if (!t->k[0].act_quantize(row, D, x.in)) abort();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        x.type = types[i];
        bench_type(&own, &x, &seed);
    }
    void *all[] = {row, x.g, x.u, x.y, x.in, x.mid};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}
