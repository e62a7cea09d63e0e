/* run --session as a shell starts it: a chat over several runs, Ctrl-C while the prompt is read and
 * while the answer is written, files that are refused and left alone. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/base/lock.h"
#include "runtime/model/facts.h"
#include "runtime/model/model.h"
#include "runtime/tools/progress.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *dir, *cache, *session, *program;
static const char model[] = "tests/clover_tiny/model";

static int setup(void **state)
{
    (void)state;
    static char self[4096];
    dir = fl_tmp_make();
    cache = fl_tmp_make();
    setenv("XDG_CACHE_HOME", cache, 1);
    session = fl_tmp_path(dir, "chat");
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    for (int up = 0; up < 3; up++) *strrchr(self, '/') = 0;
    program = fl_tmp_path(self, "fourleaf");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(program);
    free(session);
    fl_tmp_remove(dir);
    fl_tmp_remove(cache);
    return 0;
}

/* ---- the program ---- */

enum { STREAM = 1 << 16, NEVER = -1 };
static char text[3][STREAM]; /* 1: standard output, 2: standard error of the last run */

static void start(char **argv, const int pipes[3][2])
{
    for (int fd = 1; fd < 3; fd++) {
        dup2(pipes[fd][1], fd);
        close(pipes[fd][0]);
    }
    signal(SIGINT, SIG_DFL);
    execv(program, argv);
    _exit(127);
}

/* Has the stream said what comes before the work that is to be interrupted? Of standard error that
 * is the line about the machine, when the model is loaded. */
static bool said_enough(int fd) { return fd == 1 || strstr(text[2], "reads by ") != NULL; }

/* Runs "fourleaf run MODEL --session FILE -p QUESTION ..."; the rest ends with NULL. SIGINT is sent
 * once stream `interrupt` said enough. The exit status as a shell has it. */
