/* fourleaf quantize --resume and --split-size: a run that is killed at any moment leaves no file
 * under the final name, and gone on with gives the bytes of a run that was not; what does not
 * belong together is refused. FL_TEST_LONG=1: 25 kills of each kind. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/tools/journal.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

static int kills(void) { return getenv("FL_TEST_LONG") ? 25 : 4; }

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static void same_bytes(const char *want, const char *got)
{
    char *a, *b;
    uint64_t n, m;
    ASSERT_OK(fl_file_load(want, 64 << 20, &a, &n, &err));
    ASSERT_OK(fl_file_load(got, 64 << 20, &b, &m, &err));
    assert_int_equal(n, m);
    for (uint64_t i = 0; i < n; i++)
        if (a[i] != b[i]) fail_msg("%s: byte %llu differs", got, (unsigned long long)i);
    free(a);
    free(b);
}

static char *beside(const char *path, const char *end)
{
    char *p = NULL;
    assert_true(asprintf(&p, "%s%s", path, end) > 0);
    return p;
}

/* A run in a child that is killed so long after it has written so many bytes of its lines; true
 * when it was still going. */
static bool killed_at(const char *in, const char *out, const char *options, uint64_t bytes,
                      uint64_t ns)
{
    int fd[2], rc;
    char c[64];
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fd[0]);
        dup2(fd[1], STDERR_FILENO);
        _exit(fl_quantize_loud_with(in, out, options, &err) == FL_OK ? 0 : 1);
    }
    close(fd[1]);
    for (uint64_t got = 0; got < bytes;) {
        const ssize_t n = read(fd[0], c, sizeof c);
        if (n <= 0) break;
        got += (uint64_t)n;
    }
    const struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    close(fd[0]);
    if (!WIFSIGNALED(rc)) assert_int_equal(WEXITSTATUS(rc), 0);
    return WIFSIGNALED(rc);
}

static uint64_t pseudo(uint64_t *x, uint64_t below)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (*x >> 33) % below;
}

/* At a random moment: about a model's lines, and up to 4 ms more. */
static bool killed_somewhere(const char *in, const char *out, const char *options, uint64_t *seed)
{
    const uint64_t bytes = pseudo(seed, 6000), ns = pseudo(seed, 4000000);
    return killed_at(in, out, options, bytes, ns);
}

/* Some tensors are written, not all. */
static void killed_half_way(const fl_workplace *f)
{
    assert_true(WIFSIGNALED(fl_quantize_stopped(f, SIGKILL, false)));
}

static void killed_runs_are_gone_on_with(void **state)
{
    (void)state;
    static const char *const more[] = {"--type q8_0 --resume", "--type q8_0 --resume --io fake",
                                       "--type q8_0 --resume --io pread"};
    fl_workplace f = fl_workplace_make();
    fl_make m = fl_layout(1);
    m.st_files = 3;
    fl_make_safetensors(&m, f.hf);
    char *want = fl_tmp_path(f.dir, "want.gguf");
    ASSERT_OK(fl_quantize_with(f.hf, want, "--type q8_0", &err));
    uint64_t seed = fl_clock_ns();
    int n_killed = 0, n_resumed = 0;
    for (int i = 0; i < kills(); i++) {
        const char *options = "--type q8_0";
        /* Killed, gone on with, killed again, ... */
        for (int again = 0; again < 4; again++) {
            const bool killed = killed_somewhere(f.hf, f.out, options, &seed);
            n_killed += killed;
            n_resumed += again > 0;
            if (!killed) break;
            /* Under the name there is nothing, or in the last instant all of it. */
            if (exists(f.out)) same_bytes(want, f.out);
            options = "--type q8_0 --resume";
        }
        ASSERT_OK(fl_quantize_with(f.hf, f.out, more[i % 3], &err));
        same_bytes(want, f.out);
        assert_int_equal(fl_tmp_count(f.dir), 3); /* the source, want, out */
        assert_int_equal(unlink(f.out), 0);
    }
    print_message("%d runs killed, %d gone on with\n", n_killed, n_resumed);
    assert_true(n_killed > 0);
    free(want);
    fl_workplace_remove(&f);
}

/* Any number of workers, any backend. */
static void the_bytes_depend_on_neither_threads_nor_backend(void **state)
{
    (void)state;
    static const char *const options[] = {"--threads 1", "--threads 3 --io pread", "--io fake",
                                          "--threads 7"};
    for (int layout = 1; layout <= 3; layout += 2) {
        fl_workplace f = fl_workplace_make();
        const fl_make m = fl_layout(layout);
        fl_make_safetensors(&m, f.hf);
        char *want = fl_tmp_path(f.dir, "want.gguf");
        ASSERT_OK(fl_quantize_with(f.hf, want, "", &err));
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            ASSERT_OK(fl_quantize_with(f.hf, f.out, options[i], &err));
            same_bytes(want, f.out);
        }
        free(want);
        fl_workplace_remove(&f);
    }
}

