/* The GGUF writer for large files: split output, and what is kept to be gone on with. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/gguf_write.h"
#include "runtime/model/source.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N = 6, COLS = 2000, MOST = 32 << 10 };

static char *dir, *path;
static fl_err err;
static uint64_t hash[N];

static int setup(void **state)
{
    (void)state;
    return fl_tmp_begin(&dir, &path, "m.gguf");
}

static int teardown(void **state)
{
    (void)state;
    return fl_tmp_end(dir, path);
}

/* N tensors of 8,000 bytes, 8,192 with padding: three go into a part. */
static fl_gguf_writer *make(uint64_t split)
{
    fl_gguf_writer *w;
    ASSERT_OK(fl_gguf_writer_create(&w, path, 0, &err));
    fl_gguf_put_str(w, "general.architecture", "qwen35moe", 9);
    const int64_t ne[1] = {COLS};
    for (int i = 0; i < N; i++) {
        const char name[2] = {(char)('a' + i), 0};
        ASSERT_OK(fl_gguf_add_tensor(w, name, FL_TYPE_F32, 1, ne, &err));
    }
    fl_gguf_writer_keep(w);
    fl_gguf_writer_split(w, split);
    ASSERT_OK(fl_gguf_writer_layout(w, &err));
    return w;
}

static void fill(fl_gguf_writer *w, size_t until)
{
    for (size_t i; (i = fl_gguf_writer_next(w)) < until;) {
        float v[COLS];
        for (int k = 0; k < COLS; k++) v[k] = (float)(i * 10000 + (size_t)k);
        ASSERT_OK(fl_gguf_writer_write(w, v, sizeof v, &err));
        hash[i] = fl_gguf_writer_hash(w, i);
    }
}

static char *part_name(int i, int n, const char *end)
{
    char *name = fl_gguf_part_name(path, i, n), *all = NULL;
    assert_true(name && asprintf(&all, "%s%s", name, end) > 0);
    free(name);
    return all;
}

static bool there(int i, const char *end)
{
    char *name = part_name(i, 2, end);
    const bool is = access(name, F_OK) == 0;
    free(name);
    return is;
}

static void check(const char *first)
{
    fl_source *s;
    ASSERT_OK(fl_source_open(&s, first, &err));
    assert_int_equal(fl_source_n_tensors(s), N);
    for (int i = 0; i < N; i++) {
        float v[COLS];
        const char name[2] = {(char)('a' + i), 0};
        const fl_tensor *t = fl_source_find(s, name);
        assert_non_null(t);
        assert_int_equal(t->offset % FL_GGUF_ALIGN, 0);
        ASSERT_OK(fl_source_read(s, t, 0, v, sizeof v, &err));
        for (int k = 0; k < COLS; k++) assert_true(v[k] == (float)(i * 10000 + k));
    }
    fl_source_close(&s);
}

static void check_parts(void)
{
    char *first = part_name(0, 2, "");
    check(first);
    free(first);
    assert_int_equal(fl_tmp_count(dir), 2);
}

static void parts_are_named_and_filled_as_llama_cpp_does(void **state)
{
    (void)state;
    fl_gguf_writer *w = make(MOST);
    assert_int_equal(fl_gguf_writer_parts(w), 2);
    const uint64_t id = fl_gguf_writer_identity(w), bytes = fl_gguf_writer_bytes(w);
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    fill(w, N);
    assert_true(there(0, ".part") && there(1, ".part"));
    assert_false(there(0, "") || there(1, ""));
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
    check_parts();
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++) {
        char *name = part_name(i, 2, "");
        fl_source *s;
        struct stat sb;
        assert_int_equal(stat(name, &sb), 0);
        assert_true(sb.st_size <= MOST);
        sum += (uint64_t)sb.st_size;
        ASSERT_OK(fl_source_open(&s, name, &err));
        const fl_gguf *g = fl_source_gguf(s);
        assert_int_equal(fl_gguf_find(g, "split.no")->type, FL_GGUF_U16);
        assert_int_equal(fl_gguf_find(g, "split.count")->type, FL_GGUF_U16);
        assert_int_equal(fl_kv_int(fl_gguf_find(g, "split.count"), 0), 2);
        assert_int_equal(fl_gguf_find(g, "split.tensors.count")->type, FL_GGUF_I32);
        assert_int_equal(fl_kv_int(fl_gguf_find(g, "split.tensors.count"), 0), N);
        fl_source_close(&s);
        free(name);
    }
    assert_int_equal(sum, bytes);
    /* What fits is one file under the plain name; other parts are another output. */
    w = make(1 << 20);
    assert_int_equal(fl_gguf_writer_parts(w), 1);
    assert_true(fl_gguf_writer_identity(w) != id);
    assert_string_equal(fl_gguf_writer_part(w, 0), path);
    fl_gguf_writer_discard(&w);
    w = make(1); /* each tensor is too large */
    assert_int_equal(fl_gguf_writer_parts(w), N);
    fl_gguf_writer_discard(&w);
}

