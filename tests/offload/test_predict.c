/* Predictions: by hand on two layers of four experts, and never slower with more of anything. */
#include <stdlib.h>

#include "offload/predict.h"
#include "tests/support/test.h"

enum { LAYERS = 2, EXPERTS = 4, KEYS = LAYERS * EXPERTS, SIZE = 6400 };

static const uint64_t sizes[KEYS] = {SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE};
static uint8_t tiers[KEYS] = {FL_TIER_DEVICE, FL_TIER_DEVICE, FL_TIER_HOST, FL_TIER_FILE,
                              FL_TIER_DEVICE, FL_TIER_HOST,   FL_TIER_HOST, FL_TIER_FILE};

static fl_plan small_plan(void)
{
    return (fl_plan){
        .in = {.n_layer = LAYERS, .n_expert = EXPERTS, .top_k = 2, .expert_bytes = sizes},
        .tier = tiers,
        .n_total = KEYS,
        .n_resident = 3,
        .n_host = 3,
        .n_slots = 2,
        .expert_bytes = KEYS * SIZE};
}

/* A byte takes 1 ns over the link and 2 ns from the file. */
static fl_rates small_rates(void)
{
    return (fl_rates){.link_bytes_s = 1000000000,
                      .link_start_ns = 50,
                      .file_bytes_s = 500000000,
                      .device_bytes_s = 64000000000,
                      .n_rows = 2,
                      .rows = {1, 5},
                      .cpu_expert_ns = {100, 180},
                      .dense_pass_ns = {1000, 1400}};
}

static fl_predicted_pass ar(const fl_rates *r, bool shared_pool, fl_lane_choice lane, int ahead)
{
    const fl_plan plan = small_plan();
    fl_predict_input in = {.rates = r,
                           .pass = {{1, 1000, 2000}},
                           .shared_pool = shared_pool,
                           .lane = lane,
                           .ahead_permille = ahead};
    fl_prediction p;
    fl_predict(&plan, &in, &p);
    assert_int_equal(p.lacks, 0);
    assert_int_equal(p.kind[FL_PREDICT_BLOCK].pass_ns, 0);
    return p.kind[FL_PREDICT_AR];
}

/* Each expert is in every second pass: 1.5 uses on the device, 1.5 in host memory, 1 in the file.
 */
static void by_hand_on_the_host_device(void **state)
{
    (void)state;
    const fl_rates r = small_rates();
    fl_predicted_pass p = ar(&r, true, FL_LANES_DEVICE, 0);
    assert_int_equal(p.uses_milli[FL_TIER_DEVICE], 1500);
    assert_int_equal(p.uses_milli[FL_TIER_HOST], 1500);
    assert_int_equal(p.uses_milli[FL_TIER_FILE], 1000);
    assert_int_equal(p.read_bytes, SIZE);
    assert_int_equal(p.copy_bytes, SIZE * 5 / 2);
    assert_int_equal(p.compute_ns, 1000 + 4 * 100);
    assert_int_equal(p.copy_ns, 16000 + 125); /* two copies and a half begin */
    assert_int_equal(p.read_ns, 12800);
    assert_int_equal(p.pass_ns, 1400 + 16125);
    assert_int_equal(p.tokens_per_s_milli, 1000000000000 / 17525);
    assert_int_equal(ar(&r, true, FL_LANES_DEVICE, 1000).pass_ns, 16125);
    /* Half of it is not begun ahead, and the other half hides all that is computed. */
    assert_int_equal(ar(&r, true, FL_LANES_DEVICE, 500).pass_ns, 16125);
    /* 0.1 of it can hide 1,400 ns of 1,612. */
    assert_int_equal(ar(&r, true, FL_LANES_DEVICE, 50).pass_ns, 16125 - 806 + 1400);
    p = ar(&r, true, FL_LANES_CPU, 0);
    assert_int_equal(p.copy_bytes, SIZE);
    assert_int_equal(p.compute_ns, 1400);
    assert_int_equal(p.pass_ns, 1400 + 12800);
    assert_in_range(ar(&r, true, FL_LANES_AUTO, 0).pass_ns, 1399 + 12800, 1400 + 12800);
}

