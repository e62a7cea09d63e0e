/* fourleaf eval: its figures against plain sums in double over the rows of fl_forward_logits;
 * references that are models and files; what is refused. */
#include <math.h>
#include <stdlib.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/tools/corpus.h"
#include "runtime/tools/eval.h"
#include "runtime/tools/masked.h"
#include "tests/support/command.h"
#include "tests/support/engine.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { CTX = 80, FROM = CTX / 2 + 1, BLOCK = 32, END = CTX - CTX % BLOCK, WINDOWS = 2 };

static fl_err err;
static char *dir, *exact, *rounded, *causal, *other, *text, *lines, *rows, *scratch;
static fl_json *got;

static void write_text(const char *path, const char *more)
{
    char all[1024] = "";
    for (int i = 0; i < 50; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%d%s", i * i, i % 7 ? " a" : "\n");
    snprintf(all + strlen(all), sizeof all - strlen(all), "%s", more);
    fl_tmp_write(path, all, strlen(all));
}

static int setup(void **state)
{
    (void)state;
    fl_make m = fl_make_default();
    dir = fl_tmp_make();
    setenv("TMPDIR", dir, 1);
    setenv("XDG_CACHE_HOME", dir, 1);
    exact = fl_tmp_path(dir, "exact.gguf");
    rounded = fl_tmp_path(dir, "rounded.gguf");
    causal = fl_tmp_path(dir, "causal.gguf");
    other = fl_tmp_path(dir, "other.gguf");
    text = fl_tmp_path(dir, "text.txt");
    lines = fl_tmp_path(dir, "lines.jsonl");
    rows = fl_tmp_path(dir, "rows");
    scratch = fl_tmp_path(dir, "scratch");
    m.arch = "clover_moe";
    m.n_layer = m.interval = 2;
    m.n_vocab = 320;
    fl_make_gguf(&m, exact);
    m.type = FL_TYPE_Q4_K;
    fl_make_gguf(&m, rounded);
    m.arch = "qwen35moe";
    fl_make_gguf(&m, causal);
    m.n_vocab = 352;
    fl_make_gguf(&m, other);
    write_text(text, "");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char *all[] = {exact, rounded, causal, other, text, lines, rows, scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    fl_json_free(&got);
    fl_tmp_remove(dir);
    return 0;
}

static int forget(void **state)
{
    (void)state;
    remove(rows);
    remove(scratch);
    return 0;
}

/* The command's object, in `got`. */
static void eval(const char *model, const char *rest)
{
    char words[1024];
    snprintf(words, sizeof words, "eval %s %s --ctx %d --threads 1 --json %s", model, text, CTX,
             rest);
    char *out = fl_command_output(fl_tool_eval, words);
    fl_json_free(&got);
    ASSERT_OK(fl_json_parse(out, strlen(out), "stdout", &got, &err));
    free(out);
}

static void eval_against(const char *model, const char *reference, const char *rest)
{
    char all[600];
    snprintf(all, sizeof all, "--against %s %s", reference, rest);
    eval(model, all);
}

static double num(const fl_json *j, const char *key)
{
    return fl_json_num(fl_json_get(j, key), NAN);
}

static const fl_json *part(const char *name) { return fl_json_get(got, name); }

static const fl_json *level(int i)
{
    return fl_json_at(fl_json_get(part("masked"), "levels"), (size_t)i);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * (1 + fabs(b)))) fail_msg("%.15g instead of %.15g", a, b);
}

/* ---- the plain way ---- */

enum { MOST = 4096, VOCAB = 320 };
typedef struct plain {
    int n;
    float *logits; /* [n][VOCAB] */
    int32_t id[MOST];
    int pos[MOST], level[MOST]; /* -1: causal */
} plain;

static void keep(plain *p, const float *logits, int32_t id, int pos, int l)
{
    assert_true(p->n < MOST);
    memcpy(p->logits + (size_t)p->n * VOCAB, logits, VOCAB * sizeof *logits);
    p->id[p->n] = id;
    p->pos[p->n] = pos;
    p->level[p->n++] = l;
}

