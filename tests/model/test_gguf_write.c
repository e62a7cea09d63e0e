/* The GGUF writer: what it writes reads back, and a failure leaves no trace. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quant/format.h"
#include "runtime/base/file.h"
#include "runtime/model/gguf_write.h"
#include "runtime/model/source.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

static void fill_meta(fl_gguf_writer *w)
{
    const fl_str words[3] = {{"one", 3}, {"", 0}, {"\xc4\xa0two", 5}};
    const int32_t ids[4] = {11, 11, 10, -1};
    fl_gguf_put_str(w, "general.architecture", "qwen35moe", 9);
    fl_gguf_put_u32(w, "a.u32", 4000000000u);
    fl_gguf_put_i32(w, "a.i32", -7);
    fl_gguf_put_f32(w, "a.f32", 1e-6f);
    fl_gguf_put_bool(w, "a.bool", true);
    fl_gguf_put_strings(w, "a.words", words, 3);
    fl_gguf_put_i32s(w, "a.ids", ids, 4);
}

/* Three tensors whose sizes are no multiple of the alignment. */
static const int64_t shapes[3][3] = {{256, 3, 2}, {5, 1, 1}, {32, 7, 1}};
static const uint32_t types[3] = {FL_TYPE_Q4_K, FL_TYPE_F32, FL_TYPE_Q8_0};
static const uint64_t sizes[3] = {144 * 6, 20, 34 * 7};
static const char *const names[3] = {"blk.0.ffn_gate_exps.weight", "output_norm.weight", "x"};

static void declare(fl_gguf_writer *w)
{
    static const int dims[3] = {3, 1, 2};
    for (int i = 0; i < 3; i++)
        ASSERT_OK(fl_gguf_add_tensor(w, names[i], types[i], dims[i], shapes[i], &err));
}

static uint8_t byte_of(int tensor, uint64_t i)
{
    return (uint8_t)(i * 37 + (uint64_t)tensor * 11 + (i >> 8));
}

static fl_status write_data(fl_gguf_writer *w, uint64_t piece)
{
    for (int t = 0; t < 3; t++) {
        for (uint64_t at = 0; at < sizes[t]; at += piece) {
            uint8_t buf[1024];
            const uint64_t n = sizes[t] - at < piece ? sizes[t] - at : piece;
            for (uint64_t i = 0; i < n; i++) buf[i] = byte_of(t, at + i);
            FL_TRY(fl_gguf_writer_write(w, buf, n, &err));
        }
    }
    return FL_OK;
}

static void write_file(const char *path, uint32_t alignment, uint64_t piece)
{
    fl_gguf_writer *w;
    ASSERT_OK(fl_gguf_writer_create(&w, path, alignment, &err));
    fill_meta(w);
    declare(w);
    const uint64_t total = fl_gguf_writer_bytes(w);
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    ASSERT_OK(write_data(w, piece));
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
    assert_null(w);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, total);
}

static void check_file(const char *path, uint64_t alignment)
{
    fl_source *s;
    ASSERT_OK(fl_source_open(&s, path, &err));
    const fl_gguf *g = fl_source_gguf(s);
    assert_int_equal(fl_gguf_version(g), 3);
    assert_int_equal(fl_gguf_alignment(g), alignment);
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "a.u32"), 0), 4000000000);
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "a.i32"), 0), -7);
    assert_true((float)fl_kv_num(fl_gguf_find(g, "a.f32"), 0) == 1e-6f);
    assert_true(fl_kv_bool(fl_gguf_find(g, "a.bool"), false));
    fl_str words[3];
    assert_true(fl_kv_strings(fl_gguf_find(g, "a.words"), words));
    assert_int_equal(words[1].n, 0);
    assert_memory_equal(words[2].p, "\xc4\xa0two", 5);
    assert_int_equal(fl_kv_int_at(fl_gguf_find(g, "a.ids"), 3, 0), -1);
    assert_int_equal(fl_source_n_tensors(s), 3);
    for (int i = 0; i < 3; i++) {
        uint8_t buf[1024];
        const fl_tensor *t = fl_source_find(s, names[i]);
        assert_non_null(t);
        assert_int_equal(t->type, types[i]);
        assert_int_equal(t->bytes, sizes[i]);
        assert_int_equal(t->offset % alignment, 0);
        assert_memory_equal(t->ne, shapes[i], sizeof shapes[i]);
        ASSERT_OK(fl_source_read(s, t, 0, buf, sizes[i], &err));
        for (uint64_t k = 0; k < sizes[i]; k++) assert_int_equal(buf[k], byte_of(i, k));
    }
    fl_source_close(&s);
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    write_file(path, 0, 1000);
    check_file(path, FL_GGUF_ALIGN);
    write_file(path, 32, 1); /* replaces the first one, byte by byte */
    check_file(path, 32);
    assert_int_equal(fl_tmp_count(dir), 1);
    free(path);
    fl_tmp_remove(dir);
}

