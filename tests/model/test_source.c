#include "runtime/model/source.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/safetensors.h"
#include "tests/support/bytes.h"
#include "tests/support/files.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

#define GOLDEN "tests/golden/model/"

static void copy(const char *from, const char *name)
{
    fl_err err;
    char *data, *to = fl_tmp_path(fl_files.dir, name);
    uint64_t n;
    ASSERT_OK(fl_file_load(from, 1 << 26, &data, &n, &err));
    fl_tmp_write(to, data, n);
    free(data);
    free(to);
}

static void write_text(const char *name, const char *text)
{
    char *path = fl_tmp_path(fl_files.dir, name);
    fl_tmp_write(path, text, strlen(text));
    free(path);
}

/* Opening a name in the folder (itself for "") fails with these words and names the path. */
static void refused(const char *name, fl_status status, const char *words)
{
    fl_err err;
    fl_source *s = NULL;
    char *path = *name ? fl_tmp_path(fl_files.dir, name) : strdup(fl_files.dir);
    ASSERT_FAILS(fl_source_open(&s, path, &err), status, words);
    assert_non_null(strstr(err.msg, fl_files.dir));
    assert_null(strchr(err.msg, '\n'));
    assert_null(s);
    free(path);
}

/* A safetensors file: this header text, n bytes of data. */
static void write_st(const char *name, const char *header, size_t n)
{
    fl_bytes b = {0};
    fl_bytes_u64(&b, strlen(header));
    fl_bytes_text(&b, header);
    fl_bytes_zero(&b, n);
    char *path = fl_tmp_path(fl_files.dir, name);
    fl_tmp_write(path, b.p, b.n);
    free(path);
    fl_bytes_free(&b);
}

static void what_is_no_model_is_named(void **state)
{
    (void)state;
    refused("absent.gguf", FL_E_IO, "cannot be opened");
    write_text("empty.gguf", "");
    refused("empty.gguf", FL_E_FORMAT, "is empty (0 bytes)");
    write_text("page.gguf", "\n <!DOCTYPE html>\n<html><body>login</body>");
    refused("page.gguf", FL_E_FORMAT, "this is an HTML page, not a model");
    write_text("page.safetensors", "<HTML><head>");
    refused("page.safetensors", FL_E_FORMAT, "this is an HTML page, not a model");
    write_text("notes.txt", "some notes about models\n");
    refused("notes.txt", FL_E_FORMAT, "this is a text file of 24 bytes");
    write_text("notes.safetensors", "some notes about models\n");
    refused("notes.safetensors", FL_E_FORMAT, "this is a text file");
    write_text("lfs.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    refused("lfs.gguf", FL_E_FORMAT, "git lfs pull");
    write_text("old.bin", "tjgg\x01\x02\x03\x04\x05\x06");
    refused("old.bin", FL_E_UNSUPPORTED, "before GGUF");
    write_text("torch.bin", "PK\x03\x04\x05\x06\x07\x08\x09\x01");
    refused("torch.bin", FL_E_UNSUPPORTED, "PyTorch");
    write_text("big.gguf", "FUGG\x01\x02\x03\x04\x05\x06");
    refused("big.gguf", FL_E_UNSUPPORTED, "big-endian");
    write_text("noise.gguf", "\x01\x02\x03\x04\x05\x06\x07\x08\x09");
    refused("noise.gguf", FL_E_FORMAT, "01 02 03 04: neither GGUF");
    write_text("short.gguf", "GG");
    refused("short.gguf", FL_E_FORMAT, "truncated");
}

static void folders_without_a_model_are_named(void **state)
{
    (void)state;
    refused("", FL_E_FORMAT, "no model in this folder");
    write_text("m.gguf", "GGUF");
    refused("", FL_E_ARG, "m.gguf");
    write_st("a.safetensors", "{}", 0);
    write_st("b.safetensors", "{}", 0);
    refused("", FL_E_FORMAT, "no model.safetensors.index.json");
}

static void gguf_files_open(void **state)
{
    (void)state;
    fl_err err;
    fl_source *s;
    ASSERT_OK(fl_source_open(&s, GOLDEN "tiny-f32.gguf", &err));
    assert_int_equal(fl_source_kind_of(s), FL_SOURCE_GGUF);
    assert_int_equal(fl_source_n_files(s), 1);
    assert_string_equal(fl_source_paths(s)[0], GOLDEN "tiny-f32.gguf");
    assert_non_null(fl_source_gguf(s));
    assert_null(fl_source_config(s));
    assert_null(fl_source_tokenizer_path(s));
    const fl_tensor *t = fl_source_find(s, "token_embd.weight");
    assert_non_null(t);
    assert_int_equal(t->ne[0], 64);
    assert_int_equal(t->ne[1], 336);
    assert_int_equal(t->bytes, 64 * 336 * 4);
    assert_null(fl_source_find(s, "token_embd.weigh"));
    float two[2];
    ASSERT_OK(fl_source_read(s, t, t->bytes - 8, two, 8, &err));
    ASSERT_FAILS(fl_source_read(s, t, t->bytes - 8, two, 9, &err), FL_E_ARG, "asked for");
    ASSERT_FAILS(fl_source_read(s, t, UINT64_MAX, two, 9, &err), FL_E_ARG, "asked for");
    fl_source_close(&s);
    assert_null(s);
    fl_source_close(&s);
}

static void any_shard_opens_the_whole_model(void **state)
{
    (void)state;
    fl_err err;
    fl_source *s;
    const char *paths[] = {GOLDEN "tiny-split-bf16-00001-of-00002.gguf",
                           GOLDEN "tiny-split-bf16-00002-of-00002.gguf"};
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(fl_source_open(&s, paths[i], &err));
        assert_int_equal(fl_source_n_files(s), 2);
        assert_string_equal(fl_source_paths(s)[0], paths[0]);
        assert_string_equal(fl_source_paths(s)[1], paths[1]);
        assert_non_null(fl_gguf_find(fl_source_gguf(s), "general.architecture"));
        assert_int_equal(fl_source_n_tensors(s), 3 * 19 + 16 + 3);
        assert_int_equal(fl_source_tensor(s, fl_source_n_tensors(s) - 1)->file, 1);
        fl_source_close(&s);
    }
}