/* The device computes an expert in 100 ns and the CPU as fast; beside each other. */
static void by_hand_on_a_device_of_its_own(void **state)
{
    (void)state;
    fl_rates r = small_rates();
    r.file_bytes_s = r.link_bytes_s = 1000000000000;
    r.link_start_ns = 0;
    assert_int_equal(ar(&r, false, FL_LANES_DEVICE, 1000).compute_ns, 1000 + 4 * 100);
    assert_int_equal(ar(&r, false, FL_LANES_CPU, 1000).compute_ns, 1000 + 250);
    r.cpu_expert_ns[0] = 1000; /* 1,500 ns on the CPU alone; best where both take as long */
    assert_int_equal(ar(&r, false, FL_LANES_CPU, 1000).compute_ns, 1500);
    const uint64_t best = ar(&r, false, FL_LANES_AUTO, 1000).compute_ns;
    assert_in_range(best, 1272, 1290); /* 1000 + 100 (2.5 + x) = 1000 (1.5 - x) at x = 0.227 */
}

static void chances_follow_heat_up_to_one(void **state)
{
    (void)state;
    const uint32_t heat[KEYS] = {9, 4, 0, 0, 0, 0, 0, 0};
    const fl_rates r = small_rates();
    const fl_plan plan = small_plan();
    const fl_predict_input in = {.heat = heat, .rates = &r, .pass = {{1, 1000, 2000}}};
    fl_prediction p;
    fl_predict(&plan, &in, &p);
    /* Layer 0: 1, 5/7, 1/7, 1/7 of the other 1. Layer 1: a half each. */
    assert_int_equal(p.kind[0].uses_milli[FL_TIER_DEVICE], 1000 + 714 + 500);
    assert_int_equal(p.kind[0].uses_milli[FL_TIER_HOST], 142 + 1000);
    assert_int_equal(p.kind[0].uses_milli[FL_TIER_FILE], 142 + 500);
    assert_int_equal(p.kind[0].read_bytes, 914 + 3200);
}

static void rows_lie_on_lines(void **state)
{
    (void)state;
    const fl_rates r = small_rates();
    const fl_plan plan = small_plan();
    fl_predict_input in = {.rates = &r, .shared_pool = true, .ahead_permille = 1000};
    in.prefill_ahead_permille = 1000;
    fl_prediction p;
    in.pass[FL_PREDICT_BLOCK] = (fl_predict_pass){4, 2500, 4000};     /* 2 rows an expert */
    in.pass[FL_PREDICT_PREFILL] = (fl_predict_pass){10, 10000, 4000}; /* 5 rows */
    fl_predict(&plan, &in, &p);
    assert_int_equal(p.kind[FL_PREDICT_BLOCK].compute_ns, 1300 + 8 * 120);
    const fl_predicted_pass *prefill = &p.kind[FL_PREDICT_PREFILL];
    assert_int_equal(prefill->compute_ns, 2800 + 8 * 180);
    assert_int_equal(prefill->pass_ns, prefill->read_ns);
    in.prefill_ahead_permille = 0;
    fl_predict(&plan, &in, &p);
    assert_int_equal(prefill->pass_ns, prefill->compute_ns + prefill->read_ns);
    assert_int_equal(p.kind[FL_PREDICT_BLOCK].tokens_per_s_milli,
                     2500000000000 / p.kind[FL_PREDICT_BLOCK].pass_ns);
}