static void values_are_copied_from_another_file(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *a = fl_tmp_path(dir, "a.gguf"), *b = fl_tmp_path(dir, "b.gguf");
    write_file(a, 0, 512);
    fl_source *s;
    ASSERT_OK(fl_source_open(&s, a, &err));
    fl_gguf_writer *w;
    ASSERT_OK(fl_gguf_writer_create(&w, b, 0, &err));
    for (size_t i = 0; i < fl_gguf_n_kv(fl_source_gguf(s)); i++) {
        const fl_kv *kv = fl_gguf_kv_at(fl_source_gguf(s), i);
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
        fl_gguf_put_copy(w, key, kv);
    }
    assert_true(fl_gguf_has_key(w, "a.words") && !fl_gguf_has_key(w, "a.word"));
    declare(w);
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    ASSERT_OK(write_data(w, 512));
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
    fl_source_close(&s);
    check_file(b, FL_GGUF_ALIGN);
    free(a);
    free(b);
    fl_tmp_remove(dir);
}

static void bad_declarations_are_refused(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    const int64_t ok[4] = {256, 2, 1, 1}, odd[4] = {255, 2, 1, 1}, none[4] = {0, 2, 1, 1};
    const int64_t huge[4] = {256, INT64_MAX, 4, 1};
    char long_name[80];
    memset(long_name, 'n', sizeof long_name);
    long_name[64] = 0;
    fl_gguf_writer *w;
    ASSERT_FAILS(fl_gguf_writer_create(&w, path, 24, &err), FL_E_ARG, "24");
    assert_null(w);
    ASSERT_OK(fl_gguf_writer_create(&w, path, 0, &err));
    ASSERT_OK(fl_gguf_add_tensor(w, "a", FL_TYPE_Q4_K, 2, ok, &err));
    ASSERT_FAILS(fl_gguf_add_tensor(w, "a", FL_TYPE_Q4_K, 2, ok, &err), FL_E_ARG, "twice");
    ASSERT_FAILS(fl_gguf_add_tensor(w, "b", FL_TYPE_Q4_K, 2, odd, &err), FL_E_ARG, "255");
    ASSERT_FAILS(fl_gguf_add_tensor(w, "b", FL_TYPE_Q4_K, 2, none, &err), FL_E_ARG, "is 0");
    ASSERT_FAILS(fl_gguf_add_tensor(w, "b", FL_TYPE_F32, 3, huge, &err), FL_E_ARG, "dimension");
    ASSERT_FAILS(fl_gguf_add_tensor(w, "b", 5, 2, ok, &err), FL_E_ARG, "type");
    ASSERT_FAILS(fl_gguf_add_tensor(w, "b", FL_TYPE_F32, 5, ok, &err), FL_E_ARG, "5 dimensions");
    ASSERT_FAILS(fl_gguf_add_tensor(w, long_name, FL_TYPE_F32, 2, ok, &err), FL_E_ARG, "63");
    ASSERT_FAILS(fl_gguf_add_tensor(w, "", FL_TYPE_F32, 2, ok, &err), FL_E_ARG, "63");
    fl_gguf_put_u32(w, "k", 1);
    fl_gguf_put_u32(w, "k", 2);
    ASSERT_FAILS(fl_gguf_writer_begin(w, &err), FL_E_ARG, "key k is given twice");
    fl_gguf_writer_discard(&w);
    assert_null(w);
    assert_int_equal(fl_tmp_count(dir), 0);
    free(path);
    fl_tmp_remove(dir);
}

static void discarding_leaves_the_old_file(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    fl_tmp_write(path, "old", 3);
    fl_gguf_writer *w;
    ASSERT_OK(fl_gguf_writer_create(&w, path, 0, &err));
    declare(w);
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    ASSERT_OK(fl_gguf_writer_write(w, "0123", 4, &err));
    assert_int_equal(fl_tmp_count(dir), 2);
    fl_gguf_writer_discard(&w);
    assert_int_equal(fl_tmp_count(dir), 1);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3);
    free(path);
    fl_tmp_remove(dir);
}

static void places_that_cannot_be_written(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "no/such/m.gguf");
    fl_gguf_writer *w;
    ASSERT_OK(fl_gguf_writer_create(&w, path, 0, &err));
    declare(w);
    ASSERT_FAILS(fl_gguf_writer_begin(w, &err), FL_E_IO, "no/such");
    fl_gguf_writer_discard(&w);
    ASSERT_OK(fl_gguf_writer_create(&w, dir, 0, &err));
    declare(w);
    ASSERT_FAILS(fl_gguf_writer_begin(w, &err), FL_E_ARG, "folder");
    fl_gguf_writer_discard(&w);
    free(path);
    fl_tmp_remove(dir);
}

