/* Rows of logits in 16 bits: what is exact, how far the rest is off, and KL divergences from them
 * against plain sums in double; files of them, whole and damaged. */
#include <math.h>
#include <stdlib.h>

#include "runtime/base/file.h"
#include "runtime/tools/logit_file.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { VOCAB = 2000 };
static fl_err err;
static char *dir, *path;

static int setup(void **state)
{
    (void)state;
    return fl_tmp_begin(&dir, &path, "rows");
}

static int teardown(void **state)
{
    (void)state;
    return fl_tmp_end(dir, path);
}

/* In [0, 1). */
static double random01(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53;
}

/* Bell-shaped with the given width, the largest a few widths above the rest. */
static void make_row(float *row, int n, double width, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) sum += random01(&seed);
        row[i] = (float)(width * sum);
    }
}

static double log_sum(const float *x, int n)
{
    double max = x[0], sum = 0;
    for (int i = 1; i < n; i++) max = fmax(max, x[i]);
    for (int i = 0; i < n; i++) sum += exp(x[i] - max);
    return max + log(sum);
}

static double plain_kl(const float *p, const float *q, int n)
{
    const double zp = log_sum(p, n), zq = log_sum(q, n);
    double kl = 0;
    for (int i = 0; i < n; i++) kl += exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
    return kl;
}

static void *packed(const float *row, int n)
{
    void *p = malloc(fl_logit_row_bytes(n));
    assert_non_null(p);
    fl_logit_row_pack(p, row, n, 1.25);
    return p;
}

static void divergences_lie_within_their_bound(void **state)
{
    (void)state;
    static float p[VOCAB], q[VOCAB];
    double most = 0;
    for (int k = 0; k < 60; k++) {
        const double width = 0.3 + 0.2 * (k % 12), noise = k % 5 == 0 ? 3.0 : 0.02 * (k % 5);
        make_row(p, VOCAB, width, (uint64_t)k);
        make_row(q, VOCAB, noise, 1000 + (uint64_t)k);
        for (int i = 0; i < VOCAB; i++) q[i] += p[i];
        void *row = packed(p, VOCAB);
        assert_true(fl_logit_row_valid(row, VOCAB));
        const fl_divergence d = fl_logit_row_compare(row, q, VOCAB);
        const double kl = plain_kl(p, q, VOCAB);
        assert_true(fabs(d.kl - kl) <= d.error + 1e-13);
        assert_true(d.error < 1e-3 * (sqrt(kl) + 1e-3));
        most = fmax(most, fabs(d.kl - kl));
        free(row);
    }
    assert_true(most > 0); /* rounding was there to be bounded */
}

static void a_row_against_itself_is_nothing(void **state)
{
    (void)state;
    static float p[VOCAB];
    make_row(p, VOCAB, 2, 7);
    void *row = packed(p, VOCAB);
    fl_divergence d = fl_logit_row_compare(row, p, VOCAB);
    assert_true(d.kl == 0 && d.error == 0);
    assert_true(fl_logit_row_nll(row) == 1.25);
    /* The same distribution from other bits is near nothing, and never below. */
    for (int i = 0; i < VOCAB; i++) p[i] += 0.125f;
    d = fl_logit_row_compare(row, p, VOCAB);
    assert_true(d.kl >= 0 && d.kl <= d.error + 1e-13 && d.error < 1e-6);
    free(row);
}

static void ties_go_to_the_lower_id(void **state)
{
    (void)state;
    float p[100] = {0};
    void *row = packed(p, 100);
    assert_int_equal(fl_logit_row_best(row), 0);
    p[99] = p[40] = 3;
    fl_logit_row_pack(row, p, 100, 0);
    assert_int_equal(fl_logit_row_best(row), 40);
    assert_true(fl_logit_row_valid(row, 100));
    free(row);
}

/* A vocabulary that is exact as a whole, one far below the rest, and nothing but the same. */
static void short_and_wide_rows(void **state)
{
    (void)state;
    float p[40], q[40];
    for (int n = 1; n <= 40; n++) {
        make_row(p, n, 2, (uint64_t)n);
        make_row(q, n, 2, 100 + (uint64_t)n);
        if (n > 35) p[n - 1] = -3e38f;
        void *row = packed(p, n);
        assert_true(fl_logit_row_valid(row, n));
        const fl_divergence d = fl_logit_row_compare(row, q, n);
        assert_true(fabs(d.kl - plain_kl(p, q, n)) <= d.error + 1e-12);
        if (n <= FL_LOGIT_TOP) assert_true(d.error == 0);
        free(row);
    }
}

