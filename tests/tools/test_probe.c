/* fourleaf probe: how alternatives are chosen, on figures and on stored tables;
 * the command on a random model, whose block mode must be refused and whose AR text must stay; what
 * it stores is what other commands take. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/tools/probe.h"
#include "runtime/tools/probe_search.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/refuse.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

static int setup(void **state)
{
    fl_files_setup(state);
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    return 0;
}

/* The command with its standard output in memory; *text is malloc'ed. */
static fl_status probe(const char *model, bool json, char **text)
{
    const char *args[1] = {model};
    const fl_options o = {
        .command = "probe", .args = args, .n_args = 1, .json = json, .threads = 1};
    char *file = fl_tmp_path(fl_files.dir, "stdout");
    uint64_t n = 0;
    fflush(stdout);
    const int keep = dup(STDOUT_FILENO), to = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(keep >= 0 && to >= 0);
    dup2(to, STDOUT_FILENO);
    err = (fl_err){0};
    const fl_status st = fl_tool_probe(&o, &err);
    fflush(stdout);
    dup2(keep, STDOUT_FILENO);
    close(keep);
    close(to);
    fl_err unread = {0};
    assert_int_equal(fl_file_load(file, 1 << 20, text, &n, &unread), FL_OK);
    free(file);
    return st;
}

/* ---- choosing ----------------------------------------------------------------------------- */

static void the_base_stays_unless_another_is_surely_better(void **state)
{
    (void)state;
    const fl_probe_entry base = {.base = true};
    fl_probe_entry e[3] = {{.diff = -0.5, .se = 0.2}, base, {.diff = -0.4, .se = 0.1}};
    assert_int_equal(fl_probe_pick(e, 3), 2); /* 2.5 errors are not enough, 4 are */
    e[0].se = 0.1;
    assert_int_equal(fl_probe_pick(e, 3), 0); /* both are sure: the likelier */
    e[0].diff = e[2].diff = 0.4;
    assert_int_equal(fl_probe_pick(e, 3), 1);
    e[0] = e[2] = (fl_probe_entry){.diff = 0, .se = 0};
    assert_int_equal(fl_probe_pick(e, 3), 1); /* the same */
    e[0] = (fl_probe_entry){.diff = -0.09};   /* without errors: nats decide */
    assert_int_equal(fl_probe_pick(e, 3), 1);
    e[0].diff = -0.11;
    assert_int_equal(fl_probe_pick(e, 3), 0);
    assert_int_equal(fl_probe_pick(&base, 1), 0);
}

/* Three positions at the levels of two remainders; the last position is never masked. */
static void the_rows_of_a_position_count_as_one_sum(void **state)
{
    (void)state;
    const fl_probe_text t = {.n_answer = 3};
    fl_probe_rows a, b;
    ASSERT_OK(fl_probe_rows_init(&a, &t, FL_PROBE_FIRST, &err));
    ASSERT_OK(fl_probe_rows_init(&b, &t, FL_PROBE_FIRST, &err));
    assert_int_equal(a.n_levels, FL_MASK_LEVELS * FL_PROBE_REMAINDERS);
    assert_true(fl_probe_mean(&a, -1) == 0 && fl_probe_compare(&a, &b).se == 0);
    const int second = FL_MASK_LEVELS * 3; /* level 0 behind the next remainder */
    a.nll[0] = a.nll[second] = 2;
    a.nll[3 + 1] = 4;
    b.nll[0] = b.nll[second] = 1;
    b.nll[3 + 1] = 1;
    assert_true(fl_probe_mean(&a, 0) == 2 && fl_probe_mean(&a, 1) == 4);
    assert_true(fabs(fl_probe_mean(&a, -1) - 8.0 / 3) < 1e-12);
    const fl_probe_diff d = fl_probe_compare(&a, &b); /* sums 2 and 3 of three rows */
    assert_true(fabs(d.mean - 5.0 / 3) < 1e-12 && fabs(d.se - 1.0 / 3) < 1e-12);
    fl_probe_rows_free(&a);
    fl_probe_rows_free(&b);
}

