/* The commands run, logits and plan, called as main.c calls them. */
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/tools/logits.h"
#include "runtime/tools/plan.h"
#include "runtime/tools/run.h"
#include "tests/support/command.h"
#include "tests/support/engine.h"
#include "tests/support/make_model.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *dir, *clover, *base, *out;
static fl_err err;

static int setup(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.n_layer = m.interval = 2;
    dir = fl_tmp_make();
    setenv("XDG_CACHE_HOME", dir, 1);
    base = fl_tmp_path(dir, "base.gguf");
    clover = fl_tmp_path(dir, "clover.gguf");
    out = fl_tmp_path(dir, "out.npy");
    fl_make_gguf(&m, base);
    m.arch = "clover_moe";
    fl_make_gguf(&m, clover);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(base);
    free(clover);
    free(out);
    fl_tmp_remove(dir);
    return 0;
}

static fl_status call(fl_command command, const char *words)
{
    return fl_command_call(command, words, &err);
}

static const char *words_of(const char *format, const char *model, const char *file)
{
    static char text[1024];
    snprintf(text, sizeof(text), format, model, file);
    return text;
}

/* ---- run ---- */

/* Runs over one profile, the later ones place experts by it: the same text as without. */
static void run_keeps_a_profile_and_a_trace(void **state)
{
    (void)state;
    static const char *const profile[] = {"mine", "mine", "none"};
    char *trace = fl_tmp_path(dir, "run.trace"), *text[3], words[1024];
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = 256;
    p.threads = 1;
    const uint64_t vram = fl_vram_for(clover, &p, 50);
    for (int i = 0; i < 3; i++) {
        snprintf(words, sizeof words,
                 "run %s -p hello --mode block --max-tokens 40 --ctx 256 --vram %llu --threads 1 "
                 "--ignore-eos --repeat-stop off --profile %s --trace-out %s",
                 clover, (unsigned long long)vram, profile[i], trace);
        text[i] = fl_command_output(fl_tool_run, words);
        assert_string_equal(text[i], text[0]);
    }
    for (int i = 0; i < 3; i++) free(text[i]);
    fl_trace *t = NULL;
    int64_t done = 0;
    ASSERT_OK(fl_trace_open(&t, trace, &err));
    for (int i = 0; i < fl_trace_n_passes(t); i++)
        if (fl_trace_get_pass(t, i)->kind == FL_PASS_BLOCK) done += fl_trace_get_pass(t, i)->done;
    assert_true(done >= 40);
    fl_trace_close(&t);
    free(trace);
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -p hello --profile a/b", clover, "")), FL_E_ARG,
                 "--profile a/b: expected");
}

static int64_t in_text(const char *json, const char *key)
{
    const char *at = strstr(json, key);
    assert_non_null(at);
    return strtoll(at + strlen(key), NULL, 10);
}

/* Every block in three passes, of 3, 4 and 25 positions; every check accepts 5 rows. */
static void run_follows_a_trace_and_says_so(void **state)
{
    (void)state;
    static const int done[] = {3, 4, 25, 5};
    fl_model *m = NULL;
    fl_trace_writer *w = NULL;
    int32_t ids[32 * 16];
    char *trace = fl_tmp_path(dir, "script.trace");
    ASSERT_OK(fl_model_open(&m, clover, &err));
    const fl_hparams *hp = &m->index->hp;
    const int rows = m->index->clover.block_size;
    const fl_trace_shape shape = {1, hp->n_expert, hp->top_k, rows, true, "script"};
    assert_int_equal(rows, 32);
    for (int i = 0; i < rows * hp->top_k; i++) ids[i] = i % hp->top_k;
    ASSERT_OK(fl_trace_writer_open(&w, trace, &shape, rows, &err));
    for (int p = 0; p < 4; p++) {
        const fl_trace_pass pass = {p < 3 ? FL_PASS_BLOCK : FL_PASS_VERIFY, p == 0, rows, 0,
                                    done[p]};
        fl_trace_writer_layer(w, 0, rows, ids);
        ASSERT_OK(fl_trace_writer_pass(w, &pass, &err));
    }
    ASSERT_OK(fl_trace_writer_commit(&w, &err));
    static const char options[] = "run %s -p hi --raw --ctx 256 --threads 1 --ignore-eos "
                                  "--repeat-stop off --json --max-tokens 70 --trace %s ";
    char words[1024];
    snprintf(words, sizeof words, options, clover, trace);
    strcat(words, "--mode block");
    char *text = fl_command_output(fl_tool_run, words);
    assert_non_null(strstr(text, "\"synthetic\": \""));
    assert_int_equal(in_text(text, "\"max_passes\":"), 3);
    assert_int_equal(in_text(text, "\"denoise_passes\":"), 3 * in_text(text, "\"blocks\":"));
    free(text);
    snprintf(words, sizeof words, options, clover, trace);
    strcat(words, "--mode spec");
    text = fl_command_output(fl_tool_run, words);
    const int64_t checks = in_text(text, "\"held_passes\":"); /* the last one may be cut short */
    assert_in_range(in_text(text, "\"accepted\":"), 4 * checks - 3, 4 * checks);
    free(text);
    free(trace);
    fl_model_close(&m);
}

