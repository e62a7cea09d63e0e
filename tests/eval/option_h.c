/* Should the numeric law carry option H (an exponent per 32 activations)? Measured as the mean KL
 * divergence of next-token distributions from those with float activations, on a model and on
 * copies of it that are mathematically equal but have outlier channels.
 *
 *   option_h MODEL HELDOUT.jsonl WORKDIR [POSITIONS]
 *
 * MODEL: safetensors or a GGUF with float weights. The copies: in every norm 2 of the channels
 * times s, the columns of the matrices behind it divided by s; in every expert 2 hidden channels
 * likewise (rows of up times s, columns of down divided by s). s is a power of two, so the copy
 * with float weights must compute the same, which is checked. All are rounded to Q4_K; for each
 * file `--act f32` is the reference, so the rounding of weights is not part of the figures.
 * Distributions: causal passes at every position of prompts and wanted answers; block passes at
 * masked rows (half of a block's rows, chosen by a fixed hash). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/law.h"
#include "runtime/model/gguf_write.h"
#include "runtime/tools/quantize.h"
#include "tests/eval/common.h"

enum { N_OUTLIERS = 2 };

/* ---- the copies ---- */

/* 1 or s: the factor of channel c in a group of channels ("blk.3.attn", "blk.3.ffn", ...). */
static float factor(const char *group, int64_t c, int64_t n, float s)
{
    uint64_t h = 0;
    for (const char *p = group; *p; p++) h = ev_hash(h ^ (uint64_t)(unsigned char)*p);
    for (int k = 0; k < N_OUTLIERS; k++)
        if (c == (int64_t)(ev_hash(h + (uint64_t)k) % (uint64_t)n)) return s;
    return 1.0f;
}

typedef struct place {
    char group[64];
    bool rows; /* else columns */
    bool up;   /* multiply, else divide */
} place;

/* Where a tensor meets a group of scaled channels; the number of places. */
static int places_of(const char *name, place p[2])
{
    static const char *const behind_attn[] = {"attn_qkv",      "attn_gate",    "ssm_alpha",
                                              "ssm_beta",      "attn_q",       "attn_k",
                                              "ssm_bwd_alpha", "ssm_bwd_beta", "attn_v"};
    static const char *const behind_ffn[] = {"ffn_gate_inp", "ffn_gate_exps",
                                             "ffn_up_exps",  "ffn_gate_shexp",
                                             "ffn_up_shexp", "ffn_gate_inp_shexp"};
    int layer = 0, n = 0;
    char part[64];
    if (strcmp(name, "output_norm.weight") == 0) p[n++] = (place){"output", false, true};
    if (strcmp(name, "output.weight") == 0) p[n++] = (place){"output", false, false};
    if (sscanf(name, "blk.%d.%63[^.]", &layer, part) != 2) return n;
    char attn[64], ffn[64], hidden[64], shared[64];
    snprintf(attn, sizeof attn, "blk.%d.attn", layer);
    snprintf(ffn, sizeof ffn, "blk.%d.ffn", layer);
    snprintf(hidden, sizeof hidden, "blk.%d.hidden", layer);
    snprintf(shared, sizeof shared, "blk.%d.shared", layer);
#define PLACE(G, ROWS, UP)                                     \
    do {                                                       \
        snprintf(p[n].group, sizeof p[n].group, "%.63s", (G)); \
        p[n].rows = (ROWS);                                    \
        p[n++].up = (UP);                                      \
    } while (0)
    if (strcmp(part, "attn_norm") == 0) PLACE(attn, false, true);
    if (strcmp(part, "post_attention_norm") == 0) PLACE(ffn, false, true);
    for (size_t i = 0; i < sizeof behind_attn / sizeof *behind_attn; i++)
        if (strcmp(part, behind_attn[i]) == 0) PLACE(attn, false, false);
    for (size_t i = 0; i < sizeof behind_ffn / sizeof *behind_ffn; i++)
        if (strcmp(part, behind_ffn[i]) == 0) PLACE(ffn, false, false);
    if (strcmp(part, "ffn_up_exps") == 0) PLACE(hidden, true, true);
    if (strcmp(part, "ffn_down_exps") == 0) PLACE(hidden, false, false);
    if (strcmp(part, "ffn_up_shexp") == 0) PLACE(shared, true, true);
    if (strcmp(part, "ffn_down_shexp") == 0) PLACE(shared, false, false);
#undef PLACE
    return n;
}

static void rescale(const fl_tensor *t, float *v, float s)
{
    place p[2];
    const int n = places_of(t->name, p);
    const int64_t cols = t->ne[0], per = t->ne[1], rows = per * t->ne[2] * t->ne[3];
    for (int k = 0; k < n; k++) {
        const int64_t channels = p[k].rows ? per : cols;
        float *f = ev_alloc((size_t)channels * sizeof *f);
        for (int64_t c = 0; c < channels; c++) {
            f[c] = factor(p[k].group, c, channels, s);
            if (!p[k].up) f[c] = 1.0f / f[c];
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) v[r * cols + c] *= f[p[k].rows ? r % per : c];
        free(f);
    }
}

