/* Guards: a text that runs in circles ends, in every mode at the same token. */
#include <stdlib.h>

#include "runtime/decode/generate.h"
#include "runtime/decode/guard.h"
#include "tests/support/engine.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* ---- the detector alone ---- */

/* The definition, looked up in the whole text. */
static bool loops_at(const int32_t *ids, int n, int *period)
{
    for (int p = 1; p <= FL_LOOP_PERIOD && n >= FL_LOOP_TOKENS; p++) {
        int i = n - FL_LOOP_TOKENS + p;
        while (i < n && ids[i] == ids[i - p]) i++;
        *period = p;
        if (i == n) return true;
    }
    return false;
}

/* Index of the token at which the guard ends the text; -1 = never. */
static int end_of(const int32_t *ids, int n, int *period)
{
    fl_guard g;
    fl_guard_start(&g, -1, -1);
    for (int i = 0; i < n; i++) {
        const fl_guard_event ev = fl_guard_push(&g, ids[i]);
        assert_int_not_equal(ev, FL_GUARD_TAG);
        *period = g.period;
        if (ev == FL_GUARD_LOOP) return i;
    }
    return -1;
}

static void every_period_ends_at_256_tokens(void **state)
{
    (void)state;
    int32_t ids[1000];
    for (int p = 1; p <= FL_LOOP_PERIOD; p++)
        for (int lead = 0; lead < 200; lead += 67) {
            int period = 0;
            for (int i = 0; i < lead; i++) ids[i] = 5000 + i;
            for (int i = lead; i < 1000; i++) ids[i] = (i - lead) % p;
            assert_int_equal(end_of(ids, 1000, &period), lead + FL_LOOP_TOKENS - 1);
            assert_int_equal(period, p);
            assert_true(loops_at(ids, lead + FL_LOOP_TOKENS, &period));
            assert_false(loops_at(ids, lead + FL_LOOP_TOKENS - 1, &period));
        }
}

static void near_misses_go_on(void **state)
{
    (void)state;
    int32_t ids[1000];
    int period = 0;
    /* A period of 65. */
    for (int i = 0; i < 1000; i++) ids[i] = i % (FL_LOOP_PERIOD + 1);
    assert_int_equal(end_of(ids, 1000, &period), -1);
    for (int p = 1; p <= FL_LOOP_PERIOD; p++) {
        /* 255 tokens and another one, over and over. */
        for (int i = 0; i < 1000; i++) ids[i] = i % FL_LOOP_TOKENS == 255 ? 7000 + i : i % p;
        assert_int_equal(end_of(ids, 1000, &period), -1);
        /* One wrong token in the middle starts the count again. */
        for (int i = 0; i < 1000; i++) ids[i] = i % p;
        ids[200] = 9000;
        const int end = end_of(ids, 1000, &period);
        int want = 0;
        while (!loops_at(ids, want + 1, &period)) want++;
        assert_int_equal(end, want);
        assert_int_equal(end, 200 + FL_LOOP_TOKENS);
    }
}

static void random_texts_end_where_the_definition_says(void **state)
{
    (void)state;
    int32_t ids[700];
    uint32_t x = 1;
    for (int round = 0; round < 60; round++) {
        /* Two letters, copied from a random distance most of the time. */
        const int p = 1 + round;
        for (int i = 0; i < 700; i++) {
            x = x * 1664525u + 1013904223u;
            const bool fresh = i < p || (x >> 16) % 400 == 0;
            ids[i] = fresh ? (int32_t)(x >> 30) : ids[i - p];
        }
        int period = 0, want_period = 0, want = -1;
        for (int n = 1; n <= 700 && want < 0; n++)
            if (loops_at(ids, n, &want_period)) want = n - 1;
        assert_int_equal(end_of(ids, 700, &period), want);
        if (want >= 0) assert_int_equal(period, want_period);
    }
}