static void plain_window(plain *p, fl_loaded *l, const int32_t *ids, int start)
{
    const fl_clover *sw = &l->model->index->clover;
    float *all = fl_clean_logits(l->engine, ids, CTX);
    for (int pos = FROM; pos < CTX; pos++)
        keep(p, all + (size_t)(pos - 1) * VOCAB, ids[pos], start + pos, -1);
    free(all);
    for (int at = FROM - FROM % BLOCK; at < END; at += BLOCK)
        for (int k = 0; k < FL_MASK_LEVELS; k++) {
            int32_t x[BLOCK];
            fl_state_reset(&l->engine->state);
            ASSERT_OK(fl_forward_clean(l->engine, ids, at, &err));
            for (int i = 0; i < BLOCK; i++)
                x[i] =
                    at + i >= FROM && fl_mask_at(0, start + at + i, k) ? sw->mask_id : ids[at + i];
            float *block = fl_block_logits(l->engine, x, BLOCK, sw->gdn_block_mode);
            for (int i = 0; i < BLOCK; i++)
                if (at + i >= FROM && fl_mask_at(0, start + at + i, k))
                    keep(p, block + (size_t)i * VOCAB, ids[at + i], start + at + i, k);
            free(block);
        }
}

static plain plain_rows(const char *model)
{
    plain p = {.logits = malloc(MOST * VOCAB * sizeof(float))};
    fl_engine_params params = fl_engine_defaults();
    fl_corpus c;
    params.threads = 1;
    params.n_ctx = CTX;
    assert_non_null(p.logits);
    fl_loaded l = fl_load(model, &params);
    ASSERT_OK(fl_corpus_open(&c, l.model->tokenizer, (const char *const *)&text, 1, &err));
    assert_true(c.n >= WINDOWS * CTX && c.n < (WINDOWS + 1) * CTX);
    for (int w = 0; w < WINDOWS; w++) plain_window(&p, &l, c.ids + w * CTX, w * CTX);
    fl_corpus_close(&c);
    fl_unload(&l);
    return p;
}

static double log_probability(const float *x, int id)
{
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp(x[i]);
    return x[id] - log(sum);
}

static int best(const float *x)
{
    int at = 0;
    for (int i = 1; i < VOCAB; i++) at = x[i] > x[at] ? i : at;
    return at;
}

static double plain_nll(const plain *p, int i)
{
    return -log_probability(p->logits + (size_t)i * VOCAB, p->id[i]);
}

static double plain_kl(const plain *p, const plain *q, int i)
{
    const float *a = p->logits + (size_t)i * VOCAB, *b = q->logits + (size_t)i * VOCAB;
    double kl = 0;
    for (int k = 0; k < VOCAB; k++) {
        const double la = log_probability(a, k);
        kl += exp(la) * (la - log_probability(b, k));
    }
    return kl;
}

/* Rows of a level (-1: causal), with mean and standard error. */
typedef struct simple {
    int n;
    double x[MOST], mean, error;
} simple;

static void close_mean(simple *s)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < s->n; i++) sum += s->x[i];
    s->mean = sum / s->n;
    for (int i = 0; i < s->n; i++) squares += (s->x[i] - s->mean) * (s->x[i] - s->mean);
    s->error = sqrt(squares / (s->n - 1) / s->n);
}

static void check_nll(const fl_json *j, const plain *p, int l)
{
    static simple s;
    s.n = 0;
    for (int i = 0; i < p->n; i++)
        if (p->level[i] == l) s.x[s.n++] = plain_nll(p, i);
    close_mean(&s);
    assert_int_equal(num(j, "rows"), s.n);
    near(num(j, "nll"), s.mean);
    near(num(j, "nll_error"), s.error);
}

/* Over all levels, where the rows of one token count as one. */
static void check_masked(const fl_json *j, const plain *p)
{
    double sum[WINDOWS * CTX] = {0}, all = 0, squares = 0;
    int rows_of[WINDOWS * CTX] = {0}, n = 0, tokens = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->level[i] < 0) continue;
        sum[p->pos[i]] += plain_nll(p, i);
        rows_of[p->pos[i]]++;
        n++;
    }
    for (int i = 0; i < WINDOWS * CTX; i++) all += sum[i];
    for (int i = 0; i < WINDOWS * CTX; i++) {
        const double off = sum[i] - all / n * rows_of[i];
        squares += off * off;
        tokens += rows_of[i] > 0;
    }
    assert_int_equal(num(j, "rows"), n);
    near(num(j, "nll"), all / n);
    near(num(j, "nll_error"), sqrt(squares * tokens / (tokens - 1)) / n);
}

