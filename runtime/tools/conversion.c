#include "runtime/tools/conversion.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"
#include "quant/law.h"
#include "quant/round.h"

/* How much a tensor suffers from few bits; fl_conv_plan says which is which. */
typedef enum weight_class { W_LARGE, W_SENSITIVE, W_FLOAT } weight_class;

static uint32_t pick_type(uint32_t main_type, weight_class cls, int64_t cols, bool *fallback)
{
    uint32_t want = main_type;
    if (cls == W_FLOAT) want = FL_TYPE_F32;
    if (cls == W_SENSITIVE && main_type == FL_TYPE_Q4_K) want = FL_TYPE_Q8_0;
    *fallback = fl_type_row_bytes(want, (uint64_t)cols) == 0;
    if (!*fallback) return want;
    return fl_type_row_bytes(FL_TYPE_Q8_0, (uint64_t)cols) ? FL_TYPE_Q8_0 : FL_TYPE_F16;
}

/* Appends an entry with the source's shape; NULL when memory is out. */
static fl_conv_tensor *add(fl_conv *c, const char *name, const fl_tensor *src)
{
    if (c->n == c->cap) {
        const int cap = c->cap ? 2 * c->cap : 256;
        fl_conv_tensor *t = realloc(c->tensor, (size_t)cap * sizeof *t);
        if (!t) {
            c->failed = true;
            return NULL;
        }
        c->tensor = t;
        c->cap = cap;
    }
    fl_conv_tensor *t = &c->tensor[c->n++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->one = src;
    t->n_dims = src->n_dims;
    memcpy(t->ne, src->ne, sizeof t->ne);
    t->cols = src->ne[0];
    t->rows = src->ne[1] * src->ne[2] * src->ne[3];
    t->rows_per_src = t->rows;
    return t;
}

static void set_type(fl_conv_tensor *t, uint32_t main_type, weight_class cls)
{
    t->type = pick_type(main_type, cls, t->ne[0], &t->fallback);
}

/* Values that a vector is permuted or shaped by one at a time. */
static void as_vector(fl_conv_tensor *t)
{
    t->ne[0] = t->rows * t->cols;
    t->ne[1] = t->ne[2] = t->ne[3] = 1;
    t->n_dims = 1;
    t->rows = t->rows_per_src = t->ne[0];
    t->cols = 1;
}

typedef struct lister {
    fl_conv *c;
    const fl_index *ix;
    uint32_t main_type;
    int layer; /* -1: no prefix */
} lister;

/* Lists one tensor of the model under blk.N.`suffix`; NULL when the model has none. */
static fl_conv_tensor *list(lister *l, const char *suffix, const fl_tref *ref, weight_class cls)
{
    char name[FL_CONV_NAME];
    if (!ref->tensor) return NULL;
    if (l->layer < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "blk.%d.%s", l->layer, suffix);
    fl_conv_tensor *t = add(l->c, name, ref->tensor);
    if (t) set_type(t, l->main_type, cls);
    return t;
}

static void list_norm(lister *l, const char *suffix, const fl_tref *ref)
{
    fl_conv_tensor *t = list(l, suffix, ref, W_FLOAT);
    if (t && l->ix->hp.norm_add_one) t->op = FL_CONV_ADD_ONE;
}

/* Permutes the value heads of a listed tensor when the source has them grouped. */
static void permute(const lister *l, fl_conv_tensor *t, fl_conv_map map, int64_t first,
                    int64_t unit)
{
    const fl_hparams *hp = &l->ix->hp;
    if (!t || !hp->v_grouped) return;
    t->map = map;
    t->first = first;
    t->unit = unit;
    t->n_k = hp->gdn_k_heads;
    t->n_r = hp->gdn_v_heads / hp->gdn_k_heads;
}

/* A per-head vector: dt, a, mix. */
static void list_head_vector(lister *l, const char *suffix, const fl_tref *ref, bool is_a)
{
    fl_conv_tensor *t = list(l, suffix, ref, W_FLOAT);
    if (!t) return;
    as_vector(t);
    if (is_a && l->ix->hp.a_is_log) t->op = FL_CONV_NEG_EXP;
    permute(l, t, FL_CONV_HEADS, 0, 1);
}

/* [channels, 1, taps] or [channels, taps] -> ne {taps, channels}. */
static void list_conv(lister *l, const char *suffix, const fl_tref *ref)
{
    const fl_hparams *hp = &l->ix->hp;
    fl_conv_tensor *t = list(l, suffix, ref, W_FLOAT);
    if (!t) return;
    t->n_dims = 2;
    t->ne[1] = t->rows;
    t->ne[2] = t->ne[3] = 1;
    permute(l, t, FL_CONV_HEADS, 2 * (int64_t)hp->gdn_k_heads * hp->gdn_dim, hp->gdn_dim);
}

static void list_gdn(lister *l, const fl_layer_refs *r, bool bwd)
{
    const fl_hparams *hp = &l->ix->hp;
    const int64_t dim = hp->gdn_dim, v_first = 2 * (int64_t)hp->gdn_k_heads * dim;
    permute(l, list(l, "attn_qkv.weight", &r->qkv, W_SENSITIVE), FL_CONV_HEADS, v_first, dim);
    permute(l, list(l, "attn_gate.weight", &r->z, W_LARGE), FL_CONV_HEADS, 0, dim);
    permute(l, list(l, "ssm_alpha.weight", &r->alpha, W_SENSITIVE), FL_CONV_HEADS, 0, 1);
    permute(l, list(l, "ssm_beta.weight", &r->beta, W_SENSITIVE), FL_CONV_HEADS, 0, 1);
    list_conv(l, "ssm_conv1d.weight", &r->conv);
    list_head_vector(l, "ssm_dt.bias", &r->dt, false);
    list_head_vector(l, "ssm_a", &r->a, true);
    list(l, "ssm_norm.weight", &r->gdn_norm, W_FLOAT);
    permute(l, list(l, "ssm_out.weight", &r->out, W_SENSITIVE), FL_CONV_HEAD_COLS, 0, dim);
    if (!bwd) return;
    permute(l, list(l, "ssm_bwd_alpha.weight", &r->bwd_alpha, W_SENSITIVE), FL_CONV_HEADS, 0, 1);
    permute(l, list(l, "ssm_bwd_beta.weight", &r->bwd_beta, W_SENSITIVE), FL_CONV_HEADS, 0, 1);
    list_conv(l, "ssm_bwd_conv1d.weight", &r->bwd_conv);
    list_head_vector(l, "ssm_bwd_dt.bias", &r->bwd_dt, false);
    list_head_vector(l, "ssm_bwd_a", &r->bwd_a, true);
    list_head_vector(l, "ssm_bwd_mix", &r->bwd_mix, false);
}

static void list_attention(lister *l, const fl_layer_refs *r)
{
    list(l, "attn_q.weight", &r->q, W_LARGE);
    list(l, "attn_k.weight", &r->k, W_SENSITIVE);
    list(l, "attn_v.weight", &r->v, W_SENSITIVE);
    list(l, "attn_output.weight", &r->o, W_LARGE);
    list_norm(l, "attn_q_norm.weight", &r->q_norm);
    list_norm(l, "attn_k_norm.weight", &r->k_norm);
}

/* One of the three expert tensors, whatever way the source holds it. part: 0 gate, 1 up, 2 down */
static void list_experts(lister *l, const fl_layer_refs *r, int part)
{
    static const char *const suffix[3] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                          "ffn_down_exps.weight"};
    const fl_hparams *hp = &l->ix->hp;
    const fl_tref *whole = part == 0 ? &r->exp_gate : part == 1 ? &r->exp_up : &r->exp_down;
    const fl_tref first = {r->per_expert ? r->per_expert[part] : NULL, NULL};
    const bool fused = part < 2 && r->exp_gate_up.tensor;
    fl_conv_tensor *t = list(l, suffix[part],
                             r->per_expert ? &first
                             : fused       ? &r->exp_gate_up
                                           : whole,
                             W_LARGE);
    if (!t) return;
    const int64_t per_expert = part == 2 ? hp->d_model : hp->d_ff;
    if (r->per_expert) t->many = r->per_expert + part;
    if (fused) {
        t->map = FL_CONV_HALF;
        t->half = part;
        t->unit = per_expert;
    }
    t->n_dims = 3;
    t->ne[1] = per_expert;
    t->ne[2] = hp->n_expert;
    t->ne[3] = 1;
    t->rows = per_expert * hp->n_expert;
    t->rows_per_src = r->per_expert ? per_expert : t->rows;
}

