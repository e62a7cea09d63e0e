/* Products on tiles, on any CPU: the source with tile instructions in C, and the tier's object
 * with its instructions carried out one by one where the CPU refuses them. */
#include "tests/support/problem.h"
#include "tests/support/test.h"
#include "tests/support/tiles.h"
#if defined(__x86_64__)
#include "kernels/x86/x86.h"
#endif

static bool cpu_has(const char *tier)
{
    fl_kernels k;
    assert_true(fl_kernels_init(&k, tier));
    return strcmp(k.name, tier) == 0;
}

/* Weight rows [n0, n1) of a product of these sizes have the reference's bits. */
static void check(const fl_kernels *k, uint32_t type, int64_t rows, int64_t cols, int n_rows,
                  int kind)
{
    fl_kernels ref;
    fl_problem p;
    assert_true(fl_kernels_init(&ref, "reference"));
    fl_problem_make(&p, type, rows, cols, n_rows, kind);
    float *want = fl_guard_new(n_rows * p.ldy);
    fl_problem_multiply(&ref, &p, true, 0, rows, want);
    int64_t n0 = fl_rnd_below((int)rows), n1 = n0 + 1 + fl_rnd_below((int)(rows - n0));
    fl_problem_compare(k, &p, true, 0, rows, want);
    fl_problem_compare(k, &p, true, n0, n1, want);
    assert_true(fl_tiles_released());
    fl_guard_free(want);
    fl_problem_free(&p);
}

/* Every way in which a last tile is not full, more rows than are packed at once, more blocks than
 * that, extreme levels and scales; with and without option H. `least` rows. */
static void check_all(const fl_kernels *k, int least, int64_t long_cols)
{
    const bool option_h = fl_law_option_h;
    for (int h = 0; h < 2; h++) {
        fl_law_option_h = h;
        for (const uint32_t *t = fl_law_types; *t != UINT32_MAX; t++) {
            for (int kind = 0; kind < FL_BLOCK_KINDS; kind++)
                check(k, *t, 1 + fl_rnd_below(18), 256, least + fl_rnd_below(18), kind);
            check(k, *t, 16, 512, least, 0);
            check(k, *t, 17, 256, 33, 1);
            if (h) check(k, *t, 3, 256, 64 + 1 + fl_rnd_below(16), 0);
            check(k, *t, 2, long_cols, 17, h);
        }
    }
    fl_law_option_h = option_h;
}

static void test_tiles_in_c(void **state)
{
    (void)state;
    fl_kernels k;
    if (!cpu_has("avx2")) skip(); /* what is around the tile instructions is AVX2 */
    assert_true(fl_kernels_init(&k, NULL));
    k.name = "amx, tiles in C";
    k.mul_law = fl_emulated_mul_tiles;
    check_all(&k, 1, 256 * 9);
}

/* All +-127 with all exponents against the largest and the smallest levels and scales. */
static void test_tiles_in_c_extremes(void **state)
{
    (void)state;
    fl_kernels k, ref;
    if (!cpu_has("avx2")) skip();
    assert_true(fl_kernels_init(&k, NULL) && fl_kernels_init(&ref, "reference"));
    k.name = "amx, tiles in C";
    k.mul_law = fl_emulated_mul_tiles;
    for (const uint32_t *t = fl_law_types; *t != UINT32_MAX; t++) {
        for (int kind = 0; kind < FL_BLOCK_KINDS; kind++) {
            fl_problem p;
            fl_problem_make(&p, *t, 5, 256, 18, kind);
            for (int r = 0; r < 18; r++) fl_act_fill(&p.act[r], r);
            float *want = fl_guard_new(p.n_rows * p.ldy);
            fl_problem_multiply(&ref, &p, true, 0, 5, want);
            fl_problem_compare(&k, &p, true, 0, 5, want);
            fl_guard_free(want);
            fl_problem_free(&p);
        }
    }
}

/* The object that ships. Where the CPU has AMX nothing is refused, and this is a plain test. */
static void test_tier_object(void **state)
{
    (void)state;
#if defined(__x86_64__)
    fl_kernels k;
    if (!cpu_has("avx512vnni")) skip();
    fl_tiles_trap();
    assert_true(fl_kernels_init(&k, NULL));
    k.name = "amx, as compiled";
    k.mul_law = fl_amx_mul_law;
    const long before = fl_tiles_executed();
    check_all(&k, 16, 256 * 9);
    if (!cpu_has("amx")) assert_true(fl_tiles_executed() > before);
#else
    skip();
#endif
}

static void test_amx_is_here(void **state)
{
    (void)state;
    if (!cpu_has("amx")) skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_in_c),
        cmocka_unit_test(test_tiles_in_c_extremes),
        cmocka_unit_test(test_tier_object),
        cmocka_unit_test(test_amx_is_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
