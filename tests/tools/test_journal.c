/* The journal of a run: what was noted is read again, what is torn or damaged is not. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/tools/journal.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N = 5 };

static char *dir, *target, *path;
static fl_err err;
static const fl_journal_key key = {.options = 1, .source = 2, .n_tensors = N, .n_parts = 3};

static int setup(void **state)
{
    (void)state;
    dir = fl_tmp_make();
    target = fl_tmp_path(dir, "out.gguf");
    path = fl_tmp_path(dir, "out.gguf.resume");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(target);
    free(path);
    fl_tmp_remove(dir);
    return 0;
}

static fl_journal *opened(void)
{
    fl_journal *j;
    ASSERT_OK(fl_journal_open(&j, target, &err));
    return j;
}

static void check(fl_journal *j, size_t want)
{
    fl_journal_key k = {0};
    uint64_t *hash;
    size_t n;
    bool found;
    ASSERT_OK(fl_journal_load(j, &k, &hash, &n, &found, &err));
    assert_true(found);
    assert_true(k.options == key.options && k.source == key.source);
    assert_true(k.n_tensors == key.n_tensors && k.n_parts == key.n_parts);
    assert_int_equal(n, want);
    for (size_t i = 0; i < n; i++) assert_int_equal(hash[i], 100 + i);
    free(hash);
}

static void write_journal(size_t n)
{
    fl_journal *j = opened();
    ASSERT_OK(fl_journal_start(j, &key, &err));
    for (size_t i = 0; i < n; i++) ASSERT_OK(fl_journal_add(j, 100 + i, &err));
    assert_int_equal(fl_journal_count(j), n);
    ASSERT_OK(fl_journal_sync(j, &err));
    fl_journal_close(&j);
    assert_null(j);
}

static void what_is_noted_reads_back(void **state)
{
    (void)state;
    fl_journal_key k;
    uint64_t *hash;
    size_t n;
    bool found;
    fl_journal *j = opened();
    ASSERT_OK(fl_journal_load(j, &k, &hash, &n, &found, &err));
    assert_false(found);
    assert_null(hash);
    fl_journal_close(&j);
    write_journal(4);
    j = opened();
    check(j, 4);
    /* Gone on with behind the second: the others do not count any more. */
    ASSERT_OK(fl_journal_go_on(j, &key, 2, &err));
    check(j, 2);
    ASSERT_OK(fl_journal_add(j, 102, &err));
    check(j, 3);
    fl_journal_remove(&j);
    assert_null(j);
    assert_int_equal(fl_tmp_count(dir), 0);
    fl_journal_remove(&j);
    ASSERT_FAILS(fl_journal_open(&j, "/no/such/out", &err), FL_E_IO, "/no/such/out.resume");
    assert_null(j);
}

/* Cut anywhere, or one bit wrong anywhere: records up to there, or none. */
static void damage_ends_it(void **state)
{
    (void)state;
    char *data;
    uint64_t size;
    write_journal(N);
    ASSERT_OK(fl_file_load(path, 4096, &data, &size, &err));
    const size_t head = size - N * 16;
    for (size_t cut = 0; cut <= size; cut++) {
        fl_journal_key k;
        uint64_t hash[N];
        size_t n;
        uint8_t *exact = malloc(cut + 1); /* so that sanitizers see a read behind its end */
        assert_non_null(exact);
        memcpy(exact, data, cut);
        assert_int_equal(fl_journal_parse(exact, cut, &k, hash, &n), cut >= head);
        assert_int_equal(n, cut < head ? 0 : (cut - head) / 16);
        free(exact);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        fl_journal_key k;
        uint64_t hash[N];
        size_t n;
        data[bit / 8] = (char)(data[bit / 8] ^ 1 << bit % 8);
        const bool any = fl_journal_parse((const uint8_t *)data, size, &k, hash, &n);
        assert_int_equal(any, bit / 8 >= head);
        assert_int_equal(n, any ? (bit / 8 - head) / 16 : 0);
        data[bit / 8] = (char)(data[bit / 8] ^ 1 << bit % 8);
    }
    free(data);
}

static void one_holder_at_a_time(void **state)
{
    (void)state;
    fl_journal *j = opened();
    int rc;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fl_journal *k;
        fl_err e = {0};
        const bool ok = fl_journal_open(&k, target, &e) == FL_E_IO && !k &&
                        strstr(e.msg, "another run is writing it");
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
    fl_journal_remove(&j);
    write_journal(1);
    /* Whatever lies there and is none is written over. */
    fl_tmp_write(path, "something else", 14);
    j = opened();
    ASSERT_OK(fl_journal_start(j, &key, &err));
    check(j, 0);
    fl_journal_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_noted_reads_back, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(one_holder_at_a_time, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
