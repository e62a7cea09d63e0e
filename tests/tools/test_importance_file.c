/* Importance files as quantize reads them: ours and llama.cpp's, whole, thin and damaged. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/gguf_write.h"
#include "runtime/tools/importance_file.h"
#include "runtime/tools/importance_sites.h"
#include "tests/support/bytes.h"
#include "tests/support/files.h"
#include "tests/support/kern.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { D = 6, FF = 5, E = 3, TRI_D = D * (D + 1) / 2, TRI_FF = FF * (FF + 1) / 2 };

/* What is written into a small file of one layer. */
typedef struct content {
    float rows[E], ffn_full[TRI_D], ffn_diag[D], in[E * D];
    float mid_full[E * TRI_FF], mid_diag[E * FF], all[TRI_FF];
} content;

/* A second moment of a few random rows, packed. */
static void random_moment(float *tri, int cols)
{
    for (int i = 0; i < fl_triangle(cols); i++) tri[i] = 0.0f;
    for (int t = 0; t < 2 * cols; t++) {
        float x[16];
        for (int i = 0; i < cols; i++) x[i] = fl_rnd_uniform();
        for (int i = 0; i < cols; i++)
            for (int j = 0; j <= i; j++) tri[fl_triangle(i) + j] += x[i] * x[j] / (float)(2 * cols);
    }
}

static void fill(content *c)
{
    static const float rows[E] = {1000.0f, 4.0f, 0.0f};
    memcpy(c->rows, rows, sizeof rows);
    random_moment(c->ffn_full, D);
    random_moment(c->all, FF);
    for (int i = 0; i < D; i++) c->ffn_diag[i] = c->ffn_full[fl_triangle(i) + i];
    for (int e = 0; e < E; e++) {
        random_moment(c->mid_full + e * TRI_FF, FF);
        for (int i = 0; i < TRI_FF && e == 2; i++) c->mid_full[e * TRI_FF + i] = 0.0f;
        for (int i = 0; i < FF; i++)
            c->mid_diag[e * FF + i] = c->mid_full[e * TRI_FF + fl_triangle(i) + i];
        for (int i = 0; i < D; i++) c->in[e * D + i] = e < 2 ? 0.5f + fl_rnd_uniform() / 4 : 0.0f;
    }
}

typedef struct tensor {
    const char *name;
    int n_dims;
    int64_t ne[2];
    const float *data;
} tensor;

static void write_file(const char *arch, const char *type, uint32_t version, const tensor *t, int n)
{
    fl_err err = {0};
    fl_gguf_writer *w = NULL;
    ASSERT_OK(fl_gguf_writer_create(&w, fl_files.gguf, 32, &err));
    if (arch) fl_gguf_put_str(w, "general.architecture", arch, strlen(arch));
    if (type) fl_gguf_put_str(w, "general.type", type, strlen(type));
    if (version) fl_gguf_put_u32(w, FL_IMPORTANCE_KEY("version"), version);
    fl_gguf_put_str(w, FL_IMPORTANCE_KEY("model"), "small", 5);
    fl_gguf_put_u32(w, FL_IMPORTANCE_KEY("tokens"), 500);
    fl_gguf_put_u32(w, "imatrix.chunk_count", 3);
    fl_gguf_put_u32(w, "imatrix.chunk_size", 100);
    for (int i = 0; i < n; i++)
        ASSERT_OK(fl_gguf_add_tensor(w, t[i].name, FL_TYPE_F32, t[i].n_dims, t[i].ne, &err));
    ASSERT_OK(fl_gguf_writer_begin(w, &err));
    for (int i = 0; i < n; i++)
        ASSERT_OK(fl_gguf_writer_write(
            w, t[i].data,
            (uint64_t)(t[i].ne[0] * (t[i].n_dims > 1 ? t[i].ne[1] : 1)) * sizeof(float), &err));
    ASSERT_OK(fl_gguf_writer_commit(&w, &err));
}