static void what_does_not_belong_together_is_refused(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    char *want = fl_tmp_path(f.dir, "want.gguf");
    struct stat was;
    ASSERT_OK(fl_quantize_with(f.gguf, want, "--type q8_0", &err));
    killed_half_way(&f);
    ASSERT_FAILS(fl_quantize_with(f.gguf, f.out, "--type f16 --resume", &err), FL_E_ARG,
                 "other options");
    ASSERT_FAILS(fl_quantize_with(f.gguf, f.out, "--type q8_0 --resume --split-size 100K", &err),
                 FL_E_ARG, "other options");
    assert_int_equal(stat(f.gguf, &was), 0);
    assert_int_equal(utimensat(AT_FDCWD, f.gguf, NULL, 0), 0);
    ASSERT_FAILS(fl_quantize_with(f.gguf, f.out, "--type q8_0 --resume", &err), FL_E_ARG,
                 "have changed since");
    const struct timespec times[2] = {was.st_atim, was.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, f.gguf, times, 0), 0);
    assert_int_equal(fl_tmp_count(f.dir), 4); /* nothing was lost */
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type q8_0 --resume", &err));
    same_bytes(want, f.out);
    assert_int_equal(fl_tmp_count(f.dir), 3);
    free(want);
    fl_workplace_remove(&f);
}

static void flip(const char *path, off_t at)
{
    const int fd = open(path, O_RDWR);
    char c;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 1;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

/* What is damaged is made again. */
static void damage_to_what_is_kept_is_found(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    char *want = fl_tmp_path(f.dir, "want.gguf");
    char *part = beside(f.out, ".part"), *journal = beside(f.out, ".resume");
    ASSERT_OK(fl_quantize_with(f.gguf, want, "--type q8_0", &err));
    for (int i = 0; i < 6; i++) {
        killed_half_way(&f);
        struct stat sb;
        assert_int_equal(stat(part, &sb), 0);
        switch (i) {
        case 0: flip(part, 5); break;              /* header */
        case 1: flip(part, sb.st_size - 1); break; /* what was written last */
        case 2: assert_int_equal(truncate(part, 10), 0); break;
        case 3: flip(journal, 20); break;
        case 4: assert_int_equal(truncate(journal, 60), 0); break;
        default: assert_int_equal(unlink(part), 0); break;
        }
        ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type q8_0 --resume", &err));
        same_bytes(want, f.out);
        assert_int_equal(fl_tmp_count(f.dir), 3);
        assert_int_equal(unlink(f.out), 0);
    }
    free(want);
    free(part);
    free(journal);
    fl_workplace_remove(&f);
}

/* Split files are the same model, within their size, and a killed run of them is gone on with. */
static void split_output(void **state)
{
    (void)state;
    enum { MOST = 100 << 10 };
    fl_workplace f = fl_workplace_make(), g = fl_workplace_make();
    const fl_make m = fl_layout(1);
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(fl_quantize_with(f.gguf, g.out, "--type f32 --split-size 100K", &err));
    assert_false(exists(g.out));
    const int n = fl_tmp_count(g.dir);
    assert_true(n > 2);
    uint64_t seed = fl_clock_ns();
    for (int k = 0; k < kills(); k++) {
        const char *options = "--type f32 --split-size 100K";
        if (killed_somewhere(f.gguf, f.out, options, &seed))
            ASSERT_OK(
                fl_quantize_with(f.gguf, f.out, "--type f32 --split-size 100K --resume", &err));
        assert_int_equal(fl_tmp_count(f.dir), n + 1);
        for (int i = 1; i <= n; i++) {
            char name[64];
            struct stat sb;
            snprintf(name, sizeof name, "out-%05d-of-%05d.gguf", i, n);
            char *a = fl_tmp_path(g.dir, name), *b = fl_tmp_path(f.dir, name);
            same_bytes(a, b);
            fl_source *s = fl_open_source(a);
            assert_int_equal(stat(a, &sb), 0);
            fl_source_close(&s);
            assert_true(sb.st_size <= MOST);
            if (i == 1) fl_compare_files(f.gguf, b, 0, true);
            assert_int_equal(unlink(b), 0);
            free(a);
            free(b);
        }
    }
    fl_workplace_remove(&f);
    fl_workplace_remove(&g);
}

static void a_run_anew_removes_what_another_left(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    char *want = fl_tmp_path(f.dir, "want.gguf"), *part = fl_tmp_path(f.dir, "out.gguf.part");
    ASSERT_OK(fl_quantize_with(f.gguf, want, "--type q8_0", &err));
    killed_half_way(&f);
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type f16 --split-size 100K", &err));
    assert_false(exists(part));
    /* A resume that finds nothing is a run as any other. */
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type q8_0 --resume", &err));
    same_bytes(want, f.out);
    /* No file that is read is taken for a temporary. */
    assert_int_equal(rename(f.gguf, part), 0);
    ASSERT_FAILS(fl_quantize_with(part, f.out, "--type q8_0", &err), FL_E_ARG,
                 "is a file of the model to read");
    assert_true(exists(part));
    free(part);
    free(want);
    fl_workplace_remove(&f);
}

static void two_runs_do_not_meet(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    char *journal = beside(f.out, ".resume");
    int fd[2], rc;
    char c;
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fl_journal *j;
        const bool ok = fl_journal_open(&j, f.out, &err) == FL_OK && write(fd[1], "x", 1) == 1;
        pause();
        _exit(ok);
    }
    assert_int_equal(read(fd[0], &c, 1), 1);
    ASSERT_FAILS(fl_quantize_with(f.gguf, f.out, "", &err), FL_E_IO, "another run is writing it");
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(exists(journal));
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "", &err));
    assert_false(exists(journal));
    close(fd[0]);
    close(fd[1]);
    free(journal);
    fl_workplace_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_runs_are_gone_on_with),
        cmocka_unit_test(the_bytes_depend_on_neither_threads_nor_backend),
        cmocka_unit_test(what_does_not_belong_together_is_refused),
        cmocka_unit_test(damage_to_what_is_kept_is_found),
        cmocka_unit_test(split_output),
        cmocka_unit_test(a_run_anew_removes_what_another_left),
        cmocka_unit_test(two_runs_do_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
