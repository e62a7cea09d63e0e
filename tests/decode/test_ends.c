/* Where a text ends, in every mode: stop ids, stop strings, max_tokens, a full context. */
#include <stdlib.h>

#include "tests/support/decoder.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_BLOCK = 32 };

static int find_text(const char *hay, size_t n, const char *needle, size_t k)
{
    for (size_t i = 0; i + k <= n; i++)
        if (memcmp(hay + i, needle, k) == 0) return (int)i;
    return -1;
}

/* Index of the first occurrence of a generated id. */
static int first_of(const fl_output *o, int32_t id)
{
    int i = 0;
    while (o->ids[i] != id) i++;
    return i;
}

static void set_stop_ids(int32_t a, int32_t b)
{
    fl_tiny.model->index->hp.stop_ids[0] = a;
    fl_tiny.model->index->hp.stop_ids[1] = b;
    fl_tiny.model->index->hp.n_stop_ids = 2;
}

static void A11_stop_ids_end_the_text_wherever_they_stand(void **state)
{
    (void)state;
    int32_t ids[41];
    fl_output all = {0}, o = {0};
    const fl_hparams saved = fl_tiny.model->index->hp;
    fl_tiny_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = fl_tiny_config((fl_gen_mode)mode);
        c.max_tokens = 100;
        fl_tiny_run(&c, ids, 41, &all);
        c.ignore_eos = false;
        /* Every position of two blocks: row 0, row 31 and all between (the next test has those). */
        for (int at = 0; at < 60;
             at += mode == FL_GEN_BLOCK ? FL_SANITIZED_OR(7, 1) : FL_SANITIZED_OR(21, 7)) {
            const int want = first_of(&all, all.ids[at]);
            set_stop_ids(all.ids[at], 99999);
            fl_tiny_run(&c, ids, 41, &o);
            assert_int_equal(o.r.finish, FL_FINISH_STOP);
            assert_int_equal(o.r.stop_id, all.ids[at]);
            assert_int_equal(o.r.n_generated, want + 1);
            assert_memory_equal(o.ids, all.ids, (size_t)(want + 1) * sizeof(*o.ids));
        }
        /* Of two stop ids the earlier one ends it. */
        set_stop_ids(all.ids[50], all.ids[20]);
        fl_tiny_run(&c, ids, 41, &o);
        const int a = first_of(&all, all.ids[50]), b = first_of(&all, all.ids[20]);
        assert_int_equal(o.r.n_generated, (a < b ? a : b) + 1);
        /* One inside the prompt's remainder ends nothing: position 35 of 41, row 3 of its block. */
        set_stop_ids(ids[35], ids[35]);
        int n = 100;
        for (int i = 99; i >= 0; i--)
            if (all.ids[i] == ids[35]) n = i + 1;
        fl_tiny_run(&c, ids, 41, &o);
        assert_int_equal(o.r.n_generated, n);
    }
    fl_tiny.model->index->hp = saved;
}

static void A11_stop_strings_end_the_text_before_them_across_block_borders(void **state)
{
    (void)state;
    int32_t ids[41];
    fl_output all = {0}, o = {0};
    char stop[64];
    fl_tiny_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = fl_tiny_config((fl_gen_mode)mode);
        c.max_tokens = 80;
        fl_tiny_run(&c, ids, 41, &all);
        assert_true(all.n_text > 40);
        const char *list[2] = {"no such text \x01\x02", stop};
        c.stop = list;
        c.n_stop = 2;
        int tried = 0;
        for (size_t k = 1; k <= 9; k += FL_SANITIZED_OR(8, 4))
            for (size_t at = 0; at + k <= all.n_text && at < 60;
                 at += mode == FL_GEN_SPEC ? 15 : FL_SANITIZED_OR(10, 5), tried++) {
                memcpy(stop, all.text + at, k);
                stop[k] = 0;
                if (strlen(stop) != k) continue;
                const int want = find_text(all.text, all.n_text, stop, k);
                fl_tiny_run(&c, ids, 41, &o);
                assert_int_equal(o.r.finish, FL_FINISH_STOP_STRING);
                assert_int_equal(o.n_text, want);
                assert_memory_equal(o.text, all.text, (size_t)want);
            }
        assert_true(tried >= FL_SANITIZED_OR(8, 11));
        /* Without a match nothing is lost, not even a held-back beginning. */
        memcpy(stop, all.text + all.n_text - 1, 1);
        memcpy(stop + 1, "\x01", 2);
        fl_tiny_run(&c, ids, 41, &o);
        assert_int_equal(o.r.finish, FL_FINISH_LENGTH);
        assert_int_equal(o.n_text, all.n_text);
        assert_memory_equal(o.text, all.text, all.n_text);
    }
}

