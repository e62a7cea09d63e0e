/* The made-up routing of bench/traces holds the figures that were measured of real routers
 * (bench/README.md has them with their sources). */
#include <stdlib.h>

#include "tests/support/test.h"
#include "tests/support/traces.h"

static bench_traffic small(bench_domain domain, uint64_t seed)
{
    bench_traffic t = bench_traffic_defaults();
    t.n_layer = FL_SANITIZED_OR(1, 4);
    t.domain = domain;
    t.seed = seed;
    return t;
}

static void blocks_have_the_measured_figures(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= FL_SANITIZED_OR(1, 3); seed++) {
        fl_err err = {0};
        bench_traffic_stats s;
        fl_trace *trace[BENCH_N_DOMAINS];
        double jaccard = 1.0;
        for (int d = 0; d < BENCH_N_DOMAINS; d++) {
            const bench_traffic t = small((bench_domain)d, seed);
            trace[d] = fl_traces_make(&t);
            assert_true(fl_trace_get_shape(trace[d])->synthetic);
            ASSERT_OK(bench_traffic_measure(&s, trace[d], &err));
            assert_int_equal(s.passes, t.passes);
            const char *missed = bench_traffic_missed(&s);
            if (missed) fail_msg("%s, seed %d: %s", bench_domain_name[d], (int)seed, missed);
        }
        ASSERT_OK(bench_traffic_jaccard(&jaccard, trace[0], trace[1], &err));
        if (jaccard >= BENCH_MAX_JACCARD) fail_msg("Jaccard %.3f", jaccard);
        ASSERT_OK(bench_traffic_jaccard(&jaccard, trace[0], trace[0], &err));
        assert_true(jaccard == 1.0);
        for (int d = 0; d < BENCH_N_DOMAINS; d++) fl_trace_close(&trace[d]);
    }
}

/* A trace whose figures can be counted by hand: 4 experts, one chosen by each of 2 rows. */
static void figures_are_what_they_are_called(void **state)
{
    (void)state;
    static const struct {
        fl_trace_pass pass;
        int32_t expert[2];
    } story[] = {
        {{FL_PASS_PREFILL, false, 2, 2, 2}, {3, 3}}, {{FL_PASS_BLOCK, true, 2, 0, 1}, {0, 1}},
        {{FL_PASS_BLOCK, false, 2, 0, 1}, {0, 2}},   {{FL_PASS_BLOCK, true, 2, 0, 2}, {1, 1}},
        {{FL_PASS_BLOCK, true, 2, 0, 2}, {1, 2}},
    };
    fl_err err = {0};
    fl_trace_writer *w = NULL;
    fl_trace *t = NULL;
    bench_traffic_stats s;
    const fl_trace_shape shape = {1, 4, 1, 2, true, "hand"};
    ASSERT_OK(fl_trace_writer_open(&w, fl_traces_path, &shape, 2, &err));
    for (size_t i = 0; i < sizeof story / sizeof *story; i++) {
        fl_trace_writer_layer(w, 0, 2, story[i].expert);
        ASSERT_OK(fl_trace_writer_pass(w, &story[i].pass, &err));
    }
    ASSERT_OK(fl_trace_writer_commit(&w, &err));
    ASSERT_OK(fl_trace_open(&t, fl_traces_path, &err));
    ASSERT_OK(bench_traffic_measure(&s, t, &err));
    fl_trace_close(&t);
    assert_int_equal(s.passes, 4);
    assert_int_equal(s.blocks, 3);
    assert_true(s.distinct == 7.0 / 4);
    assert_true(s.reuse == 1.0 / 2);
    assert_true(s.first == 1.0 / 2);
    assert_true(s.union_mean == (3.0 + 1 + 2) / (2 + 1 + 2));
    assert_true(s.next_union == (1.0 + 1) / (1 + 2));
    assert_true(s.next_last == (0.0 + 1) / (1 + 2));
    assert_true(s.hot == 4.0 / 8); /* expert 1, of 8 choices */
    assert_true(s.done == 6.0 / 4);
    assert_non_null(strstr(bench_traffic_missed(&s), "distinct"));
}

static void other_kinds_have_their_rows(void **state)
{
    (void)state;
    fl_err err = {0};
    bench_traffic_stats s;
    bench_traffic t = small(BENCH_CHAT, 1);
    t.n_layer = 1;
    t.prompt = 100;
    t.passes = 50;
    t.kind = FL_PASS_AR;
    fl_trace *trace = fl_traces_make(&t);
    assert_int_equal(fl_trace_n_passes(trace), 51);
    assert_int_equal(fl_trace_get_pass(trace, 0)->kind, FL_PASS_PREFILL);
    assert_int_equal(fl_trace_get_pass(trace, 0)->rows, 100);
    ASSERT_OK(bench_traffic_measure(&s, trace, &err));
    assert_true(s.distinct == 8.0 && s.done == 1.0 && s.blocks == 0);
    fl_trace_close(&trace);
    t.kind = FL_PASS_VERIFY;
    trace = fl_traces_make(&t);
    assert_int_equal(fl_trace_get_pass(trace, 1)->rows, 32);
    ASSERT_OK(bench_traffic_measure(&s, trace, &err));
    assert_true(s.done > 3.0 && s.done < 6.0 && s.distinct > 60.0);
    fl_trace_close(&trace);
}

/* The seed alone decides. */
static void a_seed_gives_the_same_trace(void **state)
{
    (void)state;
    fl_trace *t[3];
    int32_t a[256], b[256], c[256];
    bool differs = false;
    for (int i = 0; i < 3; i++) {
        bench_traffic x = small(BENCH_CODE, i < 2 ? 5 : 6);
        x.n_layer = 1;
        x.passes = 8;
        t[i] = fl_traces_make(&x);
    }
    for (int p = 0; p < 8; p++) {
        const int n = fl_trace_union(t[0], p, 0, a);
        assert_int_equal(fl_trace_union(t[1], p, 0, b), n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
        differs |= fl_trace_union(t[2], p, 0, c) != n || memcmp(a, c, (size_t)n * sizeof *a) != 0;
    }
    assert_true(differs);
    for (int i = 0; i < 3; i++) fl_trace_close(&t[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(blocks_have_the_measured_figures, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(figures_are_what_they_are_called, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(other_kinds_have_their_rows, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(a_seed_gives_the_same_trace, fl_traces_setup,
                                        fl_traces_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
