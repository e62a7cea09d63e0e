/* What an output file leaves behind: nothing when a signal ends its writer, nothing of a killed
 * writer once the file is written again, and everything that is not its own. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *dir, *path;

static int setup(void **state)
{
    (void)state;
    return fl_tmp_begin(&dir, &path, "out");
}

static int teardown(void **state)
{
    (void)state;
    return fl_tmp_end(dir, path);
}

static int go; /* a waiting child goes on when this end of its pipe is closed */

/* A child that opens the file, writes a little and waits. Returns when it has. */
static pid_t start_writer(void (*prepare)(void))
{
    int fd[2], wait[2];
    char c;
    assert_true(pipe(fd) == 0 && pipe(wait) == 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fl_err err = {0};
        fl_outfile *f;
        if (prepare) prepare();
        if (fl_outfile_open(&f, path, &err) != FL_OK ||
            fl_outfile_write(f, "new", 3, &err) != FL_OK || fl_outfile_flush(f, &err) != FL_OK ||
            write(fd[1], "x", 1) != 1)
            _exit(3);
        close(wait[1]);
        while (read(wait[0], &c, 1) != 0) {}
        _exit(fl_outfile_commit(&f, &err) == FL_OK ? 42 : 4);
    }
    close(fd[1]);
    assert_int_equal(read(fd[0], &c, 1), 1);
    close(fd[0]);
    close(wait[0]);
    go = wait[1];
    return pid;
}

static int end_writer(pid_t pid, int sig)
{
    int rc;
    assert_int_equal(kill(pid, sig), 0);
    close(go);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    return rc;
}

static void a_signal_removes_the_temporary(void **state)
{
    (void)state;
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        const pid_t pid = start_writer(NULL);
        assert_int_equal(fl_tmp_count(dir), 1);
        const int rc = end_writer(pid, sigs[i]);
        assert_true(WIFSIGNALED(rc) && WTERMSIG(rc) == sigs[i]);
        assert_int_equal(fl_tmp_count(dir), 0);
    }
}

static void go_on(int sig) { (void)sig; }
static void handle_int(void) { signal(SIGINT, go_on); }
static void ignore_int_handle_term(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, go_on);
}

static void a_signal_that_ends_nothing_removes_nothing(void **state)
{
    (void)state;
    fl_err err;
    char *data;
    int rc = end_writer(start_writer(handle_int), SIGINT);
    assert_true(WIFEXITED(rc) && WEXITSTATUS(rc) == 42);
    const pid_t pid = start_writer(ignore_int_handle_term);
    assert_int_equal(kill(pid, SIGINT), 0);
    rc = end_writer(pid, SIGTERM);
    assert_true(WIFEXITED(rc) && WEXITSTATUS(rc) == 42);
    ASSERT_OK(fl_file_load(path, 100, &data, NULL, &err));
    assert_string_equal(data, "new");
    assert_int_equal(fl_tmp_count(dir), 1);
    free(data);
}

/* The child has a copy of the list of temporaries; they are its parent's. */
static void a_child_that_is_ended_leaves_its_parents_file(void **state)
{
    (void)state;
    fl_err err;
    fl_outfile *f;
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        pause();
        _exit(0);
    }
    int rc;
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFSIGNALED(rc));
    assert_int_equal(access(fl_outfile_tmp_path(f), F_OK), 0);
    ASSERT_OK(fl_outfile_commit(&f, &err));
    signal(SIGTERM, SIG_DFL);
}

static void what_a_killed_writer_left_is_removed(void **state)
{
    (void)state;
    fl_err err;
    fl_outfile *f;
    end_writer(start_writer(NULL), SIGKILL);
    end_writer(start_writer(NULL), SIGKILL); /* removes the first one's */
    assert_int_equal(fl_tmp_count(dir), 1);
    const pid_t alive = start_writer(NULL); /* removes the second one's */
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    assert_int_equal(fl_tmp_count(dir), 2);
    ASSERT_OK(fl_outfile_commit(&f, &err));
    assert_int_equal(fl_tmp_count(dir), 2);
    end_writer(alive, SIGTERM);
    assert_int_equal(fl_tmp_count(dir), 1);
}

static char *named(const char *format, long pid)
{
    char name[64];
    snprintf(name, sizeof name, format, pid);
    return fl_tmp_path(dir, name);
}

