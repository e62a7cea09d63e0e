#include "runtime/model/gguf.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static const uint64_t ne2[] = {32, 4};

/* One F32 tensor {32, 4} of 512 bytes behind `kvs` (n_kv of them). */
static fl_bytes small(uint32_t version, uint64_t n_kv, const fl_bytes *kvs)
{
    fl_bytes b = {0};
    fl_bytes_gguf_head(&b, version, 1, n_kv);
    if (kvs) fl_bytes_put(&b, kvs->p, kvs->n);
    fl_bytes_tensor(&b, "token_embd.weight", 2, ne2, 0, 0);
    fl_bytes_pad(&b, 32);
    fl_bytes_zero(&b, 512);
    return b;
}

static void refused(fl_bytes *b, fl_status status, const char *words)
{
    fl_err err;
    fl_gguf *g = NULL;
    ASSERT_FAILS(fl_gguf_parse(&g, b->p, b->n, "model.gguf", &err), status, words);
    assert_null(g);
    assert_non_null(strstr(err.msg, "model.gguf: "));
    fl_bytes_free(b);
}

static void both_versions_are_read(void **state)
{
    (void)state;
    for (uint32_t v = 2; v <= 3; v++) {
        fl_err err;
        fl_gguf *g = NULL;
        fl_bytes b = small(v, 0, NULL);
        ASSERT_OK(fl_gguf_parse(&g, b.p, b.n, "m", &err));
        assert_int_equal(fl_gguf_version(g), v);
        assert_int_equal(fl_gguf_alignment(g), 32);
        assert_int_equal(fl_gguf_n_tensors(g), 1);
        const fl_gguf_tensor *t = fl_gguf_tensor_at(g, 0);
        assert_int_equal(t->bytes, 512);
        assert_int_equal(t->ne[0], 32);
        assert_int_equal(t->ne[1], 4);
        assert_int_equal(t->ne[2], 1);
        assert_int_equal(fl_gguf_data_start(g) + 512, b.n);
        fl_gguf_close(&g);
        assert_null(g);
        fl_bytes_free(&b);
    }
}

static void put_scalar(fl_bytes *k, const char *key, uint32_t type, uint64_t v, int bytes)
{
    fl_bytes_str(k, key);
    fl_bytes_u32(k, type);
    fl_bytes_put(k, &v, (size_t)bytes);
}