static void likelihood_is_that_of_plain_sums(void **state)
{
    (void)state;
    plain p = plain_rows(rounded);
    eval(rounded, "");
    assert_int_equal(num(got, "windows"), WINDOWS);
    assert_int_equal(num(got, "tokens"), WINDOWS * CTX);
    check_nll(part("causal"), &p, -1);
    near(num(part("causal"), "perplexity"), exp(num(part("causal"), "nll")));
    near(num(part("causal"), "perplexity_error"),
         num(part("causal"), "perplexity") * num(part("causal"), "nll_error"));
    for (int l = 0; l < FL_MASK_LEVELS; l++) {
        near(num(level(l), "share"), fl_mask_level[l]);
        check_nll(level(l), &p, l);
    }
    check_masked(part("masked"), &p);
    assert_null(fl_json_get(got, "against"));
    assert_true(isnan(num(part("causal"), "kl")));
    free(p.logits);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const simple *s, double q)
{
    const double at = q * (s->n - 1);
    const int i = (int)at;
    return i + 1 < s->n ? s->x[i] + (at - i) * (s->x[i + 1] - s->x[i]) : s->x[i];
}

static void check_against(const fl_json *j, const plain *p, const plain *q, int l)
{
    static simple kl, delta;
    int same = 0, worst = 0;
    kl.n = delta.n = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->level[i] != l) continue;
        kl.x[kl.n++] = plain_kl(p, q, i);
        delta.x[delta.n++] = plain_nll(q, i) - plain_nll(p, i);
        same += best(p->logits + (size_t)i * VOCAB) == best(q->logits + (size_t)i * VOCAB);
        if (kl.n == 1 || plain_kl(p, q, i) > plain_kl(p, q, worst)) worst = i;
    }
    close_mean(&kl);
    close_mean(&delta);
    const double off = num(j, "kl_rounding");
    assert_true(off > 0 && off < 1e-3 * kl.mean);
    assert_true(fabs(num(j, "kl") - kl.mean) <= off + 1e-12);
    assert_true(num(j, "kl") > 0 && fabs(num(j, "kl_error") - kl.error) < 1e-3 * kl.error);
    near(num(j, "delta_nll"), delta.mean);
    near(num(j, "delta_nll_error"), delta.error);
    near(num(j, "same_top"), (double)same / kl.n);
    qsort(kl.x, (size_t)kl.n, sizeof *kl.x, by_value);
    static const struct {
        const char *key;
        double q;
    } shares[] = {{"kl_median", 0.5}, {"kl_90", 0.9}, {"kl_99", 0.99}};
    for (int i = 0; i < 3; i++) {
        const double is = quantile(&kl, shares[i].q);
        assert_true(fabs(num(j, shares[i].key) - is) < 1e-3 * is);
    }
    const fl_json *w = fl_json_get(j, "kl_worst");
    assert_true(fabs(num(w, "kl") - kl.x[kl.n - 1]) < 1e-3 * kl.x[kl.n - 1]);
    assert_int_equal(num(w, "token"), p->pos[worst]);
    assert_string_equal(fl_json_str(fl_json_get(w, "text"), ""), text);
}

static void distances_are_those_of_plain_sums(void **state)
{
    (void)state;
    plain p = plain_rows(exact), q = plain_rows(rounded);
    eval_against(rounded, exact, "");
    assert_string_equal(fl_json_str(part("against"), ""), "exact.gguf");
    check_against(part("causal"), &p, &q, -1);
    for (int l = 1; l < FL_MASK_LEVELS; l++) check_against(level(l), &p, &q, l);
    assert_true(num(part("masked"), "kl") > 0);
    free(p.logits);
    free(q.logits);
}

static void a_model_is_no_distance_from_itself(void **state)
{
    (void)state;
    eval_against(rounded, rounded, "");
    const char *parts[] = {"causal", "masked"};
    for (int i = 0; i < 2; i++) {
        const fl_json *j = part(parts[i]);
        assert_true(num(j, "kl") == 0 && num(j, "kl_error") == 0 && num(j, "kl_rounding") == 0);
        assert_true(num(fl_json_get(j, "kl_worst"), "kl") == 0 && num(j, "kl_99") == 0);
        assert_true(num(j, "same_top") == 1 && num(j, "same_top_error") == 0);
        assert_true(num(j, "delta_nll") == 0 && num(j, "delta_nll_error") == 0);
    }
}

/* ---- the same by other ways ---- */

static char *dumped(void)
{
    char *s = fl_json_dump(got, 1);
    assert_non_null(s);
    return s;
}

static void check_same(char *before)
{
    char *now = dumped();
    assert_string_equal(before, now);
    free(now);
}

static void save_rows(const char *model, const char *rest)
{
    char all[600];
    snprintf(all, sizeof all, "--save-logits %s %s", rows, rest);
    eval(model, all);
}

