/* The program itself, as a shell starts it: exit codes, what goes to which stream, and that an
 * error is one line. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/base/options.h"
#include "tests/support/make_model.h"
#include "tests/support/refuse.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *dir, *model, *base, *trained, *session, *program, *out_path, *err_path;
static char *out, *errors; /* of the last call */

static int setup(void **state)
{
    (void)state;
    static char self[4096];
    fl_make m = fl_make_tiny();
    m.n_layer = m.interval = 2;
    m.arch = "clover_moe";
    dir = fl_tmp_make();
    setenv("XDG_CACHE_HOME", dir, 1);
    model = fl_tmp_path(dir, "model.gguf");
    out_path = fl_tmp_path(dir, "out");
    err_path = fl_tmp_path(dir, "err");
    base = fl_tmp_path(dir, "base.gguf");
    session = fl_tmp_path(dir, "chat");
    fl_make_gguf(&m, model);
    m.arch = "qwen35moe";
    fl_make_gguf(&m, base);
    trained = strdup("tests/clover_tiny/model");
    /* build/VARIANT/tests/cli/test_program is beside build/VARIANT/fourleaf. */
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    for (int up = 0; up < 3; up++) *strrchr(self, '/') = 0;
    program = fl_tmp_path(self, "fourleaf");
    assert_int_equal(access(program, X_OK), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(model);
    free(base);
    free(session);
    free(trained);
    free(program);
    free(out_path);
    free(err_path);
    free(out);
    free(errors);
    fl_tmp_remove(dir);
    return 0;
}

static void load(const char *path, char **text)
{
    fl_err err = {0};
    free(*text);
    *text = NULL;
    ASSERT_OK(fl_file_load(path, 1 << 20, text, NULL, &err));
}

/* Runs "program WORDS" by sh with $M the random model, $B one without masks, $T the trained one and
 * $S a place for a session; the streams go to files unless the words say otherwise. The exit
 * status. */
static int sh(const char *before, const char *words)
{
    char command[8192];
    fl_tmp_write(out_path, "", 0);
    fl_tmp_write(err_path, "", 0);
    snprintf(command, sizeof(command), "M='%s' B='%s' T='%s' S='%s'; exec 1>'%s' 2>'%s'; %s'%s' %s",
             model, base, trained, session, out_path, err_path, before, program, words);
    const int rc = system(command);
    assert_true(WIFEXITED(rc));
    load(out_path, &out);
    load(err_path, &errors);
    return WEXITSTATUS(rc);
}

/* Notes on the file system and the plan may stand before the error's line. */
static void fails_with_one_line(int code, const char *words, const char *expect)
{
    const int rc = sh("", words);
    const char *line = errors;
    while (strncmp(line, "note: ", 6) == 0 || strncmp(line, "plan: ", 6) == 0)
        line += strcspn(line, "\n") + 1;
    const char *end = strchr(line, '\n');
    if (rc != code) fail_msg("%s: exit %d, expected %d: %s", words, rc, code, errors);
    if (!end || end[1] || strncmp(line, "fourleaf: ", 10) != 0)
        fail_msg("%s: not one line: %s", words, errors);
    if (!strstr(line, expect)) fail_msg("%s: '%s' is not in: %s", words, expect, errors);
}

static void what_works_ends_with_0(void **state)
{
    (void)state;
    static const char *const words[] = {
        "",
        "--help",
        "--version",
        "run --help",
        "inspect \"$M\"",
        "plan \"$M\" --mode block --act f32 --threads 2",
        "run \"$M\" -p hi --max-tokens 2 --threads 1",
        "run \"$M\" -p hi --max-tokens 2 --threads 1 --io fake",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        const int rc = sh("", words[i]);
        if (rc != 0) fail_msg("%s: exit %d: %s", words[i], rc, errors);
        assert_true(strlen(out) > 0);
    }
    assert_int_equal(sh("", "--version"), 0);
    assert_int_equal(strncmp(out, "fourleaf ", 9), 0);
    assert_string_equal(errors, "");
}

static void wrong_use_ends_with_2(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"fly", "unknown command 'fly'"},
        {"run", "needs a model"},
        {"run m --foo", "unknown option --foo"},
        {"run m --prom x", "unknown option --prom"},
        {"run m --json=3", "takes no value"},
        {"run m -p x -f y", "once"},
        {"run m -p x --top-p 0", "above 0"},
        {"run m -p x --chunk 8193", "8192"},
        {"run m -p x --io buffered", "uring|pread|fake"},
        {"logits m -o x", "either --ids"},
        {"run \"$M\" -p ''", "the prompt is empty"},
        {"run \"$M\" </dev/null", "the prompt is empty"},
        {"run \"$M\" -p hi --ctx 9", "raise --ctx"},
        {"logits \"$M\" --ids 1,99999 -o x.npy", "vocabulary"},
        /* What does not go with the model is wrong use as well. */
        {"run \"$M\" -p x --vram 1K", "--vram"},
        {"probe \"$M\" --vram 1K", "--vram"},
        {"run \"$M\" -p x --state-budget 1K", "--state-budget"},
        {"run \"$M\" -p x --ctx 100000", "--ctx"},
        {"run \"$M\" -p x --logit-bias 99999:1", "--logit-bias"},
        {"run \"$B\" -p x --mode block", "--mode"},
        {"quantize \"$T\" \"$T\"/model.safetensors", "a file of the model"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        fails_with_one_line(2, bad[i][0], bad[i][1]);
}

static void what_fails_ends_with_1(void **state)
{
    (void)state;
    fails_with_one_line(1, "run /nonexistent.gguf -p x", "/nonexistent.gguf");
    fails_with_one_line(1, "run \"$M\" -f /nonexistent.txt", "No such file");
    fails_with_one_line(1, "run \"$T\" -p x --session /nonexistent/chat", "cannot be created");
    fails_with_one_line(1, "inspect README.md", "README.md");
    fails_with_one_line(1, "run \"$M\" -p x --device cuda",
                        "--device cuda: this build has no CUDA device; --device host works");
    /* A session that is another model's, made otherwise, or damaged. */
    assert_int_equal(sh("", "run \"$M\" -p x --max-tokens 2 --session \"$S\""), 0);
    fails_with_one_line(1, "run \"$T\" -p x --session \"$S\"", "of another model");
    fails_with_one_line(1, "run \"$M\" -p x --kv f32 --session \"$S\"", "change --kv");
    fails_with_one_line(1, "run \"$M\" -p x --ctx 9 --session \"$S\"", "raise --ctx");
    fl_tmp_write(session, "x", 1);
    fails_with_one_line(1, "run \"$M\" -p x --session \"$S\"", "is not a session file");
}

/* Every option that a refusal names is one that the command takes. */
static void advice_names_options_of_the_command(void **state)
{
    (void)state;
    static const char *const words[][2] = {{"run", "-p x"},
                                           {"plan", ""},
                                           {"logits", "--ids 1,2 -o x.npy"},
                                           {"calibrate", ""},
                                           {"probe", ""}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char line[128], option[32];
        snprintf(line, sizeof line, "%s \"$M\" %s --vram 1M", words[i][0], words[i][1]);
        fails_with_one_line(2, line, "device memory: needs at least ");
        assert_int_equal(strstr(errors, "--ctx") != NULL, strcmp(words[i][0], "probe") != 0);
        for (const char *p = errors; (p = strstr(p, "--")); p += 2) {
            assert_int_equal(sscanf(p, "--%31[a-z-]", option), 1);
            if (!fl_options_takes(words[i][0], option)) fail_msg("%s: %s", words[i][0], errors);
        }
    }
}

static void a_broken_stdout_is_one_line(void **state)
{
    (void)state;
    static const char *const words[] = {"--help",
                                        "--version",
                                        "inspect \"$M\"",
                                        "plan \"$M\"",
                                        "plan \"$M\" --json",
                                        "doctor --json",
                                        "run \"$M\" -p hi --max-tokens 9 --ignore-eos --think off",
                                        "run \"$M\" -p hi --max-tokens 9 --ignore-eos --json"};
    char line[512];
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i += FL_SANITIZED_OR(2, 1)) {
        snprintf(line, sizeof(line), "%s >/dev/full", words[i]);
        fails_with_one_line(1, line, "standard output: No space left on device");
        snprintf(line, sizeof(line), "%s >&-", words[i]);
        fails_with_one_line(1, line, "standard output: Bad file descriptor");
    }
}

