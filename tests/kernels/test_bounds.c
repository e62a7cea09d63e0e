/* The largest integer sums of a block, as FORMAT.md states them: every tier reaches them exactly,
 * with both signs, for few rows and many. What wraps or saturates on the way would not. */
#include <stdlib.h>

#include "quant/blocks.h"
#include "tests/support/problem.h"
#include "tests/support/test.h"
#include "tests/support/tiles.h"

/* A type's largest |v| and |S| and how its bytes say so: all of a block's bytes are `fill`, but for
 * the scales of Q6_K and what makes d 1. `span`: levels that one sum covers. */
typedef struct extreme {
    uint32_t type;
    int v, s, sign, span, fill;
} extreme;
static const extreme extremes[] = {
    {FL_TYPE_Q4_K, 15, 63, 1, 256, 0xff},    {FL_TYPE_Q5_K, 31, 63, 1, 256, 0xff},
    {FL_TYPE_Q6_K, 32, 128, 1, 256, 0x00},   {FL_TYPE_Q3_K, 4, 32, 1, 256, 0x00},
    {FL_TYPE_IQ4_XS, 127, 32, 1, 256, 0x00}, {FL_TYPE_Q8_0, 128, 1, -1, 32, 0x80},
    {FL_TYPE_IQ4_NL, 127, 1, -1, 32, 0x00},  {FL_TYPE_Q4_0, 8, 1, -1, 32, 0x00},
    {FL_TYPE_MXFP4, 12, 1, 1, 32, 0x77},     {FL_TYPE_NVFP4, 12, 1, 1, 16, 0x77},
};
enum { EXTREMES = sizeof extremes / sizeof *extremes };

/* d = 1, dmin = 0; or d = 0, dmin = 1. */
static void block_of(const extreme *e, bool minimum, uint8_t *b)
{
    const fl_type_info *t = fl_type_get(e->type);
    const uint16_t one = 0x3c00, d = minimum ? 0 : one, dmin = minimum ? one : 0;
    memset(b, e->fill, (size_t)(256 / t->block_elems * t->block_bytes));
    if (e->type == FL_TYPE_Q6_K) {
        fl_block_q6_k *q = (fl_block_q6_k *)b;
        memset(q->sc, 0x80, sizeof q->sc);
        q->d = d;
    } else if (e->type == FL_TYPE_Q3_K) {
        ((fl_block_q3_k *)b)->d = d;
    } else if (e->span == 256) { /* first in the others of 256 */
        memcpy(b, &d, 2);
        if (e->type != FL_TYPE_IQ4_XS) memcpy(b + 2, &dmin, 2);
    } else if (e->type == FL_TYPE_MXFP4) {
        b[0] = 128;
    } else if (e->type == FL_TYPE_NVFP4) {
        memset(b, 0x40, 4);
    } else {
        memcpy(b, &d, 2);
    }
}

/* All x of the first `span` are +-127 with exponent P; the others are 0. */
static void act_of(fl_act *a, int x, int p, int span)
{
    memset(a, 0, sizeof *a);
    a->scale = 1.0f;
    for (int k = 0; k < 8; k++) a->p[k] = (int16_t)p;
    for (int i = 0; i < span; i++) {
        a->x[i] = (int8_t)x;
        a->sum[i / 32] = (int16_t)(a->sum[i / 32] + x * p);
    }
}

/* The other end of Q6_K's levels, which is the larger one where they have an offset. */
static const extreme offset_end = {FL_TYPE_Q6_K, 31, 128, -1, 256, 0xff};

/* Rows of both signs against weight rows that all reach the bound. */
static void check(const fl_kernels *k, const extreme *e, bool minimum, int p, int n_rows,
                  float bound)
{
    enum { WEIGHTS = 5 };
    static uint8_t data[WEIGHTS * 8 * 34];
    fl_act *x = malloc((size_t)n_rows * sizeof *x);
    float *y = fl_guard_new(n_rows * WEIGHTS);
    const int64_t bytes = (int64_t)fl_type_row_bytes(e->type, 256);
    assert_true(x && bytes * WEIGHTS <= (int64_t)sizeof data);
    for (int n = 0; n < WEIGHTS; n++) block_of(e, minimum, data + n * bytes);
    for (int r = 0; r < n_rows; r++) act_of(&x[r], r % 2 ? -127 : 127, p, e->span);
    const fl_mat w = {data, e->type, WEIGHTS, 256, 1.0f};
    k->mul_law(&w, 0, WEIGHTS, x, n_rows, y, WEIGHTS);
    fl_guard_check(y, n_rows * WEIGHTS, k->name);
    for (int i = 0; i < n_rows * WEIGHTS; i++) {
        float want = (float)(i / WEIGHTS % 2 ? -e->sign : e->sign) * (minimum ? -bound : bound);
        fl_same_bits(y + i, &want, 1, k->name, fl_type_get(e->type)->name);
    }
    fl_guard_free(y);
    free(x);
}