static void missing_and_renamed_shards_are_named(void **state)
{
    (void)state;
    copy(GOLDEN "tiny-split-bf16-00001-of-00002.gguf", "m-00001-of-00002.gguf");
    refused("m-00001-of-00002.gguf", FL_E_FORMAT, "m-00002-of-00002.gguf: is missing");
    copy(GOLDEN "tiny-split-bf16-00001-of-00002.gguf", "first.gguf");
    refused("first.gguf", FL_E_FORMAT, "part 1 of 2 of a split model but was renamed");
    copy(GOLDEN "tiny-split-bf16-00001-of-00002.gguf", "m-00002-of-00002.gguf");
    refused("m-00001-of-00002.gguf", FL_E_FORMAT, "says it is part 1 of 2, its name says 2 of 2");
    refused("m-00002-of-00002.gguf", FL_E_FORMAT, "was renamed");
    copy(GOLDEN "tiny-f32.gguf", "m-00002-of-00002.gguf");
    refused("m-00001-of-00002.gguf", FL_E_FORMAT, "belongs to another download");
}

static void safetensors_folders_open(void **state)
{
    (void)state;
    fl_err err;
    fl_source *s;
    const char *paths[] = {GOLDEN "hf", GOLDEN "hf/", GOLDEN "hf/model.safetensors"};
    for (int i = 0; i < 3; i++) {
        ASSERT_OK(fl_source_open(&s, paths[i], &err));
        assert_int_equal(fl_source_kind_of(s), FL_SOURCE_SAFETENSORS);
        assert_null(fl_source_gguf(s));
        assert_non_null(fl_source_config(s));
        assert_non_null(fl_source_generation_config(s));
        assert_string_equal(fl_source_tokenizer_path(s), GOLDEN "hf/tokenizer.json");
        const fl_tensor *t =
            fl_source_find(s, "model.language_model.layers.0.linear_attn.conv1d.weight");
        assert_int_equal(t->n_dims, 3);
        assert_int_equal(t->ne[0], 4);
        assert_int_equal(t->ne[1], 1);
        assert_int_equal(t->ne[2], 128);
        assert_int_equal(t->type, FL_TYPE_BF16);
        fl_source_close(&s);
    }
}

