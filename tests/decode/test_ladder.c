/* The ladder of checkpoints by itself: which rungs stay when memory is short, with the real model's
 * sizes, and that its memory is what the budget says. */
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/memory.h"
#include "runtime/decode/ladder.h"
#include "tests/support/test.h"

enum { PAGE = 4096 };

static fl_ladder *make(uint64_t copy_bytes, uint64_t budget)
{
    fl_err err = {0};
    fl_ladder *l = NULL;
    ASSERT_OK(fl_ladder_create(&l, copy_bytes, budget, 1 << 20, &err));
    return l;
}

/* The rungs' positions are exactly these. */
static void assert_rungs(const fl_ladder *l, const int64_t *want, int n)
{
    assert_int_equal(l->n, n);
    for (int i = 0; i < n; i++) assert_int_equal(l->rung[i].copy.n, want[i]);
}

#define RUNGS(l, ...)                                 \
    assert_rungs((l), (const int64_t[]){__VA_ARGS__}, \
                 sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void rungs_are_found_and_dropped(void **state)
{
    (void)state;
    fl_ladder *l = make(PAGE, 8 * PAGE);
    assert_null(fl_ladder_find(l, 1 << 20));
    assert_int_equal(fl_ladder_top(l), 0);
    for (int64_t n = 100; n <= 300; n += 100)
        assert_int_equal(fl_ladder_put(l, n, FL_RUNG_FILL)->n, n);
    assert_null(fl_ladder_find(l, 99));
    assert_int_equal(fl_ladder_find(l, 100)->copy.n, 100);
    assert_int_equal(fl_ladder_find(l, 299)->copy.n, 200);
    assert_int_equal(fl_ladder_find(l, 5000)->copy.n, 300);
    fl_ladder_drop(l, 299);
    RUNGS(l, 100, 200);
    /* A second rung at one place is the same one, of the higher kind. */
    assert_null(fl_ladder_put(l, 200, FL_RUNG_MESSAGE));
    assert_null(fl_ladder_put(l, 200, FL_RUNG_FILL));
    assert_int_equal(l->rung[1].kind, FL_RUNG_MESSAGE);
    fl_ladder_drop(l, 0);
    assert_int_equal(l->n, 0);
    fl_ladder_destroy(&l);
    assert_null(l);
}

static void there_is_one_head_and_one_answer(void **state)
{
    (void)state;
    fl_ladder *l = make(PAGE, 8 * PAGE);
    (void)fl_ladder_put(l, 10, FL_RUNG_HEAD | FL_RUNG_MESSAGE);
    (void)fl_ladder_put(l, 20, FL_RUNG_ANSWER);
    (void)fl_ladder_put(l, 30, FL_RUNG_HEAD);
    (void)fl_ladder_put(l, 40, FL_RUNG_ANSWER);
    const unsigned want[] = {FL_RUNG_MESSAGE, FL_RUNG_FILL, FL_RUNG_HEAD, FL_RUNG_ANSWER};
    for (int i = 0; i < 4; i++) assert_int_equal(l->rung[i].kind, want[i]);
    /* A place can be several things. */
    (void)fl_ladder_put(l, 40, FL_RUNG_MESSAGE);
    assert_int_equal(l->rung[3].kind, FL_RUNG_ANSWER | FL_RUNG_MESSAGE);
    (void)fl_ladder_put(l, 50, FL_RUNG_ANSWER);
    assert_int_equal(l->rung[3].kind, FL_RUNG_MESSAGE);
    fl_ladder_destroy(&l);
}

static void C096_the_budget_is_hard(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_ladder *l = make(PAGE + 1, 7 * PAGE); /* a copy takes two pages */
    assert_int_equal(l->n_max, 3);
    assert_int_equal(l->bytes, 6 * PAGE);
    for (int64_t n = 1; n < 1000; n++) {
        fl_state_copy *c = fl_ladder_put(l, n, FL_RUNG_FILL);
        assert_non_null(c);
        assert_true((uint8_t *)c->memory >= l->memory);
        assert_true((uint8_t *)c->memory + l->copy_bytes <= l->memory + l->bytes);
        /* No two rungs share memory. */
        for (int i = 0; i < l->n - 1; i++) assert_ptr_not_equal(l->rung[i].copy.memory, c->memory);
        assert_true(l->n <= 3);
    }
    fl_ladder_destroy(&l);

    ASSERT_FAILS(fl_ladder_create(&l, 3 * PAGE, 2 * PAGE, 100, &err), FL_E_ARG,
                 "--state-budget 8.0 KiB: one checkpoint of this model takes 12.0 KiB");
    /* The default is a tenth of the memory; the ladder is no longer than asked for. */
    const uint64_t copy = 64 << 20;
    ASSERT_OK(fl_ladder_create(&l, copy, 0, 1 << 20, &err));
    assert_true(l->bytes <= fl_memory_total() / 10);
    assert_true(l->bytes + copy > fl_memory_total() / 10);
    fl_ladder_destroy(&l);
    ASSERT_OK(fl_ladder_create(&l, PAGE, 0, 5, &err));
    assert_int_equal(l->n_max, 5);
    fl_ladder_destroy(&l);
    /* A model of which the default holds no copy goes without. */
    ASSERT_OK(fl_ladder_create(&l, fl_memory_total(), 0, 5, &err));
    assert_int_equal(l->n_max, 0);
    assert_null(fl_ladder_put(l, 10, FL_RUNG_ANSWER));
    assert_null(fl_ladder_find(l, 10));
    fl_ladder_destroy(&l);
}

/* The longest way from a place above `from` down to a rung. */
static int64_t largest_gap(const fl_ladder *l, int64_t from)
{
    int64_t gap = 0;
    for (int i = 0; i < l->n; from = l->rung[i++].copy.n)
        if (l->rung[i].copy.n - from > gap) gap = l->rung[i].copy.n - from;
    return gap;
}

static void C092_thinning_keeps_the_density(void **state)
{
    (void)state;
    fl_ladder *l = make(PAGE, 8 * PAGE);
    for (int64_t i = 1; i <= 8; i++) (void)fl_ladder_put(l, i * 512, FL_RUNG_FILL);
    RUNGS(l, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096);
    /* Each new rung takes the place of the one with the closest neighbours: the whole text is
     * covered evenly, neither its beginning nor its end alone. */
    for (int64_t i = 9; i <= 16; i++) (void)fl_ladder_put(l, i * 512, FL_RUNG_FILL);
    RUNGS(l, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192);
    /* Seven may go and count once each: no gap is above 2 n / 7. */
    for (int64_t n = 17 * 512; n <= 131072; n += 512) {
        (void)fl_ladder_put(l, n, FL_RUNG_FILL);
        assert_true(largest_gap(l, 0) <= 2 * n / 7);
    }
    fl_ladder_destroy(&l);
}

static void messages_outlive_fills_and_the_last_ones_stay(void **state)
{
    (void)state;
    fl_ladder *l = make(PAGE, 8 * PAGE);
    (void)fl_ladder_put(l, 50, FL_RUNG_HEAD);
    for (int64_t i = 1; i <= 6; i++) {
        (void)fl_ladder_put(l, i * 100, FL_RUNG_MESSAGE);
        (void)fl_ladder_put(l, i * 100 + 50, FL_RUNG_FILL);
    }
    (void)fl_ladder_put(l, 660, FL_RUNG_ANSWER);
    RUNGS(l, 50, 100, 200, 300, 400, 500, 600, 660);
    /* Two messages, close together: a quarter of eight. */
    (void)fl_ladder_put(l, 661, FL_RUNG_MESSAGE);
    (void)fl_ladder_put(l, 662, FL_RUNG_MESSAGE);
    (void)fl_ladder_put(l, 5000, FL_RUNG_ANSWER);
    assert_int_equal(fl_ladder_find(l, 50)->copy.n, 50);
    assert_int_equal(fl_ladder_find(l, 661)->copy.n, 661);
    assert_int_equal(fl_ladder_find(l, 4999)->copy.n, 662);
    fl_ladder_destroy(&l);
    /* One copy alone goes to the newest. */
    l = make(PAGE, PAGE);
    (void)fl_ladder_put(l, 10, FL_RUNG_HEAD);
    (void)fl_ladder_put(l, 20, FL_RUNG_FILL);
    RUNGS(l, 20);
    fl_ladder_destroy(&l);
}

/* ---- the real model ---- */

/* S and tails of 30 GDN layers and the last hidden row of Clover-35B-A3B. */
static uint64_t real_bytes(void)
{
    static fl_layer_refs layers[40];
    static fl_index ix;
    for (int i = 0; i < 40; i++) layers[i].full_attention = i % 4 == 3;
    ix.layer = layers;
    ix.hp = (fl_hparams){.n_layer = 40,
                         .d_model = 2048,
                         .n_head_kv = 2,
                         .head_dim = 256,
                         .gdn_k_heads = 16,
                         .gdn_v_heads = 32,
                         .gdn_dim = 128};
    const fl_state_shape shape = {.n_ctx = 512, .kv_type = FL_TYPE_F16};
    return fl_state_measure(&ix, &shape).gdn;
}

/* A chat of 100K tokens under 1 GiB: a head of 3,000 tokens, a document of 30,000 in one message,
 * then messages of 40 to 2,000 tokens. */
static void M6_a_chat_of_100k_tokens_in_1_gib(void **state)
{
    (void)state;
    static int64_t start[2000];
    int n_starts = 0;
    assert_int_equal(real_bytes(), 65871872);
    fl_ladder *l = make(real_bytes(), 1ull << 30);
    assert_int_equal(l->n_max, 16);
    int64_t n = 3000, worst = 0;
    (void)fl_ladder_put(l, n, FL_RUNG_HEAD);
    for (uint32_t seed = 1, turn = 0; n < 100000; turn++) {
        const int64_t size = turn == 1 ? 30000 : 40 + (seed = seed * 1664525u + 1013904223u) % 1960;
        start[n_starts++] = n;
        if (n > 3000) (void)fl_ladder_put(l, n, FL_RUNG_MESSAGE);
        for (const int64_t end = n + size; n < end;) {
            const int64_t step = end - n < FL_LADDER_STEP ? end - n : FL_LADDER_STEP;
            n += step;
            if (n < end) (void)fl_ladder_put(l, n, FL_RUNG_FILL);
        }
        if (turn % 2 == 0) (void)fl_ladder_put(l, n, FL_RUNG_ANSWER);
        const int64_t gap = largest_gap(l, 3000);
        if (gap > worst) worst = gap;
        /* Kept: newest, head, answer, four messages. */
        assert_true(gap <= 4 * n / (16 - 7) || gap <= FL_LADDER_STEP);
    }
    print_message("16 checkpoints over %lld tokens: at most %lld tokens between two\n",
                  (long long)n, (long long)worst);
    assert_int_equal(l->n, 16);
    assert_true(worst <= 20000);
    /* The head, the last answer and the last four messages can be edited at no cost. */
    assert_int_equal(fl_ladder_find(l, 3000)->copy.n, 3000);
    for (int i = 1; i <= FL_LADDER_RECENT; i++)
        assert_int_equal(fl_ladder_find(l, start[n_starts - i])->copy.n, start[n_starts - i]);
    fl_ladder_destroy(&l);
}

static void M6_a_copy_of_the_real_size_goes_out_and_back(void **state)
{
    (void)state;
    const uint64_t bytes = real_bytes(), words = bytes / sizeof(uint64_t);
    fl_ladder *l = make(bytes, 1ull << 30);
    uint64_t *memory = malloc(bytes);
    assert_non_null(memory);
    for (uint64_t i = 0; i < words; i++) memory[i] = i * 0x9e3779b97f4a7c15u;
    fl_state st = {.n = 1000, .n_ctx = 2000, .gdn = (uint8_t *)memory, .gdn_bytes = bytes};
    fl_state_copy *copy = fl_ladder_put(l, 1000, FL_RUNG_ANSWER);
    fl_state_save(&st, copy);
    st.n = 1500;
    st.broken = true;
    memset(memory, 0xff, bytes);
    fl_state_restore(&st, &fl_ladder_find(l, 1200)->copy);
    assert_int_equal(st.n, 1000);
    assert_false(st.broken);
    for (uint64_t i = 0; i < words; i++)
        if (memory[i] != i * 0x9e3779b97f4a7c15u) fail_msg("word %llu", (unsigned long long)i);
    free(memory);
    fl_ladder_destroy(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rungs_are_found_and_dropped),
        cmocka_unit_test(there_is_one_head_and_one_answer),
        cmocka_unit_test(C096_the_budget_is_hard),
        cmocka_unit_test(C092_thinning_keeps_the_density),
        cmocka_unit_test(messages_outlive_fills_and_the_last_ones_stay),
        cmocka_unit_test(M6_a_chat_of_100k_tokens_in_1_gib),
        cmocka_unit_test(M6_a_copy_of_the_real_size_goes_out_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
