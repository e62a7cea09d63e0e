#include <stdlib.h>
#include <string.h>

#include "bench/support/cases.h"
#include "bench/support/random.h"

/* Products of one matrix, in cache and, for one row, with a matrix that was not seen before. */

enum { COLS = 2048, ROWS = 1024, MAX_ROWS = 512, MATRICES = 96, REFERENCE_ROWS = 4 };

typedef struct product {
    fl_mat w;
    const uint8_t *pool; /* n_matrices matrices of `bytes` */
    int64_t bytes, n_matrices;
    const fl_act *act;
    const float *x;
    float *y;
    int n_rows;
} product;

static const uint8_t *matrix(const product *p, int sample)
{
    return p->pool + sample % p->n_matrices * p->bytes;
}

static void call_product(const fl_kernels *k, void *arg, int sample)
{
    product *p = arg;
    p->w.data = matrix(p, sample);
    if (fl_type_get(p->w.type)->law == FL_LAW_FLOAT)
        k->mul_float(&p->w, 0, ROWS, p->x, COLS, p->n_rows, p->y, ROWS);
    else
        k->mul_law(&p->w, 0, ROWS, p->act, p->n_rows, p->y, ROWS);
}

static void read_matrix(void *arg, int sample)
{
    const product *p = arg;
    bench_read(matrix(p, sample), p->bytes);
}

static void bench_type(const bench_tiers *t, uint32_t type, product *p, uint64_t *seed)
{
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, MAX_ROWS};
    const fl_type_info *info = fl_type_get(type);
    const bool law = info->law != FL_LAW_FLOAT;
    bench_case c = {.entry = law ? "mul_law" : "mul_float",
                    .type = info->name,
                    .memory = "cache",
                    .member = law ? offsetof(fl_kernels, mul_law) : offsetof(fl_kernels, mul_float),
                    .on_bytes = law,
                    .call = call_product,
                    .read = read_matrix,
                    .arg = p};
    if (!bench_wanted(t, c.entry)) return;
    c.bytes = p->bytes = ROWS * (int64_t)fl_type_row_bytes(type, COLS);
    uint8_t *pool = bench_take((size_t)(MATRICES * p->bytes));
    /* Small halves everywhere: finite scales whatever field they fall into. */
    for (int64_t i = 0; i < p->bytes; i++)
        pool[i] = (uint8_t)(bench_random(seed) >> 16 & (i & 1 ? 0x2b : 0xff));
    for (int m = 1; m < MATRICES; m++) memcpy(pool + m * p->bytes, pool, (size_t)p->bytes);
    p->w = (fl_mat){pool, type, ROWS, COLS, 1.0f};
    p->pool = pool;
    p->n_matrices = 1;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        c.rows = p->n_rows = rows[r];
        c.ops = (int64_t)ROWS * COLS * rows[r];
        c.not_reference = rows[r] > REFERENCE_ROWS;
        bench_measure(t, &c);
    }
    p->n_matrices = MATRICES;
    p->n_rows = c.rows = 1;
    c.ops = (int64_t)ROWS * COLS;
    c.memory = "fresh";
    bench_measure(t, &c);
    free(pool);
}

void bench_products(const bench_tiers *t)
{
    static const uint32_t types[] = {FL_TYPE_Q4_K, FL_TYPE_Q8_0, FL_TYPE_Q6_K,
                                     FL_TYPE_Q5_K, FL_TYPE_Q4_0, FL_TYPE_IQ4_XS,
                                     FL_TYPE_BF16, FL_TYPE_F16,  FL_TYPE_F32};
    uint64_t seed = 88172645463325252ull;
    float *x = bench_floats(MAX_ROWS * COLS, 1.0f, &seed);
    float *y = bench_floats(MAX_ROWS * ROWS, 1.0f, &seed);
    fl_act *act = bench_take(MAX_ROWS * (COLS / 256) * sizeof *act);
    if (!t->k[0].act_quantize(x, MAX_ROWS * COLS, act)) abort();
    product p = {.act = act, .x = x, .y = y};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) bench_type(t, types[i], &p, &seed);
    free(x);
    free(y);
    free(act);
}