static void run_streams_in_ar_the_text_that_auto_puts_into_json(void **state)
{
    (void)state;
    char *plain = fl_command_output(
        fl_tool_run,
        words_of(
            "run %s -p hello~there --mode ar --max-tokens 12 --ignore-eos --threads 1 --think off",
            clover, ""));
    char *text = fl_command_output(
        fl_tool_run,
        words_of(
            "run %s -p hello~there --max-tokens 12 --ignore-eos --threads 1 --json --think off",
            clover, ""));
    fl_json *j = NULL;
    ASSERT_OK(fl_json_parse(text, strlen(text), "stdout", &j, &err));
    const char *answer = fl_json_str(fl_json_get(j, "text"), NULL);
    assert_non_null(answer);
    const size_t n = strlen(answer);
    assert_memory_equal(plain, answer, n);
    assert_string_equal(plain + n, n && answer[n - 1] == '\n' ? "" : "\n");
    assert_int_equal(fl_json_int(fl_json_get(j, "tokens"), -1), 12);
    assert_int_equal(fl_json_size(fl_json_get(j, "ids")), 12);
    assert_string_equal(fl_json_str(fl_json_get(j, "finish"), ""), "length");
    assert_string_equal(fl_json_str(fl_json_get(j, "mode"), ""), "spec");
    const fl_json *x = fl_json_get(j, "experts");
    assert_true(fl_json_int(fl_json_get(x, "acquired"), 0) > 0);
    assert_int_equal(fl_json_int(fl_json_get(x, "read"), -1), 0);
    assert_true(fl_json_int(fl_json_get(j, "device_peak"), 0) > 0);
    assert_true(fl_json_num(fl_json_get(j, "prompt_tokens_per_s"), 0.0) > 0.0);
    const fl_json *copies = fl_json_get(j, "checkpoints");
    assert_true(fl_json_int(fl_json_get(copies, "kept"), 0) > 0);
    assert_true(fl_json_int(fl_json_get(copies, "at_most"), 0) >=
                fl_json_int(fl_json_get(copies, "kept"), 0));
    assert_true(fl_json_int(fl_json_get(copies, "bytes_each"), 0) > 0);
    fl_json_free(&j);
    free(plain);
    free(text);
}

static int64_t number(const char *text, const char *outer, const char *key)
{
    fl_json *j = NULL;
    ASSERT_OK(fl_json_parse(text, strlen(text), "stdout", &j, &err));
    const int64_t v = fl_json_int(fl_json_get(outer ? fl_json_get(j, outer) : j, key), -1);
    fl_json_free(&j);
    return v;
}

/* Half way from the least --vram that works with these options to all of the model. */
static int64_t tight_budget(const char *options)
{
    char words[512];
    snprintf(words, sizeof words, "plan %s --json %s", clover, options);
    char *plan = fl_command_output(fl_tool_plan, words);
    const int64_t all = number(plan, "device", "bytes");
    free(plan);
    snprintf(words, sizeof words, "plan %s --vram 1K %s", clover, options);
    ASSERT_FAILS(call(fl_tool_plan, words), FL_E_ARG, "needs at least ");
    const int64_t least = atoll(strstr(err.msg, "needs at least ") + strlen("needs at least "));
    assert_true(least > 0 && least < all);
    return (least + all) / 2;
}

