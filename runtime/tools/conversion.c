#include "runtime/tools/conversion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"

const char *const fl_conv_class_name[FL_CONV_CLASSES] = {
    "token embedding", "output",        "experts gate", "experts up",
    "experts down",    "shared expert", "attention",    "GDN",
    "backward branch", "MTP block",     "router",       "norms and vectors"};

void fl_conv_set_type(fl_conv_tensor *t, uint32_t want)
{
    const uint64_t cols = (uint64_t)t->ne[0];
    t->type = t->fixed ? FL_TYPE_F32 : want;
    t->fallback = fl_type_row_bytes(t->type, cols) == 0;
    if (t->fallback) t->type = fl_type_row_bytes(FL_TYPE_Q8_0, cols) ? FL_TYPE_Q8_0 : FL_TYPE_F16;
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
    int layer; /* -1: no prefix */
} lister;

/* Lists one tensor of the model under blk.N.`suffix`; NULL when the model has none. */
static fl_conv_tensor *list(lister *l, const char *suffix, const fl_tref *ref, fl_conv_class cls)
{
    char name[FL_CONV_NAME];
    if (!ref->tensor) return NULL;
    if (l->layer < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "blk.%d.%s", l->layer, suffix);
    fl_conv_tensor *t = add(l->c, name, ref->tensor);
    if (!t) return NULL;
    t->fixed = cls == FL_CONV_ROUTER || cls == FL_CONV_NORMS;
    t->class = l->layer >= l->ix->hp.n_layer && !t->fixed ? FL_CONV_MTP : cls;
    t->scale = ref->scale;
    return t;
}

static void list_norm(lister *l, const char *suffix, const fl_tref *ref)
{
    fl_conv_tensor *t = list(l, suffix, ref, FL_CONV_NORMS);
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
    fl_conv_tensor *t = list(l, suffix, ref, FL_CONV_NORMS);
    if (!t) return;
    as_vector(t);
    if (is_a && l->ix->hp.a_is_log) t->op = FL_CONV_NEG_EXP;
    permute(l, t, FL_CONV_HEADS, 0, 1);
}

/* [channels, 1, taps] or [channels, taps] -> ne {taps, channels}. */
static void list_conv(lister *l, const char *suffix, const fl_tref *ref)
{
    const fl_hparams *hp = &l->ix->hp;
    fl_conv_tensor *t = list(l, suffix, ref, FL_CONV_NORMS);
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
    permute(l, list(l, "attn_qkv.weight", &r->qkv, FL_CONV_GDN), FL_CONV_HEADS, v_first, dim);
    permute(l, list(l, "attn_gate.weight", &r->z, FL_CONV_GDN), FL_CONV_HEADS, 0, dim);
    permute(l, list(l, "ssm_alpha.weight", &r->alpha, FL_CONV_GDN), FL_CONV_HEADS, 0, 1);
    permute(l, list(l, "ssm_beta.weight", &r->beta, FL_CONV_GDN), FL_CONV_HEADS, 0, 1);
    list_conv(l, "ssm_conv1d.weight", &r->conv);
    list_head_vector(l, "ssm_dt.bias", &r->dt, false);
    list_head_vector(l, "ssm_a", &r->a, true);
    list(l, "ssm_norm.weight", &r->gdn_norm, FL_CONV_NORMS);
    permute(l, list(l, "ssm_out.weight", &r->out, FL_CONV_GDN), FL_CONV_HEAD_COLS, 0, dim);
    if (!bwd) return;
    permute(l, list(l, "ssm_bwd_alpha.weight", &r->bwd_alpha, FL_CONV_BRANCH), FL_CONV_HEADS, 0, 1);
    permute(l, list(l, "ssm_bwd_beta.weight", &r->bwd_beta, FL_CONV_BRANCH), FL_CONV_HEADS, 0, 1);
    list_conv(l, "ssm_bwd_conv1d.weight", &r->bwd_conv);
    list_head_vector(l, "ssm_bwd_dt.bias", &r->bwd_dt, false);
    list_head_vector(l, "ssm_bwd_a", &r->bwd_a, true);
    list_head_vector(l, "ssm_bwd_mix", &r->bwd_mix, false);
}

static void list_attention(lister *l, const fl_layer_refs *r)
{
    list(l, "attn_q.weight", &r->q, FL_CONV_ATTENTION);
    list(l, "attn_k.weight", &r->k, FL_CONV_ATTENTION);
    list(l, "attn_v.weight", &r->v, FL_CONV_ATTENTION);
    list(l, "attn_output.weight", &r->o, FL_CONV_ATTENTION);
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
                             (fl_conv_class)(FL_CONV_EXP_GATE + part));
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
    list(l, "ffn_gate_inp.weight", &r->router, FL_CONV_ROUTER);
    for (int part = 0; part < 3; part++) list_experts(l, r, part);
    list(l, "ffn_gate_shexp.weight", &r->shared_gate, FL_CONV_SHARED);
    list(l, "ffn_up_shexp.weight", &r->shared_up, FL_CONV_SHARED);
    list(l, "ffn_down_shexp.weight", &r->shared_down, FL_CONV_SHARED);
    fl_conv_tensor *t = list(l, "ffn_gate_inp_shexp.weight", &r->shared_gate_inp, FL_CONV_ROUTER);
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
    list(l, "nextn.eh_proj.weight", &r->nextn_proj, FL_CONV_MTP);
    list_norm(l, "nextn.enorm.weight", &r->nextn_enorm);
    list_norm(l, "nextn.hnorm.weight", &r->nextn_hnorm);
    list_norm(l, "nextn.shared_head_norm.weight", &r->nextn_norm);
}