/* ---- rows at a block's border ---- */

/* A text in which the token at index `at` stands for the first time; sampled, so that tokens
 * differ. */
static fl_gen_config config_where_new(int n_prompt, int at, fl_block_align align, fl_output *all)
{
    int32_t ids[64];
    fl_tiny_prompt(ids, 64);
    fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
    c.sampler = (fl_sampler_config){.temp = 1.5, .top_p = 1.0};
    c.clover.block_align = align;
    c.max_tokens = at + 1;
    for (c.sampler.seed = 1; c.sampler.seed < 50; c.sampler.seed++) {
        fl_tiny_run(&c, ids, n_prompt, all);
        if (first_of(all, all->ids[at]) != at) continue;
        c.max_tokens = 100;
        return c;
    }
    fail_msg("no seed gives a new token at index %d", at);
    return c;
}

static void A11_an_end_token_at_row_0_and_at_row_31(void **state)
{
    (void)state;
    /* Index 23 - remainder is row 0 of the second block, and so on. */
    static const struct {
        int n_prompt;
        fl_block_align align;
        int row0, row31; /* indices of generated tokens */
    } cases[] = {{64, FL_ALIGN_ABSOLUTE, 0, 31},
                 {41, FL_ALIGN_ABSOLUTE, 23, 22},
                 {41, FL_ALIGN_ABSOLUTE, 55, 54},
                 {41, FL_ALIGN_RELATIVE, 32, 63}};
    int32_t ids[64];
    fl_output all = {0}, o = {0};
    const fl_hparams saved = fl_tiny.model->index->hp;
    fl_tiny_prompt(ids, 64);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        for (int last = 0; last < 2; last++) {
            if (FL_SANITIZED && (i + (size_t)last) % 2) continue;
            const int at = last ? cases[i].row31 : cases[i].row0, n = cases[i].n_prompt;
            const int given = cases[i].align == FL_ALIGN_ABSOLUTE ? n % N_BLOCK : 0;
            assert_int_equal((given + at) % N_BLOCK, last ? N_BLOCK - 1 : 0);
            fl_gen_config c = config_where_new(n, at, cases[i].align, &all);
            c.ignore_eos = false;
            set_stop_ids(all.ids[at], all.ids[at]);
            fl_tiny_run(&c, ids, n, &o);
            assert_int_equal(o.r.finish, FL_FINISH_STOP);
            assert_int_equal(o.r.stop_id, all.ids[at]);
            assert_int_equal(o.r.n_generated, at + 1);
            assert_memory_equal(o.ids, all.ids, (size_t)(at + 1) * sizeof(*o.ids));
            /* Nothing behind it was begun. */
            assert_int_equal(o.r.blocks, (given + at) / N_BLOCK + 1);
            fl_tiny.model->index->hp = saved;
        }
}