static void run_takes_blocks_a_file_and_a_small_budget(void **state)
{
    (void)state;
    static const char options[] = "--mode block --threads 1 --ctx 128 --chunk 32";
    const int64_t budget = tight_budget(options);
    char *file = fl_tmp_path(dir, "prompt.txt"), words[512], vram[40] = "";
    fl_tmp_write(file, "count to ten", 12);
    char *want = NULL;
    for (int small = 0; small < 2; small++) {
        if (small) snprintf(vram, sizeof vram, "--ram 0 --vram %lld", (long long)budget);
        snprintf(words, sizeof(words),
                 "run %s -f %s --max-tokens 20 --ignore-eos --json --threshold 0.05 %s %s", clover,
                 file, options, vram);
        char *text = fl_command_output(fl_tool_run, words);
        fl_json *j = NULL;
        ASSERT_OK(fl_json_parse(text, strlen(text), "stdout", &j, &err));
        assert_string_equal(fl_json_str(fl_json_get(j, "mode"), ""), "block");
        assert_true(fl_json_int(fl_json_get(j, "denoise_passes"), 0) > 0);
        char *ids = fl_json_dump(fl_json_get(j, "ids"), 0);
        if (small) {
            assert_string_equal(ids, want);
            assert_true(fl_json_int(fl_json_get(j, "device_peak"), 0) <= budget);
            const fl_json *x = fl_json_get(j, "experts");
            assert_true(fl_json_int(fl_json_get(x, "read"), 0) > 0);
            free(ids);
        } else {
            want = ids;
        }
        fl_json_free(&j);
        free(text);
    }
    free(want);
    free(file);
}

/* What is read ahead is of use, and changes no text. */
static void run_reads_ahead(void **state)
{
    (void)state;
    static const char options[] = "--mode ar --threads 1 --ctx 128 --chunk 32 --profile none";
    const int64_t budget = tight_budget(options);
    char words[512], *want = NULL;
    for (int on = 0; on < 2; on++) {
        snprintf(words, sizeof words,
                 "run %s -p x --raw --max-tokens 20 --ignore-eos --json --ram 0 --vram %lld "
                 "--prefetch %s --cache-policy %s %s",
                 clover, (long long)budget, on ? "on" : "off", on ? "lru" : "lfu", options);
        char *text = fl_command_output(fl_tool_run, words);
        fl_json *j = NULL;
        ASSERT_OK(fl_json_parse(text, strlen(text), "stdout", &j, &err));
        const fl_json *x = fl_json_get(j, "experts");
        const fl_json *pass = fl_json_get(fl_json_get(x, "signals"), "pass");
        const int64_t ahead = fl_json_int(fl_json_get(x, "read_ahead"), -1);
        const int64_t used = fl_json_int(fl_json_get(x, "read_ahead_used"), -1);
        const int64_t named = fl_json_int(fl_json_get(pass, "named"), -1);
        const int64_t right = fl_json_int(fl_json_get(pass, "right"), -1);
        if (on) {
            assert_string_equal(fl_json_str(fl_json_get(j, "text"), ""), want);
            assert_true(ahead > 0 && used > 0 && used <= ahead);
            assert_true(named > 0 && right > 0 && right <= named);
        } else {
            want = strdup(fl_json_str(fl_json_get(j, "text"), ""));
            assert_int_equal(ahead + used + named + right, 0);
        }
        fl_json_free(&j);
        free(text);
    }
    free(want);
}

static void run_names_what_is_wrong(void **state)
{
    (void)state;
    ASSERT_FAILS(call(fl_tool_run, "run /nonexistent.gguf -p x"), FL_E_IO, "/nonexistent.gguf");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -p x --mode block", base, "")), FL_E_ARG,
                 "--mode ar");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -f /nonexistent.txt", base, "")), FL_E_IO,
                 "/nonexistent.txt");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -p x --vram 1K", base, "")), FL_E_ARG,
                 "--vram");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -p x --ctx 9", base, "")), FL_E_ARG,
                 "raise --ctx");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -p x --logit-bias 5", base, "")), FL_E_ARG,
                 "--logit-bias '5': expected ID:VALUE");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -p x --logit-bias 99999:1", base, "")),
                 FL_E_ARG, "token 99999 is outside 0 to");
    char *file = fl_tmp_path(dir, "prompt"), *long_text = malloc(5001);
    memset(long_text, 'a', 5000);
    fl_tmp_write(file, long_text, 5000);
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -f %s", clover, file)), FL_E_ARG,
                 "this model takes at most");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s --mode block -f %s", clover, file)), FL_E_ARG,
                 "this model takes at most");
    fl_tmp_write(file, "ab\0c", 4);
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -f %s", clover, file)), FL_E_ARG,
                 "NUL byte at byte 2");
    fl_tmp_write(file, " \n", 2);
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -f %s", clover, file)), FL_E_ARG,
                 "the prompt is empty; give -p TEXT or -f FILE");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s --raw -f %s", clover, "/dev/null")), FL_E_ARG,
                 "the prompt is empty");
    ASSERT_FAILS(call(fl_tool_run, words_of("run %s -f %s", clover, "/")), FL_E_IO,
                 "cannot be read: Is a directory");
    free(long_text);
    free(file);
}

