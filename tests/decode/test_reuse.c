/* A prompt that shares its beginning with what was read or generated before: it is read only from
 * there, and its tokens, its state and its logits are, bit for bit, those of a fresh sequence. */
#include <stdlib.h>

#include "runtime/decode/loop.h"
#include "tests/support/test.h"
#include "tests/support/turns.h"

static void M6_regenerating_reads_nothing_before_the_answer(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome a, b;
    static const uint32_t kv[] = {FL_TYPE_F16, FL_TYPE_F32, FL_TYPE_Q8_0};
    for (int k = 0; k < 3; k++) {
        fl_long_open(kv[k], 0);
        for (int m = FL_SANITIZED_OR(k, 0); m < FL_SANITIZED_OR(k + 1, 3); m++) {
            fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], (m + k) % 2);
            fl_turns_make(&c);
            fl_outcome_of(&fl_long, &cfg, &c, &a);
            fl_outcome_of(&fl_long, &cfg, &c, &b);
            assert_int_equal(b.r.n_reused, fl_turns_answer(cfg.mode, c.n));
            assert_int_equal(b.r.prefill_passes, 0);
            assert_memory_equal(a.ids, b.ids, sizeof(a.ids));
            fl_assert_as_fresh(&fl_long, &cfg, &c, &b);
        }
        fl_long_close();
    }
}

/* A prompt of 10 tokens: its answer, its answer again, and a longer one. */
static void M6_ten_tokens_are_reused_too(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    for (int m = 0; m < 3; m++) {
        fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], false);
        cfg.max_tokens = 3;
        fl_turns_begin(&c, 10, 1);
        fl_outcome_of(&fl_tiny, &cfg, &c, &o);
        fl_outcome_of(&fl_tiny, &cfg, &c, &o);
        assert_int_equal(o.r.n_reused, fl_turns_answer(cfg.mode, 10));
        fl_assert_as_fresh(&fl_tiny, &cfg, &c, &o);
        fl_turns_add(&c, 30, 2);
        fl_outcome_of(&fl_tiny, &cfg, &c, &o);
        assert_int_equal(o.r.n_reused, cfg.mode == FL_GEN_BLOCK ? 0 : 10);
        fl_assert_as_fresh(&fl_tiny, &cfg, &c, &o);
    }
}

static void M6_editing_a_message_reads_nothing_before_it(void **state)
{
    (void)state;
    static const int lengths[] = {2, 10, 33, 70}; /* of the new message */
    static fl_turns c;
    static fl_outcome o;
    fl_long_open(FL_TYPE_F16, 0);
    const int64_t chunk = fl_long.engine->params.chunk;
    for (int m = 0; m < 3; m++)
        for (int message = 1; message < 7; message += FL_SANITIZED_OR(3, 1)) {
            const int i = (message + m) % 4;
            fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], i % 2);
            fl_turns_make(&c);
            fl_long.engine->params.chunk = i == 3 ? 16 : chunk;
            fl_state_reset(&fl_long.engine->state);
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            const int64_t at = c.start[message];
            fl_turns_cut(&c, message);
            fl_turns_add(&c, lengths[i], 1000);
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            const int64_t end = fl_turns_answer(cfg.mode, c.n);
            assert_int_equal(o.r.n_reused, at < end ? at : end);
            fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
        }
    fl_long.engine->params.chunk = chunk;
    fl_long_close();
}

/* The next turn: prompt and answer come back as the beginning of a longer prompt. */
static void M6_the_next_turn_reads_what_is_new(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_long_open(FL_TYPE_F16, 0);
    for (int m = 0; m < 3; m++) {
        fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], true);
        fl_turns_make(&c);
        for (int turn = 0; turn < FL_SANITIZED_OR(1, 3); turn++) {
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            const int64_t held = fl_long.engine->state.n;
            fl_turns_append(&c, o.ids, FL_TURNS_OUT);
            fl_turns_add(&c, 35, 9);
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            assert_int_equal(o.r.n_reused, held);
            assert_true(held >= c.n - 35 - 32);
            fl_turns_append(&c, o.ids, FL_TURNS_OUT);
            fl_turns_add(&c, 3, 10);
        }
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
    }
    fl_long_close();
}

