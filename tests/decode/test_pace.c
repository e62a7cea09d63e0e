/* Turns of AR and speculation by made-up times. */
#include "runtime/decode/pace.h"

#include "tests/support/test.h"

enum { STEP_NS = 100 };

/* `rounds` rounds of so many tokens each, as long as no AR token is wanted; how many ran. */
static int rounds(fl_pace *p, int n, uint64_t ns, int64_t tokens)
{
    int ran = 0;
    while (ran < n && !fl_pace_wants_step(p)) {
        fl_pace_round(p, ns, tokens);
        ran++;
    }
    if (ran < n) fl_pace_step(p, STEP_NS);
    return ran;
}

/* AR tokens until a round is wanted. */
static int turn(fl_pace *p)
{
    int n = 0;
    for (; fl_pace_wants_step(p); n++) fl_pace_step(p, STEP_NS);
    return n;
}

static void test_begins_with_ar(void **state)
{
    (void)state;
    fl_pace p;
    fl_pace_init(&p);
    assert_int_equal(turn(&p), FL_PACE_STEPS);
}

static void test_a_round_that_pays_goes_on(void **state)
{
    (void)state;
    fl_pace p;
    fl_pace_init(&p);
    turn(&p);
    /* 3 tokens for the time of 2: one AR step in FL_PACE_REFRESH rounds. */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(rounds(&p, 1000, 2 * STEP_NS, 3), FL_PACE_REFRESH);
        assert_int_equal(turn(&p), 0);
    }
}

/* 3 AR tokens' time for 2: one lost in each round. */
enum { LOSING_ROUNDS = FL_PACE_DEBT + 1 };

static void test_a_losing_draft_rests_longer_each_time(void **state)
{
    (void)state;
    fl_pace p;
    fl_pace_init(&p);
    turn(&p);
    int want = FL_PACE_TURN;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(rounds(&p, 1000, 3 * STEP_NS, 2), LOSING_ROUNDS);
        assert_int_equal(turn(&p) + 1, want);
        want = 2 * want < FL_PACE_LONGEST ? 2 * want : FL_PACE_LONGEST;
    }
    assert_int_equal(want, FL_PACE_LONGEST);
    /* It pays for a while: turns are short again. */
    assert_int_equal(rounds(&p, 1000, 2 * STEP_NS, 3), FL_PACE_REFRESH);
    assert_int_equal(turn(&p), 0);
    assert_int_equal(rounds(&p, 1000, 3 * STEP_NS, 2), LOSING_ROUNDS);
    assert_int_equal(turn(&p) + 1, FL_PACE_TURN);
}

/* A round that costs as much as 30 AR tokens and gives one is tried once. */
static void test_a_very_dear_round_is_the_last(void **state)
{
    (void)state;
    fl_pace p;
    fl_pace_init(&p);
    turn(&p);
    assert_int_equal(rounds(&p, 1000, 30 * STEP_NS, 1), 1);
    assert_int_equal(turn(&p) + 1, FL_PACE_TURN);
}

/* Rounds of 1 token and of 15, each for the time of 4 AR tokens, pay: 8 tokens for 4. */
static void test_uneven_rounds_are_weighed_together(void **state)
{
    (void)state;
    fl_pace p;
    fl_pace_init(&p);
    turn(&p);
    for (int i = 0; i < FL_PACE_REFRESH - 1; i++) {
        assert_false(fl_pace_wants_step(&p));
        fl_pace_round(&p, 4 * STEP_NS, i % 2 ? 1 : 15);
    }
    assert_false(fl_pace_wants_step(&p));
}

/* What was won long ago pays for FL_PACE_DEBT tokens, not for more. */
static void test_gains_are_not_saved_for_ever(void **state)
{
    (void)state;
    fl_pace p;
    fl_pace_init(&p);
    turn(&p);
    assert_int_equal(rounds(&p, 20, STEP_NS, 30), 20);
    assert_int_equal(rounds(&p, 1000, 3 * STEP_NS, 2), 2 * FL_PACE_DEBT + 1);
}

/* The first AR step after a load is slow; later ones correct it. */
static void test_ar_that_becomes_cheap_is_noticed(void **state)
{
    (void)state;
    fl_pace p;
    fl_pace_init(&p);
    turn(&p);
    fl_pace_step(&p, 1000 * STEP_NS);
    int ran = 0;
    while (p.next_turn == FL_PACE_TURN && ran < 100000) {
        if (fl_pace_wants_step(&p)) {
            fl_pace_step(&p, STEP_NS);
        } else {
            fl_pace_round(&p, 3 * STEP_NS, 2);
            ran++;
        }
    }
    assert_true(ran < 100 * FL_PACE_REFRESH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_begins_with_ar),
        cmocka_unit_test(test_a_round_that_pays_goes_on),
        cmocka_unit_test(test_a_losing_draft_rests_longer_each_time),
        cmocka_unit_test(test_a_very_dear_round_is_the_last),
        cmocka_unit_test(test_gains_are_not_saved_for_ever),
        cmocka_unit_test(test_uneven_rounds_are_weighed_together),
        cmocka_unit_test(test_ar_that_becomes_cheap_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
