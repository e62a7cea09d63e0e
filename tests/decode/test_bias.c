/* Biases by token and by length, the model's own defaults, and what is refused. */
#include <math.h>
#include <stdlib.h>

#include "runtime/base/file.h"
#include "tests/support/decoder.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* ---- by token ---- */

static void lists_of_biases_are_read_to_the_letter(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       "5",     "5:",       ":5",
                                      "5:1,",   ",5:1",  "5:1,,6:1", "-5:1",
                                      "+5:1",   " 5:1",  "5: 1",     "5:1 ",
                                      "5:nan",  "5:inf", "5:-INF",   "5:100.1",
                                      "5:-101", "5:1e9", "5:0x1",    "5:1:2",
                                      "5;1",    "0x5:1", "5:--1",    "5.0:1",
                                      "5:1-2",  "a:1",   "5:e",      "2147483648:1",
                                      "5:.",    "5:1e",  "5:-infx",  "99999999999999999999:1"};
    fl_err err = {0};
    fl_logit_bias b[FL_MAX_BIASES];
    int n = 0;
    ASSERT_OK(fl_logit_bias_parse("5:-100,2147483647:1e1,0:-inf,7:+.5", b, &n, &err));
    assert_int_equal(n, 4);
    assert_true(b[0].id == 5 && b[0].value == -100.0f);
    assert_true(b[1].id == INT32_MAX && b[1].value == 10.0f);
    assert_true(b[2].id == 0 && b[2].value == -INFINITY);
    assert_true(b[3].id == 7 && b[3].value == 0.5f);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ASSERT_FAILS(fl_logit_bias_parse(bad[i], b, &n, &err), FL_E_ARG, "ID:VALUE");
    static const char *const holes[] = {"", ",", "1:1,", ",1:1", "1:1,,2:2"};
    for (size_t i = 0; i < sizeof holes / sizeof *holes; i++)
        ASSERT_FAILS(fl_logit_bias_parse(holes[i], b, &n, &err), FL_E_ARG,
                     "--logit-bias: an item is empty (a comma too many?); expected ID:VALUE,ID");
    ASSERT_FAILS(fl_logit_bias_parse("5:1,6:2,5:1", b, &n, &err), FL_E_ARG, "5 is there twice");
    char many[FL_MAX_BIASES * 8 + 16], *at = many;
    for (int i = 0; i <= FL_MAX_BIASES; i++) at += sprintf(at, "%s%d:1", i ? "," : "", i);
    ASSERT_FAILS(fl_logit_bias_parse(many, b, &n, &err), FL_E_ARG, "at most 256");
    *strrchr(many, ',') = 0;
    ASSERT_OK(fl_logit_bias_parse(many, b, &n, &err));
    assert_int_equal(n, FL_MAX_BIASES);
}

enum { V = 16 };

static fl_sampler *make(const fl_sampler_config *c)
{
    static fl_kernels k;
    fl_err err = {0};
    fl_sampler *s = NULL;
    assert_true(fl_kernels_init(&k, NULL));
    ASSERT_OK(fl_sampler_create(&s, &k, V, 1, &err));
    ASSERT_OK(fl_sampler_configure(s, c, &err));
    return s;
}

static void biases_come_behind_penalties_and_before_the_temperature(void **state)
{
    (void)state;
    fl_sampler_config c = {.temp = 0.5, .top_p = 1.0, .top_k = 2, .presence = 1.0, .n_bias = 2};
    c.bias[0] = (fl_logit_bias){2, -0.5f};
    c.bias[1] = (fl_logit_bias){9, 4.0f};
    float l[V];
    for (int i = 0; i < V; i++) l[i] = 0.0f;
    l[2] = 4.0f;
    fl_sampler *s = make(&c);
    fl_sampler_count(s, 2, 0);
    /* 4 - 1 - 0.5 = 2.5 against 4, both doubled. */
    for (int pos = 0; pos < 50; pos++) {
        const fl_pick p = fl_sampler_pick(s, l, pos, 0);
        assert_true(p.token == 2 || p.token == 9);
        const double share = 1.0 / (1.0 + exp(p.token == 2 ? 3.0 : -3.0));
        assert_true(fabs(p.confidence - share) < 1e-6);
        assert_false(p.biased); /* that word is for biases by length */
    }
    fl_sampler_destroy(&s);
    /* Minus infinity takes part in no softmax; the raw confidence knows bans, but no bias. */
    c = (fl_sampler_config){.top_p = 1.0, .n_bias = 2, .raw_confidence = true};
    c.bias[0] = (fl_logit_bias){2, -INFINITY};
    c.bias[1] = (fl_logit_bias){9, 50.0f};
    s = make(&c);
    const fl_pick p = fl_sampler_pick(s, l, 0, 0);
    assert_int_equal(p.token, 9);
    assert_true(fabs(p.confidence - 1.0 / (V - 1)) < 1e-6);
    fl_sampler_destroy(&s);
}