/* C087, C089, C097: the head changes at its end, in its middle, in its first word. */
static void C087_a_changed_head_is_reused_up_to_the_change(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_long_open(FL_TYPE_F16, 0);
    for (int where = 0; where < 3; where += FL_SANITIZED_OR(2, 1)) {
        fl_gen_config cfg = fl_turns_config(FL_GEN_AR, false);
        fl_turns_begin(&c, 1100, 3);
        fl_turns_add(&c, 20, 4);
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        const int64_t at[] = {1099, 700, 1};
        c.ids[at[where]] ^= 1;
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        /* The rung below: each 512 tokens. */
        assert_int_equal(o.r.n_reused, at[where] / FL_LADDER_STEP * FL_LADDER_STEP);
        fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
    }
    /* Another question behind the same head: the head's own rung. */
    fl_gen_config cfg = fl_turns_config(FL_GEN_AR, false);
    fl_outcome_of(&fl_long, &cfg, &c, &o);
    fl_turns_cut(&c, 1);
    fl_turns_add(&c, 9, 5);
    fl_outcome_of(&fl_long, &cfg, &c, &o);
    assert_int_equal(o.r.n_reused, 1100);
    fl_long_close();
}

/* A long answer leaves rungs as it is written. */
static void M6_a_long_answer_can_be_cut_and_continued(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_long_open(FL_TYPE_F16, 0);
    for (int m = FL_SANITIZED; m < 3; m++) {
        fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], true);
        fl_turns_begin(&c, 20, 6);
        cfg.max_tokens = 512 + 90;
        fl_gen_result r;
        fl_err err = {0};
        fl_state_reset(&fl_long.engine->state);
        ASSERT_OK(fl_generate(fl_long.gen, &cfg, c.ids, c.n, &r, &err));
        fl_turns_append(&c, r.ids, 560); /* the prompt ends inside the answer */
        c.ids[c.n++] = FL_TURNS_START;
        cfg.max_tokens = FL_TURNS_OUT;
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        const int64_t step = FL_LADDER_STEP;
        assert_true(o.r.n_reused >= step && o.r.n_reused <= step + 64);
        fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
    }
    fl_long_close();
}

/* Copies that are thinned, down to none, cost time alone. */
static void M6_a_small_budget_changes_no_bit(void **state)
{
    (void)state;
    static const int copies[] = {1, 2, 3, 5};
    static fl_turns c;
    static fl_outcome o;
    for (int i = 0; i < 4; i++) {
        const uint64_t copy = (fl_tiny.engine->state.gdn_bytes + 4095) / 4096 * 4096;
        fl_long_open(FL_TYPE_F16, (uint64_t)copies[i] * copy);
        for (int message = 6; message > 0; message -= FL_SANITIZED_OR(5, 2)) {
            fl_gen_config cfg = fl_turns_config(fl_turns_modes[message % 3], message % 2);
            fl_turns_make(&c);
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            const int64_t at = c.start[message];
            fl_turns_cut(&c, message);
            fl_turns_add(&c, 12, 50);
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            assert_true(o.r.n_reused <= at);
            fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
        }
        fl_long_close();
    }
}

/* ---- a block that stops early ---- */

static void M7_a_block_that_stops_early_then_a_turn_of_two_tokens(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_gen_config cfg = fl_turns_config(FL_GEN_BLOCK, false);
    for (int n_out = 1; n_out <= 40; n_out += FL_SANITIZED_OR(18, 6)) {
        fl_turns_begin(&c, 45, 7);
        cfg.max_tokens = n_out;
        fl_state_reset(&fl_tiny.engine->state);
        fl_outcome_of(&fl_tiny, &cfg, &c, &o);
        assert_int_equal(fl_tiny.engine->state.n % 32, 0);
        fl_turns_append(&c, o.ids, n_out);
        fl_turns_add(&c, 2, 8);
        cfg.max_tokens = FL_TURNS_OUT;
        fl_outcome_of(&fl_tiny, &cfg, &c, &o);
        assert_int_equal(o.r.n_reused, (45 + n_out) / 32 * 32 - ((45 + n_out) % 32 == 0 ? 32 : 0));
        fl_assert_as_fresh(&fl_tiny, &cfg, &c, &o);
    }
}

/* A state behind the block in which the next answer begins, as AR leaves it. */
static void M7_a_block_that_starts_below_the_state(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    for (int n = 34; n < 64; n += FL_SANITIZED_OR(28, 7)) {
        fl_gen_config ar = fl_turns_config(FL_GEN_AR, true),
                      block = fl_turns_config(FL_GEN_BLOCK, true);
        fl_turns_begin(&c, n, 7);
        fl_state_reset(&fl_tiny.engine->state);
        fl_outcome_of(&fl_tiny, &ar, &c, &o);
        fl_outcome_of(&fl_tiny, &block, &c, &o);
        assert_int_equal(o.r.n_reused, 0); /* AR made no rung at 32 */
        fl_assert_as_fresh(&fl_tiny, &block, &c, &o);
        fl_outcome_of(&fl_tiny, &ar, &c, &o);
        assert_int_equal(o.r.n_reused, 32);
        fl_outcome_of(&fl_tiny, &block, &c, &o);
        assert_int_equal(o.r.n_reused, 32);
        fl_assert_as_fresh(&fl_tiny, &block, &c, &o);
    }
}