static void list_ffn(lister *l, const fl_layer_refs *r)
{
    list_norm(l, "post_attention_norm.weight", &r->ffn_norm);
    list(l, "ffn_gate_inp.weight", &r->router, W_FLOAT);
    for (int part = 0; part < 3; part++) list_experts(l, r, part);
    list(l, "ffn_gate_shexp.weight", &r->shared_gate, W_LARGE);
    list(l, "ffn_up_shexp.weight", &r->shared_up, W_LARGE);
    list(l, "ffn_down_shexp.weight", &r->shared_down, W_LARGE);
    fl_conv_tensor *t = list(l, "ffn_gate_inp_shexp.weight", &r->shared_gate_inp, W_FLOAT);
    if (t) as_vector(t);
}

/* One decoder layer or MTP block; what the source lacks is left out. */
static void list_layer(lister *l, int i, const fl_layer_refs *r, bool bwd)
{
    l->layer = i;
    list_norm(l, "attn_norm.weight", &r->attn_norm);
    if (r->full_attention)
        list_attention(l, r);
    else
        list_gdn(l, r, bwd);
    list_ffn(l, r);
    list(l, "nextn.eh_proj.weight", &r->nextn_proj, W_LARGE);
    list_norm(l, "nextn.enorm.weight", &r->nextn_enorm);
    list_norm(l, "nextn.hnorm.weight", &r->nextn_hnorm);
    list_norm(l, "nextn.shared_head_norm.weight", &r->nextn_norm);
}