static void values_are_read_whatever_their_type(void **state)
{
    (void)state;
    fl_err err;
    fl_gguf *g = NULL;
    fl_bytes k = {0};
    put_scalar(&k, "u8", FL_GGUF_U8, 200, 1);
    put_scalar(&k, "i8", FL_GGUF_I8, (uint8_t)-3, 1);
    put_scalar(&k, "i16", FL_GGUF_I16, (uint16_t)-300, 2);
    put_scalar(&k, "i32", FL_GGUF_I32, (uint32_t)-70000, 4);
    put_scalar(&k, "u64", FL_GGUF_U64, UINT64_MAX, 8);
    put_scalar(&k, "i64", FL_GGUF_I64, (uint64_t)-5, 8);
    put_scalar(&k, "f32", FL_GGUF_F32, 0x3fc00000, 4);
    put_scalar(&k, "f64", FL_GGUF_F64, 0x4004000000000000, 8);
    put_scalar(&k, "bool", FL_GGUF_BOOL, 1, 1);
    fl_bytes_kv_str(&k, "str", "text");
    fl_bytes_str(&k, "arr");
    fl_bytes_u32(&k, FL_GGUF_ARRAY);
    fl_bytes_u32(&k, FL_GGUF_I32);
    fl_bytes_u64(&k, 2);
    fl_bytes_u32(&k, 7);
    fl_bytes_u32(&k, (uint32_t)-8);
    fl_bytes_str(&k, "words");
    fl_bytes_u32(&k, FL_GGUF_ARRAY);
    fl_bytes_u32(&k, FL_GGUF_STRING);
    fl_bytes_u64(&k, 2);
    fl_bytes_str(&k, "");
    fl_bytes_str(&k, "two");
    fl_bytes b = small(3, 12, &k);
    ASSERT_OK(fl_gguf_parse(&g, b.p, b.n, "m", &err));
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "u8"), 0), 200);
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "i8"), 0), -3);
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "i16"), 0), -300);
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "i32"), 0), -70000);
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "u64"), 9), 9); /* does not fit */
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "i64"), 0), -5);
    assert_int_equal(fl_kv_int(fl_gguf_find(g, "f32"), 4), 4);
    assert_true(fl_kv_num(fl_gguf_find(g, "f32"), 0) == 1.5);
    assert_true(fl_kv_num(fl_gguf_find(g, "f64"), 0) == 2.5);
    assert_true(fl_kv_num(fl_gguf_find(g, "i8"), 0) == -3.0);
    assert_true(fl_kv_num(fl_gguf_find(g, "u64"), 0) == 0x1p64);
    assert_true(fl_kv_num(fl_gguf_find(g, "str"), 7) == 7.0);
    assert_true(fl_kv_bool(fl_gguf_find(g, "bool"), false));
    assert_true(fl_kv_bool(fl_gguf_find(g, "absent"), true));
    const fl_str s = fl_kv_str(fl_gguf_find(g, "str"));
    assert_int_equal(s.n, 4);
    assert_memory_equal(s.p, "text", 4);
    assert_null(fl_kv_str(fl_gguf_find(g, "u8")).p);
    const fl_kv *arr = fl_gguf_find(g, "arr");
    assert_int_equal(arr->count, 2);
    assert_int_equal(fl_kv_int_at(arr, 1, 0), -8);
    assert_int_equal(fl_kv_int_at(arr, 2, 99), 99);
    assert_true(fl_kv_num_at(arr, 0, 0) == 7.0);
    assert_int_equal(fl_kv_int_at(fl_gguf_find(g, "u8"), 0, 55), 55);
    fl_str words[2];
    assert_false(fl_kv_strings(arr, words));
    assert_true(fl_kv_strings(fl_gguf_find(g, "words"), words));
    assert_int_equal(words[0].n, 0);
    assert_memory_equal(words[1].p, "two", 3);
    assert_int_equal(fl_kv_int_at(fl_gguf_find(g, "words"), 0, 5), 5);
    fl_gguf_close(&g);
    fl_bytes_free(&k);
    fl_bytes_free(&b);
}

static void headers_are_refused_in_one_line(void **state)
{
    (void)state;
    fl_bytes b = {0};
    fl_bytes_text(&b, "GGU");
    refused(&b, FL_E_FORMAT, "truncated");
    fl_bytes_text(&b, "GGML-and-more");
    refused(&b, FL_E_FORMAT, "not a GGUF file");
    b = small(1, 0, NULL);
    refused(&b, FL_E_UNSUPPORTED, "version 1");
    b = small(4, 0, NULL);
    refused(&b, FL_E_FORMAT, "version 4");
    b = small(0x03000000, 0, NULL);
    refused(&b, FL_E_UNSUPPORTED, "big-endian");
    fl_bytes_gguf_head(&b, 3, 1, 1ull << 60);
    fl_bytes_zero(&b, 4096);
    refused(&b, FL_E_FORMAT, "metadata keys, the file can hold");
    fl_bytes_gguf_head(&b, 3, 1ull << 60, 0);
    fl_bytes_zero(&b, 4096);
    refused(&b, FL_E_FORMAT, "tensors, the file can hold");
}