/* What the values of a tensor, or of each of its experts, are multiplied by. */
static fl_status read_factors(const fl_conv *c, fl_conv_tensor *t, fl_err *err)
{
    if (!t->scale) return FL_OK;
    t->n_factors = t->scale->ne[0] * t->scale->ne[1] * t->scale->ne[2] * t->scale->ne[3];
    t->factor = malloc((size_t)t->n_factors * sizeof *t->factor);
    if (!t->factor) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", t->scale->name);
    return fl_source_read(c->src, t->scale, 0, t->factor,
                          (uint64_t)t->n_factors * sizeof *t->factor, err);
}

fl_status fl_conv_plan(fl_conv *c, const fl_index *ix, bool bwd, fl_err *err)
{
    *c = (fl_conv){.src = ix->src};
    lister l = {c, ix, -1};
    list(&l, "token_embd.weight", &ix->embed, FL_CONV_EMBED);
    list_norm(&l, "output_norm.weight", &ix->output_norm);
    if (ix->output.tensor != ix->embed.tensor)
        list(&l, "output.weight", &ix->output, FL_CONV_OUTPUT);
    for (int i = 0; i < ix->hp.n_layer; i++) list_layer(&l, i, &ix->layer[i], bwd);
    for (int i = 0; i < ix->hp.n_mtp; i++) list_layer(&l, ix->hp.n_layer + i, &ix->mtp[i], bwd);
    if (c->failed)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the tensor list",
                       fl_source_paths(ix->src)[0]);
    size_t used = 0;
    const fl_tensor *fused = NULL;
    for (int i = 0; i < c->n; i++) {
        fl_conv_tensor *t = &c->tensor[i];
        fl_conv_set_type(t, FL_TYPE_F32);
        FL_TRY(read_factors(c, t, err));
        if (t->map == FL_CONV_HALF && t->one == fused) continue; /* counted with its first half */
        fused = t->map == FL_CONV_HALF ? t->one : NULL;
        used += (size_t)(t->rows / t->rows_per_src) + (t->scale ? 1 : 0);
    }
    c->n_dropped = (int)(fl_source_n_tensors(ix->src) - used);
    return FL_OK;
}

void fl_conv_fini(fl_conv *c)
{
    for (int i = 0; i < c->n; i++) free(c->tensor[i].factor);
    free(c->tensor);
    *c = (fl_conv){0};
}

/* Whole rows (for ssm_out: whole blocks of a head's columns) must be taken as they are. */
bool fl_conv_copies(const fl_conv_tensor *t, uint32_t type)
{
    if (t->op != FL_CONV_COPY || t->factor || fl_type_get(type)->block_elems == 1) return false;
    if (t->map == FL_CONV_HEAD_COLS && !fl_type_row_bytes(type, (uint64_t)t->unit)) return false;
    for (int64_t r = 0; r < t->rows; r += t->rows_per_src)
        if (fl_conv_source(t, r)->type != type) return false;
    return true;
}

fl_status fl_conv_settle(fl_conv *c, bool requantize, fl_err *err)
{
    for (int i = 0; i < c->n; i++) {
        fl_conv_tensor *t = &c->tensor[i];
        bool quantized = false;
        for (int64_t r = 0; r < t->rows; r += t->rows_per_src) {
            const fl_tensor *src = fl_conv_source(t, r);
            const char *path = fl_source_paths(c->src)[src->file];
            const fl_type_info *ti = fl_type_get(src->type);
            if (!ti || !ti->readable || !fl_type_row_bytes(src->type, (uint64_t)t->cols))
                return FL_FAIL(err, FL_E_UNSUPPORTED, 0, "%s: %s (%s) cannot be read row by row",
                               path, src->name, ti ? ti->name : "a type unknown here");
            quantized |= ti->block_elems > 1;
        }
        t->copied = fl_conv_copies(t, t->type);
        t->again = quantized && !t->copied && t->type != FL_TYPE_F32;
        c->n_copied += t->copied;
        c->n_again += t->again;
        if (!t->copied && !fl_type_get(t->type)->quantize)
            return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                           "%s: %s cannot be written as %s, only copied where it is that already "
                           "and its blocks can stay whole; give it another type",
                           fl_source_paths(c->src)[fl_conv_source(t, 0)->file], t->name,
                           fl_type_get(t->type)->name);
        if (t->again && !requantize)
            return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                           "%s: %s is quantized already (%s): quantizing twice loses quality; "
                           "start from the F32, F16 or BF16 weights, keep its type (--recipe "
                           "keep), or give --requantize",
                           fl_source_paths(c->src)[fl_conv_source(t, 0)->file],
                           fl_conv_source(t, 0)->name,
                           fl_type_get(fl_conv_source(t, 0)->type)->name);
    }
    return FL_OK;
}

uint32_t fl_conv_main_type(const fl_conv *c)
{
    uint64_t values[FL_TYPE_LIMIT] = {0};
    uint32_t best = FL_TYPE_F32;
    for (int i = 0; i < c->n; i++) {
        const fl_conv_tensor *t = &c->tensor[i];
        if (!t->fixed) values[t->type] += (uint64_t)(t->rows * t->cols);
    }
    for (uint32_t k = 0; k < FL_TYPE_LIMIT; k++)
        if (values[k] > values[best]) best = k;
    return best;
}

uint64_t fl_conv_bytes(const fl_conv_tensor *t, uint32_t type)
{
    return fl_type_row_bytes(type, (uint64_t)t->ne[0]) * (uint64_t)(t->rows * t->cols / t->ne[0]);
}