static void what_is_not_measured_is_named(void **state)
{
    (void)state;
    const fl_rates all = small_rates();
    fl_plan plan = small_plan();
    static const unsigned lacks[] = {FL_LACKS_COMPUTE, FL_LACKS_LINK, FL_LACKS_FILE};
    for (int i = 0; i < 3; i++) {
        fl_rates r = all;
        if (i == 0) r.n_rows = 0;
        if (i == 1) r.link_bytes_s = 0;
        if (i == 2) r.file_bytes_s = 0;
        const fl_predict_input in = {.rates = &r, .pass = {{1, 1000, 2000}}, .shared_pool = true};
        fl_prediction p;
        fl_predict(&plan, &in, &p);
        assert_int_equal(p.lacks, lacks[i]);
        assert_int_equal(p.kind[0].pass_ns, 0);
        assert_int_equal(p.kind[0].tokens_per_s_milli, 0);
        assert_int_equal(p.kind[0].uses_milli[FL_TIER_HOST], 1500);
    }
    /* Slots that hold all that streams: nothing moves, and how fast it would does not matter. */
    fl_rates r = all;
    r.link_bytes_s = r.file_bytes_s = 0;
    plan.n_slots = 5;
    const fl_predict_input in = {.rates = &r, .pass = {{1, 1000, 2000}}, .shared_pool = true};
    fl_prediction p;
    fl_predict(&plan, &in, &p);
    assert_int_equal(p.lacks, 0);
    assert_int_equal(p.kind[0].uses_milli[FL_TIER_DEVICE], 4000);
    assert_int_equal(p.kind[0].pass_ns, 1400);
}

static void distinct_experts_by_rows(void **state)
{
    (void)state;
    assert_in_range(fl_predict_distinct(256, 8, 1), 7999, 8000);
    assert_in_range(fl_predict_distinct(256, 8, 32), 69000, 70000);
    assert_in_range(fl_predict_distinct(256, 8, 512), 253000, 255000);
    assert_in_range(fl_predict_distinct(16, 4, 32), 15000, 15200);
    assert_int_equal(fl_predict_distinct(4, 4, 1), 4000);
    for (int rows = 1; rows < 600; rows++)
        assert_true(fl_predict_distinct(256, 8, rows + 1) >= fl_predict_distinct(256, 8, rows));
}

/* ---- more is never slower ---- */

static uint64_t seed = 42;
static uint64_t rnd(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

enum { BIG_LAYERS = 6, BIG_EXPERTS = 20, BIG = BIG_LAYERS * BIG_EXPERTS };

typedef struct scene {
    uint64_t bytes[BIG], host[BIG];
    uint32_t heat[BIG];
    fl_plan_input plan;
    fl_rates rates;
    fl_predict_input in;
    bool even; /* all experts of one size */
} scene;

static void draw(scene *s)
{
    *s = (scene){.plan = {.n_layer = BIG_LAYERS, .n_expert = BIG_EXPERTS, .top_k = 3}};
    s->even = rnd(2);
    for (int i = 0; i < BIG; i++) {
        s->bytes[i] = 64 * (s->even ? 100 : 50 + rnd(100));
        s->host[i] = (s->bytes[i] + 4095) / 4096 * 4096 + 4096;
        s->heat[i] = (uint32_t)rnd(1 + rnd(1000));
    }
    s->plan.item[0] = (fl_plan_item){"x", 4096};
    s->plan.n_items = 1;
    s->plan.expert_bytes = s->bytes;
    s->plan.host_bytes = s->host;
    s->plan.host_asked = true;
    if (rnd(2)) s->in.heat = s->plan.heat = s->heat;
    s->plan.device_cap = 4096 + 9600 + rnd(BIG * 6400);
    s->plan.host_cap = 1 << 20;
    s->plan.host_cap += rnd(BIG * 8192);
    s->rates = (fl_rates){.link_bytes_s = 1 + rnd(2000000000),
                          .link_start_ns = rnd(1000),
                          .device_bytes_s = 20000000000 + rnd(64000000000),
                          .file_bytes_s = 1 + rnd(1000000000),
                          .n_rows = 2,
                          .rows = {1, 32},
                          .cpu_expert_ns = {1000 + rnd(1000), 2000 + rnd(10000)},
                          .dense_pass_ns = {1 + rnd(10000), 10000 + rnd(10000)}};
    s->in.rates = &s->rates;
    s->in.shared_pool = rnd(2);
    s->in.lane = (fl_lane_choice)rnd(3);
    s->in.ahead_permille = (int)rnd(1001);
    s->in.pass[FL_PREDICT_AR] = (fl_predict_pass){1, 1000, 3000};
    s->in.pass[FL_PREDICT_BLOCK] = (fl_predict_pass){32, 2500, fl_predict_distinct(20, 3, 32)};
}

static fl_prediction predict(const scene *s)
{
    fl_plan plan;
    fl_prediction p;
    fl_err err = {0};
    ASSERT_OK(fl_plan_make(&s->plan, &plan, &err));
    fl_predict(&plan, &s->in, &p);
    fl_plan_free(&plan);
    return p;
}

static void more_is_never_slower(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        scene s;
        draw(&s);
        uint64_t *const knob[] = {&s.plan.device_cap, &s.plan.host_cap, &s.rates.link_bytes_s,
                                  &s.rates.file_bytes_s, &s.rates.device_bytes_s};
        for (int k = 0; k < 5; k++) {
            /* A larger budget for experts of many sizes may hold fewer of them, larger ones. And
             * an expert that comes into device memory, or with that lane into host memory, is
             * computed there, which may be slower than where it was computed beside others. */
            if (k < 2 && !s.even) continue;
            if (k == 0 && !s.in.shared_pool && s.in.lane != FL_LANES_DEVICE) continue;
            if (k == 1 && s.in.lane == FL_LANES_CPU) continue;
            const uint64_t was = *knob[k];
            const bool coarse = k < 2 && s.in.lane == FL_LANES_AUTO; /* in 4,096ths */
            fl_prediction before = predict(&s);
            for (int step = 0; step < 6; step++) {
                *knob[k] += k < 2 ? 1 + rnd(40000) : 1 + *knob[k] / 3;
                const fl_prediction after = predict(&s);
                for (int kind = 0; kind < 2; kind++) {
                    const uint64_t a = after.kind[kind].pass_ns, b = before.kind[kind].pass_ns;
                    assert_true(a > 0 && a <= b + 3 + b / (coarse ? 2000 : 1000000));
                }
                before = after;
            }
            *knob[k] = was;
        }
    }
}