static fl_json *load_json(const char *file)
{
    char *text = NULL;
    uint64_t n = 0;
    fl_json *j = NULL;
    ASSERT_OK(fl_file_load(file, 1 << 20, &text, &n, &err));
    ASSERT_OK(fl_json_parse(text, n, file, &j, &err));
    free(text);
    return j;
}

/* Chooses again among the entries of each guess of a stored table. */
static int judge_table(const fl_json *table)
{
    static fl_probe_entry e[FL_PROBE_ENTRIES];
    int guesses = 0;
    const size_t n = fl_json_size(table);
    assert_true(n > 0 && n <= FL_PROBE_ENTRIES);
    for (size_t from = 0, to; from < n; from = to, guesses++) {
        const char *guess = fl_json_str(fl_json_get(fl_json_at(table, from), "guess"), "");
        int taken = -1, k = 0;
        for (to = from; to < n; to++, k++) {
            const fl_json *x = fl_json_at(table, to);
            if (strcmp(fl_json_str(fl_json_get(x, "guess"), ""), guess) != 0) break;
            e[k] = (fl_probe_entry){.diff = fl_json_num(fl_json_get(x, "diff"), 0),
                                    .se = fl_json_num(fl_json_get(x, "se"), 0),
                                    .base = fl_json_bool(fl_json_get(x, "base"), false)};
            if (fl_json_bool(fl_json_get(x, "taken"), false)) taken = k;
        }
        if (fl_probe_pick(e, k) != taken) fail_msg("%s: another one is taken", guess);
    }
    return guesses;
}