/* ---- logits ---- */

static void logits_writes_what_the_forward_gives(void **state)
{
    (void)state;
    const int32_t ids[] = {10, 20, 30, 40};
    fl_engine_params p = fl_exact_params();
    fl_loaded l = fl_load(base, &p);
    float *want = fl_clean_logits(l.engine, ids, 4);
    const int64_t vocab = l.model->index->hp.n_vocab;
    ASSERT_OK(
        call(fl_tool_logits,
             words_of("logits %s --ids 10,20,30,40 --all --act f32 --kv f32 -o %s", base, out)));
    fl_npy got = fl_npy_load(out);
    assert_int_equal(got.rows, 4);
    assert_int_equal(got.cols, vocab);
    assert_memory_equal(got.f, want, (size_t)(4 * vocab) * sizeof(float));
    fl_npy_free(&got);
    ASSERT_OK(call(
        fl_tool_logits,
        words_of("logits %s --ids 10,20,30,40 --act f32 --kv f32 --chunk 3 -o %s", base, out)));
    got = fl_npy_load(out);
    assert_int_equal(got.rows, 1);
    assert_memory_equal(got.f, want + 3 * vocab, (size_t)vocab * sizeof(float));
    fl_npy_free(&got);
    free(want);
    fl_unload(&l);
}

static void logits_denoise_masks_the_positions_named(void **state)
{
    (void)state;
    fl_engine_params p = fl_exact_params();
    fl_loaded l = fl_load(clover, &p);
    const int32_t mask = l.model->index->clover.mask_id;
    const int64_t vocab = l.model->index->hp.n_vocab;
    int32_t ids[40];
    char list[256] = "";
    for (int i = 0; i < 36; i++) {
        ids[i] = 100 + i;
        sprintf(list + strlen(list), "%s%d", i ? "," : "", ids[i]);
    }
    for (int i = 36; i < 40; i++) ids[i] = mask;
    ids[33] = mask;
    ASSERT_OK(fl_forward_clean(l.engine, ids, 32, &err));
    float *want = fl_block_logits(l.engine, ids + 32, 8, FL_GDN_BIDIR);
    char words[1024];
    snprintf(words, sizeof(words), "logits %s --ids %s --denoise 33,36-39 --act f32 --kv f32 -o %s",
             clover, list, out);
    ASSERT_OK(call(fl_tool_logits, words));
    fl_npy got = fl_npy_load(out);
    assert_int_equal(got.rows, 8);
    assert_memory_equal(got.f, want, (size_t)(8 * vocab) * sizeof(float));
    fl_npy_free(&got);
    free(want);
    fl_unload(&l);
}

static void logits_names_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *words, *expect;
    } bad[] = {{"logits %s --ids 1,,2 -o %s", "--ids"},
               {"logits %s --ids 1;2 -o %s", "comma"},
               {"logits %s --ids 1,99999 -o %s", "vocabulary"},
               {"logits %s --ids 1,2 --denoise 5 -o %s", "gap"},
               {"logits %s --ids 1,2 --denoise 1-0 -o %s", "rise"},
               {"logits %s --ids 1,2 --denoise 2,1 -o %s", "rise"},
               {"logits %s --ids 1,2 --denoise x -o %s", "positions"},
               {"logits %s --ids 1,2 --denoise 2- -o %s", "number"},
               {"logits %s --ids 1,2 --denoise 0-40 -o %s", "a block has 32"}};
    unlink(out);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ASSERT_FAILS(call(fl_tool_logits, words_of(bad[i].words, clover, out)), FL_E_ARG,
                     bad[i].expect);
    ASSERT_FAILS(call(fl_tool_logits, words_of("logits %s --ids 1,2 --denoise 2 -o %s", base, out)),
                 FL_E_ARG, "no mask");
    /* A failure leaves no file, whole or half. */
    assert_int_not_equal(access(out, F_OK), 0);
}