static int all_tiers(fl_kernels tier[FL_MAX_TIERS + 2])
{
    int n = fl_tiers_present(tier);
    if (n > 0) { /* AVX2 is there: the source of the tier amx can run */
        tier[n] = tier[n - 1];
        tier[n].name = "amx, tiles in C";
        tier[n++].mul_law = fl_emulated_mul_tiles;
    }
    assert_true(fl_kernels_init(&tier[n++], "reference"));
    return n;
}

static int64_t largest(const extreme *e, int p) { return (int64_t)e->v * e->s * 127 * e->span * p; }

static void test_sums_reach_their_bounds(void **state)
{
    (void)state;
    static const int rows[] = {1, 2, 4, 7, 16, 33};
    fl_kernels tier[FL_MAX_TIERS + 2];
    const int n_tiers = all_tiers(tier);
    for (int i = 0; i < EXTREMES * n_tiers; i++) {
        const extreme *e = &extremes[i % EXTREMES];
        const fl_kernels *k = &tier[i / EXTREMES];
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            for (int p = 1; p <= 8; p *= 2) {
                assert_true(largest(e, p) <= INT32_MAX);
                if (e->type == FL_TYPE_Q6_K)
                    check(k, &offset_end, false, p, rows[r], (float)largest(&offset_end, p));
                check(k, e, false, p, rows[r], (float)largest(e, p));
                if (e->s == 63) check(k, e, true, p, rows[r], 8.0f * 63 * 32 * 127 * (float)p);
            }
        }
    }
}

/* Extreme levels, scales, activations and exponents in any mixture: 16-bit sums on the way reach
 * their ends while the whole does not. */
static void test_mixed_extremes(void **state)
{
    (void)state;
    static const int8_t ends[] = {127, -127, 127, -127, 0};
    enum { WEIGHTS = 9, ROWS = 18, KIND = FL_BLOCK_KINDS - 1 };
    fl_kernels tier[FL_MAX_TIERS + 2];
    const int n_tiers = all_tiers(tier);
    for (int i = 0; i < EXTREMES * FL_SANITIZED_OR(1, 8); i++) {
        fl_problem p;
        fl_problem_make(&p, extremes[i % EXTREMES].type, WEIGHTS, 512, ROWS, KIND);
        for (int b = 0; b < 2 * ROWS; b++) {
            fl_act *a = &p.act[b];
            *a = (fl_act){.scale = 1.0f};
            for (int j = 0; j < 256; j++) a->x[j] = ends[fl_rnd_below(5)];
            for (int j = 0; j < 8; j++) a->p[j] = (int16_t)(1 << fl_rnd_below(4));
            for (int j = 0; j < 256; j++)
                a->sum[j / 32] = (int16_t)(a->sum[j / 32] + a->x[j] * a->p[j / 32]);
        }
        float *want = fl_guard_new(ROWS * p.ldy);
        fl_problem_multiply(&tier[n_tiers - 1], &p, true, 0, WEIGHTS, want);
        for (int t = 0; t < n_tiers - 1; t++) {
            for (int rows = 1; rows <= ROWS; rows += rows < 8 ? 1 : 10) {
                p.n_rows = rows;
                fl_problem_compare(&tier[t], &p, true, 0, WEIGHTS, want);
            }
        }
        fl_guard_free(want);
        fl_problem_free(&p);
    }
}

/* 1234567 -> "1,234,567". */
static void with_commas(int64_t v, char out[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)v), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
}

/* The table of section 2 has these numbers. */
static void test_document_says_so(void **state)
{
    (void)state;
    FILE *f = fopen("quant/FORMAT.md", "r");
    assert_non_null(f);
    char line[1024];
    int found = 0;
    while (fgets(line, sizeof line, f)) {
        for (int i = 0; i < EXTREMES; i++) {
            const extreme *e = &extremes[i];
            char off[32], on[32], want[128];
            with_commas(largest(e, 1), off);
            with_commas(largest(e, 8), on);
            snprintf(want, sizeof want, " | %s | %s |", off, on);
            if (strstr(line, want)) found++;
        }
    }
    fclose(f);
    assert_int_equal(found, EXTREMES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_reach_their_bounds),
        cmocka_unit_test(test_mixed_extremes),
        cmocka_unit_test(test_document_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