/* tests/eval/wirings.py wrote these with the tables of clover-tiny wired otherwise. */
static void kept_tables_give_their_wirings(void **state)
{
    (void)state;
    static const struct {
        const char *name, *section, *key, *value;
        bool earned;
    } cases[] = {
        {"names", "roles", "ssm_bwd_mix", "blk.*.gdn_reverse.read_out", true},
        {"norms", "file", "norms_zero_centred", "true", true},
        {"decay", "file", "decay_as_log", "true", true},
        {"heads", "file", "value_heads_grouped", "true", true},
        {"mask", "clover", "mask_token_id", "2044", true},
        {"shift", "clover", "pred_shift", "1", false},
        {"inclusive", "clover", "gdn_scan", "inclusive", false},
        {"relative", "clover", "block_align", "relative", false},
        {"random", "clover", "gdn_block_mode", "causal", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[128];
        fl_wiring w;
        snprintf(file, sizeof file, "tests/golden/probe/%s.json", cases[i].name);
        fl_json *j = load_json(file);
        assert_true(fl_wiring_from_json(&w, j));
        assert_int_equal(judge_table(fl_json_get(j, "table")), 10);
        char *found = fl_json_dump(fl_json_get(fl_json_get(j, cases[i].section), cases[i].key), 0);
        assert_non_null(found);
        if (!strstr(found, cases[i].value)) fail_msg("%s: %s", file, found);
        free(found);
        assert_int_equal(w.clover.verdict, cases[i].earned);
        fl_json_free(&j);
    }
}

/* ---- the command -------------------------------------------------------------------------- */

static fl_make random_model(void)
{
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.n_ctx = 240;
    return m;
}

#ifndef __SANITIZE_THREAD__ /* minutes, and a probe computes on one thread here */
static float *ar_logits(const char *model)
{
    fl_engine_params p = fl_engine_defaults();
    int32_t ids[40];
    p.threads = 1;
    p.n_ctx = 64;
    for (int i = 0; i < 40; i++) ids[i] = 'a' + (i * 7) % 26;
    const fl_wiring none = fl_wiring_none();
    fl_loaded l = {0};
    ASSERT_OK(fl_model_open_known(&l.model, model, &none, &err));
    ASSERT_OK(fl_engine_open(&l.engine, l.model, &p, &err));
    ASSERT_OK(fl_engine_load(l.engine, NULL, NULL, &err));
    float *out = fl_clean_logits(l.engine, ids, 40);
    fl_unload(&l);
    return out;
}

static bool noted(const fl_index *ix, const char *words)
{
    for (int i = 0; i < ix->n_notes; i++)
        if (strstr(ix->note[i], words)) return true;
    return false;
}

static void a_random_branch_is_refused_and_ar_untouched(void **state)
{
    (void)state;
    const fl_make m = random_model();
    const fl_wiring none = fl_wiring_none();
    fl_model *model;
    char *text;
    fl_make_gguf(&m, fl_files.gguf);
    float *before = ar_logits(fl_files.gguf);
    ASSERT_OK(probe(fl_files.gguf, false, &text));
    assert_non_null(strstr(text, "Block mode is not earned: "));
    assert_non_null(strstr(text, "* file form"));
    assert_non_null(strstr(text, "Stored in "));
    free(text);
    float *after = ar_logits(fl_files.gguf);
    assert_memory_equal(before, after, 40 * (size_t)m.n_vocab * sizeof *before);
    free(before);
    free(after);
    /* Others find it, and say so in one line; a plain open knows nothing of it. */
    ASSERT_OK(fl_model_open_known(&model, fl_files.gguf, &none, &err));
    assert_int_equal(model->index->clover.verdict, 0);
    assert_true(noted(model->index, "wired as fourleaf probe found"));
    assert_true(noted(model->index, "not earned"));
    fl_model_close(&model);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    assert_int_equal(model->index->clover.verdict, -1);
    assert_false(noted(model->index, "probe"));
    fl_model_close(&model);
}

/* Twice the same figures: nothing in them is left to chance or to threads. Not under the address
 * sanitizer: three other probes run there, and each takes half a minute. */
#ifndef __SANITIZE_ADDRESS__
static void a_second_probe_finds_the_same(void **state)
{
    (void)state;
    const fl_make m = random_model();
    char *a, *b;
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(probe(fl_files.gguf, true, &a));
    ASSERT_OK(probe(fl_files.gguf, true, &b));
    assert_string_equal(a, b);
    fl_json *j;
    ASSERT_OK(fl_json_parse(a, strlen(a), "probe --json", &j, &err));
    assert_true(judge_table(fl_json_get(j, "table")) >= 8);
    assert_int_equal(fl_json_size(fl_json_get(j, "tensors_beyond")), 0);
    fl_json_free(&j);
    free(a);
    free(b);
}

#endif

static bool without_rename(void *arg)
{
    char *text = NULL;
    (void)arg;
    alarm(300); /* a probe takes its time on a busy machine */
    fl_refuse(&(fl_refusal){SYS_rename, -1, 0, 0, ENOSPC});
    return probe(fl_files.gguf, false, &text) == FL_E_IO && strstr(err.msg, "renamed into place") &&
           strstr(text, "Block mode is not earned") && !strstr(text, "Stored in");
}

static void the_base_model_has_no_blocks_to_earn(void **state)
{
    (void)state;
    fl_make m = random_model();
    const fl_wiring none = fl_wiring_none();
    fl_model *model;
    char *text;
    m.arch = "qwen35moe";
    fl_make_gguf(&m, fl_files.gguf);
    assert_true(fl_in_child(without_rename, NULL)); /* shown, although it could not be stored */
    ASSERT_OK(probe(fl_files.gguf, false, &text));
    assert_non_null(strstr(text, "Stored in "));
    assert_non_null(strstr(text, "the model knows no masks"));
    assert_null(strstr(text, "mask token, row"));
    free(text);
    ASSERT_OK(fl_model_open_known(&model, fl_files.gguf, &none, &err));
    assert_false(model->index->clover.has_blocks);
    fl_model_close(&model);
}

/* Renamed tensors are listed with what they may be; then they have roles, and `bidir` exists. */
static void renamed_tensors_get_roles(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"ssm_bwd_alpha", "rev__proj_a__"},   {"ssm_bwd_beta", "rev_proj_b__"},
        {"ssm_bwd_conv1d", "rev____kernel_"}, {"ssm_bwd_dt", "rev_dt_bia"},
        {"ssm_bwd_mix", "rev_readout"},       {"ssm_bwd_a", "rev_A_log"}};
    const fl_make m = random_model();
    struct stat st;
    char *text;
    fl_make_gguf(&m, fl_files.gguf);
    assert_int_equal(stat(fl_files.gguf, &st), 0);
    char *all = malloc((size_t)st.st_size);
    const int fd = open(fl_files.gguf, O_RDWR);
    assert_true(all && fd >= 0);
    assert_int_equal(read(fd, all, (size_t)st.st_size), st.st_size);
    for (int i = 0; i < 6; i++) {
        const size_t n = strlen(names[i][0]);
        assert_int_equal(strlen(names[i][1]), n);
        for (char *at = all; (at = memmem(at, (size_t)(all + st.st_size - at), names[i][0], n));)
            memcpy(at, names[i][1], n);
    }
    assert_int_equal(pwrite(fd, all, (size_t)st.st_size, 0), st.st_size);
    close(fd);
    free(all);
    ASSERT_OK(probe(fl_files.gguf, false, &text));
    if (!strstr(text, "blk.*.rev_A_log, ")) fail_msg("%s", text);
    assert_non_null(strstr(text, "by its shape ssm_bwd_a or ssm_bwd_dt.bias or ssm_bwd_mix"));
    assert_non_null(strstr(text, "bidir, assignment of roles 1"));
    assert_null(strstr(text, "bidir, assignment of roles 2")); /* the names leave no choice */
    free(text);
}