/* Blocks that were committed by rows that see each other are not what a prefill reads. */
static void blocks_committed_otherwise_are_read_again(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_gen_config cfg = fl_turns_config(FL_GEN_BLOCK, true);
    cfg.clover.commit_mode = FL_COMMIT_BLOCK_BIDIR;
    cfg.max_tokens = 100;
    fl_turns_begin(&c, 45, 7);
    fl_outcome_of(&fl_tiny, &cfg, &c, &o);
    assert_true(fl_tiny.engine->state.n >= 96);
    fl_turns_append(&c, o.ids, 100);
    fl_turns_add(&c, 2, 8);
    cfg.max_tokens = FL_TURNS_OUT;
    fl_outcome_of(&fl_tiny, &cfg, &c, &o);
    assert_int_equal(o.r.n_reused, 32);
    fl_assert_as_fresh(&fl_tiny, &cfg, &c, &o);
}

/* ---- cancellation ---- */

typedef struct watch {
    int calls, stop_at;
    int64_t done[64], total[64];
    int pieces, stop_at_piece;
} watch;

static bool on_progress(void *arg, int64_t done, int64_t total)
{
    watch *w = arg;
    if (w->calls < 64) {
        w->done[w->calls] = done;
        w->total[w->calls] = total;
    }
    return ++w->calls != w->stop_at;
}

static bool on_text(void *arg, const char *text, size_t n)
{
    watch *w = arg;
    (void)text, (void)n;
    return ++w->pieces != w->stop_at_piece;
}

static void M7_canceled_in_prefill_within_a_chunk(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_long_open(FL_TYPE_F16, 0);
    fl_long.engine->params.chunk = 64;
    fl_turns_begin(&c, 400, 11);
    for (int m = 0; m < 3; m++)
        for (int k = 0; k < 3; k++) {
            if (FL_SANITIZED && k != m) continue;
            fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], false);
            const int64_t end = fl_turns_answer(cfg.mode, c.n);
            /* Before the first chunk, the fourth, and behind the last. */
            const int stop_at = k < 2 ? 1 + 3 * k : (int)((end + 63) / 64) + 1;
            watch w = {.stop_at = stop_at};
            fl_state_reset(&fl_long.engine->state);
            cfg.on_progress = on_progress;
            cfg.arg = &w;
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            assert_int_equal(o.r.finish, FL_FINISH_CANCELED);
            assert_int_equal(o.r.n_generated, 0);
            assert_int_equal(w.calls, stop_at);
            const int64_t read = k < 2 ? 64 * (stop_at - 1) : end;
            assert_int_equal(fl_long.engine->state.n, read);
            for (int i = 0; i < stop_at; i++) {
                assert_int_equal(w.done[i], 64 * i < end ? 64 * i : end);
                assert_int_equal(w.total[i], end);
            }
            /* What was read stays. */
            cfg.on_progress = NULL;
            fl_outcome_of(&fl_long, &cfg, &c, &o);
            assert_int_equal(o.r.n_reused, read);
            fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
        }
    fl_long_close();
}

static void M7_canceled_in_decode_within_a_pass(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    for (int m = 0; m < 3; m++)
        for (int by_text = 0; by_text < 2; by_text++) {
            watch w = {.stop_at = by_text ? 0 : 5, .stop_at_piece = by_text ? 3 : 0};
            fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], true);
            cfg.on_progress = on_progress;
            cfg.on_text = on_text;
            cfg.arg = &w;
            cfg.max_tokens = 100;
            fl_turns_begin(&c, 50, 12);
            fl_state_reset(&fl_tiny.engine->state);
            fl_outcome_of(&fl_tiny, &cfg, &c, &o);
            assert_int_equal(o.r.finish, FL_FINISH_CANCELED);
            if (by_text) assert_int_equal(w.pieces, 3);
            /* A question before the prompt's only chunk and behind it, one after each pass. */
            const int64_t passes =
                o.r.clean_passes +
                (fl_turns_modes[m] == FL_GEN_BLOCK ? o.r.denoise_passes : o.r.held_passes);
            if (!by_text) assert_int_equal(w.calls, 5);
            if (!by_text) assert_int_equal(passes, 3);
            /* The session goes on: the same again, and the text so far as the next prompt. */
            cfg.on_progress = NULL;
            cfg.on_text = NULL;
            cfg.max_tokens = FL_TURNS_OUT;
            fl_turns_append(&c, o.ids, o.r.n_generated);
            fl_turns_add(&c, 4, 13);
            fl_outcome_of(&fl_tiny, &cfg, &c, &o);
            assert_true(o.r.n_reused >= fl_turns_answer(fl_turns_modes[m], 50));
            fl_assert_as_fresh(&fl_tiny, &cfg, &c, &o);
        }
}