static void bytes_that_are_no_row(void **state)
{
    (void)state;
    float p[100];
    make_row(p, 100, 1, 3);
    const size_t n = fl_logit_row_bytes(100), ids = 24, logits = ids + 4 * FL_LOGIT_TOP;
    static const uint32_t nan = 0x7fc00000, big = 0x7f000000;
    const struct {
        size_t at;
        uint32_t value;
    } bad[] = {{ids, 100},        {ids, UINT32_MAX}, {ids + 4, 0},   {logits, nan},
               {logits + 4, big}, {16, big},         {16, nan},      {20, nan},
               {20, big},         {12, 0x7ff00000},  {n - 8, 0xffff}};
    void *row = packed(p, 100);
    char *copy = malloc(n);
    assert_non_null(copy);
    int refused = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(copy, row, n);
        memcpy(copy + bad[i].at, &bad[i].value, 4);
        if (!fl_logit_row_valid(copy, 100))
            refused++;
        else
            print_message("case %zu was taken\n", i);
    }
    assert_int_equal(refused, sizeof bad / sizeof *bad);
    free(copy);
    free(row);
}

/* ---- files ---- */

static const fl_logit_setup made = {.tokenizer = 1,
                                    .text = 2,
                                    .model = 3,
                                    .vocab = 100,
                                    .ctx = 64,
                                    .windows = 2,
                                    .causal = 1,
                                    .name = "m.gguf"};

static void write_rows(uint64_t n)
{
    fl_logit_writer *w;
    float p[100];
    ASSERT_OK(fl_logit_writer_open(&w, path, &made, n, &err));
    for (uint64_t i = 0; i < n; i++) {
        make_row(p, 100, 1, i);
        void *row = packed(p, 100);
        ASSERT_OK(fl_logit_writer_put(w, row, 1, &err));
        free(row);
    }
    assert_false(fl_logit_file_is(path));
    ASSERT_OK(fl_logit_writer_commit(&w, &err));
    assert_null(w);
    assert_true(fl_logit_file_is(path));
    assert_int_equal(fl_tmp_count(dir), 1);
}

static void rows_come_back(void **state)
{
    (void)state;
    fl_logit_reader *r;
    float p[100];
    write_rows(5);
    ASSERT_OK(fl_logit_reader_open(&r, path, &err));
    assert_memory_equal(fl_logit_reader_setup(r), &made, sizeof made);
    assert_int_equal(fl_logit_reader_rows(r), 5);
    const size_t n = fl_logit_row_bytes(100);
    char *rows = malloc(2 * n);
    assert_non_null(rows);
    ASSERT_OK(fl_logit_reader_get(r, 3, 2, rows, &err));
    for (uint64_t i = 0; i < 2; i++) {
        make_row(p, 100, 1, 3 + i);
        void *row = packed(p, 100);
        assert_memory_equal(rows + i * n, row, n);
        free(row);
    }
    ASSERT_FAILS(fl_logit_reader_get(r, 4, 2, rows, &err), FL_E_FORMAT, "has 5 rows, row 5");
    free(rows);
    fl_logit_reader_close(&r);
    assert_null(r);
    remove(path);
}

static void discarded_rows_leave_nothing(void **state)
{
    (void)state;
    fl_logit_writer *w;
    ASSERT_OK(fl_logit_writer_open(&w, path, &made, 5, &err));
    fl_logit_writer_discard(&w);
    assert_null(w);
    assert_int_equal(fl_tmp_count(dir), 0);
    ASSERT_FAILS(fl_logit_writer_open(&w, path, &made, 1ull << 45, &err), FL_E_IO, "free");
    ASSERT_FAILS(fl_logit_writer_open(&w, "/nowhere/at/all", &made, 1, &err), FL_E_IO, "nowhere");
    assert_int_equal(fl_tmp_count(dir), 0);
}

static void expect_refused(const char *data, size_t n, const char *words)
{
    fl_logit_reader *r = NULL;
    fl_tmp_write(path, data, n);
    ASSERT_FAILS(fl_logit_reader_open(&r, path, &err), FL_E_FORMAT, words);
    assert_null(r);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    char *data;
    uint64_t n;
    write_rows(3);
    ASSERT_OK(fl_file_load(path, 1 << 20, &data, &n, &err));
    expect_refused(data, 5, "is not a file of logits");
    expect_refused(data, n - 1, "cut short or damaged");
    for (size_t at = 0; at < n; at += 37) {
        data[at] ^= 0x20;
        expect_refused(data, n,
                       at < 8     ? "is not a file of logits"
                       : at < 16  ? "of version"
                       : at < 192 ? "the checksum of its head"
                                  : "the checksum of its rows");
        data[at] ^= 0x20;
    }
    free(data);
    fl_tmp_write(path, "GGUF", 4);
    assert_false(fl_logit_file_is(path));
    assert_false(fl_logit_file_is(dir));
    fl_logit_reader *r = NULL;
    ASSERT_FAILS(fl_logit_reader_open(&r, "/nowhere/at/all", &err), FL_E_IO, "nowhere");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divergences_lie_within_their_bound),
        cmocka_unit_test(a_row_against_itself_is_nothing),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(short_and_wide_rows),
        cmocka_unit_test(bytes_that_are_no_row),
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(discarded_rows_leave_nothing),
        cmocka_unit_test(damaged_files_are_refused),
    };
    return cmocka_run_group_tests_name("logit_row", tests, setup, teardown);
}