static int run(int interrupt, const char *question, const char *const *more)
{
    char *argv[32] = {program,     (char *)"run",       (char *)model,    (char *)"--session",
                      session,     (char *)"-p",        (char *)question, (char *)"--temp",
                      (char *)"0", (char *)"--threads", (char *)"1",      (char *)"--stats"};
    int n = 12, pipes[3][2], status = 0;
    for (; *more; more++) argv[n++] = (char *)*more;
    for (int fd = 1; fd < 3; fd++) assert_int_equal(pipe(pipes[fd]), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) start(argv, pipes);
    size_t used[3] = {0};
    struct pollfd p[2] = {{pipes[1][0], POLLIN, 0}, {pipes[2][0], POLLIN, 0}};
    for (int fd = 1; fd < 3; fd++) close(pipes[fd][1]);
    for (int open = 2; open > 0;) {
        assert_true(poll(p, 2, -1) > 0);
        for (int fd = 1; fd < 3; fd++) {
            if (!p[fd - 1].revents) continue;
            assert_true(used[fd] + 1 < STREAM);
            const ssize_t got = read(p[fd - 1].fd, text[fd] + used[fd], STREAM - 1 - used[fd]);
            assert_true(got >= 0);
            used[fd] += (size_t)got;
            if (got == 0) p[fd - 1].fd = -1, p[fd - 1].revents = 0, open--;
            text[fd][used[fd]] = 0;
            if (got > 0 && interrupt == fd && said_enough(fd)) kill(pid, SIGINT), interrupt = NEVER;
        }
    }
    for (int fd = 1; fd < 3; fd++) text[fd][used[fd]] = 0, close(pipes[fd][0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

#define RUN(interrupt, question, ...) \
    run((interrupt), (question), (const char *const[]){__VA_ARGS__, NULL})

static void assert_said(int fd, const char *words)
{
    if (!strstr(text[fd], words)) fail_msg("'%s' is not in: %s", words, text[fd]);
}

/* The file's content; malloc'ed. */
static char *content(uint64_t *n)
{
    fl_err err = {0};
    char *data = NULL;
    ASSERT_OK(fl_file_load(session, 64 << 20, &data, n, &err));
    return data;
}

/* ---- tests ---- */

static void M6_a_chat_goes_on_over_runs(void **state)
{
    (void)state;
    static const char *const modes[] = {"ar", "block", "spec"};
    for (int m = 0; m < 3; m++) {
        unlink(session);
        assert_int_equal(
            RUN(NEVER, "What is the capital of Australia?", "--think", "off", "--mode", modes[m]),
            0);
        assert_string_equal(text[1], "The capital of Australia is Canberra.\n");
        assert_said(2, ": 2 messages, ");
        assert_null(strstr(text[2], "known"));
        assert_int_equal(
            RUN(NEVER, "What is the capital of Japan?", "--think", "off", "--mode", modes[m]), 0);
        assert_string_equal(text[1], "The capital of Japan is Tokyo.\n");
        assert_said(2, ": 4 messages, ");
        /* The third turn goes on behind the second question, with thinking. */
        assert_int_equal(RUN(NEVER, "Hello", "--max-tokens", "8", "--mode", modes[m], "--json"), 0);
        fl_err err = {0};
        fl_json *j = NULL;
        ASSERT_OK(fl_json_parse(text[1], strlen(text[1]), "output", &j, &err));
        assert_true(fl_json_int(fl_json_get(j, "prompt_tokens_known"), 0) >= 32);
        fl_json_free(&j);
        assert_said(2, " of them known");
        assert_said(2, "checkpoints: ");
        assert_said(2, ": 6 messages, ");
    }
}

static void a_system_text_takes_the_place_of_the_files(void **state)
{
    (void)state;
    uint64_t n = 0;
    unlink(session);
    assert_int_equal(RUN(NEVER, "Hello", "--think", "off", "--system", "Be brief."), 0);
    assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 0);
    assert_said(2, ": 5 messages, ");
    assert_int_equal(RUN(NEVER, "Hello", "--think", "off", "--system", "Be long."), 0);
    assert_said(2, ": 7 messages, ");
    char *data = content(&n);
    assert_null(memmem(data, n, "Be brief.", 9));
    assert_non_null(memmem(data, n, "Be long.", 8));
    free(data);
}

static void M7_ctrl_c_while_the_prompt_is_read(void **state)
{
    (void)state;
    static char question[801];
    for (int i = 0; i < 800; i++) question[i] = i % 5 ? 'a' : ' ';
    unlink(session);
    /* Read a token at a time. */
    assert_int_equal(RUN(2, question, "--chunk", "1", "--think", "off"), 130);
    assert_said(2, "interrupted before the answer; what was read is kept in ");
    assert_said(2, ": 0 messages, ");
    assert_string_equal(text[1], "\n");
    /* What was read is not read again, and nothing else of the question is left. */
    assert_int_equal(RUN(NEVER, "What is the capital of Japan?", "--think", "off"), 0);
    assert_string_equal(text[1], "The capital of Japan is Tokyo.\n");
    assert_said(2, ": 2 messages, ");
}

static void M7_ctrl_c_in_the_answer(void **state)
{
    (void)state;
    static const char *const modes[] = {"ar", "block", "spec"};
    for (int m = 0; m < 3; m++) {
        unlink(session);
        assert_int_equal(RUN(1, "Hello", "--think", "off", "--ignore-eos", "--repeat-stop", "off",
                             "--mode", modes[m]),
                         130);
        assert_said(2, "interrupted in the answer; what was read is kept in ");
        /* The answer as far as it came is a message. */
        assert_said(2, ": 2 messages, ");
        assert_true(strlen(text[1]) > 1);
        assert_int_equal(text[1][strlen(text[1]) - 1], '\n');
        assert_int_equal(
            RUN(NEVER, "What is the capital of Japan?", "--think", "off", "--mode", modes[m]), 0);
        if (m != 1) assert_said(2, " of them known"); /* the first block holds all of it */
        assert_said(2, ": 4 messages, ");
    }
}

static void M6_a_file_that_is_no_session_of_this_model_is_left_alone(void **state)
{
    (void)state;
    uint64_t n = 0, n_now = 0;
    unlink(session);
    assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 0);
    char *good = content(&n);
    for (int kind = 0; kind < 3; kind++) {
        static const char *const words[] = {"cut short or damaged", "the checksum of its state",
                                            "is not a session file"};
        char *bad = malloc(n);
        assert_non_null(bad);
        memcpy(bad, good, n);
        if (kind == 1) bad[n - 100] ^= 4;
        if (kind == 2) bad[0] = 'G';
        const uint64_t n_bad = kind ? n : n / 2;
        fl_tmp_write(session, bad, n_bad);
        assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 1);
        assert_said(2, words[kind]);
        assert_string_equal(text[1], "");
        char *now = content(&n_now);
        assert_int_equal(n_now, n_bad);
        assert_memory_equal(now, bad, n_bad);
        free(now);
        free(bad);
    }
    fl_tmp_write(session, good, n);
    assert_int_equal(RUN(NEVER, "Hello", "--kv", "f32"), 1);
    assert_said(2, "has a KV cache in f16, this run in f32");
    assert_int_equal(RUN(NEVER, "Hello", "--act", "f32"), 1);
    assert_said(2, "made with --act law");
    assert_int_equal(RUN(NEVER, "Hello", "--raw"), 2);
    assert_said(2, "--session keeps a chat: leave --raw out");
    char *now = content(&n_now);
    assert_int_equal(n_now, n);
    assert_memory_equal(now, good, n);
    free(now);
    free(good);
    assert_int_equal(fl_tmp_count(dir), 1);
}

