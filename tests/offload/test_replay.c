/* Replay of routing traces: the optimum is the optimum, and the policies' hit rates do not slip. */
#include <stdlib.h>

#include "offload/replay.h"
#include "tests/support/test.h"
#include "tests/support/traces.h"

/* One layer, rows of one expert, one row a pass. */
static fl_trace *story(const char *experts)
{
    fl_err err = {0};
    fl_trace_writer *w = NULL;
    fl_trace *t = NULL;
    const fl_trace_shape shape = {.n_layer = 1, .n_expert = 8, .top_k = 1, .block = 1};
    const fl_trace_pass pass = {FL_PASS_AR, false, 1, 1, 1};
    ASSERT_OK(fl_trace_writer_open(&w, fl_traces_path, &shape, 1, &err));
    for (; *experts; experts++) {
        const int32_t e = *experts - '0';
        fl_trace_writer_layer(w, 0, 1, &e);
        ASSERT_OK(fl_trace_writer_pass(w, &pass, &err));
    }
    ASSERT_OK(fl_trace_writer_commit(&w, &err));
    ASSERT_OK(fl_trace_open(&t, fl_traces_path, &err));
    return t;
}

static uint64_t best_hits(const fl_trace *t, int n_slots)
{
    fl_err err = {0};
    fl_replay_result r;
    ASSERT_OK(fl_replay_best(&r, t, n_slots, &err));
    return r.hits;
}

static uint64_t policy_hits(const fl_trace *t, fl_policy_kind kind, int n_slots)
{
    fl_err err = {0};
    fl_replay_result r;
    ASSERT_OK(fl_replay_policy(&r, t, kind, n_slots, &err));
    return r.hits;
}

static void known_stories_have_known_ends(void **state)
{
    (void)state;
    fl_trace *t = story("012012012");
    assert_int_equal(policy_hits(t, FL_POLICY_LRU, 2), 0);
    assert_int_equal(policy_hits(t, FL_POLICY_LRU, 3), 6);
    assert_int_equal(best_hits(t, 0), 0);
    assert_int_equal(best_hits(t, 1), 2); /* 0 stays, the others are not kept */
    assert_int_equal(best_hits(t, 2), 4);
    assert_int_equal(best_hits(t, 3), 6);
    assert_int_equal(best_hits(t, 8), 6);
    fl_trace_close(&t);
    t = story("0001010123");
    assert_int_equal(policy_hits(t, FL_POLICY_LFU, 1), 2);
    assert_int_equal(policy_hits(t, FL_POLICY_LFU, 2), 6);
    fl_trace_close(&t);
}

static uint64_t fixed_hits(const fl_trace *t, int n_slots)
{
    fl_err err = {0};
    fl_replay_result r;
    ASSERT_OK(fl_replay_fixed(&r, t, n_slots, &err));
    return r.hits;
}

static void a_fixed_set_has_the_most_used(void **state)
{
    (void)state;
    fl_trace *t = story("0001010123");
    assert_int_equal(fixed_hits(t, 0), 0);
    assert_int_equal(fixed_hits(t, 1), 5);
    assert_int_equal(fixed_hits(t, 2), 8);
    assert_int_equal(fixed_hits(t, 3), 9);
    assert_int_equal(fixed_hits(t, 8), 10);
    fl_trace_close(&t);
}

/* The most hits of any way to choose, tried out: `held` is a set of experts as bits. */
static int most(const char *rest, unsigned held, int n_slots)
{
    if (!*rest) return 0;
    const unsigned e = 1u << (*rest - '0');
    if (held & e) return 1 + most(rest + 1, held, n_slots);
    int best = most(rest + 1, held, n_slots); /* not kept */
    if (__builtin_popcount(held) < n_slots) {
        const int n = most(rest + 1, held | e, n_slots);
        best = n > best ? n : best;
    }
    for (unsigned out = 1; out < 1u << 8; out <<= 1) {
        if (!(held & out)) continue;
        const int n = most(rest + 1, (held & ~out) | e, n_slots);
        best = n > best ? n : best;
    }
    return best;
}

static void no_choice_beats_the_optimum(void **state)
{
    (void)state;
    uint32_t r = 3;
    for (int i = 0; i < 20; i++) {
        char text[11] = {0};
        for (int k = 0; k < 10; k++) {
            r = r * 1664525u + 1013904223u;
            text[k] = (char)('0' + (r >> 24) % 5);
        }
        fl_trace *t = story(text);
        for (int n = 1; n <= 3; n++) {
            const uint64_t best = best_hits(t, n);
            assert_int_equal(best, most(text, 0, n));
            for (int k = 0; k < FL_N_POLICIES; k++)
                assert_true(policy_hits(t, (fl_policy_kind)k, n) <= best);
        }
        fl_trace_close(&t);
    }
}

static fl_trace *traffic(bench_domain domain, int n_layer, int passes)
{
    bench_traffic x = bench_traffic_defaults();
    x.n_layer = n_layer;
    x.passes = passes;
    x.domain = domain;
    return fl_traces_make(&x);
}

enum { N_LEVELS = 3 };
static const int percent[N_LEVELS] = {20, 40, 70};

static void the_default_is_near_the_optimum(void **state)
{
    (void)state;
    enum { LAYERS = 8 }; /* of few layers the present one's experts are a large part, and stay */
    for (int d = 0; d < BENCH_N_DOMAINS; d++) {
        fl_trace *t = traffic((bench_domain)d, LAYERS, FL_SANITIZED_OR(120, 200));
        for (int i = 0; i < N_LEVELS; i++) {
            fl_err err = {0};
            fl_replay_result best, own;
            const int n_slots = LAYERS * 256 * percent[i] / 100;
            ASSERT_OK(fl_replay_best(&best, t, n_slots, &err));
            ASSERT_OK(fl_replay_policy(&own, t, FL_POLICY_DEFAULT, n_slots, &err));
            assert_int_equal(own.asked, best.asked);
            const double points = 100.0 * (double)(best.hits - own.hits) / (double)own.asked;
            if (points > 10.0) fail_msg("%d %%: %.1f points below", percent[i], points);
        }
        fl_trace_close(&t);
    }
}

/* What a seeded trace gives, to the hit: a change of a policy or of the generator shows here. */
static void hits_are_those_of_last_time(void **state)
{
    (void)state;
    static const struct {
        uint64_t best, hits[FL_N_POLICIES];
    } expected[N_LEVELS] = {
        {7789, {183, 5138, 6282}}, {10449, {10084, 9154, 10097}}, {10607, {10605, 10605, 10607}}};
    fl_trace *t = traffic(BENCH_CODE, 4, 40);
    for (int i = 0; i < N_LEVELS; i++) {
        const int n_slots = 4 * 256 * percent[i] / 100;
        assert_int_equal(best_hits(t, n_slots), expected[i].best);
        for (int k = 0; k < FL_N_POLICIES; k++)
            assert_int_equal(policy_hits(t, (fl_policy_kind)k, n_slots), expected[i].hits[k]);
    }
    fl_trace_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(known_stories_have_known_ends, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(a_fixed_set_has_the_most_used, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(no_choice_beats_the_optimum, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(the_default_is_near_the_optimum, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(hits_are_those_of_last_time, fl_traces_setup,
                                        fl_traces_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