/* Also where the model's plan does not fit: that is one of them. */
static void warnings_of_doctor_are_no_failure(void **state)
{
    (void)state;
    assert_int_equal(sh("", "doctor"), 0);
    assert_non_null(strstr(out, "kernel "));
    assert_int_equal(sh("", "doctor \"$M\" --vram 100K"), 0);
    assert_non_null(strstr(out, "[plan] "));
    fails_with_one_line(1, "doctor /no/such.gguf", "/no/such.gguf");
    fails_with_one_line(2, "doctor --prompt x", "--prompt");
}

static void a_prompt_comes_from_a_pipe_but_not_from_a_terminal_unasked(void **state)
{
    (void)state;
    static const char words[] = "run \"$M\" -f /dev/stdin --max-tokens 3 --think off --threads 1";
    assert_int_equal(sh("printf hi | ", words), 0);
    char *piped = strdup(out);
    assert_int_equal(sh("", "run \"$M\" -p hi --max-tokens 3 --think off --threads 1"), 0);
    assert_string_equal(piped, out);
    free(piped);

    char line[256];
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    snprintf(line, sizeof(line), "run \"$M\" <%s", ptsname(terminal));
    fails_with_one_line(2, line, "no prompt: give -p TEXT or -f FILE");
    close(terminal);
}