static void bans_that_leave_nothing_are_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_sampler_config c = {.top_p = 1.0};
    float l[V] = {0};
    fl_sampler *s = make(&c);
    for (int i = 0; i < 3; i++) fl_sampler_ban(s, i);
    for (int i = 0; i < V; i++) c.bias[i] = (fl_logit_bias){i, -INFINITY};
    c.n_bias = V;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "all 16 tokens are banned");
    c.bias[7].value = -100.0f;
    ASSERT_OK(fl_sampler_configure(s, &c, &err));
    const fl_pick p = fl_sampler_pick(s, l, 0, 0);
    assert_int_equal(p.token, 7);
    assert_true(p.confidence == 1.0f);
    c.bias[7].id = V;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "token 16 is outside 0 to 15");
    c.bias[7].id = -1;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "token -1");
    for (int k = 0; k < 3; k++) {
        c.bias[7] = (fl_logit_bias){7, k == 0 ? NAN : k == 1 ? INFINITY : 100.5f};
        ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "expected -100 to 100 or -inf");
    }
    c.n_bias = 0;
    c.soft.think = -1;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--soft-think");
    c.soft = (fl_soft_config){10, 10, NAN};
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--soft-slope");
    fl_sampler_destroy(&s);
}

/* ---- by length: the law ---- */

enum { OPEN = 3, CLOSE = 4, END = 5 };

static fl_soft begin(const int32_t *prompt, int64_t n)
{
    fl_soft s;
    const fl_soft_config c = {.think = 10, .answer = 20, .slope = 0.5};
    fl_soft_begin(&s, &c, (fl_soft_ids){OPEN, CLOSE, END}, prompt, n);
    return s;
}

static void check_at(const fl_soft *s, int64_t pos, int32_t id, float value)
{
    const fl_logit_bias b = fl_soft_at(s, pos);
    assert_true(b.value == value);
    if (value != 0.0f) assert_int_equal(b.id, id);
}

static void thinking_counts_from_the_start_and_the_answer_from_the_tag(void **state)
{
    (void)state;
    static const int32_t open[] = {1, CLOSE, 1, OPEN, 1}, shut[] = {OPEN, CLOSE, 1, 1, 1},
                         none[] = {1, 1, 1, 1, 1};
    fl_soft s = begin(open, 5);
    check_at(&s, 5, CLOSE, 0.0f);
    check_at(&s, 15, CLOSE, 0.0f);
    check_at(&s, 16, CLOSE, 0.5f);
    check_at(&s, 35, CLOSE, 10.0f);
    /* A tag at 20: what stands before it is thought still, what stands behind it is answer. */
    fl_soft_take(&s, CLOSE, 30);
    fl_soft_take(&s, CLOSE, 20);
    fl_soft_take(&s, CLOSE, 25);
    check_at(&s, 20, CLOSE, 2.5f);
    check_at(&s, 21, END, 0.0f);
    check_at(&s, 41, END, 0.0f);
    check_at(&s, 42, END, 0.5f);
    check_at(&s, 100, END, 29.5f);
    /* Without thought the answer begins at once, whatever the prompt says. */
    for (int k = 0; k < 2; k++) {
        s = begin(k ? shut : none, 5);
        check_at(&s, 25, END, 0.0f);
        check_at(&s, 26, END, 0.5f);
    }
    /* The model opens its thought itself. */
    fl_soft_take(&s, OPEN, 5);
    check_at(&s, 5, END, 0.0f);
    check_at(&s, 16, CLOSE, 0.5f);
    /* Nothing to push to, or switched off. */
    s.ids.close = -1;
    check_at(&s, 1000, -1, 0.0f);
    s = begin(none, 5);
    s.c.answer = 0;
    check_at(&s, 100000, -1, 0.0f);
    s.c = (fl_soft_config){10, 20, 0.0};
    check_at(&s, 100000, -1, 0.0f);
}

