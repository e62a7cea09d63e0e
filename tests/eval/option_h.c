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

enum { BLOCK_MAX = 64, N_OUTLIERS = 2 };

static uint64_t hash(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* ---- the copies ---- */

static void quantize(const char *in, const char *out, const char *type)
{
    fl_err err = {0};
    const char *args[2] = {in, out};
    const fl_options o = {.command = "quantize", .args = args, .n_args = 2, .type = type};
    if (fl_tool_quantize(&o, &err) != FL_OK) ev_die("%s", err.msg);
}

/* 1 or s: the factor of channel c in a group of channels ("blk.3.attn", "blk.3.ffn", ...). */
static float factor(const char *group, int64_t c, int64_t n, float s)
{
    uint64_t h = 0;
    for (const char *p = group; *p; p++) h = hash(h ^ (uint64_t)(unsigned char)*p);
    for (int k = 0; k < N_OUTLIERS; k++)
        if (c == (int64_t)(hash(h + (uint64_t)k) % (uint64_t)n)) return s;
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

/* ---- the distributions ---- */

typedef struct rows {
    float *logits; /* [n][vocab] */
    int64_t n, cap, vocab;
} rows;

typedef struct measured {
    rows causal, block;
} measured;

static void take_rows(rows *r, fl_engine *e, const int *row, int n)
{
    fl_err err = {0};
    const float *l;
    if (n > r->cap - r->n) n = (int)(r->cap - r->n);
    if (n <= 0) return;
    if (fl_forward_logits(e, row, n, &l, &err) != FL_OK) ev_die("%s", err.msg);
    memcpy(r->logits + r->n * r->vocab, l, (size_t)n * (size_t)r->vocab * sizeof *l);
    r->n += n;
}

/* Both kinds of rows of one text, block by block. */
static void one_text(measured *out, const ev_model *m, const int32_t *ids, size_t n_ids,
                     uint64_t key)
{
    fl_err err = {0};
    fl_engine *e = m->engine;
    const fl_clover *c = &m->model->index->clover;
    const int block = e->params.block_size;
    fl_state_reset(&e->state);
    for (size_t at = 0; at < n_ids; at += (size_t)block) {
        const int n = n_ids - at < (size_t)block ? (int)(n_ids - at) : block;
        int32_t masked[BLOCK_MAX];
        int row[BLOCK_MAX], n_masked = 0, n_clean = n;
        for (int i = 0; i < n; i++) {
            const bool mask = hash(key ^ hash(at + (size_t)i)) & 1;
            masked[i] = mask ? c->mask_id : ids[at + (size_t)i];
            if (mask && n_clean == n) n_clean = i;
            if (mask) row[n_masked++] = i;
        }
        if (c->has_blocks && n_masked) {
            if (fl_forward_denoise(e, masked, n, c->gdn_block_mode, n_clean, &err) != FL_OK)
                ev_die("%s", err.msg);
            take_rows(&out->block, e, row, n_masked);
        }
        if (fl_forward_clean(e, ids + at, n, &err) != FL_OK) ev_die("%s", err.msg);
        for (int i = 0; i < n; i++) row[i] = i;
        take_rows(&out->causal, e, row, n);
    }
}

static void measure(measured *out, const char *path, const ev_set *set, int64_t positions,
                    bool act_f32, bool h)
{
    fl_engine_params p = fl_engine_defaults();
    ev_model m;
    fl_law_option_h = h;
    p.act_f32 = act_f32;
    p.kv_type = FL_TYPE_F32;
    ev_open(&m, path, &p);
    if (m.engine->params.block_size > BLOCK_MAX) ev_die("blocks of more than %d rows", BLOCK_MAX);
    rows *r[2] = {&out->causal, &out->block};
    for (int i = 0; i < 2; i++) {
        r[i]->vocab = m.model->index->hp.n_vocab;
        r[i]->cap = positions;
        r[i]->n = 0;
        r[i]->logits = ev_alloc((size_t)positions * (size_t)r[i]->vocab * sizeof(float));
    }
    const int64_t need_blocks = m.model->index->clover.has_blocks ? positions : 0;
    const int stride = 7; /* texts of every task */
    for (int k = 0; k < set->n * stride; k++) {
        if (out->causal.n >= positions && out->block.n >= need_blocks) break;
        const int i = (int)((int64_t)k * stride % set->n);
        size_t n = 0;
        int32_t *ids = ev_encode(&m, set->item[i].whole, &n);
        if ((int64_t)n > m.engine->params.n_ctx) n = (size_t)m.engine->params.n_ctx;
        one_text(out, &m, ids, n, (uint64_t)i);
        free(ids);
    }
    ev_close(&m);
}

static void forget(measured *m)
{
    free(m->causal.logits);
    free(m->block.logits);
}

/* KL(p || q) of two rows of logits, in double. */
static double divergence(const float *p, const float *q, int64_t n)
{
    double mp = -INFINITY, mq = -INFINITY, sp = 0, sq = 0, kl = 0;
    for (int64_t i = 0; i < n; i++) {
        mp = fmax(mp, (double)p[i]);
        mq = fmax(mq, (double)q[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        sp += exp((double)p[i] - mp);
        sq += exp((double)q[i] - mq);
    }
    for (int64_t i = 0; i < n; i++) {
        const double lp = (double)p[i] - mp - log(sp), lq = (double)q[i] - mq - log(sq);
        kl += exp(lp) * (lp - lq);
    }
    return kl;
}

static int64_t argmax(const float *v, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return best;
}

typedef struct figure {
    double kl, top1;
} figure;

static figure compare(const rows *ref, const rows *got)
{
    figure f = {0, 0};
    if (ref->n != got->n) ev_die("%lld rows against %lld", (long long)ref->n, (long long)got->n);
    for (int64_t i = 0; i < ref->n; i++) {
        const float *p = ref->logits + i * ref->vocab, *q = got->logits + i * ref->vocab;
        f.kl += divergence(p, q, ref->vocab);
        f.top1 += argmax(p, ref->vocab) == argmax(q, ref->vocab);
    }
    if (ref->n) {
        f.kl /= (double)ref->n;
        f.top1 *= 100.0 / (double)ref->n;
    }
    return f;
}

static double log_sum_off, log_sum_on;
static int n_log;

static void print_line(const char *model, const char *kind, const rows *ref, const rows *off,
                       const rows *on)
{
    if (ref->n == 0) return;
    const figure a = compare(ref, off), b = compare(ref, on);
    printf("| %s | %s | %lld | %.3e | %.3e | %.2f | %.2f %% | %.2f %% |\n", model, kind,
           (long long)ref->n, a.kl, b.kl, b.kl / a.kl, a.top1, b.top1);
    log_sum_off += log(a.kl);
    log_sum_on += log(b.kl);
    n_log++;
}

static void one_model(const char *label, const char *q4, const ev_set *set, int64_t positions)
{
    measured f32, off, on;
    measure(&f32, q4, set, positions, true, false);
    measure(&off, q4, set, positions, false, false);
    measure(&on, q4, set, positions, false, true);
    print_line(label, "causal", &f32.causal, &off.causal, &on.causal);
    print_line(label, "block", &f32.block, &off.block, &on.block);
    fflush(stdout);
    forget(&f32);
    forget(&off);
    forget(&on);
}

/* Float weights, float activations: the copy computes what the model computes. */
static void check_equal(const char *a, const char *b, const ev_set *set)
{
    measured x, y;
    measure(&x, a, set, 64, true, false);
    measure(&y, b, set, 64, true, false);
    const figure c = compare(&x.causal, &y.causal), d = compare(&x.block, &y.block);
    if (!(c.kl < 1e-9 && d.kl < 1e-9))
        ev_die("the copy with outlier channels is another model: KL %g and %g", c.kl, d.kl);
    forget(&x);
    forget(&y);
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
    quantize(argv[1], base, "f32");
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
        quantize(scales[i] > 1 ? copy : base, q4, "q4_k");
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