static void a_second_closing_tag_ends_the_text(void **state)
{
    (void)state;
    enum { OPEN = 3, CLOSE = 4 };
    static const struct {
        int32_t ids[6];
        int end; /* -1 = never */
    } t[] = {{{1, CLOSE, 2, CLOSE, 1, 1}, 3},
             {{CLOSE, CLOSE, 1, 1, 1, 1}, 1},
             {{OPEN, 1, CLOSE, 1, CLOSE, 1}, 4},
             {{1, CLOSE, OPEN, 1, CLOSE, 1}, -1}, /* thinking began anew */
             {{1, CLOSE, 1, 2, 1, 2}, -1}};
    for (size_t k = 0; k < sizeof t / sizeof *t; k++) {
        fl_guard g;
        int end = -1;
        fl_guard_start(&g, OPEN, CLOSE);
        for (int i = 0; i < 6 && end < 0; i++)
            if (fl_guard_push(&g, t[k].ids[i]) == FL_GUARD_TAG) end = i;
        assert_int_equal(end, t[k].end);
        assert_int_equal(g.period, 0);
    }
    /* A vocabulary without tags. */
    fl_guard g;
    fl_guard_start(&g, -1, -1);
    for (int i = 0; i < 10; i++) assert_int_equal(fl_guard_push(&g, -1), FL_GUARD_GO);
}

/* ---- in the decoder ---- */

/* Room for a loop behind a prompt. */
typedef struct roomy {
    char *dir, *path;
    fl_loaded l;
    fl_generator *gen;
} roomy;

static roomy roomy_open(void)
{
    fl_err err = {0};
    fl_make make = fl_make_tiny();
    fl_engine_params p = fl_engine_defaults();
    roomy r = {.dir = fl_tmp_make()};
    r.path = fl_tmp_path(r.dir, "m.gguf");
    make.arch = "clover_moe";
    make.n_ctx = 1024;
    fl_make_gguf(&make, r.path);
    p.threads = 1;
    p.n_ctx = 640;
    p.held_rows = 32;
    r.l = fl_load(r.path, &p);
    ASSERT_OK(fl_generator_create(&r.gen, r.l.engine, &err));
    return r;
}

static void roomy_close(roomy *r)
{
    fl_generator_destroy(&r->gen);
    fl_unload(&r->l);
    free(r->path);
    fl_tmp_remove(r->dir);
}

/* Collects text. */
static bool take(void *arg, const char *text, size_t n)
{
    size_t *total = arg;
    (void)text;
    *total += n;
    return true;
}

static void a_loop_ends_every_mode_at_its_256th_token(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t prompt[9], want[640];
    fl_gen_result r;
    roomy m = roomy_open();
    for (int i = 0; i < 9; i++) prompt[i] = 'a' + i;
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        int period = 0, end = 1;
        fl_gen_config c;
        fl_gen_config_init(&c, m.l.model);
        assert_true(c.repeat_stop);
        c.mode = (fl_gen_mode)mode;
        c.ignore_eos = true;
        /* What was said becomes likelier each time it is said. */
        c.sampler = (fl_sampler_config){.top_p = 1.0, .frequency = -2.0};
        c.repeat_stop = false;
        ASSERT_OK(fl_generate(m.gen, &c, prompt, 9, &r, &err));
        assert_int_equal(r.finish, FL_FINISH_CONTEXT);
        memcpy(want, r.ids, (size_t)r.n_generated * sizeof(*want));
        while (end <= r.n_generated && !loops_at(want, end, &period)) end++;
        assert_true(end < r.n_generated);

        c.repeat_stop = true;
        ASSERT_OK(fl_generate(m.gen, &c, prompt, 9, &r, &err));
        assert_int_equal(r.finish, FL_FINISH_REPEAT);
        assert_int_equal(r.n_generated, end);
        assert_int_equal(r.period, period);
        assert_memory_equal(r.ids, want, (size_t)end * sizeof(*want));
        /* max_tokens at the same token: the loop is what is worth saying. */
        c.max_tokens = end;
        ASSERT_OK(fl_generate(m.gen, &c, prompt, 9, &r, &err));
        assert_int_equal(r.finish, FL_FINISH_REPEAT);
        c.max_tokens = end - 1;
        ASSERT_OK(fl_generate(m.gen, &c, prompt, 9, &r, &err));
        assert_int_equal(r.finish, FL_FINISH_LENGTH);
    }
    roomy_close(&m);
}

