#include "runtime/base/arena.h"
#include "tests/support/test.h"

static void budget_counts_and_refuses(void **state)
{
    (void)state;
    fl_err err;
    fl_budget b = {.name = "device", .cap = 100};
    ASSERT_OK(fl_budget_take(&b, 60, "weights", &err));
    ASSERT_FAILS(fl_budget_take(&b, 41, "cache", &err), FL_E_NOMEM,
                 "cache needs 41 bytes, 60 of 100");
    assert_int_equal(b.used, 60);
    ASSERT_OK(fl_budget_take(&b, 40, "cache", &err));
    fl_budget_give(&b, 100);
    assert_int_equal(b.used, 0);
    assert_int_equal(b.peak, 100);
    ASSERT_FAILS(fl_budget_take(&b, UINT64_MAX, "cache", &err), FL_E_NOMEM, "cache");
}

static uint64_t allocate(fl_arena *a, uint8_t **first, double **second)
{
    *first = FL_TAKE(a, uint8_t, 3);
    *second = FL_TAKE(a, double, 5);
    (void)fl_arena_take(a, 1, 4096);
    return a->used;
}

static void counting_equals_allocating(void **state)
{
    (void)state;
    uint8_t *p;
    double *q;
    fl_arena count = {0};
    const uint64_t need = allocate(&count, &p, &q);
    assert_null(p);
    static _Alignas(4096) uint8_t memory[8192];
    assert_true(need <= sizeof memory);
    fl_arena real = {.base = memory, .size = need};
    assert_int_equal(allocate(&real, &p, &q), need);
    assert_ptr_equal(p, memory);
    assert_ptr_equal(q, memory + 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget_counts_and_refuses),
        cmocka_unit_test(counting_equals_allocating),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