static void write_ours(const content *c)
{
    const float one[1] = {64.0f};
    const tensor t[] = {
        {"blk.0.ffn_in.rows", 1, {1, 1}, one},
        {"blk.0.ffn_in.diag", 2, {D, 1}, c->ffn_diag},
        {"blk.0.ffn_in.full", 2, {TRI_D, 1}, c->ffn_full},
        {"blk.0.expert_in.rows", 1, {E, 1}, c->rows},
        {"blk.0.expert_in.diag", 2, {D, E}, c->in},
        {"blk.0.expert_mid.rows", 1, {E, 1}, c->rows},
        {"blk.0.expert_mid.diag", 2, {FF, E}, c->mid_diag},
        {"blk.0.expert_mid.full", 2, {TRI_FF, E}, c->mid_full},
        {"blk.0.expert_mid.all", 1, {TRI_FF, 1}, c->all},
        {"head_in.rows", 1, {1, 1}, one},
        {"head_in.diag", 2, {D, 1}, c->ffn_diag},
    };
    write_file(FL_IMPORTANCE_ARCH, NULL, FL_IMPORTANCE_VERSION, t, sizeof t / sizeof *t);
}

static fl_importance *open_file(void)
{
    fl_err err = {0};
    fl_importance *im = NULL;
    ASSERT_OK(fl_importance_open(&im, fl_files.gguf, &err));
    return im;
}

static double unpacked(const float *tri, int i, int j)
{
    return (double)(i >= j ? tri[fl_triangle(i) + j] : tri[fl_triangle(j) + i]);
}

static void close_to(double got, double want)
{
    if (!(fabs(got - want) <= 2e-6 * (fabs(want) + 1e-3)))
        fail_msg("%.9g, %.9g was expected", got, want);
}

static void plain_matrices(void **state)
{
    (void)state;
    fl_err err = {0};
    content c;
    float diag[D], full[D * D];
    fl_importance_found found;
    fill(&c);
    write_ours(&c);
    fl_importance *im = open_file();
    const fl_importance_info info = fl_importance_describe(im);
    assert_string_equal(info.kind, "fourleaf");
    assert_string_equal(info.model, "small");
    assert_true(info.tokens == 500.0);
    const char *const names[] = {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_shexp.weight",
                                 "blk.0.ffn_up_shexp.weight"};
    for (int k = 0; k < 3; k++) {
        ASSERT_OK(fl_importance_get(im, names[k], D, 0, diag, full, &found, &err));
        assert_true(found.diag && found.full && found.rows == 64.0 && !found.prior);
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++)
                assert_true((double)full[i * D + j] == unpacked(c.ffn_full, i, j));
        assert_memory_equal(diag, c.ffn_diag, sizeof diag);
    }
    ASSERT_OK(fl_importance_get(im, "output.weight", D, 0, diag, full, &found, &err));
    assert_true(found.diag && !found.full);
    static const char *const absent[] = {"token_embd.weight",           "blk.0.attn_q.weight",
                                         "blk.7.ffn_gate_shexp.weight", "blk.0.attn_norm.weight",
                                         "blk.x.ffn_up_shexp.weight",   "nothing"};
    for (size_t k = 0; k < sizeof absent / sizeof *absent; k++) {
        ASSERT_OK(fl_importance_get(im, absent[k], D, 0, diag, full, &found, &err));
        assert_true(!found.diag && !found.full);
    }
    ASSERT_FAILS(fl_importance_get(im, names[0], D + 1, 0, diag, NULL, &found, &err), FL_E_FORMAT,
                 "another model");
    fl_importance_close(&im);
}

