/* Which lane an expert takes: the split against the best of all splits, lanes left and tried again,
 * rates that follow what is measured. */
#include <stdlib.h>

#include "offload/lanes.h"
#include "tests/support/test.h"

enum { MAX = 10 };

static uint64_t seed = 5;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static double done_at(const fl_lanes *l, const fl_lane_item *item, int n, uint64_t queued,
                      unsigned device)
{
    double link = (double)queued / (double)l->link_bytes_s, cpu = 0.0;
    for (int i = 0; i < n; i++)
        if (device >> i & 1)
            link += (double)item[i].bytes / (double)l->link_bytes_s;
        else
            cpu += (double)fl_lane_work(item[i].bytes, item[i].rows) / (double)l->cpu_work_s;
    return link > cpu ? link : cpu;
}

static void a_split_is_close_to_the_best_of_all(void **state)
{
    (void)state;
    int32_t order[MAX];
    for (int round = 0; round < 500; round++) {
        fl_lanes l = {.cpu_work_s = 1000000 + rnd(100000000),
                      .link_bytes_s = 1000000 + rnd(9000000)};
        fl_lane_item item[MAX];
        const int n = 1 + (int)rnd(MAX);
        const uint64_t queued = rnd(2) ? 0 : rnd(300000);
        double largest = 0.0, best = 1e9;
        for (int i = 0; i < n; i++) {
            item[i] = (fl_lane_item){.rows = 1 + (int32_t)rnd(32), .bytes = 100000};
            const double cpu = (double)fl_lane_work(100000, item[i].rows) / (double)l.cpu_work_s;
            const double link = 100000.0 / (double)l.link_bytes_s;
            const double least = cpu < link ? cpu : link;
            if (least > largest) largest = least;
        }
        fl_lanes_split(&l, item, n, queued, order);
        unsigned got = 0;
        for (int i = 0; i < n; i++) got |= (unsigned)(item[i].lane == FL_ON_DEVICE) << i;
        for (unsigned set = 0; set < 1u << n; set++) {
            const double t = done_at(&l, item, n, queued, set);
            if (t < best) best = t;
        }
        /* One expert cannot be cut in two. */
        assert_true(done_at(&l, item, n, queued, got) <= best + largest + 1e-9);
    }
}

static int on_device(const fl_lane_item *item, int n)
{
    int got = 0;
    for (int i = 0; i < n; i++) got += item[i].lane == FL_ON_DEVICE;
    return got;
}

static void the_device_takes_the_experts_with_many_rows(void **state)
{
    (void)state;
    int32_t order[MAX];
    fl_lane_item item[6] = {{.rows = 1, .bytes = 1000},  {.rows = 30, .bytes = 1000},
                            {.rows = 2, .bytes = 1000},  {.rows = 1, .bytes = 1000},
                            {.rows = 28, .bytes = 1000}, {.rows = 1, .bytes = 1000}};
    fl_lanes l = {.cpu_work_s = 1000000, .link_bytes_s = 500000};
    fl_lanes_split(&l, item, 6, 0, order);
    for (int i = 0; i < 6; i++) assert_int_equal(item[i].lane == FL_ON_DEVICE, i == 1 || i == 4);
    /* A link with much to carry already gets less. */
    fl_lanes_split(&l, item, 6, 2500, order);
    assert_int_equal(on_device(item, 6), 1);
    assert_int_equal(item[1].lane, FL_ON_DEVICE);
}

static void a_choice_of_the_user_holds(void **state)
{
    (void)state;
    int32_t order[MAX];
    fl_lane_item item[3] = {{1, 1000, 0}, {50, 1000, 0}, {3, 1000, 0}};
    for (int i = 0; i < 2 * FL_LANES_RETRY; i++) {
        fl_lanes cpu = {.choice = FL_LANES_CPU}, device = {.choice = FL_LANES_DEVICE};
        fl_lanes_split(&cpu, item, 3, 0, order);
        assert_int_equal(on_device(item, 3), 0);
        fl_lanes_split(&device, item, 3, 0, order);
        assert_int_equal(on_device(item, 3), 3);
    }
    /* Where the CPU computes both, a copy only delays. */
    fl_lanes one = {.one_pool = true, .cpu_work_s = 1000, .link_bytes_s = 1000000000};
    fl_lanes_split(&one, item, 3, 0, order);
    assert_int_equal(on_device(item, 3), 0);
    assert_true(fl_lanes_cpu_only(&one));
    one.choice = FL_LANES_DEVICE;
    assert_false(fl_lanes_cpu_only(&one));
}

static void a_lane_that_does_not_pay_is_left_and_tried_again(void **state)
{
    (void)state;
    int32_t order[MAX];
    fl_lane_item item[4];
    for (int i = 0; i < 4; i++) item[i] = (fl_lane_item){.rows = 1 + i, .bytes = 1000000};
    fl_lanes l = {.cpu_work_s = 50000000};
    fl_lanes_split(&l, item, 4, 0, order); /* nothing is known of the link: one expert */
    assert_int_equal(on_device(item, 4), 1);
    assert_int_equal(item[3].lane, FL_ON_DEVICE);
    fl_lanes_saw_link(&l, 1000000, 1000000000); /* a wretched one */
    int tried = 0;
    for (int i = 0; i < 4 * FL_LANES_RETRY; i++) {
        fl_lanes_split(&l, item, 4, 0, order);
        tried += on_device(item, 4);
    }
    assert_int_equal(tried, 4);
    /* It has become better: measured again and again it is used. */
    for (int i = 0; i < 40; i++) fl_lanes_saw_link(&l, 1000000, 5000000);
    fl_lanes_split(&l, item, 4, 0, order);
    assert_true(on_device(item, 4) >= 2);
    /* The same the other way round. */
    l.cpu_work_s = 1000;
    tried = 0;
    for (int i = 0; i < 4 * FL_LANES_RETRY; i++) {
        fl_lanes_split(&l, item, 4, 0, order);
        tried += 4 - on_device(item, 4);
    }
    assert_true(tried >= 3 && tried <= 4);
}

static void rates_follow_what_is_measured(void **state)
{
    (void)state;
    fl_lanes l = {0};
    fl_lanes_saw_cpu(&l, 1000, 0);
    fl_lanes_saw_link(&l, 0, 1000);
    assert_int_equal(l.cpu_work_s + l.link_bytes_s, 0);
    fl_lanes_saw_cpu(&l, 4000, 1000); /* the first one counts whole */
    assert_int_equal(l.cpu_work_s, 4000000000);
    fl_lanes_saw_cpu(&l, 12000, 1000);
    assert_int_equal(l.cpu_work_s, 5000000000);
    for (int i = 0; i < 200; i++) fl_lanes_saw_cpu(&l, 1, 2000000000);
    assert_int_equal(l.cpu_work_s, 1); /* never 0: that is "not measured" */
    assert_int_equal(fl_lane_work(800, 1), 800);
    assert_int_equal(fl_lane_work(800, 9), 1600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_is_close_to_the_best_of_all),
        cmocka_unit_test(the_device_takes_the_experts_with_many_rows),
        cmocka_unit_test(a_choice_of_the_user_holds),
        cmocka_unit_test(a_lane_that_does_not_pay_is_left_and_tried_again),
        cmocka_unit_test(rates_follow_what_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