static void rows_ahead_move_the_law(void **state)
{
    (void)state;
    enum { N = 4 };
    static const int32_t prompt[] = {OPEN}, ahead[N - 1] = {8, CLOSE, 8};
    fl_err err = {0};
    fl_pool *pool = NULL;
    fl_sampler_config c = {.top_p = 1.0, .soft = {2, 1, 4.0}};
    float l[N * V] = {0};
    const int64_t pos[N] = {5, 6, 7, 8};
    fl_pick p[N];
    for (int i = 0; i < N; i++) l[i * V + 9] = 1.0f;
    fl_sampler *s = make(&c);
    fl_sampler_begin(s, (fl_soft_ids){OPEN, CLOSE, END}, prompt, 1);
    ASSERT_OK(fl_pool_create(&pool, 1, &err));
    fl_sampler_pick_rows(s, pool, l, pos, ahead, N, p);
    /* Thinking is 2 beyond at 5 and 3 at 6; the tag stands there, so 8 is the answer's second. */
    assert_true(p[0].token == CLOSE && p[0].biased);
    assert_true(p[1].token == CLOSE && p[1].biased);
    assert_true(p[2].token == 9 && !p[2].biased);
    assert_true(p[3].token == 9 && !p[3].biased);
    const double e = exp(1.0);
    assert_true(fabs(p[2].confidence - e / (e + V - 1)) < 1e-6);
    /* The tokens ahead are forgotten; the switch turns all of it off. */
    assert_true(fl_sampler_pick(s, l, 8, 0).token == CLOSE);
    fl_sampler_soft(s, false);
    assert_true(fl_sampler_pick(s, l, 8, 0).token == 9);
    fl_sampler_soft(s, true);
    fl_sampler_count(s, CLOSE, 5);
    assert_true(fl_sampler_pick(s, l, 8, 0).token == END);
    fl_pool_destroy(&pool);
    fl_sampler_destroy(&s);
}

/* ---- A12, and the law in every mode ---- */

enum { PROMPT = 41, THINK = 5, ANSWER = 12 };

/* Letters that end inside a thought. */
static void thinking_prompt(int32_t *ids)
{
    fl_tiny_prompt(ids, PROMPT);
    ids[PROMPT - 1] = fl_tokenizer_special(fl_tiny.model->tokenizer, "<think>");
    assert_true(ids[PROMPT - 1] >= 0);
}

static int count_of(const fl_output *o, int32_t id)
{
    int n = 0;
    for (int64_t i = 0; i < o->r.n_generated; i++) n += o->ids[i] == id;
    return n;
}

static fl_gen_config soft_config(fl_gen_mode mode, int32_t *close_id, int32_t *end_id)
{
    fl_gen_config c = fl_tiny_config(mode);
    *close_id = fl_tokenizer_special(fl_tiny.model->tokenizer, "</think>");
    *end_id = fl_tiny.model->index->hp.eos_id;
    assert_true(*close_id >= 0 && *end_id >= 0);
    c.ignore_eos = false;
    c.max_tokens = 40;
    c.sampler.soft = (fl_soft_config){THINK, ANSWER, 10.0};
    return c;
}

