/* What is left free, by kind of memory. */
#include "runtime/device/headroom.h"
#include "tests/support/test.h"

static const uint64_t MiB = 1 << 20, GiB = 1 << 30;

static void left_free(void **state)
{
    (void)state;
    static const struct {
        uint64_t free_mib, left_mib;
        fl_memory_kind kind;
        bool wsl;
    } is[] = {
        {16384, 2048, FL_MEMORY_MAIN, false},        {16384, 2048, FL_MEMORY_MAIN, true},
        {16384, 512, FL_MEMORY_CARD, false},         {4096, 256, FL_MEMORY_CARD, false},
        {16384, 1024, FL_MEMORY_CARD_SCREEN, false}, {4096, 512, FL_MEMORY_CARD_SCREEN, false},
        {20480, 2048, FL_MEMORY_CARD, true},         {20480, 2048, FL_MEMORY_CARD_SCREEN, true},
        {2048, 512, FL_MEMORY_CARD_SCREEN, true},
    };
    for (size_t i = 0; i < sizeof is / sizeof *is; i++)
        assert_int_equal(fl_memory_to_take(is[i].free_mib * MiB, is[i].kind, is[i].wsl),
                         (is[i].free_mib - is[i].left_mib) * MiB);
    assert_int_equal(fl_memory_to_take(512 * MiB, FL_MEMORY_CARD_SCREEN, false), 0);
    assert_int_equal(fl_memory_to_take(100, FL_MEMORY_CARD, false), 0);
    assert_int_equal(fl_memory_to_take(0, FL_MEMORY_MAIN, true), 0);
}

static void more_free_is_more_to_take(void **state)
{
    (void)state;
    for (int kind = FL_MEMORY_MAIN; kind <= FL_MEMORY_CARD_SCREEN; kind++)
        for (int wsl = 0; wsl < 2; wsl++)
            for (uint64_t free = 0; free < 64 * GiB; free += 97 * MiB) {
                const uint64_t a = fl_memory_to_take(free, (fl_memory_kind)kind, wsl);
                assert_true(a <= free);
                assert_true(a <= fl_memory_to_take(free + MiB, (fl_memory_kind)kind, wsl));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(left_free),
                                       cmocka_unit_test(more_free_is_more_to_take)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