static void reasoning_goes_to_stderr_and_the_answer_to_stdout(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_json *j = NULL;
    assert_int_equal(sh("", "run \"$T\" -p Hello --temp 0 --max-tokens 60 --json"), 0);
    ASSERT_OK(fl_json_parse(out, strlen(out), "stdout", &j, &err));
    const char *text = fl_json_str(fl_json_get(j, "text"), "");
    const char *reasoning = fl_json_str(fl_json_get(j, "reasoning"), "");
    assert_true(strlen(text) > 0 && strlen(reasoning) > 0);
    assert_int_equal(sh("", "run \"$T\" -p Hello --temp 0 --max-tokens 60"), 0);
    assert_null(strstr(out, "</think>"));
    assert_null(strstr(errors, "</think>"));
    assert_non_null(strstr(errors, reasoning));
    assert_null(strstr(errors, "\033")); /* no terminal */
    assert_memory_equal(out, text, strlen(text));
    assert_string_equal(out + strlen(text), "\n");
    fl_json_free(&j);
    /* The text as the model writes it. */
    assert_int_equal(sh("", "run \"$T\" --raw --temp 0 --max-tokens 60 -p '<|im_start|>user\n"
                            "Hello<|im_end|>\n<|im_start|>assistant\n<think>\n'"),
                     0);
    assert_non_null(strstr(out, "</think>"));
}

static bool without_io_uring(void *arg)
{
    (void)arg;
    fl_refuse(&(fl_refusal){SYS_io_uring_setup, -1, 0, 0, EPERM});
    return sh("", "run \"$M\" -p hi --max-tokens 2 --think off") == 0 &&
           strstr(errors, "note: io_uring refused") != NULL &&
           strstr(errors, "reading with pread threads\n") != NULL;
}

static void C052_what_is_slower_or_guessed_is_said_unasked(void **state)
{
    (void)state;
    assert_true(fl_in_child(without_io_uring, NULL));
    fl_make m = fl_make_tiny();
    m.n_layer = m.interval = 2;
    m.tied = true;
    char *tied = fl_tmp_path(dir, "tied.gguf"), words[512];
    fl_make_gguf(&m, tied);
    snprintf(words, sizeof(words), "run '%s' -p hi --max-tokens 2 --think off", tied);
    assert_int_equal(sh("", words), 0);
    assert_non_null(strstr(errors, "note: no output matrix"));
    free(tied);
}

/* Where the sampler's settings are from, and what a user would not expect of them. */
static void sampling_is_explained(void **state)
{
    (void)state;
    assert_int_equal(sh("", "run \"$T\" -p Hello --max-tokens 2 --top-k 5 --stats"), 0);
    assert_non_null(strstr(errors, "\nsampling: temp 0: greedy (file), presence 0 (file), "));
    assert_non_null(strstr(errors, "note: --top-k has no effect at temperature 0\n"));
    assert_null(strstr(errors, "presence penalty"));
    assert_int_equal(sh("", "run \"$T\" -p Hello --max-tokens 2 --temp 1 --top-k 5 --seed 9 "
                            "--logit-bias 5:1,6:-inf --soft-end off --stats"),
                     0);
    assert_non_null(strstr(errors, "\nsampling: temp 1 (option), top-k 5 (option), presence 0 "
                                   "(file), repetition 1 (file), 2 logit biases (option), "
                                   "seed 9\n"));
    assert_null(strstr(errors, "no effect"));
    /* A clover_moe file that gives no penalty. */
    assert_int_equal(sh("", "run \"$M\" -p hi --max-tokens 2 --think off"), 0);
    assert_non_null(strstr(errors, "note: the file names no presence penalty: 1.5,"));
    assert_int_equal(sh("", "run \"$M\" -p hi --max-tokens 2 --think off --presence 0"), 0);
    assert_null(strstr(errors, "presence"));
}