/* What a probe that found two roles exchanged would store. */
static void store_other_roles(void)
{
    fl_err err = {0};
    fl_model *m = NULL;
    fl_facts *f = NULL;
    fl_wiring w = fl_wiring_none();
    ASSERT_OK(fl_model_open(&m, model, &err));
    const char *const alpha = "model.language_model.layers.*.linear_attn.in_proj_a.weight";
    const char *const beta = "model.language_model.layers.*.linear_attn.in_proj_b.weight";
    ASSERT_OK(fl_role_map_put(&w.roles, "ssm_alpha.weight", beta, "test", &err));
    ASSERT_OK(fl_role_map_put(&w.roles, "ssm_beta.weight", alpha, "test", &err));
    w.clover = m->index->clover;
    ASSERT_OK(fl_facts_of(&f, m->src, &err));
    ASSERT_OK(fl_facts_put(f, "probe", fl_wiring_to_json(&w), &err));
    fl_facts_close(&f);
    fl_model_close(&m);
}

static void a_probe_that_rewires_the_model_ends_its_sessions(void **state)
{
    (void)state;
    uint64_t n = 0, n_now = 0;
    unlink(session);
    assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 0);
    char *good = content(&n);
    store_other_roles();
    assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 1);
    assert_said(2, "made when this model's file was read another way (a probe, --map or");
    assert_said(2, "name a new file to start one");
    char *now = content(&n_now);
    assert_int_equal(n_now, n);
    assert_memory_equal(now, good, n);
    free(now);
    free(good);
    fl_tmp_remove(fl_tmp_path(cache, "fourleaf"));
    assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 0);
    assert_said(2, ": 4 messages, ");
}

/* The second would undo what the first one saved. tests/base/test_lock.c has the rest. */
static void one_run_at_a_time_uses_a_file(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_lock *other = NULL;
    for (int there = 0; there < 2; there++) {
        if (!there) unlink(session);
        ASSERT_OK(fl_lock_take(&other, session, &err));
        assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 1);
        assert_said(2, ": another run is using it; wait for its end or name another file\n");
        assert_string_equal(text[1], "");
        fl_lock_release(&other);
        assert_int_equal(fl_tmp_count(dir), there);
        assert_int_equal(RUN(NEVER, "Hello", "--think", "off"), 0);
        assert_int_equal(fl_tmp_count(dir), 1);
    }
}

/* Before the answer, which would be lost to the chat. */
static void a_place_that_cannot_be_written_to_is_refused_at_once(void **state)
{
    (void)state;
    unlink(session);
    char *nowhere = fl_tmp_path(dir, "none/chat");
    const struct {
        const char *path, *words;
        int code;
    } bad[] = {{nowhere, "cannot be created", 1}, {"", "an empty file name", 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(RUN(NEVER, "Hello", "--think", "off", "--session", bad[i].path),
                         bad[i].code);
        assert_said(2, bad[i].words);
        assert_string_equal(text[1], "");
    }
    assert_int_equal(fl_tmp_count(dir), 0);
    free(nowhere);
}

static void progress_shows_share_rate_and_time_left(void **state)
{
    (void)state;
    char line[FL_PROGRESS_LINE];
    fl_progress_prompt(line, 1024, 4096, 8.0);
    assert_string_equal(line,
                        "reading the prompt:  25 % of 4096 tokens, 128.0 tokens/s, 24 s left");
    double spent = 0.0;
    fl_progress p;
    fl_progress_start(&p);
    assert_false(fl_progress_due(&p, &spent)); /* what takes no time shows nothing */
    p.next = p.start;
    assert_true(fl_progress_due(&p, &spent));
    assert_false(fl_progress_due(&p, &spent));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(M6_a_chat_goes_on_over_runs),
        cmocka_unit_test(a_system_text_takes_the_place_of_the_files),
        cmocka_unit_test(M7_ctrl_c_while_the_prompt_is_read),
        cmocka_unit_test(M7_ctrl_c_in_the_answer),
        cmocka_unit_test(M6_a_file_that_is_no_session_of_this_model_is_left_alone),
        cmocka_unit_test(a_probe_that_rewires_the_model_ends_its_sessions),
        cmocka_unit_test(one_run_at_a_time_uses_a_file),
        cmocka_unit_test(a_place_that_cannot_be_written_to_is_refused_at_once),
        cmocka_unit_test(progress_shows_share_rate_and_time_left),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