static void logits_never_writes_into_its_model(void **state)
{
    (void)state;
    char *before = NULL, *after = NULL, *hf = fl_tmp_path(dir, "hf"), *config = NULL;
    uint64_t n = 0, m = 0;
    fl_make tiny = fl_make_tiny();
    tiny.n_layer = tiny.interval = 2;
    fl_make_safetensors(&tiny, hf);
    config = fl_tmp_path(hf, "config.json");
    ASSERT_OK(fl_file_load(base, 64 << 20, &before, &n, &err));
    ASSERT_FAILS(call(fl_tool_logits, words_of("logits %s --ids 1 -o %s", base, base)), FL_E_ARG,
                 "is a file of the model to read");
    ASSERT_OK(fl_file_load(base, 64 << 20, &after, &m, &err));
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    ASSERT_FAILS(call(fl_tool_logits, words_of("logits %s --ids 1 -o %s", hf, config)), FL_E_ARG,
                 "is a file of the model to read");
    free(before);
    free(after);
    free(config);
    free(hf);
}

/* ---- plan ---- */

static void plan_prints_what_run_takes(void **state)
{
    (void)state;
    static const char *const options[] = {
        "--ctx 128",
        "--ctx 128 --mode ar",
        "--ctx 128 --mode block",
        "--ctx 128 --mode spec",
        "--ctx 128 --act f32 --threads 2",
        "--ctx 128 --mode ar --kv f32 --chunk 40 --threads 3 --cpu reference",
        "--ctx 128 --mode block --chunk 32",
        "--ctx 128 --chunk 32",
        "--ctx 1024 --mode ar",
        "--ctx 1024 --mode ar --kv q8_0",
    };
    enum { LAST = sizeof(options) / sizeof(*options) - 1, TIGHT = 6 /* and 7 */ };
    char words[512], vram[40];
    int64_t bytes[sizeof(options) / sizeof(*options)];
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        vram[0] = '\0';
        if (i == TIGHT || i == TIGHT + 1)
            snprintf(vram, sizeof vram, "--vram %lld%s", (long long)tight_budget(options[i]),
                     i == TIGHT ? "" : " --ram 0");
        snprintf(words, sizeof(words), "plan %s --json %s %s", clover, options[i], vram);
        char *plan = fl_command_output(fl_tool_plan, words);
        snprintf(words, sizeof(words), "run %s -p x --max-tokens 1 --json %s %s", clover,
                 options[i], vram);
        char *run = fl_command_output(fl_tool_run, words);
        bytes[i] = number(plan, "device", "bytes");
        assert_true(bytes[i] > 0);
        assert_int_equal(bytes[i], number(run, NULL, "device_used"));
        assert_int_equal(number(plan, "host", "bytes"), number(run, NULL, "host_used"));
        assert_int_equal(number(plan, "experts", "host"), number(run, "experts", "n_host"));
        assert_int_equal(number(plan, "experts", "resident"), number(run, "experts", "n_resident"));
        free(plan);
        free(run);
    }
    assert_int_equal(bytes[0], bytes[3]); /* auto speculates on this model */
    assert_true(bytes[1] < bytes[0]);
    /* One attention layer, keys and values, one kv head of 32: 64 bytes a row become 34. */
    assert_int_equal(bytes[LAST - 1] - bytes[LAST], 1024 * 2 * (64 - 34));
    char *table = fl_command_output(fl_tool_plan, words_of("plan %s --mode block", clover, ""));
    assert_non_null(strstr(table, "KV cache"));
    assert_non_null(strstr(table, "For run --mode block (asked for)"));
    free(table);
    table = fl_command_output(fl_tool_plan, words_of("plan %s --chunk 8192", base, ""));
    assert_non_null(strstr(table, "For run --mode spec (the model knows no masks)"));
    free(table);
    ASSERT_FAILS(call(fl_tool_plan, words_of("plan %s --mode block", base, "")), FL_E_ARG,
                 "knows no mask token; use --mode ar or spec");
    ASSERT_FAILS(call(fl_tool_plan, words_of("plan %s --vram 1K", clover, "")), FL_E_ARG, "--vram");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_streams_in_ar_the_text_that_auto_puts_into_json),
        cmocka_unit_test(run_takes_blocks_a_file_and_a_small_budget),
        cmocka_unit_test(run_keeps_a_profile_and_a_trace),
        cmocka_unit_test(run_follows_a_trace_and_says_so),
        cmocka_unit_test(run_reads_ahead),
        cmocka_unit_test(run_names_what_is_wrong),
        cmocka_unit_test(logits_writes_what_the_forward_gives),
        cmocka_unit_test(logits_denoise_masks_the_positions_named),
        cmocka_unit_test(logits_names_what_is_wrong),
        cmocka_unit_test(logits_never_writes_into_its_model),
        cmocka_unit_test(plan_prints_what_run_takes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