static void metadata_is_refused_in_one_line(void **state)
{
    (void)state;
    fl_bytes k = {0}, b;
    fl_bytes_kv_u32(&k, "a", 1);
    fl_bytes_kv_u32(&k, "a", 1);
    b = small(3, 2, &k);
    refused(&b, FL_E_FORMAT, "'a' appears twice");
    fl_bytes_free(&k);

    fl_bytes_u64(&k, 1ull << 60); /* a key of 2^60 bytes */
    b = small(3, 1, &k);
    refused(&b, FL_E_FORMAT, "metadata key 1 of 1");
    fl_bytes_free(&k);

    fl_bytes_str(&k, "s");
    fl_bytes_u32(&k, FL_GGUF_STRING);
    fl_bytes_u64(&k, 1ull << 60);
    b = small(3, 1, &k);
    refused(&b, FL_E_FORMAT, "truncated or damaged");
    fl_bytes_free(&k);

    const struct {
        uint32_t elem;
        uint64_t n;
        const char *words;
    } arrays[] = {
        {FL_GGUF_ARRAY, 1, "no arrays inside arrays"},
        {FL_GGUF_STRING, 1ull << 61, "elements, more than the file can hold"},
        {FL_GGUF_U64, 1ull << 61, "elements, more than the file can hold"},
        {FL_GGUF_U8, UINT64_MAX, "elements, more than the file can hold"},
        {13, 1, "value type 13"},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        fl_bytes_str(&k, "a");
        fl_bytes_u32(&k, FL_GGUF_ARRAY);
        fl_bytes_u32(&k, arrays[i].elem);
        fl_bytes_u64(&k, arrays[i].n);
        b = small(3, 1, &k);
        refused(&b, FL_E_FORMAT, arrays[i].words);
        fl_bytes_free(&k);
    }
    const uint32_t bad_alignment[] = {0, 24, 1u << 31};
    for (int i = 0; i < 3; i++) {
        fl_bytes_kv_u32(&k, "general.alignment", bad_alignment[i]);
        b = small(3, 1, &k);
        refused(&b, FL_E_FORMAT, "general.alignment");
        fl_bytes_free(&k);
    }
}

/* One tensor table of n entries, then 1,024 bytes of data. */
static fl_bytes table(uint64_t n, const char *const *name, uint32_t n_dims, const uint64_t *ne,
                      uint32_t type, const uint64_t *offset)
{
    fl_bytes b = {0};
    fl_bytes_gguf_head(&b, 3, n, 0);
    for (uint64_t i = 0; i < n; i++) fl_bytes_tensor(&b, name[i], n_dims, ne, type, offset[i]);
    fl_bytes_pad(&b, 32);
    fl_bytes_zero(&b, 1024);
    return b;
}