static void A11_a_stop_string_that_begins_in_one_block_and_ends_in_the_next(void **state)
{
    (void)state;
    enum { N_PROMPT = 41, BORDER = 2 * N_BLOCK - N_PROMPT };
    int32_t ids[N_PROMPT];
    fl_output all = {0}, o = {0};
    const int wanted = FL_SANITIZED_OR(2, 5);
    int tried = 0;
    fl_tiny_prompt(ids, N_PROMPT);
    fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
    c.sampler = (fl_sampler_config){.temp = 1.5, .top_p = 1.0};
    for (c.sampler.seed = 1; c.sampler.seed < 100 && tried < wanted; c.sampler.seed++) {
        char stop[5] = "";
        const char *list[] = {stop};
        c.n_stop = 0;
        c.max_tokens = BORDER;
        fl_tiny_run(&c, ids, N_PROMPT, &o);
        const size_t border = o.n_text;
        c.max_tokens = BORDER + 16;
        fl_tiny_run(&c, ids, N_PROMPT, &all);
        if (memcmp(all.text, o.text, border) != 0) continue; /* a character over the border */
        memcpy(stop, all.text + border - 2, 4);
        if (strlen(stop) != 4) continue;
        if (find_text(all.text, all.n_text, stop, 4) != (int)border - 2) continue;
        c.stop = list;
        c.n_stop = 1;
        fl_tiny_run(&c, ids, N_PROMPT, &o);
        assert_int_equal(o.r.finish, FL_FINISH_STOP_STRING);
        assert_int_equal(o.n_text, border - 2);
        assert_memory_equal(o.text, all.text, border - 2);
        assert_true(o.r.n_generated > BORDER && o.r.blocks == 2);
        tried++;
    }
    assert_int_equal(tried, wanted);
}

/* ---- limits ---- */

static void A11_max_tokens_ends_it_inside_a_block(void **state)
{
    (void)state;
    int32_t ids[41];
    fl_output all = {0}, o = {0};
    fl_tiny_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = fl_tiny_config((fl_gen_mode)mode);
        c.max_tokens = 100;
        fl_tiny_run(&c, ids, 41, &all);
        for (int n = 0; n <= 90; n += n < 2 ? 1 : FL_SANITIZED_OR(33, 11)) {
            c.max_tokens = n;
            fl_tiny_run(&c, ids, 41, &o);
            assert_int_equal(o.r.n_generated, n);
            assert_int_equal(o.r.finish, FL_FINISH_LENGTH);
            assert_memory_equal(o.ids, all.ids, (size_t)n * sizeof(*o.ids));
        }
    }
}

static void A11_the_context_holds_the_last_block_too(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[300];
    fl_output o = {0};
    fl_gen_result r;
    fl_tiny_prompt(ids, 300);
    fl_gen_config c = fl_tiny_config(FL_GEN_AR);
    fl_tiny_run(&c, ids, 200, &o);
    assert_int_equal(o.r.finish, FL_FINISH_CONTEXT);
    assert_int_equal(o.r.n_generated, 56);
    fl_tiny_run(&c, ids, 255, &o);
    assert_int_equal(o.r.n_generated, 1);
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 256, &r, &err), FL_E_ARG, "256 tokens");
    c.mode = FL_GEN_BLOCK;
    fl_tiny_run(&c, ids, 200, &o);
    assert_int_equal(o.r.finish, FL_FINISH_CONTEXT);
    assert_int_equal(o.r.n_generated, 56); /* the block of 192 and one more */
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 256, &r, &err), FL_E_ARG,
                 "no room for a block of 32");
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 0, &r, &err), FL_E_ARG, "empty");

    /* A context that is no multiple of the block: the last part of it stays free. */
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = 100;
    fl_loaded other = fl_load(fl_tiny.path, &p);
    fl_generator *g = NULL;
    ASSERT_OK(fl_generator_create(&g, other.engine, &err));
    c.on_text = NULL;
    ASSERT_OK(fl_generate(g, &c, ids, 40, &r, &err));
    assert_int_equal(r.finish, FL_FINISH_CONTEXT);
    assert_int_equal(r.n_generated, 96 - 40);
    fl_generator_destroy(&g);
    fl_unload(&other);
}