/* A copy of an F32 GGUF with outlier channels. */
static void write_outliers(const char *in, const char *out, float s)
{
    fl_err err = {0};
    fl_source *src;
    fl_gguf_writer *w;
    if (fl_source_open(&src, in, &err) != FL_OK || fl_gguf_writer_create(&w, out, 0, &err) != FL_OK)
        ev_die("%s", err.msg);
    const fl_gguf *g = fl_source_gguf(src);
    for (size_t i = 0; i < fl_gguf_n_kv(g); i++) {
        const fl_kv *kv = fl_gguf_kv_at(g, i);
        char key[256];
        snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
        fl_gguf_put_copy(w, key, kv);
    }
    fl_status st = FL_OK;
    for (size_t i = 0; st == FL_OK && i < fl_source_n_tensors(src); i++) {
        const fl_tensor *t = fl_source_tensor(src, i);
        st = fl_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne, &err);
    }
    if (st == FL_OK) st = fl_gguf_writer_begin(w, &err);
    for (size_t i = 0; st == FL_OK && i < fl_source_n_tensors(src); i++) {
        const fl_tensor *t = fl_source_tensor(src, i);
        float *v = ev_alloc(t->bytes);
        st = fl_source_read(src, t, 0, v, t->bytes, &err);
        rescale(t, v, s);
        if (st == FL_OK) st = fl_gguf_writer_write(w, v, t->bytes, &err);
        free(v);
    }
    if (st == FL_OK) st = fl_gguf_writer_commit(&w, &err);
    if (st != FL_OK) ev_die("%s", err.msg);
    fl_source_close(&src);
}

/* ---- the table ---- */

static double log_sum_off, log_sum_on;
static int n_log;

static void print_line(const char *model, const char *kind, const ev_rows *ref, const ev_rows *off,
                       const ev_rows *on)
{
    if (ref->n == 0) return;
    const ev_figure a = ev_compare(ref, off), b = ev_compare(ref, on);
    printf("| %s | %s | %lld | %.3e | %.3e | %.2f | %.2f %% | %.2f %% |\n", model, kind,
           (long long)ref->n, a.kl, b.kl, b.kl / a.kl, a.top1, b.top1);
    log_sum_off += log(a.kl);
    log_sum_on += log(b.kl);
    n_log++;
}

static void one_model(const char *label, const char *q4, const ev_set *set, int64_t positions)
{
    ev_measured f32, off, on;
    ev_measure(&f32, q4, set, positions, true, false, FL_TYPE_F32);
    ev_measure(&off, q4, set, positions, false, false, FL_TYPE_F32);
    ev_measure(&on, q4, set, positions, false, true, FL_TYPE_F32);
    print_line(label, "causal", &f32.causal, &off.causal, &on.causal);
    print_line(label, "block", &f32.block, &off.block, &on.block);
    fflush(stdout);
    ev_forget(&f32);
    ev_forget(&off);
    ev_forget(&on);
}

/* Float weights, float activations: the copy computes what the model computes. */
static void check_equal(const char *a, const char *b, const ev_set *set)
{
    ev_measured x, y;
    ev_measure(&x, a, set, 64, true, false, FL_TYPE_F32);
    ev_measure(&y, b, set, 64, true, false, FL_TYPE_F32);
    const ev_figure c = ev_compare(&x.causal, &y.causal), d = ev_compare(&x.block, &y.block);
    if (!(c.kl < 1e-9 && d.kl < 1e-9))
        ev_die("the copy with outlier channels is another model: KL %g and %g", c.kl, d.kl);
    ev_forget(&x);
    ev_forget(&y);
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5) ev_die("usage: option_h MODEL HELDOUT.jsonl WORKDIR [POSITIONS]");
    const int64_t positions = argc == 5 ? atoll(argv[4]) : 2048;
    char base[4096], copy[4096], q4[4096];
    ev_set set;
    ev_set_load(&set, argv[2]);
    snprintf(base, sizeof base, "%s/option_h-f32.gguf", argv[3]);
    snprintf(copy, sizeof copy, "%s/option_h-outliers.gguf", argv[3]);
    snprintf(q4, sizeof q4, "%s/option_h-q4.gguf", argv[3]);
    ev_quantize(argv[1], base, "f32");
    printf("| model | pass | rows | KL, law | KL, law with H | ratio | same top 1 | with H |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    static const int scales[] = {1, 8, 32, 128};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        char label[64] = "as it is";
        if (scales[i] > 1) {
            write_outliers(base, copy, (float)scales[i]);
            check_equal(base, copy, &set);
            snprintf(label, sizeof label, "outliers x %d", scales[i]);
        }
        ev_quantize(scales[i] > 1 ? copy : base, q4, "q4_k");
        one_model(label, q4, &set, positions);
    }
    printf("Geometric mean over the lines: %.3e without, %.3e with H\n", exp(log_sum_off / n_log),
           exp(log_sum_on / n_log));
    ev_set_free(&set);
    remove(base);
    remove(copy);
    remove(q4);
    return 0;
}
