/* fourleaf quantize and the machine: a failed, interrupted or killed run leaves OUT as it was, a
 * full disk leaves nothing, memory does not grow with the model. */
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

static void check_old(const char *path)
{
    char buf[8] = {0};
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, buf, sizeof buf), 3);
    close(fd);
    assert_string_equal(buf, "old");
}

static void a_killed_run_leaves_the_old_file(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    fl_tmp_write(f.out, "old", 3);
    const int rc = fl_quantize_stopped(&f, SIGKILL, false);
    assert_true(WIFSIGNALED(rc) && WTERMSIG(rc) == SIGKILL);
    check_old(f.out);
    assert_int_equal(fl_tmp_count(f.dir), 4); /* and what the killed one left to go on with */
    ASSERT_OK(fl_quantize(f.gguf, f.out, "q8_0", NULL, &err));
    assert_int_equal(fl_tmp_count(f.dir), 2);
    fl_workplace_remove(&f);
}

static void an_interrupted_run_keeps_what_it_has(void **state)
{
    (void)state;
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    fl_tmp_write(f.out, "old", 3);
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        const int rc = fl_quantize_stopped(&f, sigs[i], false);
        assert_true(WIFEXITED(rc));
        assert_int_equal(WEXITSTATUS(rc), 42);
        check_old(f.out);
        assert_int_equal(fl_tmp_count(f.dir), 4);
    }
    ASSERT_OK(fl_quantize_with(f.gguf, f.out, "--type q8_0 --resume", &err));
    fl_compare_files(f.gguf, f.out, 0.008, true);
    assert_int_equal(fl_tmp_count(f.dir), 2);
    fl_workplace_remove(&f);
}

/* Under nohup, or in the background of a shell without job control. */
static void an_ignored_signal_stays_ignored(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    for (int i = 0; i < 2; i++) {
        const int rc = fl_quantize_stopped(&f, i ? SIGINT : SIGHUP, true);
        assert_true(WIFEXITED(rc));
        assert_int_equal(WEXITSTATUS(rc), 0);
        fl_compare_files(f.gguf, f.out, 0.008, true);
        assert_int_equal(fl_tmp_count(f.dir), 2);
        assert_int_equal(unlink(f.out), 0);
    }
    fl_workplace_remove(&f);
}

/* quantize IN OUT 2>&1 | head -1 */
static void a_reader_of_stderr_may_leave(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    int fd[2], rc;
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fd[0]);
        dup2(fd[1], STDERR_FILENO);
        signal(SIGPIPE, SIG_DFL);
        _exit(fl_quantize_loud(f.gguf, f.out, "q8_0", NULL, &err) == FL_OK ? 0 : 1);
    }
    close(fd[0]);
    close(fd[1]);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), 0);
    fl_compare_files(f.gguf, f.out, 0.008, true);
    assert_int_equal(fl_tmp_count(f.dir), 2);
    fl_workplace_remove(&f);
}

/* A file size limit stands for a disk that fills up while it is written. */
static void a_full_disk_leaves_nothing(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit lim = {100000, 100000};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &lim) != 0) _exit(3);
        const fl_status st = fl_quantize(f.gguf, f.out, "f32", NULL, &err);
        const bool named = strstr(err.msg, f.out) && !strchr(err.msg, '\n');
        _exit(st == FL_E_IO && named ? 0 : 1);
    }
    int rc;
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), 0);
    assert_int_equal(fl_tmp_count(f.dir), 1);
    fl_workplace_remove(&f);
}

/* Peak resident memory, in KiB, of a child that writes a model (m not NULL) or quantizes one. What
 * the parent holds counts too, so it holds little. */
static long peak_of_child(const fl_make *m, const char *in, const char *out)
{
    malloc_trim(0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0 && m) {
        fl_make_gguf(m, out);
        _exit(0);
    }
    if (pid == 0) _exit(fl_quantize(in, out, "q8_0", NULL, &err) == FL_OK ? 0 : 1);
    int rc;
    struct rusage use;
    assert_int_equal(wait4(pid, &rc, 0, &use), pid);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), 0);
    return use.ru_maxrss;
}

/* The thread sanitizer keeps about four shadow bytes for each byte touched: a kept model would
 * show there as 100 MB. */
#if defined(__SANITIZE_THREAD__)
enum { MOST_GROWTH_KIB = 30 * 1024 };
#else
enum { MOST_GROWTH_KIB = 6 * 1024 };
#endif

/* C137, C139, C140: four times the layers, 20 MB more weights, the same memory. */
static void memory_does_not_grow_with_the_model(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    fl_make m = fl_make_default();
    char *large = fl_tmp_path(f.dir, "large.gguf");
    m.type = FL_TYPE_F32;
    m.n_layer = m.interval = 1;
    peak_of_child(&m, NULL, f.gguf);
    m.n_layer = m.interval = 4;
    peak_of_child(&m, NULL, large);
    const long a = peak_of_child(NULL, f.gguf, f.out), b = peak_of_child(NULL, large, f.out);
    print_message("peak memory: 1 layer %ld KiB, 4 layers %ld KiB\n", a, b);
    assert_true(b - a < MOST_GROWTH_KIB);
    free(large);
    fl_workplace_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_leaves_the_old_file),
        cmocka_unit_test(an_interrupted_run_keeps_what_it_has),
        cmocka_unit_test(an_ignored_signal_stays_ignored),
        cmocka_unit_test(a_reader_of_stderr_may_leave),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(memory_does_not_grow_with_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