static fl_status check_source(const fl_tensor *t, const char *path, fl_err *err)
{
    if (t->type == FL_TYPE_F32 || t->type == FL_TYPE_F16 || t->type == FL_TYPE_BF16) return FL_OK;
    const fl_type_info *ti = fl_type_get(t->type);
    return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                   "%s: %s is quantized already (%s): quantizing twice loses quality; start from "
                   "the F32, F16 or BF16 weights",
                   path, t->name, ti ? ti->name : "a type unknown here");
}

fl_status fl_conv_plan(fl_conv *c, const fl_index *ix, uint32_t main_type, bool bwd, fl_err *err)
{
    *c = (fl_conv){.src = ix->src};
    const char *path = fl_source_paths(ix->src)[0];
    lister l = {c, ix, main_type, -1};
    list(&l, "token_embd.weight", &ix->embed, W_SENSITIVE);
    list_norm(&l, "output_norm.weight", &ix->output_norm);
    if (ix->output.tensor != ix->embed.tensor) list(&l, "output.weight", &ix->output, W_SENSITIVE);
    for (int i = 0; i < ix->hp.n_layer; i++) list_layer(&l, i, &ix->layer[i], bwd);
    for (int i = 0; i < ix->hp.n_mtp; i++) list_layer(&l, ix->hp.n_layer + i, &ix->mtp[i], bwd);
    if (c->failed) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the tensor list", path);
    size_t used = 0;
    const fl_tensor *fused = NULL;
    for (int i = 0; i < c->n; i++) {
        const fl_conv_tensor *t = &c->tensor[i];
        for (int64_t k = 0; k < t->rows / t->rows_per_src; k++)
            FL_TRY(check_source(t->many ? t->many[3 * k] : t->one, path, err));
        if (t->map == FL_CONV_HALF && t->one == fused) continue; /* counted with its first half */
        fused = t->map == FL_CONV_HALF ? t->one : NULL;
        used += (size_t)(t->rows / t->rows_per_src);
    }
    c->n_dropped = (int)(fl_source_n_tensors(ix->src) - used);
    return FL_OK;
}