/* (n S + k f P) / (n + k), by the words of the header. */
static void experts_lean_on_their_layer(void **state)
{
    (void)state;
    fl_err err = {0};
    content c;
    float diag[FF], full[FF * FF], alone[FF];
    fl_importance_found found;
    fill(&c);
    write_ours(&c);
    fl_importance *im = open_file();
    double trace_p = 0, norm = 0;
    for (int i = 0; i < FF; i++)
        for (int j = 0; j < FF; j++) {
            norm += unpacked(c.all, i, j) * unpacked(c.all, i, j);
            trace_p += i == j ? unpacked(c.all, i, j) : 0.0;
        }
    const double k = trace_p * trace_p / norm;
    assert_true(k >= 1.0 && k <= FF);
    for (int e = 0; e < E; e++) {
        const float *s = c.mid_full + e * TRI_FF;
        const double n = (double)c.rows[e];
        double trace = 0;
        for (int i = 0; i < FF; i++) trace += unpacked(s, i, i);
        const double f = n > 0 ? trace / trace_p : 1.0;
        ASSERT_OK(
            fl_importance_get(im, "blk.0.ffn_down_exps.weight", FF, e, diag, full, &found, &err));
        assert_true(found.diag && found.full && found.rows == n);
        assert_int_equal(found.prior, n < k);
        ASSERT_OK(
            fl_importance_get(im, "blk.0.ffn_down_exps.weight", FF, e, alone, NULL, &found, &err));
        assert_true(found.diag && !found.full);
        assert_int_equal(found.prior, n < 32);
        for (int i = 0; i < FF; i++) {
            assert_true(diag[i] == full[i * FF + i]);
            close_to(alone[i], (n * unpacked(s, i, i) + 32 * f * unpacked(c.all, i, i)) / (n + 32));
            for (int j = 0; j < FF; j++) {
                assert_true(full[i * FF + j] == full[j * FF + i]);
                close_to(full[i * FF + j],
                         (n * unpacked(s, i, j) + k * f * unpacked(c.all, i, j)) / (n + k));
            }
        }
    }
    ASSERT_FAILS(
        fl_importance_get(im, "blk.0.ffn_down_exps.weight", FF, E, diag, full, &found, &err),
        FL_E_FORMAT, "another model");
    int64_t n;
    float *rows;
    double enough;
    ASSERT_OK(fl_importance_experts(im, 0, &n, &rows, &enough, &err));
    assert_int_equal(n, E);
    assert_memory_equal(rows, c.rows, sizeof c.rows);
    assert_true(enough == 32.0);
    free(rows);
    ASSERT_OK(fl_importance_experts(im, 1, &n, &rows, &enough, &err));
    assert_true(n == 0 && !rows);
    fl_importance_close(&im);
}

/* The layer's matrix with the expert's mean squares on its diagonal. */
static void gate_and_up_share_the_layers_matrix(void **state)
{
    (void)state;
    fl_err err = {0};
    content c;
    float diag[D], full[D * D];
    fl_importance_found found;
    fill(&c);
    write_ours(&c);
    fl_importance *im = open_file();
    double trace_p = 0;
    for (int i = 0; i < D; i++) trace_p += (double)c.ffn_diag[i];
    for (int e = 0; e < E; e++) {
        const double n = (double)c.rows[e];
        double trace = 0, want[D];
        for (int i = 0; i < D; i++) trace += (double)c.in[e * D + i];
        const double f = n > 0 ? trace / trace_p : 1.0;
        for (int i = 0; i < D; i++)
            want[i] = (n * (double)c.in[e * D + i] + 32 * f * (double)c.ffn_diag[i]) / (n + 32);
        ASSERT_OK(
            fl_importance_get(im, e & 1 ? "blk.0.ffn_gate_exps.weight" : "blk.0.ffn_up_exps.weight",
                              D, e, diag, full, &found, &err));
        assert_true(found.diag && found.full);
        assert_int_equal(found.prior, n < 32);
        for (int i = 0; i < D; i++) {
            close_to(diag[i], want[i]);
            for (int j = 0; j < D; j++)
                close_to(full[i * D + j], unpacked(c.ffn_full, i, j) *
                                              sqrt(want[i] / (double)c.ffn_diag[i]) *
                                              sqrt(want[j] / (double)c.ffn_diag[j]));
        }
    }
    fl_importance_close(&im);
}