/* Whether a prompt of n tokens leaves room for an answer (at) and one more token does not. */
static void check_limit(const fl_engine *e, const fl_gen_config *c, int64_t n, const char *words)
{
    fl_err err = {0};
    ASSERT_OK(fl_gen_check(c, e, n, &err));
    ASSERT_FAILS(fl_gen_check(c, e, n + 1, &err), FL_E_ARG, words);
}

static void A11_the_hard_limit_counts_the_last_blocks_space(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_model *model = NULL;
    fl_engine *e = NULL;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.held_rows = N_BLOCK;
    ASSERT_OK(fl_model_open(&model, fl_tiny.path, &err));
    model->index->hp.n_ctx_train = 1 << 20;
    p.n_ctx = 131073;
    ASSERT_FAILS(fl_engine_open(&e, model, &p, &err), FL_E_ARG, "131072");
    p.n_ctx = 131072;
    ASSERT_OK(fl_engine_open(&e, model, &p, &err));
    fl_gen_config c = fl_tiny_config(FL_GEN_AR);
    check_limit(e, &c, 131071, "131072 tokens and the context 131072: no room for an answer");
    c.mode = FL_GEN_SPEC;
    check_limit(e, &c, 131071, "no room for an answer");
    c.mode = FL_GEN_BLOCK; /* the prompt's remainder heads the last block */
    check_limit(e, &c, 131071, "no room for a block of 32; this model takes at most 131072");
    c.clover.block_align = FL_ALIGN_RELATIVE;
    check_limit(e, &c, 131040, "131041 tokens and the context 131072: no room for a block of 32");
    fl_engine_close(&e);
    fl_model_close(&model);
}

/* The limit reached: a model of GDN layers alone reads a prompt of this length in seconds. Short
 * runs take the same step at a limit of 4,096 tokens. */
static void A11_an_answer_ends_at_the_hard_limit(void **state)
{
    (void)state;
    const int limit = getenv("FL_TEST_LONG") ? 131072 : 4096;
    fl_err err = {0};
    char *file = fl_tmp_path(fl_tiny.dir, "gdn.gguf");
    fl_make make = fl_make_tiny();
    make.arch = "clover_moe";
    make.n_layer = 1;
    make.interval = 4;
    make.n_ctx = limit;
    fl_make_gguf(&make, file);
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = limit;
    p.held_rows = N_BLOCK;
    p.threads = 1;
    fl_loaded l = fl_load(file, &p);
    fl_generator *g = NULL;
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    int32_t *ids = malloc((size_t)limit * sizeof(*ids));
    assert_non_null(ids);
    fl_tiny_prompt(ids, limit);
    const int n_prompt = limit - 45; /* 19 rows of the last block but one are given */
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c;
        fl_gen_result r;
        fl_gen_config_init(&c, l.model);
        c.mode = (fl_gen_mode)mode;
        c.sampler = (fl_sampler_config){.top_p = 1.0};
        c.ignore_eos = true;
        ASSERT_OK(fl_generate(g, &c, ids, n_prompt, &r, &err));
        assert_int_equal(r.finish, FL_FINISH_CONTEXT);
        assert_int_equal(r.n_generated, 45);
    }
    free(ids);
    fl_generator_destroy(&g);
    fl_unload(&l);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A11_stop_ids_end_the_text_wherever_they_stand),
        cmocka_unit_test(A11_an_end_token_at_row_0_and_at_row_31),
        cmocka_unit_test(A11_stop_strings_end_the_text_before_them_across_block_borders),
        cmocka_unit_test(A11_a_stop_string_that_begins_in_one_block_and_ends_in_the_next),
        cmocka_unit_test(A11_max_tokens_ends_it_inside_a_block),
        cmocka_unit_test(A11_the_context_holds_the_last_block_too),
        cmocka_unit_test(A11_the_hard_limit_counts_the_last_blocks_space),
        cmocka_unit_test(A11_an_answer_ends_at_the_hard_limit),
    };
    return cmocka_run_group_tests(tests, fl_tiny_setup, fl_tiny_teardown);
}
