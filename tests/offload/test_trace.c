/* Routing traces: what is written is read, and any damage is one clear line. */
#include <stdlib.h>

#include "offload/trace.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"
#include "tests/support/traces.h"

/* Expert i of a row: all different, every value is reached. */
static int32_t expert(const fl_trace_shape *s, int pass, int layer, int row, int i)
{
    return (pass * 7 + layer * 5 + row * 3 + i * (s->n_expert / s->top_k)) % s->n_expert;
}

static const fl_trace_pass passes[] = {
    {FL_PASS_PREFILL, false, 9, 9, 9}, {FL_PASS_AR, false, 1, 1, 1},
    {FL_PASS_BLOCK, true, 4, 0, 3},    {FL_PASS_BLOCK, false, 4, 0, 1},
    {FL_PASS_BLOCK, true, 8, 4, 2},    {FL_PASS_VERIFY, false, 3, 0, 2},
};
enum { N_PASSES = sizeof passes / sizeof *passes, MAX_ROWS = 9 };

static void put_pass(fl_trace_writer *w, const fl_trace_shape *s, int pass)
{
    fl_err err = {0};
    int32_t ids[MAX_ROWS * 8];
    for (int l = s->n_layer; l-- > 0;) {
        for (int r = 0; r < passes[pass].rows; r++)
            for (int i = 0; i < s->top_k; i++) ids[r * s->top_k + i] = expert(s, pass, l, r, i);
        fl_trace_writer_layer(w, l, passes[pass].rows, ids);
    }
    ASSERT_OK(fl_trace_writer_pass(w, &passes[pass], &err));
}

static void write_trace(const fl_trace_shape *s, int n_passes)
{
    fl_err err = {0};
    fl_trace_writer *w = NULL;
    ASSERT_OK(fl_trace_writer_open(&w, fl_traces_path, s, MAX_ROWS, &err));
    for (int p = 0; p < n_passes; p++) put_pass(w, s, p);
    ASSERT_OK(fl_trace_writer_commit(&w, &err));
    assert_null(w);
    assert_int_equal(fl_tmp_count(fl_traces_dir), 1);
}

static const fl_trace_shape narrow = {3, 256, 8, 4, true, "code"};
static const fl_trace_shape wide = {2, 600, 5, 4, false, "mine"};

static void what_is_written_is_read(void **state)
{
    (void)state;
    static const fl_trace_shape *const shapes[] = {&narrow, &wide};
    for (int i = 0; i < 2; i++) {
        fl_err err = {0};
        const fl_trace_shape *s = shapes[i];
        fl_trace *t = NULL;
        int32_t row[8];
        write_trace(s, N_PASSES);
        ASSERT_OK(fl_trace_open(&t, fl_traces_path, &err));
        const fl_trace_shape *got = fl_trace_get_shape(t);
        assert_int_equal(got->n_layer, s->n_layer);
        assert_int_equal(got->n_expert, s->n_expert);
        assert_int_equal(got->top_k, s->top_k);
        assert_int_equal(got->block, s->block);
        assert_int_equal(got->synthetic, s->synthetic);
        assert_string_equal(got->name, s->name);
        assert_int_equal(fl_trace_n_passes(t), N_PASSES);
        for (int p = 0; p < N_PASSES; p++) {
            const fl_trace_pass *x = fl_trace_get_pass(t, p);
            assert_int_equal(x->kind, passes[p].kind);
            assert_int_equal(x->first, passes[p].first);
            assert_int_equal(x->rows, passes[p].rows);
            assert_int_equal(x->clean, passes[p].clean);
            assert_int_equal(x->done, passes[p].done);
            for (int l = 0; l < s->n_layer; l++)
                for (int r = 0; r < x->rows; r++) {
                    fl_trace_row(t, p, l, r, row);
                    for (int k = 0; k < s->top_k; k++)
                        assert_int_equal(row[k], expert(s, p, l, r, k));
                }
        }
        fl_trace_close(&t);
        assert_null(t);
    }
}

static void a_union_has_each_expert_once(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_trace *t = NULL;
    int32_t ids[600];
    write_trace(&wide, N_PASSES);
    ASSERT_OK(fl_trace_open(&t, fl_traces_path, &err));
    for (int p = 0; p < N_PASSES; p++)
        for (int l = 0; l < wide.n_layer; l++) {
            bool in[600] = {false};
            int expected = 0;
            for (int r = 0; r < passes[p].rows; r++)
                for (int i = 0; i < wide.top_k; i++) in[expert(&wide, p, l, r, i)] = true;
            for (int e = 0; e < 600; e++) expected += in[e];
            assert_int_equal(fl_trace_union(t, p, l, ids), expected);
            for (int i = 0; i < expected; i++) {
                assert_true(in[ids[i]]);
                assert_true(i == 0 || ids[i - 1] < ids[i]);
            }
        }
    fl_trace_close(&t);
}

static void no_pass_is_a_trace_too(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_trace *t = NULL;
    assert_false(fl_trace_is(fl_traces_path));
    write_trace(&narrow, 0);
    assert_true(fl_trace_is(fl_traces_path));
    ASSERT_OK(fl_trace_open(&t, fl_traces_path, &err));
    assert_int_equal(fl_trace_n_passes(t), 0);
    fl_trace_close(&t);
}

