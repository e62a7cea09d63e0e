/* Cache policies: whose expert goes, in small stories with known ends. */
#include <stdlib.h>

#include "offload/policy.h"
#include "tests/support/heap.h"
#include "tests/support/test.h"

enum { LAYERS = 4, EXPERTS = 8, SLOTS = 6, ROWS = 32 };

static fl_policy *create(fl_policy_kind kind)
{
    fl_err err = {0};
    fl_policy *p = NULL;
    ASSERT_OK(fl_policy_create(&p, kind, LAYERS, EXPERTS, SLOTS, &err));
    return p;
}

static int32_t key(int layer, int expert) { return layer * EXPERTS + expert; }

/* May go: the slots whose bit is set. */
static bool in_mask(void *arg, int slot) { return *(const unsigned *)arg >> slot & 1; }

static int victim_in(const fl_policy *p, unsigned mask)
{
    return fl_policy_victim(p, in_mask, &mask);
}
static int victim(const fl_policy *p) { return victim_in(p, ~0u); }

/* One pass in which `rows` of 32 rows choose expert `used` of each layer; -1: another one. */
static void pass(fl_policy *p, int used, int rows)
{
    for (int l = 0; l < LAYERS; l++) {
        fl_policy_visit(p, l, ROWS);
        if (used >= 0) fl_policy_touch(p, key(l, used), rows);
    }
}

static void every_policy_keeps_the_rules(void **state)
{
    (void)state;
    for (int k = 0; k < FL_N_POLICIES; k++) {
        fl_policy_kind found = FL_N_POLICIES;
        assert_true(fl_policy_find(fl_policy_name((fl_policy_kind)k), &found));
        assert_int_equal(found, k);
        fl_policy *p = create((fl_policy_kind)k);
        assert_int_equal(victim(p), -1);
        fl_policy_visit(p, 0, ROWS);
        for (int s = 0; s < 3; s++) fl_policy_insert(p, 1 + s, key(0, s));
        assert_int_equal(victim_in(p, 0), -1);
        for (int s = 1; s <= 3; s++) assert_int_equal(victim_in(p, 1u << s), s);
        assert_int_equal(victim_in(p, 1u << 0 | 1u << 4), -1); /* empty ones */
        for (int s = 1; s <= 3; s++) fl_policy_remove(p, s);
        assert_int_equal(victim(p), -1);
        fl_policy_insert(p, 0, key(0, 1));
        assert_int_equal(victim(p), 0);
        fl_policy_destroy(&p);
        assert_null(p);
    }
    fl_policy_kind none = FL_POLICY_LFU;
    assert_false(fl_policy_find("fifo", &none));
    assert_int_equal(none, FL_POLICY_LFU);
}

static void lru_lets_the_longest_unused_go(void **state)
{
    (void)state;
    fl_policy *p = create(FL_POLICY_LRU);
    fl_policy_visit(p, 0, ROWS);
    for (int s = 0; s < 4; s++) fl_policy_insert(p, s, key(0, s));
    assert_int_equal(victim(p), 0);
    fl_policy_touch(p, key(0, 0), 1);
    assert_int_equal(victim(p), 1);
    fl_policy_touch(p, key(0, 1), 32);
    fl_policy_touch(p, key(0, 2), 32);
    assert_int_equal(victim(p), 3);
    fl_policy_remove(p, 3);
    fl_policy_insert(p, 3, key(1, 0)); /* coming in counts as a use */
    assert_int_equal(victim(p), 0);
    assert_int_equal(victim_in(p, 1u << 3 | 1u << 2), 2);
    fl_policy_destroy(&p);
}

static void lfu_lets_the_rarest_go_and_forgets(void **state)
{
    (void)state;
    fl_policy *p = create(FL_POLICY_LFU);
    fl_policy_insert(p, 0, key(0, 0));
    fl_policy_insert(p, 1, key(0, 1));
    for (int i = 0; i < 40; i++) pass(p, 0, 1);
    for (int i = 0; i < 20; i++) pass(p, 1, 32); /* passes count, not rows */
    assert_int_equal(victim(p), 1);
    /* 40 uses, 64 and more passes ago, are less than 20 now and 10 more. */
    for (int i = 0; i < 64; i++) pass(p, i < 10 ? 1 : -1, 1);
    assert_int_equal(victim(p), 0);
    /* An expert that was used without a slot brings its uses along. */
    for (int i = 0; i < 64; i++) pass(p, 5, 1);
    fl_policy_insert(p, 2, key(0, 5));
    assert_int_equal(victim_in(p, 1u << 1 | 1u << 2), 1);
    fl_policy_destroy(&p);
}