static void a_file_of_rows_says_what_its_model_does(void **state)
{
    (void)state;
    const int before = fl_tmp_count(dir);
    eval_against(rounded, exact, "");
    assert_int_equal(fl_tmp_count(dir), before);
    char *direct = dumped();
    save_rows(exact, "");
    assert_int_equal(fl_tmp_count(dir), before + 1);
    eval_against(rounded, rows, "");
    check_same(direct);
    eval_against(rounded, rows, "--chunk 7 --threads 3");
    check_same(direct);
    free(direct);
    /* Fewer windows, and fewer passes, than the file has. */
    eval_against(rounded, rows, "--windows 1 --passes masked");
    char *direct_part = dumped();
    eval_against(rounded, exact, "--windows 1 --passes masked");
    check_same(direct_part);
    assert_null(part("causal"));
    free(direct_part);
    /* Fewer windows than the text has, because the file holds no more. */
    save_rows(exact, "--windows 1 --passes causal");
    eval_against(rounded, rows, "");
    assert_int_equal(num(got, "windows"), 1);
    assert_true(num(part("causal"), "kl") > 0);
    assert_true(isnan(num(part("masked"), "kl")) && num(part("masked"), "rows") > 0);
}

static void models_without_masks_meet_on_the_causal_path(void **state)
{
    (void)state;
    eval(causal, "");
    assert_null(part("masked"));
    const double nll = num(part("causal"), "nll");
    eval_against(rounded, causal, "");
    near(num(part("causal"), "nll"), nll); /* the base model is the causal path */
    assert_true(num(part("causal"), "kl") == 0 && isnan(num(part("masked"), "kl")));
    eval_against(causal, rounded, "");
    assert_true(num(part("causal"), "kl") == 0);
    save_rows(rounded, "");
    eval_against(causal, rows, "");
    assert_true(num(part("causal"), "kl") == 0 && !part("masked"));
}

/* ---- lines, and the table ---- */

static fl_json *of_lines(const char *rest)
{
    char words[1024];
    fl_json *j = NULL;
    snprintf(words, sizeof words, "eval %s %s --ctx 64 --threads 1 --json %s", rounded, lines,
             rest);
    char *out = fl_command_output(fl_tool_eval, words);
    ASSERT_OK(fl_json_parse(out, strlen(out), "stdout", &j, &err));
    free(out);
    return j;
}

static void lines_are_scored_behind_their_prompt(void **state)
{
    (void)state;
    /* One byte, one token: none of the vocabulary's merges is in these. */
    static const char two[] = "{\"prompt\": \"0123456789\", \"completion\": \"9876543210\"}\n"
                              "{\"text\": \"98765\"}\n";
    fl_tmp_write(lines, two, strlen(two));
    fl_json *j = of_lines("");
    assert_int_equal(num(j, "windows"), 2);
    assert_int_equal(num(j, "tokens"), 25);
    assert_int_equal(num(fl_json_get(j, "causal"), "rows"), 10 + 4);
    const fl_json *all = fl_json_at(fl_json_get(fl_json_get(j, "masked"), "levels"), 3);
    assert_int_equal(num(all, "rows"), 10 + 4);
    const fl_json *few = fl_json_at(fl_json_get(fl_json_get(j, "masked"), "levels"), 0);
    assert_true(num(few, "rows") < 14);
    fl_json_free(&j);
    j = of_lines("--all");
    assert_int_equal(num(fl_json_get(j, "causal"), "rows"), 19 + 4);
    fl_json_free(&j);
}

static void the_table_names_all_of_it(void **state)
{
    (void)state;
    char words[1024];
    snprintf(words, sizeof words, "eval %s %s --ctx %d --threads 1 --against %s", rounded, text,
             CTX, exact);
    char *out = fl_command_output(fl_tool_eval, words);
    static const char *const parts[] = {"rounded.gguf: 2 windows of up to 80 tokens, 160 of ",
                                        "\ncausal ",
                                        "\nmasked ",
                                        "\n   15 %",
                                        "\n  100 %",
                                        "against exact.gguf, in nats",
                                        "worst causal row: token ",
                                        "kept in 16 bits: a mean KL is off by "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(out, parts[i])) fail_msg("'%s' is not in: %s", parts[i], out);
    free(out);
    snprintf(words, sizeof words, "eval %s %s --ctx %d --threads 1 --against %s", rounded, text,
             CTX, causal);
    out = fl_command_output(fl_tool_eval, words);
    assert_non_null(strstr(out, "the reference has no block passes"));
    free(out);
}