static void tensors_are_refused_in_one_line(void **state)
{
    (void)state;
    const char *one[] = {"t"}, *two[] = {"t", "u"}, *same[] = {"t", "t"}, *none[] = {""},
               *escape[] = {"t\033[2J"};
    const uint64_t zero[] = {0, 0}, next[] = {0, 512}, overlap[] = {0, 480}, odd[] = {16},
                   far[] = {1024}, huge[] = {1ull << 63};
    const uint64_t ne1[] = {24, 1}, gap[] = {0, 128}, empty[] = {32, 0},
                   negative[] = {32, (uint64_t)-4}, product[] = {1ull << 32, 1ull << 31, 2},
                   bytes[] = {1ull << 62}, row[] = {33, 2};
    const struct {
        fl_bytes b;
        const char *words;
    } bad[] = {
        {table(2, same, 2, ne2, 0, next), "'t' appears twice"},
        {table(2, two, 2, ne2, 0, overlap), "'t' and 'u' overlap"},
        {table(2, two, 2, ne2, 0, zero), "overlap"},
        {table(2, two, 2, ne1, 0, gap), "32 bytes between tensors 't' and 'u' belong to neither"},
        {table(1, one, 2, ne2, 0, odd), "not a multiple of the alignment 32"},
        {table(1, one, 2, ne2, 0, far), "truncated or damaged"},
        {table(1, one, 2, ne2, 0, huge), "truncated or damaged"},
        {table(1, one, 2, empty, 0, zero), "dimension 1 is 0"},
        {table(1, one, 2, negative, 0, zero), "dimension 1 is -4"},
        {table(1, one, 3, product, 0, zero), "shape is not possible"},
        {table(1, one, 1, bytes, 28, zero), "larger than 2^64"},
        {table(1, one, 2, row, 8, zero), "do not divide into blocks of 32 (q8_0)"},
        {table(1, none, 2, ne2, 0, zero), "name of 0 bytes"},
        {table(1, escape, 2, ne2, 0, zero), "with a control character in it"},
        {table(1, one, 0, ne2, 0, zero), "0 dimensions"},
        {table(1, one, 5, (uint64_t[5]){1, 1, 1, 1, 1}, 0, zero), "5 dimensions"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_bytes b = bad[i].b;
        refused(&b, FL_E_FORMAT, bad[i].words);
    }
    fl_err err;
    fl_gguf *g = NULL;
    fl_bytes b = table(1, one, 2, ne2, 99, zero); /* unknown types are the index's business */
    ASSERT_OK(fl_gguf_parse(&g, b.p, b.n, "m", &err));
    assert_int_equal(fl_gguf_tensor_at(g, 0)->bytes, 0);
    fl_gguf_close(&g);
    fl_bytes_free(&b);
}

static void a_large_header_is_read_in_pieces(void **state)
{
    (void)state;
    fl_err err;
    enum { N = 200000 };
    fl_bytes k = {0};
    fl_bytes_str(&k, "tokenizer.ggml.tokens");
    fl_bytes_u32(&k, FL_GGUF_ARRAY);
    fl_bytes_u32(&k, FL_GGUF_STRING);
    fl_bytes_u64(&k, N);
    char text[24];
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "token%d", i);
        fl_bytes_str(&k, text);
    }
    fl_bytes b = small(3, 1, &k);
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    fl_tmp_write(path, b.p, b.n);
    const int fd = open(path, O_RDONLY);
    fl_gguf *g = NULL;
    ASSERT_OK(fl_gguf_open(&g, fd, b.n, path, &err));
    fl_str *words = calloc(N, sizeof *words);
    assert_true(fl_kv_strings(fl_gguf_find(g, "tokenizer.ggml.tokens"), words));
    assert_memory_equal(words[N - 1].p, "token199999", 11);
    assert_int_equal(fl_gguf_tensor_at(g, 0)->bytes, 512);
    fl_gguf_close(&g);
    ASSERT_FAILS(fl_gguf_open(&g, fd, b.n - 1, path, &err), FL_E_FORMAT, "truncated");
    ASSERT_FAILS(fl_gguf_open(&g, fd, 3000000, path, &err), FL_E_FORMAT, "truncated");
    close(fd);
    free(words);
    free(path);
    fl_tmp_remove(dir);
    fl_bytes_free(&k);
    fl_bytes_free(&b);
}

static void every_cut_is_an_error(void **state)
{
    (void)state;
    fl_err err;
    fl_bytes k = {0};
    fl_bytes_kv_str(&k, "general.architecture", "qwen35moe");
    fl_bytes_kv_u32(&k, "general.alignment", 64);
    fl_bytes b = small(3, 2, &k);
    for (size_t n = 0; n < b.n; n++) {
        fl_gguf *g = NULL;
        uint8_t *exact = malloc(n ? n : 1);
        memcpy(exact, b.p, n);
        ASSERT_FAILS(fl_gguf_parse(&g, exact, n, "m", &err), FL_E_FORMAT, "truncated");
        free(exact);
    }
    fl_bytes_free(&k);
    fl_bytes_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_versions_are_read),
        cmocka_unit_test(values_are_read_whatever_their_type),
        cmocka_unit_test(headers_are_refused_in_one_line),
        cmocka_unit_test(metadata_is_refused_in_one_line),
        cmocka_unit_test(tensors_are_refused_in_one_line),
        cmocka_unit_test(a_large_header_is_read_in_pieces),
        cmocka_unit_test(every_cut_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