static void block_keeps_what_the_block_uses(void **state)
{
    (void)state;
    fl_policy *p = create(FL_POLICY_BLOCK);
    fl_policy_insert(p, 0, key(0, 0)); /* never used */
    fl_policy_insert(p, 1, key(0, 1)); /* by many blocks, long ago */
    fl_policy_insert(p, 2, key(0, 2)); /* by the block before */
    fl_policy_insert(p, 3, key(0, 3)); /* by this one */
    for (int i = 0; i < 400; i++) pass(p, 1, 4);
    for (int i = 0; i < 8; i++) pass(p, 2, 4);
    for (int i = 0; i < 3; i++) pass(p, 3, 4);
    unsigned in = 0xf;
    static const int order[] = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(victim_in(p, in), order[i]);
        in &= ~(1u << order[i]);
    }
    /* Much later only the traffic counts: what many blocks used is worth more. */
    for (int i = 0; i < 60; i++) pass(p, 7, 4);
    assert_int_equal(victim_in(p, 1u << 1 | 1u << 2), 2);
    fl_policy_destroy(&p);
}

static void block_looks_at_layers_and_rows(void **state)
{
    (void)state;
    fl_policy *p = create(FL_POLICY_BLOCK);
    for (int l = 0; l < LAYERS; l++) fl_policy_insert(p, l, key(l, 0));
    for (int i = 0; i < 5; i++) pass(p, 0, 8);
    /* All alike: the layer that just went by comes up last. */
    for (int l = 0; l < LAYERS; l++) {
        fl_policy_visit(p, l, ROWS);
        fl_policy_touch(p, key(l, 0), 8);
        assert_int_equal(victim(p), l);
        assert_int_equal(victim_in(p, ~(1u << l)), (l + LAYERS - 1) % LAYERS);
    }
    /* In one layer: the one that fewer rows chose. */
    fl_policy_visit(p, 0, ROWS);
    fl_policy_touch(p, key(0, 0), 8);
    fl_policy_touch(p, key(0, 4), 9);
    fl_policy_touch(p, key(0, 5), 1);
    fl_policy_insert(p, 4, key(0, 4));
    fl_policy_insert(p, 5, key(0, 5));
    assert_int_equal(victim_in(p, 1u << 4 | 1u << 5), 5);
    fl_policy_destroy(&p);
}

/* The same story twice, with random uses and replacements: the same victims, and no allocation. */
static void they_are_deterministic_and_do_not_allocate(void **state)
{
    (void)state;
    enum { STEPS = 400 };
    for (int k = 0; k < FL_N_POLICIES; k++) {
        int went[2][STEPS];
        for (int turn = 0; turn < 2; turn++) {
            fl_policy *p = create((fl_policy_kind)k);
            int32_t held[SLOTS];
            uint32_t r = 7;
            for (int s = 0; s < SLOTS; s++) fl_policy_insert(p, s, held[s] = key(0, s));
            const uint64_t calls = fl_heap_calls();
            for (int i = 0; i < STEPS; i++) {
                const int layer = i % LAYERS;
                fl_policy_visit(p, layer, ROWS);
                r = r * 1664525u + 1013904223u;
                const int32_t wanted = key(layer, (int)(r >> 29));
                fl_policy_touch(p, wanted, 1 + (int)(r >> 8 & 7));
                int there = 0;
                for (int s = 0; s < SLOTS; s++) there |= held[s] == wanted;
                went[turn][i] = -1;
                if (there) continue;
                const int s = went[turn][i] = victim(p);
                assert_in_range(s, 0, SLOTS - 1);
                fl_policy_remove(p, s);
                fl_policy_insert(p, s, held[s] = wanted);
            }
            assert_int_equal(fl_heap_calls(), calls);
            fl_policy_destroy(&p);
        }
        assert_memory_equal(went[0], went[1], sizeof went[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_keeps_the_rules),
        cmocka_unit_test(lru_lets_the_longest_unused_go),
        cmocka_unit_test(lfu_lets_the_rarest_go_and_forgets),
        cmocka_unit_test(block_keeps_what_the_block_uses),
        cmocka_unit_test(block_looks_at_layers_and_rows),
        cmocka_unit_test(they_are_deterministic_and_do_not_allocate),
    };
    fl_heap_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