/* Once, and not where it has an effect. */
static void an_option_without_effect_is_said(void **state)
{
    (void)state;
    static const char threshold[] = "note: --threshold has no effect in mode %s\n",
                      block_mode[] = "note: --block-mode has no effect in mode %s\n",
                      drafts[] = "note: --block-mode changes the drafts of mode spec, not its text",
                      masks[] = "note: --block-mode has no effect without --denoise\n";
    static const struct {
        const char *words, *note, *mode; /* note NULL: none */
    } cases[] = {{"run \"$M\" -p hi --mode ar --threshold 0.5", threshold, "ar"},
                 {"run \"$M\" -p hi --threshold 0.5", threshold, "spec"},
                 {"run \"$M\" -p hi --mode block --threshold 0.5", NULL, ""},
                 {"run \"$M\" -p hi --mode ar --block-mode causal", block_mode, "ar"},
                 {"run \"$B\" -p hi --block-mode causal", block_mode, "spec"},
                 {"run \"$M\" -p hi --mode spec --block-mode causal", drafts, ""},
                 {"run \"$M\" -p hi --mode block --block-mode causal", NULL, ""},
                 {"logits \"$M\" --ids 1,2 -o \"$S\" --block-mode causal", masks, ""},
                 {"logits \"$M\" --ids 1,2 -o \"$S\" --denoise 1 --block-mode causal", NULL, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += FL_SANITIZED_OR(4, 1)) {
        char words[256], note[128] = "has no effect";
        const bool run = cases[i].words[0] == 'r';
        snprintf(words, sizeof words, "%s%s", cases[i].words, run ? " --max-tokens 1" : "");
        if (cases[i].note) snprintf(note, sizeof note, cases[i].note, cases[i].mode);
        assert_int_equal(sh("", words), 0);
        const char *at = strstr(errors, note);
        if ((at != NULL) != (cases[i].note != NULL)) fail_msg("%s: %s", words, errors);
        if (at) assert_null(strstr(at + 1, "note: --"));
    }
}

/* The line on passes names those that the mode has. */
static void passes_are_counted_by_mode(void **state)
{
    (void)state;
    static const char *const modes[][2] = {
        {"ar", "\npasses: 1 prefill, 1 clean, 0 denoise; 1.00 tokens per pass\n"},
        {"block", " denoise in 1 blocks (at most "},
        {"spec", "\npasses: 1 prefill, 1 clean, 0 denoise, 0 to check drafts; 1.00 tokens per "
                 "pass\n"}};
    for (int m = 0; m < 3; m++) {
        char words[256];
        snprintf(words, sizeof(words),
                 "run \"$T\" -p 'What is the capital of Australia?' --think off --max-tokens 2 "
                 "--mode %s --json --stats",
                 modes[m][0]);
        assert_int_equal(sh("", words), 0);
        if (!strstr(errors, modes[m][1])) fail_msg("%s is not in: %s", modes[m][1], errors);
        /* No pass of its own read the prompt that heads the first block. */
        assert_true((strstr(out, "\"prompt_tokens_per_s\": 0.0,") != NULL) == (m == 1));
    }
}

/* tests/decode/test_guard has every mode. */
static void C085_a_text_that_runs_in_circles_ends_and_says_so(void **state)
{
    (void)state;
    char words[160] = "run \"$T\" -p Hello --mode ar --frequency -2 --ignore-eos --stats --json";
    assert_int_equal(sh("", words), 0);
    assert_non_null(strstr(errors, "finish: repeat"));
    assert_non_null(strstr(errors, "note: the text was ended, it repeated a phrase of "));
    assert_non_null(strstr(errors, "--repeat-stop off lets it go on\n"));
    assert_non_null(strstr(out, "\"finish\": \"repeat\""));
    strcat(words, " --repeat-stop off --max-tokens 400");
    assert_int_equal(sh("", words), 0);
    assert_non_null(strstr(out, "\"finish\": \"length\""));
    assert_non_null(strstr(out, "\"tokens\": 400,"));
}

/* ---- not under sanitizers, where measuring and quantizing take half a minute ---- */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static bool without_rename(void *arg)
{
    alarm(300); /* measuring takes its time on a busy machine */
    fl_refuse(&(fl_refusal){SYS_rename, -1, 0, 0, ENOSPC});
    const bool as_expected = sh("", arg) == 1 && strstr(out, "tored in ") == NULL &&
                             strstr(out, "spec") != NULL &&
                             strstr(errors, "renamed into place: No space left on device\n");
    if (!as_expected) fprintf(stderr, "# %s: %s%s", (const char *)arg, out, errors);
    return as_expected;
}

/* What took long to measure: a full disk on one side keeps nothing from the other. */
static void what_was_measured_is_stored_and_shown_on_their_own(void **state)
{
    (void)state;
    char measure[] = "calibrate \"$M\" --ctx 256 --threads 1";
    assert_true(fl_in_child(without_rename, measure));
    assert_int_equal(sh("", "run \"$M\" -p hi --max-tokens 1 --threads 1 --stats"), 0);
    assert_null(strstr(errors, "stored rates"));
    fails_with_one_line(1, "calibrate \"$M\" --ctx 256 --threads 1 >/dev/full",
                        "standard output: No space left on device");
    assert_int_equal(sh("", "run \"$M\" -p hi --max-tokens 1 --threads 1 --stats"), 0);
    assert_non_null(strstr(errors, "stored rates: "));
}

/* ---- README ---- */

/* Each number becomes #, where it depends on machine or time. */
static void mask_numbers(char *line)
{
    char *to = line;
    for (const char *p = line; *p; p++)
        if (*p < '0' || *p > '9')
            *to++ = *p;
        else if (to == line || to[-1] != '#')
            *to++ = '#';
    *to = 0;
}

/* One line of the transcript against one that the program printed. */
static void compare_lines(char *shown, char *printed, bool measured)
{
    if (strncmp(shown, "cpu ", 4) == 0) shown[4] = 0, printed[strnlen(printed, 4)] = 0;
    static const char *const of_machine[] = {" threads", "  staging ", "  checkpoints"};
    for (int i = 0; i < 3; i++) measured |= strstr(shown, of_machine[i]) != NULL;
    if (measured) {
        mask_numbers(shown);
        mask_numbers(printed);
    }
    assert_string_equal(shown, printed);
}

/* What the program printed, less the progress of quantize and notes on the machine. */
static char *printed_line(char **rest)
{
    char *line;
    do line = strsep(rest, "\n");
    while (line &&
           (*line == '[' || !*line || strstr(line, " left, ") || strncmp(line, "note: ", 6) == 0));
    return line;
}

/* The commands that the README shows, in its order: each line that follows one, and no other, is
 * what the program prints, first standard output, then standard error. */
static void the_readme_shows_what_is_printed(void **state)
{
    (void)state;
    static const char mark[] = "    $ build/fourleaf ";
    int n_commands = 0;
    char *readme = NULL, words[1024];
    load("README.md", &readme);
    char *rest = strstr(readme, mark);
    assert_non_null(rest);
    char *to_build = NULL;
    assert_true(asprintf(&to_build,
                         "mkdir -p '%s/build' && ln -sf \"$PWD/tests\" '%s' && cd '%s' && ", dir,
                         dir, dir) > 0);
    for (char *line; (line = strsep(&rest, "\n")) && strncmp(line, "    ", 4) == 0; n_commands++) {
        assert_int_equal(strncmp(line, mark, sizeof(mark) - 1), 0);
        /* The transcript is from two threads; more want larger buffers. */
        snprintf(words, sizeof(words), "%s --threads 2", line + sizeof(mark) - 1);
        assert_int_equal(sh(to_build, words), 0);
        const bool run = strncmp(words, "run ", 4) == 0;
        char *printed = out, *said = errors;
        while ((line = strsep(&rest, "\n")) && *line) {
            char *now = printed ? printed_line(&printed) : NULL;
            const bool measured = !now;
            if (!now) now = printed_line(&said);
            if (!now) fail_msg("README shows what is not printed: %s", line);
            compare_lines(line + 4, now, measured && run);
        }
        const char *more = printed ? printed_line(&printed) : NULL;
        if (!more) more = printed_line(&said);
        if (more) fail_msg("README does not show: %s", more);
    }
    assert_int_equal(n_commands, 3);
    free(to_build);
    free(readme);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_works_ends_with_0),
        cmocka_unit_test(wrong_use_ends_with_2),
        cmocka_unit_test(what_fails_ends_with_1),
        cmocka_unit_test(advice_names_options_of_the_command),
        cmocka_unit_test(a_broken_stdout_is_one_line),
        cmocka_unit_test(warnings_of_doctor_are_no_failure),
        cmocka_unit_test(a_prompt_comes_from_a_pipe_but_not_from_a_terminal_unasked),
        cmocka_unit_test(C052_what_is_slower_or_guessed_is_said_unasked),
        cmocka_unit_test(sampling_is_explained),
        cmocka_unit_test(an_option_without_effect_is_said),
        cmocka_unit_test(passes_are_counted_by_mode),
        cmocka_unit_test(C085_a_text_that_runs_in_circles_ends_and_says_so),
        cmocka_unit_test(reasoning_goes_to_stderr_and_the_answer_to_stdout),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(what_was_measured_is_stored_and_shown_on_their_own),
        cmocka_unit_test(the_readme_shows_what_is_printed),
#endif
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
