#include "runtime/model/identity.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static uint64_t identity(const char *path)
{
    fl_err err;
    fl_source *s = NULL;
    uint64_t id = 0;
    ASSERT_OK(fl_source_open(&s, path, &err));
    ASSERT_OK(fl_model_identity(s, &id, &err));
    fl_source_close(&s);
    return id;
}

static char *copy(const char *from, const char *name)
{
    fl_err err;
    char *data, *to = fl_tmp_path(fl_files.dir, name);
    uint64_t n;
    ASSERT_OK(fl_file_load(from, 1 << 26, &data, &n, &err));
    fl_tmp_write(to, data, n);
    free(data);
    return to;
}

/* Flips a bit at byte `at`. */
static void flip(const char *path, off_t at)
{
    uint8_t b;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseeko(f, at, SEEK_SET), 0);
    assert_int_equal(fread(&b, 1, 1, f), 1);
    b ^= 1;
    assert_int_equal(fseeko(f, at, SEEK_SET), 0);
    assert_int_equal(fwrite(&b, 1, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* Where a tensor's data begin. */
static off_t place(const char *path, const char *name)
{
    fl_err err;
    fl_source *s = NULL;
    ASSERT_OK(fl_source_open(&s, path, &err));
    const fl_tensor *t = fl_source_find(s, name);
    assert_non_null(t);
    const off_t at = (off_t)t->offset;
    fl_source_close(&s);
    return at;
}

static void test_gguf(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    char *a = fl_tmp_path(fl_files.dir, "a.gguf"), *c = fl_tmp_path(fl_files.dir, "c.gguf");
    fl_make_gguf(&m, a);
    char *b = copy(a, "another name.gguf");
    const uint64_t id = identity(a);
    assert_true(identity(a) == id);
    assert_true(identity(b) == id);

    flip(b, place(b, "blk.1.ffn_down_exps.weight"));
    assert_true(identity(b) != id);
    flip(b, place(b, "blk.1.ffn_down_exps.weight") + 4095);
    flip(b, place(b, "blk.1.ffn_down_exps.weight"));
    assert_true(identity(b) != id);
    flip(b, place(b, "blk.1.ffn_down_exps.weight") + 4095);
    assert_true(identity(b) == id);

    m.n_ctx++; /* metadata alone */
    fl_make_gguf(&m, c);
    assert_true(identity(c) != id);
    free(a);
    free(b);
    free(c);
}

/* Every shard counts. */
static void test_split(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    char *a = fl_tmp_path(fl_files.dir, "s.gguf");
    char *first = fl_tmp_path(fl_files.dir, "s-00001-of-00002.gguf");
    char *last = fl_tmp_path(fl_files.dir, "s-00002-of-00002.gguf");
    m.n_files = 2;
    fl_make_gguf(&m, a);
    const uint64_t id = identity(first);
    assert_true(identity(last) == id);
    struct stat st;
    assert_int_equal(stat(last, &st), 0);
    flip(last, st.st_size - 1);
    assert_true(identity(first) != id);
    free(a);
    free(first);
    free(last);
}

static void test_safetensors(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    char *a = fl_tmp_path(fl_files.dir, "hf"), *b = fl_tmp_path(fl_files.dir, "hf2");
    fl_make_safetensors(&m, a);
    fl_make_safetensors(&m, b);
    const uint64_t id = identity(a);
    assert_true(identity(b) == id);

    char *tokenizer = fl_tmp_path(b, "tokenizer.json");
    assert_int_equal(access(tokenizer, F_OK), 0);
    flip(tokenizer, 1);
    assert_true(identity(b) != id);
    flip(tokenizer, 1);
    assert_true(identity(b) == id);

    char *generation = fl_tmp_path(b, "generation_config.json");
    fl_tmp_write(generation, "{\"top_k\": 3}", 12);
    assert_true(identity(b) != id);

    m.n_ctx++; /* config.json alone */
    fl_make_safetensors(&m, b);
    assert_true(identity(b) != id);
    free(tokenizer);
    free(generation);
    free(a);
    free(b);
}

static void test_truncated_since(void **state)
{
    (void)state;
    fl_err err;
    fl_source *s = NULL;
    uint64_t id = 0;
    fl_make m = fl_make_tiny();
    char *a = fl_tmp_path(fl_files.dir, "cut.gguf");
    fl_make_gguf(&m, a);
    ASSERT_OK(fl_source_open(&s, a, &err));
    assert_int_equal(truncate(a, 1000), 0);
    ASSERT_FAILS(fl_model_identity(s, &id, &err), FL_E_FORMAT, "truncated");
    fl_source_close(&s);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_truncated_since),
    };
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