static void ends_are_pushed_where_the_law_says(void **state)
{
    (void)state;
    int32_t ids[PROMPT], close_id, end_id;
    static fl_output o;
    thinking_prompt(ids);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode += 2)
        for (int sampled = 0; sampled < 2; sampled++) {
            fl_gen_config c = soft_config((fl_gen_mode)mode, &close_id, &end_id);
            if (sampled) c.sampler.temp = 0.5;
            c.draft_min = 0.0f;
            fl_tiny_run(&c, ids, PROMPT, &o);
            /* One token beyond each length gets 10, far more than random logits differ by. */
            assert_int_equal(o.ids[THINK + 1], close_id);
            assert_int_equal(count_of(&o, close_id), 1);
            assert_int_equal(o.r.n_generated, THINK + 2 + ANSWER + 2);
            assert_int_equal(o.r.finish, FL_FINISH_STOP);
            assert_int_equal(o.r.stop_id, end_id);
            /* Switched off, neither comes. */
            c.sampler.soft.slope = 0.0;
            fl_tiny_run(&c, ids, PROMPT, &o);
            assert_int_equal(count_of(&o, close_id) + count_of(&o, end_id), 0);
            assert_int_equal(o.r.n_generated, 40);
        }
    /* Where stop ids do not end the text there is nothing to push to. */
    fl_gen_config c = soft_config(FL_GEN_AR, &close_id, &end_id);
    c.ignore_eos = true;
    fl_tiny_run(&c, ids, PROMPT, &o);
    assert_int_equal(count_of(&o, end_id), 0);
    assert_int_equal(o.r.n_generated, 40);
}

/* The same pass of the block that fl_tiny_run begins with, looked at from outside: how many rows
 * the bias would end at once. */
static int rows_that_would_end(const fl_gen_config *c, const int32_t *ids, int32_t close_id)
{
    enum { FIRST = PROMPT - PROMPT % 32 };
    fl_err err = {0};
    fl_engine *e = fl_tiny.engine;
    fl_sampler *s = NULL;
    int32_t block[32];
    const float *logits = NULL;
    int rows[32], n = 0, ending = 0;
    fl_state_reset(&e->state);
    ASSERT_OK(fl_forward_clean(e, ids, FIRST, &err));
    for (int i = 0; i < 32; i++) block[i] = FIRST + i < PROMPT ? ids[FIRST + i] : c->clover.mask_id;
    ASSERT_OK(fl_forward_denoise(e, block, 32, &c->clover, &err));
    for (int i = PROMPT - FIRST; i < 32; i++) rows[n++] = i;
    ASSERT_OK(fl_forward_logits(e, rows, n, &logits, &err));
    ASSERT_OK(fl_sampler_create(&s, &e->exec.k, e->model->index->hp.n_vocab, 1, &err));
    ASSERT_OK(fl_sampler_configure(s, &c->sampler, &err));
    fl_sampler_begin(s, (fl_soft_ids){ids[PROMPT - 1], close_id, -1}, ids, PROMPT);
    for (int i = 0; i < n; i++) {
        const float *row = logits + i * e->model->index->hp.n_vocab;
        const fl_pick p = fl_sampler_pick(s, row, FIRST + rows[i], 0);
        ending += p.biased && p.confidence >= c->clover.threshold;
    }
    fl_sampler_destroy(&s);
    return ending;
}

static void A12_at_most_one_biased_end_a_block(void **state)
{
    (void)state;
    int32_t ids[PROMPT], close_id, end_id;
    static fl_output o;
    thinking_prompt(ids);
    for (int separate = 0; separate < 2; separate++)
        for (int sampled = 0; sampled < 2; sampled++) {
            fl_gen_config c = soft_config(FL_GEN_BLOCK, &close_id, &end_id);
            c.separate_commits = separate;
            if (sampled) c.sampler.temp = 0.5;
            /* 23 open rows, of which 17 are far enough to be ended. */
            assert_int_equal(rows_that_would_end(&c, ids, close_id), 32 - PROMPT % 32 - THINK - 1);
            fl_tiny_run(&c, ids, PROMPT, &o);
            assert_int_equal(count_of(&o, close_id), 1);
            assert_int_equal(o.ids[THINK + 1], close_id); /* the leftmost one */
            /* The answer's end would be due in the same block, where the bias is off: it comes
             * first thing in the next. */
            assert_true(THINK + 2 + ANSWER + 1 < 32 - PROMPT % 32);
            assert_int_equal(o.r.n_generated, 32 - PROMPT % 32 + 1);
            assert_int_equal(o.r.stop_id, end_id);
            assert_int_equal(o.r.blocks, 2);
            /* The block filled up although most of its rows were held back. */
            assert_true(o.r.max_passes >= 2 && o.r.max_passes <= 32);
        }
    /* Where no row reaches the threshold the surest is one of the pushed rows: one all the same. */
    fl_gen_config c = soft_config(FL_GEN_BLOCK, &close_id, &end_id);
    c.clover.threshold = 1.0f;
    c.sampler.soft.slope = 0.7;
    c.max_tokens = 23;
    fl_tiny_run(&c, ids, PROMPT, &o);
    assert_int_equal(count_of(&o, close_id), 1);
}