void fl_conv_fini(fl_conv *c)
{
    free(c->tensor);
    *c = (fl_conv){0};
}

/* Source value head of output head n (grouped to tiled). */
static int64_t source_head(const fl_conv_tensor *t, int64_t n)
{
    return (int64_t)t->n_r * (n % t->n_k) + n / t->n_k;
}

/* Source row of output row r, and how many rows from there on lie behind each other. */
static int64_t source_row(const fl_conv_tensor *t, int64_t r, int64_t *run)
{
    switch (t->map) {
    case FL_CONV_HEADS:
        if (r < t->first) {
            *run = t->first - r;
            return r;
        } else {
            const int64_t head = (r - t->first) / t->unit, in = (r - t->first) % t->unit;
            *run = t->unit - in;
            return t->first + source_head(t, head) * t->unit + in;
        }
    case FL_CONV_HALF:
        *run = t->unit - r % t->unit;
        return (2 * (r / t->unit) + t->half) * t->unit + r % t->unit;
    default: *run = t->rows_per_src - r % t->rows_per_src; return r % t->rows_per_src;
    }
}

static void permute_cols(const fl_conv_tensor *t, float *row, float *copy)
{
    memcpy(copy, row, (size_t)t->cols * sizeof *row);
    for (int64_t n = 0; n < t->cols / t->unit; n++)
        memcpy(row + n * t->unit, copy + source_head(t, n) * t->unit,
               (size_t)t->unit * sizeof *row);
}

static void apply_op(const fl_conv_tensor *t, float *v, int64_t n)
{
    if (t->op == FL_CONV_ADD_ONE)
        for (int64_t i = 0; i < n; i++) v[i] += 1.0f;
    if (t->op == FL_CONV_NEG_EXP)
        for (int64_t i = 0; i < n; i++) v[i] = (float)-fl_law_exp64((double)v[i]);
}

fl_status fl_conv_read(const fl_conv *c, const fl_conv_tensor *t, int64_t row0, int64_t n,
                       float *dst, void *scratch, fl_err *err)
{
    assert(row0 >= 0 && n > 0 && row0 + n <= t->rows);
    for (int64_t r = row0; r < row0 + n;) {
        const fl_tensor *src = t->many ? t->many[3 * (r / t->rows_per_src)] : t->one;
        const fl_type_info *ti = fl_type_get(src->type);
        int64_t run = 0;
        const int64_t from = source_row(t, r, &run);
        if (run > row0 + n - r) run = row0 + n - r;
        float *out = dst + (r - row0) * t->cols;
        const uint64_t row_bytes = (uint64_t)t->cols * ti->block_bytes;
        FL_TRY(fl_source_read(c->src, src, (uint64_t)from * row_bytes, scratch,
                              (uint64_t)run * row_bytes, err));
        ti->dequantize(scratch, out, run * t->cols);
        const int64_t bad = fl_round_nonfinite(out, run * t->cols);
        if (bad >= 0)
            return FL_FAIL(err, FL_E_NAN, 0,
                           "%s: row %lld, column %lld is %f: the weights are damaged", src->name,
                           (long long)(from + bad / t->cols), (long long)(bad % t->cols),
                           (double)out[bad]);
        r += run;
    }
    apply_op(t, dst, n * t->cols);
    if (t->map == FL_CONV_HEAD_COLS)
        for (int64_t r = 0; r < n; r++) permute_cols(t, dst + r * t->cols, scratch);
    return FL_OK;
}