static void what_may_be_anothers_stays(void **state)
{
    (void)state;
    static const char *const formats[] = {"out.tmp.%ldx",          "out.tmp.0%ld",
                                          "xout.tmp.%ld",          "out.tmp.%ld.bak",
                                          "out.tmp.9999999999%ld", "tmp.%ld"};
    fl_err err;
    fl_outfile *f;
    int rc;
    const pid_t dead = fork();
    assert_true(dead >= 0);
    if (dead == 0) _exit(0);
    assert_int_equal(waitpid(dead, &rc, 0), dead);
    enum { N = sizeof formats / sizeof *formats };
    for (int i = 0; i < N; i++) {
        char *p = named(formats[i], dead);
        fl_tmp_write(p, "x", 1);
        free(p);
    }
    /* Locked: its writer lives where this process cannot see it. */
    char *locked = named("out.tmp.%ld", dead);
    const int fd = open(locked, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    assert_int_equal(fl_tmp_count(dir), N + 2);
    fl_outfile_discard(&f);
    close(fd);
    /* No longer: it goes. A folder of such a name does not. */
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    assert_int_equal(fl_tmp_count(dir), N + 1);
    fl_outfile_discard(&f);
    assert_int_equal(mkdir(locked, 0700), 0);
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    assert_int_equal(fl_tmp_count(dir), N + 2);
    fl_outfile_discard(&f);
    free(locked);
}

/* Process ids come again: what an earlier process of this number left is replaced, what is locked
 * (two containers have a process 1 each) is not. */
static void a_temporary_of_this_number(void **state)
{
    (void)state;
    fl_err err;
    fl_outfile *f, *g = NULL;
    char *mine = named("out.tmp.%ld", getpid()), *data;
    fl_tmp_write(mine, "left from before", 16);
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    ASSERT_FAILS(fl_outfile_open(&g, path, &err), FL_E_IO, "another run may be writing it");
    assert_null(g);
    ASSERT_OK(fl_outfile_write(f, "ab", 2, &err));
    ASSERT_OK(fl_outfile_commit(&f, &err));
    ASSERT_OK(fl_file_load(path, 100, &data, NULL, &err));
    assert_string_equal(data, "ab");
    free(data);
    free(mine);
}

/* PATH.part: left by suspend, gone on with at a place, one holder, never more than it has. */
static void a_part_is_left_and_gone_on_with(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_outfile *f, *other;
    char *part = NULL, *data;
    assert_true(asprintf(&part, "%s" FL_OUTFILE_PART, path) > 0);
    ASSERT_OK(fl_outfile_open_part(&f, path, 0, &err));
    ASSERT_OK(fl_outfile_write(f, "abcdef", 6, &err));
    ASSERT_FAILS(fl_outfile_open_part(&other, path, 0, &err), FL_E_IO, "another run is writing it");
    assert_null(other);
    err = (fl_err){0};
    ASSERT_OK(fl_outfile_suspend(&f, &err));
    assert_null(f);
    ASSERT_FAILS(fl_outfile_open_part(&f, path, 7, &err), FL_E_IO, "at least 7 bytes");
    err = (fl_err){0};
    ASSERT_OK(fl_outfile_open_part(&f, path, 3, &err));
    assert_int_equal(fl_outfile_tell(f), 3);
    ASSERT_OK(fl_outfile_write(f, "XY", 2, &err));
    ASSERT_OK(fl_outfile_sync(f, &err));
    assert_true(access(path, F_OK) != 0);
    ASSERT_OK(fl_outfile_commit(&f, &err));
    ASSERT_OK(fl_file_load(path, 100, &data, NULL, &err));
    assert_string_equal(data, "abcXY");
    free(data);
    ASSERT_OK(fl_outfile_open_part(&f, path, 0, &err));
    fl_outfile_discard(&f);
    assert_true(access(part, F_OK) != 0);
    /* A link in its place is not followed. */
    assert_int_equal(symlink(path, part), 0);
    ASSERT_FAILS(fl_outfile_open_part(&f, path, 0, &err), FL_E_IO, part);
    ASSERT_FAILS(fl_outfile_check(dir, &err), FL_E_ARG, "is a folder");
    err = (fl_err){0};
    ASSERT_OK(fl_outfile_check(path, &err));
    free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_signal_removes_the_temporary, setup, teardown),
        cmocka_unit_test_setup_teardown(a_signal_that_ends_nothing_removes_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_child_that_is_ended_leaves_its_parents_file, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_a_killed_writer_left_is_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(what_may_be_anothers_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(a_temporary_of_this_number, setup, teardown),
        cmocka_unit_test_setup_teardown(a_part_is_left_and_gone_on_with, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