/* ---- defaults ---- */

static void write_file(const char *dir, const char *name, const char *text)
{
    char *path = fl_tmp_path(dir, name);
    fl_tmp_write(path, text, strlen(text));
    free(path);
}

static void defaults_are_the_files_own_and_say_so(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *json, *line; /* line: what --stats prints */
    } t[] = {
        {"qwen35moe", "{}", "temp 0: greedy (built in)"},
        {"qwen35moe", "{\"temperature\":0.5,\"top_k\":20,\"top_p\":0.75,\"min_p\":0.25}",
         "temp 0.5 (file), top-k 20 (file), top-p 0.75 (file), min-p 0.25 (file), seed 0"},
        {"qwen35moe",
         "{\"do_sample\":false,\"temperature\":1.0,\"top_k\":20,\"repetition_penalty\":1.25}",
         "temp 0: greedy (file), repetition 1.25 (file)"},
        {"qwen35moe", "{\"temperature\":1.0,\"top_k\":-1,\"frequency_penalty\":-0.5}",
         "temp 1 (file), top-k 0 (file), frequency -0.5 (file), seed 0"},
        {"clover_moe", "{\"do_sample\":false}",
         "temp 0: greedy (file), presence 1.5 (Clover's default), repetition 1 (Clover's default), "
         "ends pushed from 4096 tokens of thinking, 8192 of answer on (Clover's default)"},
        {"clover_moe", "{\"presence_penalty\":0,\"repetition_penalty\":1.0}",
         "temp 0: greedy (built in), presence 0 (file), repetition 1 (file), "
         "ends pushed from 4096 tokens of thinking, 8192 of answer on (Clover's default)"},
    };
    fl_err err = {0};
    char *dir = fl_tmp_path(fl_tiny.dir, "hf"), line[512];
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fl_model *m = NULL;
        fl_gen_config c;
        fl_make make = fl_make_tiny();
        make.arch = t[i].arch;
        fl_make_safetensors(&make, dir);
        write_file(dir, "generation_config.json", t[i].json);
        ASSERT_OK(fl_model_open(&m, dir, &err));
        fl_gen_config_init(&c, m);
        fl_defaults_describe(&c.sampler, c.from, line, sizeof line);
        assert_string_equal(line, t[i].line);
        ASSERT_OK(fl_defaults_check(&c.sampler, c.from, m, &err));
        ASSERT_OK(fl_sampler_check(&c.sampler, m->index->hp.n_vocab, &err));
        /* A short buffer cuts. */
        for (size_t n = 0; n < 40; n++) {
            memset(line, 'x', sizeof line);
            fl_defaults_describe(&c.sampler, c.from, line, n);
            if (n > 0)
                assert_int_equal(strlen(line),
                                 n - 1 < strlen(t[i].line) ? n - 1 : strlen(t[i].line));
            assert_true(line[n] == 'x');
        }
        fl_model_close(&m);
    }
    free(dir);
}

