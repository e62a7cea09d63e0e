/* What a layer will want: each signal says what it should, is judged by what came, and counts for
 * as much as it was right. */
#include <stdlib.h>

#include "offload/ahead.h"
#include "tests/support/test.h"

enum { LAYERS = 3, EXPERTS = 8 };

static fl_ahead *make(const uint32_t *heat, int hot)
{
    fl_err err;
    fl_ahead *a;
    ASSERT_OK(fl_ahead_create(&a, LAYERS, EXPERTS, heat, hot, &err));
    return a;
}

/* ids ends with -1. */
static int count(const int32_t *ids)
{
    int n = 0;
    while (ids[n] >= 0) n++;
    return n;
}

static void saw(fl_ahead *a, int layer, const int32_t *ids)
{
    fl_ahead_saw(a, layer, ids, count(ids));
}

static void guess(fl_ahead *a, int layer, const int32_t *ids)
{
    fl_ahead_guess(a, layer, ids, count(ids));
}

static void check_list(fl_ahead *a, int layer, const int32_t *want)
{
    int32_t got[EXPERTS];
    assert_int_equal(fl_ahead_list(a, layer, got), count(want));
    assert_memory_equal(got, want, (size_t)count(want) * sizeof *got);
}

static void check_stats(const fl_ahead *a, fl_signal s, uint64_t named, uint64_t right)
{
    const fl_signal_stats t = fl_ahead_stats(a, s);
    assert_int_equal(t.named, named);
    assert_int_equal(t.right, right);
}

#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})

static void signals_name_what_they_should(void **state)
{
    (void)state;
    fl_ahead *a = make(NULL, 2);
    check_list(a, 1, IDS(-1));
    saw(a, 1, IDS(2, 5));
    check_list(a, 1, IDS(2, 5)); /* the last pass */
    check_list(a, 0, IDS(-1));
    saw(a, 1, IDS(5, 7));
    check_list(a, 1, IDS(5, 7));
    check_stats(a, FL_SIGNAL_PASS, 2, 1);
    fl_ahead_block(a); /* the block used 2, 5 and 7; 5 and 7 have two signals for them */
    check_list(a, 1, IDS(5, 7, 2));
    guess(a, 1, IDS(0, 2));
    check_list(a, 1, IDS(2, 5, 7, 0));
    guess(a, 1, IDS(1)); /* instead of the guess before */
    check_list(a, 1, IDS(5, 7, 1, 2));
    saw(a, 1, IDS(1, 2, 3));
    check_stats(a, FL_SIGNAL_ROUTER, 1, 1);
    check_stats(a, FL_SIGNAL_BLOCK, 3, 1);
    check_stats(a, FL_SIGNAL_PASS, 4, 1);
    fl_ahead_block(a); /* only what came since the block before */
    saw(a, 1, IDS(6));
    check_stats(a, FL_SIGNAL_BLOCK, 3 + 3, 1);
    fl_ahead_destroy(&a);
    assert_null(a);
}

static void the_profile_names_the_hottest(void **state)
{
    (void)state;
    const uint32_t heat[LAYERS * EXPERTS] = {1, 9, 1, 3, 9, 2, 1, 1, /* */
                                             4, 4, 4, 4, 4, 4, 4, 4, /* flat */
                                             0, 0, 0, 0, 0, 0, 5, 0};
    fl_ahead *a = make(heat, 3);
    check_list(a, 0, IDS(1, 3, 4));
    check_list(a, 1, IDS(-1));
    check_list(a, 2, IDS(6));
    fl_ahead_destroy(&a);
}

static void a_signal_that_is_mostly_wrong_is_left_until_it_is_right(void **state)
{
    (void)state;
    fl_ahead *a = make(NULL, 1);
    for (int i = 0; i < 50; i++) {
        guess(a, 0, IDS(0, 1, 2, 3));
        saw(a, 0, IDS(4));
    }
    check_stats(a, FL_SIGNAL_ROUTER, 200, 0);
    guess(a, 0, IDS(0, 1, 2, 3));
    check_list(a, 0, IDS(4)); /* of the last pass, which is right */
    for (int i = 0; i < 2000; i++) {
        guess(a, 0, IDS(0, 1, 2, 3));
        saw(a, 0, IDS(0, 1, 2, 3));
    }
    guess(a, 0, IDS(5, 6));
    check_list(a, 0, IDS(0, 1, 2, 3, 5, 6));
    fl_ahead_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_name_what_they_should),
        cmocka_unit_test(the_profile_names_the_hottest),
        cmocka_unit_test(a_signal_that_is_mostly_wrong_is_left_until_it_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