static void C084_a_second_closing_tag_ends_every_mode_and_gives_no_text(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_gen_result r;
    const int32_t prompt[] = {'a', 'b', 'c'};
    roomy m = roomy_open();
    const int32_t close_id = fl_tokenizer_special(m.l.model->tokenizer, "</think>");
    assert_true(close_id >= 0);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c;
        size_t text = 0;
        fl_gen_config_init(&c, m.l.model);
        c.mode = (fl_gen_mode)mode;
        c.ignore_eos = true;
        c.sampler = (fl_sampler_config){.top_p = 1.0};
        c.on_text = take;
        c.arg = &text;
        /* Nothing but the tag: its row takes over from all others. */
        fl_mat *out = &m.l.engine->weights.output;
        float *row = (float *)out->data + close_id * out->cols;
        float *saved = malloc((size_t)out->cols * sizeof(*saved));
        assert_non_null(saved);
        memcpy(saved, row, (size_t)out->cols * sizeof(*saved));
        c.max_tokens = 1;
        ASSERT_OK(fl_generate(m.gen, &c, prompt, 3, &r, &err));
        const float *first = (const float *)out->data + (int64_t)r.ids[0] * out->cols;
        for (int64_t j = 0; j < out->cols; j++) row[j] = 2.0f * first[j];
        c.max_tokens = 100;
        text = 0;
        ASSERT_OK(fl_generate(m.gen, &c, prompt, 3, &r, &err));
        memcpy(row, saved, (size_t)out->cols * sizeof(*saved));
        free(saved);
        assert_int_equal(r.finish, FL_FINISH_REPEAT);
        assert_int_equal(r.period, 0);
        int tags = 0;
        for (int64_t i = 0; i < r.n_generated; i++) tags += r.ids[i] == close_id;
        assert_int_equal(tags, 2);
        assert_int_equal(r.ids[r.n_generated - 1], close_id);
        if (r.n_generated == 2) assert_int_equal(text, strlen("</think>"));
    }
    roomy_close(&m);
}

static void finishes_have_a_name_and_a_reason_for_openai(void **state)
{
    (void)state;
    static const struct {
        const char *name, *openai;
    } want[] = {[FL_FINISH_STOP] = {"stop", "stop"},
                [FL_FINISH_STOP_STRING] = {"stop_string", "stop"},
                [FL_FINISH_LENGTH] = {"length", "length"},
                [FL_FINISH_CONTEXT] = {"context", "length"},
                [FL_FINISH_CANCELED] = {"canceled", "length"},
                [FL_FINISH_REPEAT] = {"repeat", "length"}};
    for (int f = 0; f <= FL_FINISH_REPEAT; f++) {
        assert_string_equal(fl_finish_name((fl_finish)f), want[f].name);
        assert_string_equal(fl_finish_openai((fl_finish)f), want[f].openai);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_period_ends_at_256_tokens),
        cmocka_unit_test(near_misses_go_on),
        cmocka_unit_test(random_texts_end_where_the_definition_says),
        cmocka_unit_test(a_second_closing_tag_ends_the_text),
        cmocka_unit_test(a_loop_ends_every_mode_at_its_256th_token),
        cmocka_unit_test(C084_a_second_closing_tag_ends_every_mode_and_gives_no_text),
        cmocka_unit_test(finishes_have_a_name_and_a_reason_for_openai),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