/* A file larger than any disk: refused by its size before a byte is written. */
static void too_large_for_the_disk(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    const int64_t ne[3] = {1 << 20, 1 << 20, 1 << 12}; /* 16 PiB of F32 */
    fl_gguf_writer *w;
    ASSERT_OK(fl_gguf_writer_create(&w, path, 0, &err));
    ASSERT_OK(fl_gguf_add_tensor(w, "a", FL_TYPE_F32, 3, ne, &err));
    ASSERT_FAILS(fl_gguf_writer_begin(w, &err), FL_E_IO, "free");
    assert_non_null(strstr(err.msg, "needs"));
    fl_gguf_writer_discard(&w);
    assert_int_equal(fl_tmp_count(dir), 0);
    free(path);
    fl_tmp_remove(dir);
}

/* A write that fails half way (a file size limit stands for a full disk). */
static void a_failing_write_leaves_nothing(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit lim = {5000, 5000};
        fl_gguf_writer *w;
        signal(SIGXFSZ, SIG_IGN);
        int ok = setrlimit(RLIMIT_FSIZE, &lim) == 0;
        ok = ok && fl_gguf_writer_create(&w, path, 0, &err) == FL_OK;
        if (!ok) _exit(2);
        const int64_t ne[1] = {2000};
        ok = fl_gguf_add_tensor(w, "a", FL_TYPE_F32, 1, ne, &err) == FL_OK &&
             fl_gguf_writer_begin(w, &err) == FL_OK;
        static const float zero[2000];
        fl_status st = ok ? fl_gguf_writer_write(w, zero, sizeof zero, &err) : FL_E_ARG;
        if (st == FL_OK) st = fl_gguf_writer_commit(&w, &err);
        fl_gguf_writer_discard(&w);
        _exit(st == FL_E_IO && strstr(err.msg, "m.gguf") ? 0 : 1);
    }
    int rc;
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), 0);
    assert_int_equal(fl_tmp_count(dir), 0);
    free(path);
    fl_tmp_remove(dir);
}

/* Bytes that change between writing and re-reading are found. */
static void damage_before_the_rename_is_found(void **state)
{
    (void)state;
    static const struct {
        uint64_t at;
        const char *words;
    } damage[2] = {{FL_GGUF_ALIGN + 100, "differs"}, {300, "m.gguf"}};
    for (int i = 0; i < 2; i++) {
        char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf"), tmp[256];
        fl_gguf_writer *w;
        ASSERT_OK(fl_gguf_writer_create(&w, path, 0, &err));
        fill_meta(w);
        declare(w);
        ASSERT_OK(fl_gguf_writer_begin(w, &err));
        ASSERT_OK(write_data(w, 512));
        /* An all-ones patch behind the writer's back, in the temporary it will read. */
        uint64_t ones = UINT64_MAX;
        snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid());
        ASSERT_OK(fl_gguf_writer_flush(w, &err));
        const int fd = open(tmp, O_WRONLY);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, &ones, sizeof ones, (off_t)damage[i].at), sizeof ones);
        close(fd);
        const fl_status st = fl_gguf_writer_commit(&w, &err);
        assert_true(st == FL_E_IO || st == FL_E_FORMAT);
        assert_non_null(strstr(err.msg, damage[i].words));
        assert_int_equal(fl_tmp_count(dir), 0);
        free(path);
        fl_tmp_remove(dir);
    }
}

static atomic_int stop;

static void a_stop_before_the_rename_is_heeded(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf"), *data;
    uint64_t n;
    for (stop = 1; stop >= 0; stop--) {
        fl_gguf_writer *w;
        fl_tmp_write(path, "old", 3);
        ASSERT_OK(fl_gguf_writer_create(&w, path, 0, &err));
        fill_meta(w);
        declare(w);
        ASSERT_OK(fl_gguf_writer_begin(w, &err));
        fl_gguf_writer_stop_on(w, &stop);
        ASSERT_OK(write_data(w, 512));
        if (!stop) {
            ASSERT_OK(fl_gguf_writer_commit(&w, &err));
            continue;
        }
        ASSERT_FAILS(fl_gguf_writer_commit(&w, &err), FL_E_CANCELED, "nothing was changed");
        assert_null(w);
        ASSERT_OK(fl_file_load(path, 100, &data, &n, &err));
        assert_string_equal(data, "old");
        free(data);
        assert_int_equal(fl_tmp_count(dir), 1);
    }
    assert_int_equal(fl_tmp_count(dir), 1);
    free(path);
    fl_tmp_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(values_are_copied_from_another_file),
        cmocka_unit_test(bad_declarations_are_refused),
        cmocka_unit_test(discarding_leaves_the_old_file),
        cmocka_unit_test(places_that_cannot_be_written),
        cmocka_unit_test(too_large_for_the_disk),
        cmocka_unit_test(a_failing_write_leaves_nothing),
        cmocka_unit_test(damage_before_the_rename_is_found),
        cmocka_unit_test(a_stop_before_the_rename_is_heeded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