/* ---- failures ---- */

static void a_failed_pass_leaves_what_was_read_before_it(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_err err = {0};
    fl_gen_result r;
    fl_long_open(FL_TYPE_F16, 0);
    fl_long.engine->params.chunk = 64;
    for (int m = 0; m < 3; m++) {
        fl_gen_config cfg = fl_turns_config(fl_turns_modes[m], false);
        fl_turns_begin(&c, 100, 14);
        fl_turns_add(&c, 100, 15);
        fl_state_reset(&fl_long.engine->state);
        const int32_t was = c.ids[150];
        c.ids[150] = 1 << 20;
        cfg.roles = (fl_roles){c.start, c.n_starts, false};
        ASSERT_FAILS(fl_generate(fl_long.gen, &cfg, c.ids, c.n, &r, &err), FL_E_ARG, "1048576");
        c.ids[150] = was;
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        assert_int_equal(o.r.n_reused, 100);
        fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
    }
    fl_long_close();
}

static void role_maps_that_cannot_be_are_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_gen_result r;
    int32_t ids[10];
    fl_gen_config c = fl_turns_config(FL_GEN_AR, false);
    static const struct {
        int64_t start[3], n;
        const char *words;
    } bad[] = {
        {{-1, 3, 5}, 3, "message 0 starts at token -1; expected 0 to 9"},
        {{0, 0, 5}, 3, "message 1 starts at token 0; expected 1 to 9"},
        {{4, 3, 5}, 3, "message 1 starts at token 3; expected 5 to 9"},
        {{0, 3, 10}, 3, "message 2 starts at token 10; expected 4 to 9"},
        {{0, 3, INT64_MAX}, 3, "message 2"},
        {{0, 3, 5}, -1, "-1 message starts"},
        {{0, 3, 5}, 11, "11 message starts in a prompt of 10 tokens"},
    };
    fl_tiny_prompt(ids, 10);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        c.roles = (fl_roles){bad[i].start, bad[i].n, false};
        ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 10, &r, &err), FL_E_ARG, bad[i].words);
    }
    c.roles = (fl_roles){NULL, 1, false};
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 10, &r, &err), FL_E_ARG, "role map");
}

static void message_starts_are_found_by_the_chat_formats_token(void **state)
{
    (void)state;
    static const char text[] = "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n";
    fl_err err = {0};
    fl_roles r;
    int32_t *ids = NULL;
    int64_t *starts = NULL;
    size_t n = 0;
    const fl_tokenizer *t = fl_tiny.model->tokenizer;
    ASSERT_OK(fl_tokenizer_encode(t, text, sizeof(text) - 1, true, &ids, &n, &err));
    ASSERT_OK(fl_roles_find(&r, &starts, t, ids, (int64_t)n, &err));
    assert_int_equal(r.n, 2);
    assert_true(r.has_head);
    assert_int_equal(r.start[0], 0);
    assert_int_equal(ids[r.start[1]], ids[0]);
    ASSERT_OK(fl_roles_check(&r, (int64_t)n, &err));
    const int64_t second = r.start[1];
    free(starts);
    /* Without the system message. */
    ASSERT_OK(fl_roles_find(&r, &starts, t, ids + second, (int64_t)n - second, &err));
    assert_int_equal(r.n, 1);
    assert_false(r.has_head);
    free(starts);
    ASSERT_OK(fl_roles_find(&r, &starts, t, ids + 1, 1, &err));
    assert_int_equal(r.n, 0);
    free(starts);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(M6_regenerating_reads_nothing_before_the_answer),
        cmocka_unit_test(M6_ten_tokens_are_reused_too),
        cmocka_unit_test(M6_editing_a_message_reads_nothing_before_it),
        cmocka_unit_test(M6_the_next_turn_reads_what_is_new),
        cmocka_unit_test(C087_a_changed_head_is_reused_up_to_the_change),
        cmocka_unit_test(M6_a_long_answer_can_be_cut_and_continued),
        cmocka_unit_test(M6_a_small_budget_changes_no_bit),
        cmocka_unit_test(M7_a_block_that_stops_early_then_a_turn_of_two_tokens),
        cmocka_unit_test(M7_a_block_that_starts_below_the_state),
        cmocka_unit_test(blocks_committed_otherwise_are_read_again),
        cmocka_unit_test(M7_canceled_in_prefill_within_a_chunk),
        cmocka_unit_test(M7_canceled_in_decode_within_a_pass),
        cmocka_unit_test(a_failed_pass_leaves_what_was_read_before_it),
        cmocka_unit_test(role_maps_that_cannot_be_are_refused),
        cmocka_unit_test(message_starts_are_found_by_the_chat_formats_token),
    };
    return cmocka_run_group_tests(tests, fl_turns_setup, fl_turns_teardown);
}