static const char head_a[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
static const char head_b[] = "{\"b\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}";

static void sharded_safetensors_open_as_one(void **state)
{
    (void)state;
    fl_err err;
    fl_source *s;
    write_st("model-00001-of-00002.safetensors", head_a, 8);
    refused("", FL_E_FORMAT, "model-00002-of-00002.safetensors: is missing");
    refused("model-00001-of-00002.safetensors", FL_E_FORMAT, "is missing");
    write_st("model-00002-of-00002.safetensors", head_b, 8);
    ASSERT_OK(fl_source_open(&s, fl_files.dir, &err));
    assert_int_equal(fl_source_n_tensors(s), 2);
    assert_null(fl_source_config(s));
    fl_source_close(&s);
    write_text("model.safetensors.index.json",
               "{\"metadata\":{},\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":"
               "\"model-00002-of-00002.safetensors\"}}");
    char *one = fl_tmp_path(fl_files.dir, "model-00002-of-00002.safetensors");
    ASSERT_OK(fl_source_open(&s, one, &err));
    assert_int_equal(fl_source_n_files(s), 2);
    assert_int_equal(fl_source_find(s, "b")->file, 1);
    fl_source_close(&s);
    write_st("model-00001-of-00002.safetensors", head_b, 8);
    refused("", FL_E_FORMAT, "'b' is also in");
    unlink(one);
    refused("", FL_E_FORMAT,
            "model-00002-of-00002.safetensors: is missing, model.safetensors.index");
    write_st("model-00002-of-00002.safetensors", head_a, 8);
    refused("", FL_E_FORMAT, "does not hold it: a shard was renamed");
    free(one);
}

static void damaged_indexes_are_named(void **state)
{
    (void)state;
    write_st("model.safetensors", head_a, 8);
    const struct {
        const char *text, *words;
    } bad[] = {
        {"{", "model.safetensors.index.json"},
        {"[]", "'{'"},
        {"{\"a\":[1,{\"b\":null}],\"c\":\"d\",\"e\":-1.5e3}", "no object weight_map"},
        {"{\"weight_map\":[]}", "'{'"},
        {"{\"weight_map\":{},\"weight_map\":{}}", "no second weight_map"},
        {"{\"weight_map\":{}} x", "the end"},
        {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
         "less deeply"},
        {"{\"weight_map\":{}}", "names no file"},
        {"{\"weight_map\":{\"a\":3}}", "a file name"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "no .safetensors name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no .safetensors name"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text("model.safetensors.index.json", bad[i].text);
        refused("", FL_E_FORMAT, bad[i].words);
    }
    fl_err err;
    fl_source *s;
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"z\":\"other.safetensors\"}}");
    char *one = fl_tmp_path(fl_files.dir, "model.safetensors"); /* no part of the indexed model */
    ASSERT_OK(fl_source_open(&s, one, &err));
    fl_source_close(&s);
    free(one);
    write_text("config.json", "{\"a\":");
    refused("model.safetensors", FL_E_FORMAT, "config.json");
    write_text("config.json", "[1]");
    refused("model.safetensors", FL_E_FORMAT, "not a JSON object");
}

static void safetensors_headers_are_checked(void **state)
{
    (void)state;
    const struct {
        const char *header, *words;
    } bad[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
         "truncated or damaged"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "do not fit together"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", "dimension 0 is 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "whole number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,8]}}", "']'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}",
         "shape is not possible"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
         "below 2^64"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}",
         "end of a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "lacks one of"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "lacks one of"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "comes twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", "'x'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "appears twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "4 bytes before tensor 'a' belong to no tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "4 bytes at its end belong to no tensor"},
        {"{\"a\\u0000\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "escape"},
        {"{\"a\\n\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "control character"},
        {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "name of 0 bytes"},
        {"{\"a\":{}}", "field name"},
        {"{\"a\":[]}", "'{'"},
        {"{\"__metadata__\":{\"x\":{}}}", "a text"},
        {"{} x", "the end"},
        {"{\"a", "text ends"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_st("model.safetensors", bad[i].header, 8);
        refused("model.safetensors", FL_E_FORMAT, bad[i].words);
    }
    write_text("model.safetensors", "\x01\x02\x03");
    refused("model.safetensors", FL_E_FORMAT, "too few");
    write_text("model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\x0f{}");
    refused("model.safetensors", FL_E_FORMAT, "claims a header of 1152921504606846975 bytes");
}

static void safetensors_spellings_are_read(void **state)
{
    (void)state;
    fl_err err;
    fl_source *s;
    write_st(
        "model.safetensors",
        " {\"__metadata__\" : {\"format\":\"pt\", \"t\":\"\\u00e9\\n\"} , \"s\\u0061\\/\\u00e9\": "
        "{\"shape\":[ ], \"dtype\":\"F8_E4M3\", \"data_offsets\":[0,1]},\n\"v\":{\"dtype\":\"U8\","
        "\"shape\":[2,3,4,5,6],\"data_offsets\":[1,721]},\"n\":{\"dtype\":\"F4\",\"shape\":[9],"
        "\"data_offsets\":[721,726]}}  ",
        726);
    char buf[32];
    ASSERT_OK(fl_source_open(&s, fl_files.dir, &err));
    const fl_tensor *t = fl_source_find(s, "sa/\xc3\xa9");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->ne[0], 1);
    assert_string_equal(fl_source_type_name(t->type, buf), "F8_E4M3");
    t = fl_source_find(s, "v");
    assert_int_equal(t->n_dims, 4);
    assert_int_equal(t->ne[0], 6);
    assert_int_equal(t->ne[3], 6); /* 3 * 2 */
    t = fl_source_find(s, "n");
    assert_int_equal(t->bytes, 5);
    assert_string_equal(fl_source_type_name(t->type, buf), "an unknown type");
    assert_string_equal(fl_source_type_name(12, buf), "q4_k");
    assert_string_equal(fl_source_type_name(63, buf), "type 63");
    fl_source_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_no_model_is_named, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(folders_without_a_model_are_named, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test(gguf_files_open),
        cmocka_unit_test(any_shard_opens_the_whole_model),
        cmocka_unit_test_setup_teardown(missing_and_renamed_shards_are_named, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test(safetensors_folders_open),
        cmocka_unit_test_setup_teardown(sharded_safetensors_open_as_one, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(damaged_indexes_are_named, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(safetensors_headers_are_checked, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(safetensors_spellings_are_read, fl_files_setup,
                                        fl_files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
