#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static void open_names_what_is_wrong(void **state)
{
    (void)state;
    fl_err err;
    int fd;
    char *dir = fl_tmp_make(), *fifo = fl_tmp_path(dir, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    ASSERT_FAILS(fl_file_open("/nonexistent/x", &fd, NULL, &err), FL_E_IO,
                 "/nonexistent/x: cannot be opened");
    ASSERT_FAILS(fl_file_open(dir, &fd, NULL, &err), FL_E_FORMAT, "is a folder");
    ASSERT_FAILS(fl_file_open(fifo, &fd, NULL, &err), FL_E_FORMAT, "not a regular file");
    assert_int_equal(fd, -1);
    free(fifo);
    fl_tmp_remove(dir);
}

static void reads_are_whole_or_errors(void **state)
{
    (void)state;
    fl_err err;
    int fd;
    uint64_t size;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "f"), *data, buf[8] = {0};
    fl_tmp_write(path, "0123456789", 10);
    ASSERT_OK(fl_file_open(path, &fd, &size, &err));
    assert_int_equal(size, 10);
    ASSERT_OK(fl_file_read_at(fd, buf, 4, 6, path, &err));
    assert_memory_equal(buf, "6789", 4);
    ASSERT_FAILS(fl_file_read_at(fd, buf, 5, 6, path, &err), FL_E_FORMAT, "ends at byte 10");
    close(fd);
    ASSERT_FAILS(fl_file_read_at(fd, buf, 1, 0, path, &err), FL_E_IO, "read at byte 0");
    ASSERT_OK(fl_file_load(path, 10, &data, &size, &err));
    assert_string_equal(data, "0123456789");
    free(data);
    ASSERT_FAILS(fl_file_load(path, 9, &data, &size, &err), FL_E_FORMAT, "at most 9");
    assert_null(data);
    free(path);
    fl_tmp_remove(dir);
}

static void outfile_appears_only_when_committed(void **state)
{
    (void)state;
    fl_err err;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "out"), *data;
    fl_tmp_write(path, "old", 3);
    fl_outfile *f;
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    char *big = malloc(3 << 20);
    memset(big, 'x', 3 << 20);
    ASSERT_OK(fl_outfile_write(f, "head", 4, &err));
    ASSERT_OK(fl_outfile_write(f, big, 3 << 20, &err));
    ASSERT_OK(fl_outfile_write(f, "tail", 4, &err));
    ASSERT_OK(fl_outfile_write_at(f, "HE", 2, 0, &err));
    assert_int_equal(fl_outfile_tell(f), (3 << 20) + 8);
    uint64_t n;
    ASSERT_OK(fl_file_load(path, 100, &data, &n, &err));
    assert_string_equal(data, "old");
    free(data);
    ASSERT_OK(fl_outfile_commit(&f, &err));
    assert_null(f);
    ASSERT_OK(fl_file_load(path, 4 << 20, &data, &n, &err));
    assert_int_equal(n, (3 << 20) + 8);
    assert_memory_equal(data, "HEadxx", 6);
    assert_memory_equal(data + n - 5, "xtail", 5);
    free(data);
    free(big);

    ASSERT_OK(fl_outfile_open(&f, path, &err));
    ASSERT_OK(fl_outfile_write(f, "gone", 4, &err));
    fl_outfile_discard(&f);
    fl_outfile_discard(&f); /* NULL is fine */
    assert_int_equal(fl_tmp_count(dir), 1);
    ASSERT_FAILS(fl_outfile_open(&f, dir, &err), FL_E_ARG, "is a folder");
    ASSERT_FAILS(fl_outfile_open(&f, "", &err), FL_E_ARG, "an empty file name");
    ASSERT_FAILS(fl_outfile_open(&f, "/nonexistent/x", &err), FL_E_IO, "cannot be created");
    free(path);
    fl_tmp_remove(dir);
}

/* The link stays a link, the file behind it changes; the temporary lies beside that file. */
static void outfile_writes_through_a_link(void **state)
{
    (void)state;
    fl_err err;
    char *dir = fl_tmp_make(), *other = fl_tmp_make(), *data;
    char *target = fl_tmp_path(other, "target"), *link = fl_tmp_path(dir, "link");
    char *second = fl_tmp_path(dir, "second");
    uint64_t n;
    fl_outfile *f;
    struct stat st;
    fl_tmp_write(target, "old", 3);
    assert_int_equal(symlink(target, link), 0);
    assert_int_equal(symlink("link", second), 0);
    ASSERT_OK(fl_outfile_open(&f, second, &err));
    assert_int_equal(fl_tmp_count(dir), 2);
    assert_int_equal(fl_tmp_count(other), 2);
    ASSERT_OK(fl_outfile_write(f, "fresh", 5, &err));
    ASSERT_OK(fl_outfile_commit(&f, &err));
    assert_int_equal(fl_tmp_count(other), 1);
    assert_int_equal(lstat(second, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    ASSERT_OK(fl_file_load(target, 100, &data, &n, &err));
    assert_string_equal(data, "fresh");
    free(data);
    assert_int_equal(unlink(target), 0);
    ASSERT_FAILS(fl_outfile_open(&f, second, &err), FL_E_IO, "leads to no file");
    assert_int_equal(fl_tmp_count(other), 0);
    free(target);
    free(link);
    free(second);
    fl_tmp_remove(other);
    fl_tmp_remove(dir);
}

static void a_full_disk_leaves_nothing(void **state)
{
    (void)state;
    fl_err err;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "out");
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    const struct rlimit small = {1 << 20, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    fl_outfile *f;
    ASSERT_OK(fl_outfile_open(&f, path, &err));
    char *big = calloc(1, 2 << 20);
    setrlimit(RLIMIT_FSIZE, &small);
    ASSERT_FAILS(fl_outfile_write(f, big, 2 << 20, &err), FL_E_IO, "write at byte");
    setrlimit(RLIMIT_FSIZE, &old);
    fl_outfile_discard(&f);
    assert_int_equal(fl_tmp_count(dir), 0);
    free(big);
    free(path);
    fl_tmp_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_names_what_is_wrong),
        cmocka_unit_test(reads_are_whole_or_errors),
        cmocka_unit_test(outfile_appears_only_when_committed),
        cmocka_unit_test(outfile_writes_through_a_link),
        cmocka_unit_test(a_full_disk_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