static void an_imatrix_gives_mean_squares(void **state)
{
    (void)state;
    fl_err err = {0};
    float sums[E * D], dense[D], counts[E] = {500.0f, 8.0f, 0.0f}, diag[D], full[D * D];
    const float count[1] = {100.0f}, none[1] = {0.0f};
    fl_importance_found found;
    double mean[D] = {0}, trace_p = 0;
    for (int i = 0; i < E * D; i++) sums[i] = i < 2 * D ? counts[i / D] * (float)(1 + i % 5) : 0.0f;
    for (int i = 0; i < D; i++) {
        dense[i] = 100.0f * (float)(i + 1);
        for (int e = 0; e < E; e++) mean[i] += (double)sums[e * D + i] / 508.0;
        trace_p += mean[i];
    }
    dense[2] = NAN;
    dense[4] = -1.0f;
    const tensor t[] = {{"blk.0.ffn_up_exps.weight.in_sum2", 2, {D, E}, sums},
                        {"blk.0.ffn_up_exps.weight.counts", 2, {1, E}, counts},
                        {"blk.0.attn_q.weight.in_sum2", 2, {D, 1}, dense},
                        {"blk.0.attn_q.weight.counts", 2, {1, 1}, count},
                        {"blk.0.attn_k.weight.in_sum2", 2, {D, 1}, dense},
                        {"blk.0.attn_k.weight.counts", 2, {1, 1}, none}};
    write_file(NULL, "imatrix", 0, t, sizeof t / sizeof *t);
    fl_importance *im = open_file();
    const fl_importance_info info = fl_importance_describe(im);
    assert_string_equal(info.kind, "imatrix");
    assert_true(info.tokens == 300.0);
    ASSERT_OK(fl_importance_get(im, "blk.0.attn_q.weight", D, 0, diag, full, &found, &err));
    assert_true(found.diag && !found.full && found.rows == 100.0);
    assert_int_equal(found.repaired, 2);
    for (int i = 0; i < D; i++) close_to(diag[i], i == 2 || i == 4 ? 13.0 / 4 : i + 1);
    ASSERT_OK(fl_importance_get(im, "blk.0.attn_k.weight", D, 0, diag, full, &found, &err));
    assert_false(found.diag);
    ASSERT_OK(fl_importance_get(im, "blk.0.attn_v.weight", D, 0, diag, full, &found, &err));
    assert_false(found.diag);
    for (int e = 0; e < E; e++) {
        const double n = (double)counts[e];
        double trace = 0;
        for (int i = 0; i < D && n > 0; i++) trace += (double)sums[e * D + i] / n;
        ASSERT_OK(
            fl_importance_get(im, "blk.0.ffn_up_exps.weight", D, e, diag, NULL, &found, &err));
        assert_true(found.diag && found.rows == n);
        assert_int_equal(found.prior, n < 32);
        for (int i = 0; i < D; i++)
            close_to(diag[i],
                     ((double)sums[e * D + i] + 32 * (n > 0 ? trace / trace_p : 1.0) * mean[i]) /
                         (n + 32));
    }
    ASSERT_FAILS(fl_importance_get(im, "blk.0.ffn_up_exps.weight", D, E, diag, NULL, &found, &err),
                 FL_E_FORMAT, "another model");
    fl_importance_close(&im);
}

/* The older form: mean squares times the number of calls. */
static void the_older_imatrix_is_read(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_bytes b = {0};
    float diag[D];
    fl_importance *im = NULL;
    fl_importance_found found;
    fl_bytes_u32(&b, 2);
    for (int k = 0; k < 2; k++) {
        const char *name = k ? "blk.0.ffn_up_exps.weight" : "blk.0.attn_q.weight";
        fl_bytes_u32(&b, (uint32_t)strlen(name));
        fl_bytes_text(&b, name);
        fl_bytes_u32(&b, 200);
        fl_bytes_u32(&b, k ? 2 * D : D);
        for (int i = 0; i < (k ? 2 * D : D); i++) fl_bytes_f32(&b, 200.0f * (float)(1 + i));
    }
    const size_t table = b.n;
    fl_bytes_u32(&b, 200);
    fl_tmp_write(fl_files.gguf, b.p, b.n);
    im = open_file();
    assert_string_equal(fl_importance_describe(im).kind, "imatrix");
    ASSERT_OK(fl_importance_get(im, "blk.0.attn_q.weight", D, 0, diag, NULL, &found, &err));
    assert_true(found.diag && found.rows == 200.0);
    for (int i = 0; i < D; i++) close_to(diag[i], 1 + i);
    double trace_p = 0, trace = 0;
    for (int i = 0; i < D; i++) {
        trace_p += 1 + i + D / 2.0;
        trace += 1 + i + D;
    }
    ASSERT_OK(fl_importance_get(im, "blk.0.ffn_up_exps.weight", D, 1, diag, NULL, &found, &err));
    for (int i = 0; i < D; i++)
        close_to(diag[i], (200 * (1.0 + i + D) + 32 * trace / trace_p * (1 + i + D / 2.0)) / 232);
    ASSERT_OK(fl_importance_get(im, "blk.1.attn_q.weight", D, 0, diag, NULL, &found, &err));
    assert_false(found.diag);
    ASSERT_FAILS(fl_importance_get(im, "blk.0.attn_q.weight", D - 1, 0, diag, NULL, &found, &err),
                 FL_E_FORMAT, "another model");
    ASSERT_FAILS(fl_importance_get(im, "blk.0.ffn_up_exps.weight", D, 2, diag, NULL, &found, &err),
                 FL_E_FORMAT, "another model");
    int64_t n;
    float *rows;
    double enough;
    ASSERT_OK(fl_importance_experts(im, 0, &n, &rows, &enough, &err));
    assert_int_equal(n, 0);
    fl_importance_close(&im);
    for (size_t cut = 13; cut < table; cut++) {
        fl_tmp_write(fl_files.gguf, b.p, cut);
        ASSERT_FAILS(fl_importance_open(&im, fl_files.gguf, &err), FL_E_FORMAT, "cut off");
        assert_null(im);
    }
    fl_bytes_free(&b);
}