#endif

static void what_cannot_be_probed_gets_one_line(void **state)
{
    (void)state;
    fl_make m = random_model();
    char *text, *none = fl_tmp_path(fl_files.dir, "none.gguf");
    ASSERT_FAILS(probe(none, false, &text), FL_E_IO, "none.gguf");
    free(text);
    m.no_tokenizer = true;
    fl_make_gguf(&m, fl_files.gguf);
    assert_int_not_equal(probe(fl_files.gguf, false, &text), FL_OK);
    assert_non_null(strstr(err.msg, "tokenizer"));
    assert_string_equal(text, "");
    free(text);
    m = random_model();
    m.n_ctx = 128; /* no room for a conversation */
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_FAILS(probe(fl_files.gguf, false, &text), FL_E_UNSUPPORTED,
                 "none of the probe's conversations fits");
    free(text);
    m = random_model();
    fl_make_gguf(&m, fl_files.gguf);
    fl_tmp_write(none, "a file, no folder", 17);
    setenv("XDG_CACHE_HOME", none, 1);
    ASSERT_FAILS(probe(fl_files.gguf, false, &text), FL_E_IO, "none.gguf");
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    free(text);
    free(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_base_stays_unless_another_is_surely_better),
        cmocka_unit_test(the_rows_of_a_position_count_as_one_sum),
        cmocka_unit_test(kept_tables_give_their_wirings),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test_setup_teardown(a_random_branch_is_refused_and_ar_untouched, setup,
                                        fl_files_teardown),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test_setup_teardown(a_second_probe_finds_the_same, setup, fl_files_teardown),
#endif
        cmocka_unit_test_setup_teardown(the_base_model_has_no_blocks_to_earn, setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(renamed_tensors_get_roles, setup, fl_files_teardown),
#endif
        cmocka_unit_test_setup_teardown(what_cannot_be_probed_gets_one_line, setup,
                                        fl_files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
