/* The programs of bench that take a file, as a shell starts them. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tests/support/files.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *out, *errors; /* of the last call */

static void load(const char *name, char **text)
{
    fl_err err = {0};
    char *path = fl_tmp_path(fl_files.dir, name);
    free(*text);
    *text = NULL;
    ASSERT_OK(fl_file_load(path, 1 << 20, text, NULL, &err));
    free(path);
}

/* Runs "PROGRAM WORDS" in the test's folder; the exit status. */
static int call(const char *program, const char *words)
{
    char self[4096], command[8192];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    for (int up = 0; up < 3; up++) *strrchr(self, '/') = 0;
    snprintf(command, sizeof command, "cd '%s' && '%s/bench/%s' %s >out 2>err", fl_files.dir, self,
             program, words);
    const int rc = system(command);
    assert_true(WIFEXITED(rc));
    load("out", &out);
    load("err", &errors);
    return WEXITSTATUS(rc);
}

typedef struct wrong {
    const char *words, *expect;
    int rc;
} wrong;

static void refuses(const char *program, const wrong *w, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int rc = call(program, w[i].words);
        if (rc != w[i].rc || !strstr(errors, w[i].expect))
            fail_msg("%s %s: exit %d: %s", program, w[i].words, rc, errors);
    }
}

static void synth_checks_its_options(void **state)
{
    (void)state;
    static const wrong w[] = {
        {"", "one output file is expected", 2},
        {"a.gguf b.gguf", "one output file is expected", 2},
        {"a.gguf --layer-count 2", "an option is wrong", 2},
        {"a.gguf --shape huge", "expected 35b or tiny", 2},
        {"a.gguf --arch llama", "expected qwen35moe or clover_moe", 2},
        {"a.gguf --layers two", "--layers two: expected a number", 2},
        {"a.gguf --layers 0", "the number of layers is 0", 2},
        {"a.gguf --shape tiny --experts 7", "expected 8 to", 2},
        {"a.gguf --shape tiny --vocab 100", "the vocabulary is 100", 2},
        {"a.gguf --trace none.npy", "none.npy", 1},
        {"a.gguf --trace err", "no NumPy file", 1},
        {"missing/a.gguf --shape tiny", "missing", 1},
    };
    refuses("synth", w, sizeof w / sizeof *w);
}

static void model_checks_its_options(void **state)
{
    (void)state;
    static const wrong w[] = {
        {"", "one model is expected", 2},          {"a b", "one model is expected", 2},
        {"a --row 1x", "found '1x'", 2},           {"a --rows 1,0", "found '0'", 2},
        {"a --samples ,", "expected a number", 2}, {"a --cpu none", "no tier of this machine", 2},
        {"a --cpu , ", "expected a tier", 2},      {"missing.gguf", "missing.gguf", 1},
    };
    refuses("model", w, sizeof w / sizeof *w);
}

static void traces_checks_its_options(void **state)
{
    (void)state;
    static const wrong w[] = {
        {"", "one place to write to is expected", 2},
        {"a b", "one place to write to is expected", 2},
        {"--replay", "files are expected", 2},
        {". --kind prefill", "expected block, ar or verify", 2},
        {". --layers 0", "--layers 0: expected a number from 1", 2},
        {". --passes many", "--passes many: expected a number", 2},
        {"missing --layers 1 --passes 1", "missing", 1},
        {"--replay err", "err: is not a routing trace", 1},
        {"--import missing a.trace", "missing/experts.npy", 1},
    };
    refuses("traces", w, sizeof w / sizeof *w);
}

static int times(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

static void a_model_is_written_and_measured(void **state)
{
    (void)state;
    int rc = call("synth", "m.gguf --shape tiny --arch clover_moe --experts 16 --passes 2");
    if (rc != 0) fail_msg("exit %d: %s", rc, errors);
    assert_non_null(strstr(out, "2 passes of 32 rows: "));
    assert_non_null(strstr(out, "distinct experts a layer"));
    /* Short: under the thread sanitizer a pass takes long. */
    rc = call("model", "m.gguf --rows 3,4 --context 0,40 --threads 1 --samples 2");
    if (rc != 0) fail_msg("exit %d: %s", rc, errors);
    assert_int_equal(times(out, "{\"model\":\"m.gguf\",\"pass\":\"clean\""), 4);
    assert_int_equal(times(out, "\"context\":40,"), 2);
    rc = call("model", "m.gguf --rows 1 --context 5 --threads 1,2 --samples 1 --cpu reference "
                       "--busy 1");
    if (rc != 0) fail_msg("exit %d: %s", rc, errors);
    assert_int_equal(times(out, "\"rows\":1,\"passes\":32,\"context\":5,"), 2);
    assert_int_equal(times(out, "\"threads\":2,\"cpu\":\"reference\",\"busy\":1,\"ns\":["), 1);
    assert_int_equal(times(errors, "tokens/s\n"), 2);
    rc = call("model", "m.gguf --rows 32 --block --samples 1");
    if (rc != 0) fail_msg("exit %d: %s", rc, errors);
    assert_int_equal(times(out, "\"pass\":\"block\",\"rows\":32,"), 1);
    free(out);
    free(errors);
}

static void traces_are_made_and_replayed(void **state)
{
    (void)state;
    int rc = call("traces", ". --layers 2 --prompt 8");
    if (rc != 0) fail_msg("exit %d: %s", rc, errors);
    assert_int_equal(times(out, " 200 passes of a layer's "), 2);
    assert_int_equal(times(out, "\n  like real routers\n"), 2);
    assert_non_null(strstr(out, "(below 0.1)"));
    rc = call("traces", ". --layers 1 --passes 2");
    assert_int_equal(rc, 0);
    assert_non_null(strstr(out, "NOT like real routers: ")); /* too short for that */
    char words[4096], folder[2048];
    assert_non_null(getcwd(folder, sizeof folder));
    snprintf(words, sizeof words, "--import '%s/tests/clover_tiny/traces/128e' tiny.trace", folder);
    rc = call("traces", words);
    if (rc != 0) fail_msg("exit %d: %s", rc, errors);
    rc = call("traces", "--replay block-code.trace tiny.trace");
    if (rc != 0) fail_msg("exit %d: %s", rc, errors);
    assert_int_equal(times(out, "{\"trace\":\"block-code.trace\",\"synthetic\":true,\"passes\":2,"),
                     3);
    assert_int_equal(times(out, "{\"trace\":\"tiny.trace\",\"synthetic\":false,\"passes\":2629,"),
                     3);
    assert_int_equal(times(out, ",\"block\":0."), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synth_checks_its_options),
        cmocka_unit_test(model_checks_its_options),
        cmocka_unit_test(traces_checks_its_options),
        cmocka_unit_test(traces_are_made_and_replayed),
        cmocka_unit_test(a_model_is_written_and_measured),
    };
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