static uint8_t *load(uint64_t *n)
{
    fl_err err = {0};
    char *data = NULL;
    ASSERT_OK(fl_file_load(fl_traces_path, 1 << 20, &data, n, &err));
    return (uint8_t *)data;
}

/* The parser is given exactly n bytes, so that the address sanitizer sees a read behind them. */
static void refused(const uint8_t *data, uint64_t n, const char *words)
{
    fl_err err = {0};
    fl_trace *t = NULL;
    uint8_t *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, data, n);
    ASSERT_FAILS(fl_trace_parse(&t, exact, n, "x.trace", &err), FL_E_FORMAT, words);
    assert_null(t);
    assert_ptr_equal(strstr(err.msg, "x.trace: "), err.msg);
    free(exact);
}

static void any_damaged_byte_is_seen(void **state)
{
    (void)state;
    uint64_t n;
    write_trace(&narrow, 2);
    uint8_t *data = load(&n);
    for (uint64_t i = 0; i < n; i++) {
        data[i] ^= 0x40;
        refused(data, n, "");
        data[i] ^= 0x40;
        refused(data, i, i < 88 ? "is not a routing trace" : "cut short");
    }
    fl_err err = {0};
    fl_trace *t = NULL;
    ASSERT_OK(fl_trace_parse(&t, data, n, "x.trace", &err));
    fl_trace_close(&t);
    free(data);
}

/* With checksums that are right. */
static void mend(uint8_t *data, uint64_t n)
{
    uint64_t hash = fl_hash64(data + 88, n - 88);
    memcpy(data + 72, &hash, 8);
    memset(data + 80, 0, 8);
    hash = fl_hash64(data, 88);
    memcpy(data + 80, &hash, 8);
}

static void wrong_values_are_refused_behind_right_checksums(void **state)
{
    (void)state;
    static const struct {
        uint64_t at;
        int bytes;
        uint64_t value;
        const char *words;
    } wrong[] = {
        {0, 1, 'X', "is not a routing trace"},
        {8, 4, 2, "version 2, this program reads 1"},
        {12, 4, 0, "0 layers of 256 experts"},
        {12, 4, 1u << 31, "layers of 256 experts"},
        {16, 4, 1 << 20, "1048576 experts"},
        {16, 4, 7, "8 at a time"},
        {20, 4, 0, "0 at a time"},
        {24, 4, 1000, "blocks of 1000"},
        {28, 4, 2, "damaged"},
        {64, 8, 3, "pass 2 at byte"},
        {64, 8, 1, "bytes behind its last pass"},
        {64, 8, UINT64_MAX, "cut short"},
        {88, 1, 4, "pass 0 at byte 88: kind 4, 9 rows"},
        {89, 1, 1, "pass 0 at byte 88"}, /* a prefill begins no block */
        {90, 2, 0, "kind 0, 0 rows"},
        {90, 2, 8193, "8193 rows"},
        {90, 2, 8000, "ends within pass 0"},
        {92, 2, 10, "10 clean"},
        {94, 2, 10, "10 done"},
        {97, 1, 0, "pass 0, layer 0, row 0: expected 8 different experts below 256"},
    };
    uint64_t n;
    write_trace(&narrow, 2);
    uint8_t *data = load(&n), *copy = malloc(n);
    assert_non_null(copy);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(copy, data, n);
        memcpy(copy + wrong[i].at, &wrong[i].value, (size_t)wrong[i].bytes);
        mend(copy, n);
        refused(copy, n, wrong[i].words);
    }
    free(data);
    free(copy);
    write_trace(&wide, 2);
    data = load(&n);
    data[88 + 8 + 3] = 2; /* the second expert of the first row: above 511 */
    data[88 + 8 + 2] = 88;
    mend(data, n);
    refused(data, n, "experts below 600");
    free(data);
}

static void a_writer_says_what_it_cannot_do(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_trace_writer *w = NULL;
    const fl_trace_shape huge = {.n_layer = 1, .n_expert = 20000, .top_k = 1, .block = 4};
    ASSERT_FAILS(fl_trace_writer_open(&w, fl_traces_path, &huge, 4, &err), FL_E_UNSUPPORTED,
                 "20000 experts");
    ASSERT_FAILS(fl_trace_writer_open(&w, fl_traces_dir, &narrow, 4, &err), FL_E_ARG, "folder");
    assert_null(w);
    /* Nothing appears before commit, nothing stays of what is discarded. */
    ASSERT_OK(fl_trace_writer_open(&w, fl_traces_path, &narrow, MAX_ROWS, &err));
    put_pass(w, &narrow, 0);
    fl_trace_writer_discard(&w);
    assert_int_equal(fl_tmp_count(fl_traces_dir), 0);
    fl_trace *t = NULL;
    ASSERT_FAILS(fl_trace_open(&t, fl_traces_path, &err), FL_E_IO, "cannot be opened");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(a_union_has_each_expert_once, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(no_pass_is_a_trace_too, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(any_damaged_byte_is_seen, fl_traces_setup,
                                        fl_traces_teardown),
        cmocka_unit_test_setup_teardown(wrong_values_are_refused_behind_right_checksums,
                                        fl_traces_setup, fl_traces_teardown),
        cmocka_unit_test_setup_teardown(a_writer_says_what_it_cannot_do, fl_traces_setup,
                                        fl_traces_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