/* ---- refused ---- */

static void refuse(const char *model, const char *rest, fl_status status, const char *line)
{
    char words[1024];
    snprintf(words, sizeof words, "eval %s %s --threads 1 %s", model, text, rest);
    ASSERT_FAILS(fl_command_call(fl_tool_eval, words, &err), status, line);
}

static void what_cannot_be_measured_gets_one_line(void **state)
{
    (void)state;
    char words[600];
    refuse(rounded, "--ctx 512", FL_E_ARG, "nothing to score in windows of 512");
    refuse(rounded, "--ctx 40", FL_E_ARG, "give 64 or --passes causal");
    refuse(causal, "--ctx 80 --passes masked", FL_E_UNSUPPORTED, "knows no masks");
    refuse(rounded, "--ctx 80 --against /nowhere/at/all", FL_E_IO, "/nowhere/at/all");
    refuse("/nowhere/at/all", "", FL_E_IO, "/nowhere/at/all");
    snprintf(words, sizeof words, "--ctx 80 --against %s", other);
    refuse(causal, words, FL_E_ARG, "another vocabulary");
    snprintf(words, sizeof words, "--ctx 80 --save-logits %s", rounded);
    refuse(rounded, words, FL_E_ARG, "is a file of the model");
    snprintf(words, sizeof words, "--ctx 80 --against %s", text);
    refuse(rounded, words, FL_E_FORMAT, "text.txt");
    refuse(rounded, "--ctx 80 --save-logits /nowhere/x", FL_E_IO, "/nowhere/x");
    fl_tmp_write(lines, "{\"prompt\": \"0123456789\", \"completion\": \"\"}", 42);
    snprintf(words, sizeof words, "eval %s %s --ctx 64 --threads 1", rounded, lines);
    ASSERT_FAILS(fl_command_call(fl_tool_eval, words, &err), FL_E_ARG, "nothing to score");
}

static void rows_of_something_else_are_refused(void **state)
{
    (void)state;
    char words[600], *data;
    uint64_t n;
    snprintf(words, sizeof words, "--ctx 80 --against %s", rows);
    save_rows(rounded, "--windows 1");
    snprintf(words + strlen(words), sizeof words - strlen(words), " --windows 2");
    refuse(rounded, words, FL_E_ARG, "--windows 2: ");
    snprintf(words, sizeof words, "--ctx 64 --against %s", rows);
    refuse(rounded, words, FL_E_ARG, "give --ctx 80");
    snprintf(words, sizeof words, "--ctx 80 --against %s", rows);
    refuse(other, words, FL_E_ARG, "another vocabulary");
    snprintf(words, sizeof words, "--ctx 80 --all --against %s", rows);
    refuse(rounded, words, FL_E_ARG, "leave out --all");
    write_text(text, " more");
    snprintf(words, sizeof words, "--ctx 80 --against %s", rows);
    refuse(rounded, words, FL_E_ARG, "rows of another text");
    write_text(text, "");
    save_rows(rounded, "--passes masked");
    snprintf(words, sizeof words, "--ctx 80 --passes causal --against %s", rows);
    refuse(rounded, words, FL_E_ARG, "no rows of the passes");
    ASSERT_OK(fl_file_load(rows, 64 << 20, &data, &n, &err));
    data[n - 100] ^= 1;
    fl_tmp_write(scratch, data, n);
    snprintf(words, sizeof words, "--ctx 80 --against %s", scratch);
    refuse(rounded, words, FL_E_FORMAT, "the checksum of its rows is wrong");
    fl_tmp_write(scratch, data, n - 8);
    refuse(rounded, words, FL_E_FORMAT, "cut short or damaged");
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(likelihood_is_that_of_plain_sums),
        cmocka_unit_test(distances_are_those_of_plain_sums),
        cmocka_unit_test(a_model_is_no_distance_from_itself),
        cmocka_unit_test_teardown(a_file_of_rows_says_what_its_model_does, forget),
        cmocka_unit_test_teardown(models_without_masks_meet_on_the_causal_path, forget),
        cmocka_unit_test(lines_are_scored_behind_their_prompt),
        cmocka_unit_test(the_table_names_all_of_it),
        cmocka_unit_test(what_cannot_be_measured_gets_one_line),
        cmocka_unit_test_teardown(rows_of_something_else_are_refused, forget),
    };
    return cmocka_run_group_tests_name("eval", tests, setup, teardown);
}