/* Whatever a file says, opening and asking end with a status and a line. */
static void try_file(void)
{
    static const struct {
        const char *name;
        int64_t cols;
    } ask[] = {{"blk.0.ffn_down_exps.weight", FF},
               {"blk.0.ffn_up_exps.weight", D},
               {"blk.0.ffn_up_shexp.weight", D},
               {"output.weight", D}};
    fl_err err = {0};
    fl_importance *im = NULL;
    if (fl_importance_open(&im, fl_files.gguf, &err) != FL_OK) {
        assert_true(!im && err.msg[0] && !strchr(err.msg, '\n'));
        return;
    }
    for (int i = 0; i < 4; i++) {
        float diag[D], full[D * D];
        fl_importance_found found;
        err = (fl_err){0};
        const fl_status st =
            fl_importance_get(im, ask[i].name, ask[i].cols, i < 2, diag, full, &found, &err);
        assert_true(st == FL_OK || err.msg[0]);
    }
    fl_importance_close(&im);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    content c;
    float diag[D];
    char *data = NULL;
    uint64_t n = 0;
    fl_importance *im = NULL;
    fl_importance_found found;
    fill(&c);
    c.ffn_diag[3] = NAN;
    write_ours(&c);
    im = open_file();
    ASSERT_FAILS(fl_importance_get(im, "blk.0.ffn_up_shexp.weight", D, 0, diag, NULL, &found, &err),
                 FL_E_FORMAT, "blk.0.ffn_in.diag, value 3 is nan: the file is damaged");
    fl_importance_close(&im);
    ASSERT_OK(fl_file_load(fl_files.gguf, 1 << 20, &data, &n, &err));
    for (uint64_t cut = 0; cut < n; cut += cut < 1500 ? 13 : 97) {
        fl_tmp_write(fl_files.gguf, data, (size_t)cut);
        err = (fl_err){0};
        assert_true(fl_importance_open(&im, fl_files.gguf, &err) != FL_OK);
        assert_true(err.msg[0] && !im);
    }
    for (int i = 0; i < 400; i++) {
        char *copy = malloc((size_t)n);
        memcpy(copy, data, (size_t)n);
        for (int k = 0; k < 3; k++)
            copy[(uint64_t)fl_rnd() % (n < 1200 ? n : 1200)] = (char)fl_rnd();
        fl_tmp_write(fl_files.gguf, copy, (size_t)n);
        free(copy);
        try_file();
    }
    free(data);
}

static void other_files_are_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_importance *im = NULL;
    const float one[1] = {1.0f};
    const tensor t = {"output.weight", 1, {1, 1}, one};
    ASSERT_FAILS(fl_importance_open(&im, "/nonexistent", &err), FL_E_IO, "/nonexistent");
    write_file("qwen35moe", NULL, 0, &t, 1);
    ASSERT_FAILS(fl_importance_open(&im, fl_files.gguf, &err), FL_E_FORMAT, "neither of fourleaf");
    write_file(FL_IMPORTANCE_ARCH, NULL, 9, &t, 1);
    ASSERT_FAILS(fl_importance_open(&im, fl_files.gguf, &err), FL_E_UNSUPPORTED, "version 9");
    fl_tmp_write(fl_files.gguf, "some text\n", 10);
    ASSERT_FAILS(fl_importance_open(&im, fl_files.gguf, &err), FL_E_FORMAT, "text file");
    assert_null(im);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_matrices),
        cmocka_unit_test(experts_lean_on_their_layer),
        cmocka_unit_test(gate_and_up_share_the_layers_matrix),
        cmocka_unit_test(an_imatrix_gives_mean_squares),
        cmocka_unit_test(the_older_imatrix_is_read),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