static void values_of_the_file_that_cannot_be_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *json, *words;
    } t[] = {{"{\"temperature\":-1}", "temperature is -1, expected 0 to 100; --temp"},
             {"{\"top_p\":0}", "top_p is 0, expected above 0 to 1; --top-p"},
             {"{\"top_p\":1.5}", "top_p is 1.5"},
             {"{\"min_p\":2}", "min_p is 2"},
             {"{\"presence_penalty\":2.5}", "presence_penalty is 2.5"},
             {"{\"frequency_penalty\":-7}", "frequency_penalty is -7"},
             {"{\"repetition_penalty\":-1}", "repetition_penalty is -1"}};
    fl_err err = {0};
    char *dir = fl_tmp_path(fl_tiny.dir, "hf");
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fl_model *m = NULL;
        fl_engine *e = NULL;
        fl_gen_config c;
        fl_make make = fl_make_tiny();
        const fl_engine_params p = fl_engine_defaults();
        fl_make_safetensors(&make, dir);
        write_file(dir, "generation_config.json", t[i].json);
        ASSERT_OK(fl_model_open(&m, dir, &err));
        ASSERT_OK(fl_engine_open(&e, m, &p, &err));
        fl_gen_config_init(&c, m);
        ASSERT_FAILS(fl_gen_check(&c, e, 5, &err), FL_E_FORMAT, t[i].words);
        assert_non_null(strstr(err.msg, "generation_config.json"));
        /* The option helps. */
        for (int k = 0; k < FL_N_SETTINGS; k++) c.from[k] = FL_FROM_USER;
        c.sampler = (fl_sampler_config){.top_p = 1.0};
        ASSERT_OK(fl_gen_check(&c, e, 5, &err));
        fl_engine_close(&e);
        fl_model_close(&m);
    }
    free(dir);
}

static void the_files_keys_set_the_biases_by_length(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *words; /* words: of the error; NULL = none */
        int think, answer;
        double slope;
        bool from_file;
    } t[] = {{"", NULL, 4096, 8192, 0.01, false},
             {"\"soft_think_tokens\":100,", NULL, 100, 8192, 0.01, true},
             {"\"soft_answer_tokens\":0,\"soft_slope\":0.5,", NULL, 4096, 0, 0.5, true},
             {"\"soft_slope\":0,", NULL, 4096, 8192, 0, true},
             {"\"soft_slope\":11,", "soft_slope is 11", 0, 0, 0, false},
             {"\"soft_think_tokens\":-5,", "soft_think_tokens is -5", 0, 0, 0, false}};
    fl_err err = {0};
    char *dir = fl_tmp_path(fl_tiny.dir, "hf"), *path = fl_tmp_path(dir, "config.json");
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fl_model *m = NULL;
        fl_gen_config c;
        fl_make make = fl_make_tiny();
        make.arch = "clover_moe";
        fl_make_safetensors(&make, dir);
        char text[8192], *whole = NULL;
        uint64_t n = 0;
        ASSERT_OK(fl_file_load(path, sizeof text, &whole, &n, &err));
        assert_int_equal(whole[0], '{');
        snprintf(text, sizeof text, "{%s%s", t[i].keys, whole + 1);
        free(whole);
        write_file(dir, "config.json", text);
        if (t[i].words) {
            ASSERT_FAILS(fl_model_open(&m, dir, &err), FL_E_FORMAT, t[i].words);
            continue;
        }
        ASSERT_OK(fl_model_open(&m, dir, &err));
        fl_gen_config_init(&c, m);
        assert_int_equal(c.sampler.soft.think, t[i].think);
        assert_int_equal(c.sampler.soft.answer, t[i].answer);
        assert_true(fabs(c.sampler.soft.slope - t[i].slope) < 1e-8);
        assert_int_equal(c.from[FL_SET_SOFT], t[i].from_file ? FL_FROM_FILE : FL_FROM_CLOVER);
        fl_model_close(&m);
    }
    free(path);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_biases_are_read_to_the_letter),
        cmocka_unit_test(biases_come_behind_penalties_and_before_the_temperature),
        cmocka_unit_test(bans_that_leave_nothing_are_refused),
        cmocka_unit_test(thinking_counts_from_the_start_and_the_answer_from_the_tag),
        cmocka_unit_test(rows_ahead_move_the_law),
        cmocka_unit_test(ends_are_pushed_where_the_law_says),
        cmocka_unit_test(A12_at_most_one_biased_end_a_block),
        cmocka_unit_test(defaults_are_the_files_own_and_say_so),
        cmocka_unit_test(values_of_the_file_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(the_files_keys_set_the_biases_by_length),
    };
    return cmocka_run_group_tests(tests, fl_tiny_setup, fl_tiny_teardown);
}