static void the_curve_is_what_plans_of_its_budgets_give(void **state)
{
    (void)state;
    uint64_t bytes[24], host[24];
    for (int i = 0; i < 24; i++) bytes[i] = host[i] = 1ull << 28;
    const fl_rates r = small_rates();
    const fl_predict_input in = {.rates = &r, .pass = {{1, 1000, 2000}}, .shared_pool = true};
    const fl_plan_input plan = {.n_layer = 2,
                                .n_expert = 12,
                                .top_k = 2,
                                .expert_bytes = bytes,
                                .host_bytes = host,
                                .host_cap = 5ull << 30,
                                .device_cap = 1ull << 30};
    fl_predict_point point[FL_PREDICT_MAX_POINTS];
    fl_err err = {0};
    int n;
    ASSERT_OK(fl_predict_curve(&plan, false, &in, point, &n, &err));
    assert_int_equal(n, 5); /* 2, 3, 4, 5, 6 GiB */
    for (int i = 0; i < n; i++) {
        assert_int_equal(point[i].device_cap, (2ull + (uint64_t)i) << 30);
        assert_true(i == 0 || point[i].n_resident > point[i - 1].n_resident);
        assert_true(i == 0 || point[i].result.kind[0].tokens_per_s_milli >
                                  point[i - 1].result.kind[0].tokens_per_s_milli);
    }
    assert_int_equal(point[n - 1].n_resident, 24);
    assert_int_equal(point[n - 1].result.kind[0].copy_bytes, 0);
    ASSERT_OK(fl_predict_curve(&plan, true, &in, point, &n, &err));
    assert_true(n > 1);
    assert_int_equal(point[0].host_cap, 6ull << 30);
    assert_int_equal(point[n - 1].n_host + point[n - 1].n_resident, 24);
    assert_int_equal(point[n - 1].result.kind[0].read_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand_on_the_host_device),
        cmocka_unit_test(by_hand_on_a_device_of_its_own),
        cmocka_unit_test(chances_follow_heat_up_to_one),
        cmocka_unit_test(rows_lie_on_lines),
        cmocka_unit_test(what_is_not_measured_is_named),
        cmocka_unit_test(distinct_experts_by_rows),
        cmocka_unit_test(more_is_never_slower),
        cmocka_unit_test(the_curve_is_what_plans_of_its_budgets_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