/* Ended behind k tensors, gone on with. */
/* The file as it must be, out of one that is resumed; then none again. */
static void complete_and_remove(fl_gguf_writer *w)
{
    fill(w, N);
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
    check_parts();
    char *a = part_name(0, 2, ""), *b = part_name(1, 2, "");
    assert_true(unlink(a) == 0 && unlink(b) == 0);
    free(a);
    free(b);
}

static void what_is_kept_is_gone_on_with(void **state)
{
    (void)state;
    for (size_t k = 0; k <= N; k++) {
        fl_gguf_writer *w = make(MOST);
        ASSERT_OK(fl_gguf_writer_begin(w, &err));
        fill(w, k);
        ASSERT_OK(fl_gguf_writer_suspend(&w, &err));
        assert_null(w);
        w = make(MOST);
        ASSERT_OK(fl_gguf_writer_resume(w, hash, k, &err));
        assert_int_equal(fl_gguf_writer_next(w), k);
        complete_and_remove(w);
    }
}

/* A kill between the two renames. */
static void half_the_renames_are_completed(void **state)
{
    (void)state;
    fl_gguf_writer *w = make(MOST);
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    fill(w, N);
    ASSERT_OK(fl_gguf_writer_suspend(&w, &err));
    char *tmp = part_name(0, 2, ".part"), *name = part_name(0, 2, "");
    assert_int_equal(rename(tmp, name), 0);
    w = make(MOST);
    ASSERT_OK(fl_gguf_writer_resume(w, hash, N, &err));
    assert_int_equal(fl_gguf_writer_next(w), N);
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
    check_parts();
    free(tmp);
    free(name);
}

/* A hash that does not fit the bytes: that tensor and all behind it are written again. */
static void damaged_tensors_are_not_kept(void **state)
{
    (void)state;
    for (size_t bad = 0; bad < N; bad++) {
        fl_gguf_writer *w = make(MOST);
        ASSERT_OK(fl_gguf_writer_begin(w, &err));
        fill(w, N);
        ASSERT_OK(fl_gguf_writer_suspend(&w, &err));
        hash[bad] ^= 1;
        w = make(MOST);
        ASSERT_OK(fl_gguf_writer_resume(w, hash, N, &err));
        assert_int_equal(fl_gguf_writer_next(w), bad);
        complete_and_remove(w);
    }
}

static void a_discard_leaves_nothing(void **state)
{
    (void)state;
    fl_gguf_writer *w = make(MOST);
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    fill(w, N);
    assert_int_equal(fl_tmp_count(dir), 2);
    fl_gguf_writer_discard(&w);
    assert_int_equal(fl_tmp_count(dir), 0);
    /* A stop at the end keeps what is there, a second writer is refused. */
    static const atomic_int stop = 1;
    fl_gguf_writer *other = make(0);
    w = make(0);
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    ASSERT_FAILS(fl_gguf_writer_begin(other, &err), FL_E_IO, "another run is writing it");
    err = (fl_err){0};
    fill(w, N);
    fl_gguf_writer_stop_on(w, &stop);
    ASSERT_FAILS(fl_gguf_writer_commit(&w, &err), FL_E_CANCELED, "interrupted");
    assert_int_equal(fl_tmp_count(dir), 1);
    w = make(0);
    err = (fl_err){0};
    ASSERT_OK(fl_gguf_writer_resume(w, hash, N, &err));
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
    check(path);
    fl_gguf_writer_discard(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(parts_are_named_and_filled_as_llama_cpp_does, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_is_kept_is_gone_on_with, setup, teardown),
        cmocka_unit_test_setup_teardown(half_the_renames_are_completed, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_tensors_are_not_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(a_discard_leaves_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
