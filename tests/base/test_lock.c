/* One process at a time, and nothing that stays behind: neither a lock of a killed process nor a
 * file of one that let go. */
#include "runtime/base/lock.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *dir, *path;

static int setup(void **state)
{
    (void)state;
    return fl_tmp_begin(&dir, &path, "chat");
}

static int teardown(void **state)
{
    (void)state;
    return fl_tmp_end(dir, path);
}

static void is_held(const char *name)
{
    fl_err err = {0};
    fl_lock *l = NULL;
    ASSERT_FAILS(fl_lock_take(&l, name, &err), FL_E_BUSY, "another run is using it");
    assert_null(l);
}

static void one_at_a_time(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_lock *l = NULL;
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(fl_lock_take(&l, path, &err));
        is_held(path);
        /* The file itself may come and be replaced meanwhile. */
        fl_tmp_write(path, "x", 1);
        is_held(path);
        unlink(path);
        fl_lock_release(&l);
        assert_null(l);
        assert_int_equal(fl_tmp_count(dir), 0);
    }
    fl_lock_release(&l);
}

/* A child that takes the lock and waits; returns when it has it. */
static pid_t start_holder(void)
{
    int fd[2];
    char c = 0;
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fl_err err = {0};
        fl_lock *l = NULL;
        signal(SIGINT, SIG_DFL); /* a shell's background job ignores it */
        const bool held = fl_lock_take(&l, path, &err) == FL_OK;
        if (write(fd[1], held ? "y" : "n", 1) == 1) pause();
        _exit(0);
    }
    assert_int_equal(read(fd[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    close(fd[0]);
    close(fd[1]);
    return pid;
}

static void a_killed_process_holds_nothing(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_lock *l = NULL;
    static const int signals[] = {SIGKILL, SIGTERM, SIGINT};
    for (int i = 0; i < 3; i++) {
        const pid_t pid = start_holder();
        is_held(path);
        assert_int_equal(kill(pid, signals[i]), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(fl_tmp_count(dir), i == 0); /* what SIGKILL left is taken over */
        ASSERT_OK(fl_lock_take(&l, path, &err));
        is_held(path);
        fl_lock_release(&l);
        assert_int_equal(fl_tmp_count(dir), 0);
    }
}

/* Eight processes add to a number in a file, 40 times each; the lock alone makes them take turns,
 * also when its file is removed between one's open and its lock. */
static void no_turn_is_lost(void **state)
{
    (void)state;
    enum { CHILDREN = 8, TURNS = 40 };
    int total = 0;
    fl_tmp_write(path, &total, sizeof total);
    for (int i = 0; i < CHILDREN; i++) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid) continue;
        for (int turn = 0; turn < TURNS;) {
            fl_lock *l = NULL;
            const fl_status st = fl_lock_take(&l, path, NULL);
            if (st == FL_E_BUSY) continue;
            FILE *f = st == FL_OK ? fopen(path, "r+b") : NULL;
            if (!f || fread(&total, sizeof total, 1, f) != 1) _exit(1);
            total++;
            rewind(f);
            if (fwrite(&total, sizeof total, 1, f) != 1 || fclose(f) != 0) _exit(1);
            fl_lock_release(&l);
            turn++;
        }
        _exit(0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status = 1;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    FILE *f = fopen(path, "rb");
    assert_true(f && fread(&total, sizeof total, 1, f) == 1);
    fclose(f);
    assert_int_equal(total, CHILDREN * TURNS);
    unlink(path);
}

static void a_link_is_the_file_it_leads_to(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_lock *l = NULL;
    char *link = fl_tmp_path(dir, "link"), *nowhere = fl_tmp_path(dir, "none/chat");
    assert_int_equal(symlink(path, link), 0);
    ASSERT_FAILS(fl_lock_take(&l, link, &err), FL_E_IO, "leads to no file");
    fl_tmp_write(path, "x", 1);
    ASSERT_OK(fl_lock_take(&l, link, &err));
    is_held(path);
    fl_lock_release(&l);
    ASSERT_FAILS(fl_lock_take(&l, nowhere, &err), FL_E_IO, "none/chat.lock: cannot be created");
    unlink(link);
    unlink(path);
    free(link);
    free(nowhere);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_at_a_time),
        cmocka_unit_test(a_killed_process_holds_nothing),
        cmocka_unit_test(no_turn_is_lost),
        cmocka_unit_test(a_link_is_the_file_it_leads_to),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
