#include "tests/support/make_tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct list {
    const fl_make *m;
    fl_make_tensor *t;
    int n, room;
    bool gguf;
    char hf[64], blk[32]; /* prefixes of the layer being listed */
} list;

static fl_make_tensor *add(list *l, const char *hf, const char *gguf, fl_make_kind kind,
                           int64_t rows, int64_t cols)
{
    if (l->n == l->room) {
        l->room = l->room * 2 + 64;
        l->t = realloc(l->t, (size_t)l->room * sizeof *l->t);
        if (!l->t) abort();
    }
    fl_make_tensor *t = &l->t[l->n++];
    *t = (fl_make_tensor){.kind = kind, .gain = 1, .n = 1, .rows = rows, .cols = cols};
    t->whole_rows = rows;
    t->expert = t->heads_row0 = -1;
    t->f32 = kind != FL_MAKE_MATRIX && kind != FL_MAKE_EMBED;
    t->vector = t->f32 && kind != FL_MAKE_CONV;
    t->st_f32 = kind == FL_MAKE_A_LOG || kind == FL_MAKE_GATED_NORM;
    snprintf(t->hf, sizeof t->hf, "%s%s", l->hf, hf);
    snprintf(t->key, sizeof t->key, "%s%s", l->hf, hf);
    snprintf(t->gguf, sizeof t->gguf, "%s%s", l->blk, gguf);
    return t;
}

static void heads(fl_make_tensor *t, int64_t row0, int64_t unit)
{
    t->heads_row0 = row0;
    t->row_unit = unit;
}

/* Gates, decay and conv of one direction; bwd or not. */
static void gdn_direction(list *l, bool bwd)
{
    const fl_make *m = l->m;
    const int64_t v = m->gdn_v_heads, keys = 2 * (int64_t)m->gdn_k_heads * m->gdn_dim;
    char hf[48], gguf[48];
#define NAMES(H, G)                                                   \
    (snprintf(hf, sizeof hf, "linear_attn.%s" H, bwd ? "bwd." : ""),  \
     snprintf(gguf, sizeof gguf, "ssm_%s" G, bwd ? "bwd_" : ""), hf), \
        gguf
    heads(add(l, NAMES("in_proj_a.weight", "alpha.weight"), FL_MAKE_MATRIX, v, m->d_model), 0, 1);
    heads(add(l, NAMES("in_proj_b.weight", "beta.weight"), FL_MAKE_MATRIX, v, m->d_model), 0, 1);
    heads(add(l, NAMES("A_log", "a"), FL_MAKE_A_LOG, v, 1), 0, 1);
    if (m->ollama)
        heads(add(l, NAMES("dt_bias", "dt"), FL_MAKE_DT, v, 1), 0, 1);
    else
        heads(add(l, NAMES("dt_bias", "dt.bias"), FL_MAKE_DT, v, 1), 0, 1);
    heads(add(l, NAMES("conv1d.weight", "conv1d.weight"), FL_MAKE_CONV, keys + v * m->gdn_dim,
              m->conv_kernel),
          keys, m->gdn_dim);
    if (bwd) heads(add(l, NAMES("mix", "mix"), FL_MAKE_MIX, v, 1), 0, 1);
#undef NAMES
}

static void gdn(list *l)
{
    const fl_make *m = l->m;
    const int64_t d = m->d_model, dim = m->gdn_dim, keys = 2 * m->gdn_k_heads * dim,
                  values = m->gdn_v_heads * dim;
    heads(add(l, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", FL_MAKE_MATRIX, keys + values,
              d),
          keys, dim);
    heads(add(l, "linear_attn.in_proj_z.weight", "attn_gate.weight", FL_MAKE_MATRIX, values, d), 0,
          dim);
    gdn_direction(l, false);
    add(l, "linear_attn.norm.weight", "ssm_norm.weight", FL_MAKE_GATED_NORM, 1, dim);
    fl_make_tensor *out =
        add(l, "linear_attn.out_proj.weight", "ssm_out.weight", FL_MAKE_MATRIX, d, values);
    out->col_unit = dim;
    out->gain = 1.5f;
    if (strcmp(m->arch, "clover_moe") == 0 && !m->no_bwd) gdn_direction(l, true);
}

static void attention(list *l)
{
    const fl_make *m = l->m;
    const int64_t d = m->d_model, q = (int64_t)m->n_head * m->head_dim,
                  kv = (int64_t)m->n_head_kv * m->head_dim;
    add(l, "self_attn.q_proj.weight", "attn_q.weight", FL_MAKE_MATRIX, 2 * q, d);
    add(l, "self_attn.k_proj.weight", "attn_k.weight", FL_MAKE_MATRIX, kv, d);
    add(l, "self_attn.v_proj.weight", "attn_v.weight", FL_MAKE_MATRIX, kv, d);
    add(l, "self_attn.o_proj.weight", "attn_output.weight", FL_MAKE_MATRIX, d, q)->gain = 2;
    add(l, "self_attn.q_norm.weight", "attn_q_norm.weight", FL_MAKE_NORM, 1, m->head_dim);
    add(l, "self_attn.k_norm.weight", "attn_k_norm.weight", FL_MAKE_NORM, 1, m->head_dim);
}

/* A part of gate_up_proj [E][2 d_ff][d_model] or down_proj [E][d_model][d_ff]. */
static void experts(list *l, const char *gguf, const char *hf, bool down, int64_t row0,
                    int64_t rows, int expert)
{
    const fl_make *m = l->m;
    fl_make_tensor *t = add(l, hf, gguf, FL_MAKE_MATRIX, rows, down ? m->d_ff : m->d_model);
    t->n = expert < 0 ? m->n_expert : 1;
    t->whole_rows = down ? m->d_model : 2 * m->d_ff;
    t->row0 = row0;
    t->expert = expert;
    t->gain = 1.5f;
    snprintf(t->key, sizeof t->key, "%smlp.experts.%s", l->hf, down ? "down_proj" : "gate_up_proj");
}

static void per_expert(list *l)
{
    const fl_make *m = l->m;
    for (int e = 0; e < m->n_expert; e++) {
        char name[64];
        snprintf(name, sizeof name, "mlp.experts.%d.gate_proj.weight", e);
        experts(l, "", name, false, 0, m->d_ff, e);
        snprintf(name, sizeof name, "mlp.experts.%d.up_proj.weight", e);
        experts(l, "", name, false, m->d_ff, m->d_ff, e);
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj.weight", e);
        experts(l, "", name, true, 0, m->d_model, e);
    }
}

static void moe(list *l)
{
    const fl_make *m = l->m;
    const int64_t d = m->d_model, s = m->d_ff_shared;
    fl_make_tensor *router =
        add(l, "mlp.gate.weight", "ffn_gate_inp.weight", FL_MAKE_MATRIX, m->n_expert, d);
    router->gain = 2;
    router->f32 = true;
    if (!l->gguf && m->st_per_expert) {
        per_expert(l);
    } else if (!l->gguf || m->fused) {
        experts(l, "ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj", false, 0, 2 * m->d_ff,
                -1);
        experts(l, "ffn_down_exps.weight", "mlp.experts.down_proj", true, 0, d, -1);
    } else {
        experts(l, "ffn_gate_exps.weight", "", false, 0, m->d_ff, -1);
        experts(l, "ffn_up_exps.weight", "", false, m->d_ff, m->d_ff, -1);
        experts(l, "ffn_down_exps.weight", "mlp.experts.down_proj", true, 0, d, -1);
    }
    add(l, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", FL_MAKE_MATRIX, s, d);
    add(l, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", FL_MAKE_MATRIX, s, d);
    add(l, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", FL_MAKE_MATRIX, d, s);
    fl_make_tensor *g =
        add(l, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", FL_MAKE_MATRIX, 1, d);
    g->f32 = true;
}

static void layer(list *l, bool full)
{
    add(l, "input_layernorm.weight", "attn_norm.weight", FL_MAKE_NORM, 1, l->m->d_model);
    full ? attention(l) : gdn(l);
    add(l, "post_attention_layernorm.weight", "post_attention_norm.weight", FL_MAKE_NORM, 1,
        l->m->d_model);
    moe(l);
}

static void mtp(list *l)
{
    const int64_t d = l->m->d_model;
    snprintf(l->hf, sizeof l->hf, "mtp.layers.0.");
    layer(l, true);
    snprintf(l->hf, sizeof l->hf, "mtp.");
    add(l, "fc.weight", "nextn.eh_proj.weight", FL_MAKE_MATRIX, d, 2 * d);
    add(l, "pre_fc_norm_embedding.weight", "nextn.enorm.weight", FL_MAKE_NORM, 1, d);
    add(l, "pre_fc_norm_hidden.weight", "nextn.hnorm.weight", FL_MAKE_NORM, 1, d);
    add(l, "norm.weight", "nextn.shared_head_norm.weight", FL_MAKE_NORM, 1, d);
}

fl_make_tensor *fl_make_list(const fl_make *m, bool gguf, int *n)
{
    list l = {.m = m, .gguf = gguf};
    add(&l, "embed_tokens.weight", "token_embd.weight", FL_MAKE_EMBED, m->n_vocab, m->d_model);
    for (int i = 0; i < m->n_layer; i++) {
        snprintf(l.hf, sizeof l.hf, "layers.%d.", i);
        snprintf(l.blk, sizeof l.blk, "blk.%d.", i);
        layer(&l, (i + 1) % m->interval == 0);
    }
    snprintf(l.blk, sizeof l.blk, "blk.%d.", m->n_layer);
    if (m->mtp) mtp(&l);
    l.hf[0] = l.blk[0] = 0;
    if (!m->tied)
        add(&l, "lm_head.weight", "output.weight", FL_MAKE_MATRIX, m->n_vocab, m->d_model)->gain =
            2;
    add(&l, "norm.weight", "output_norm.weight", FL_MAKE_NORM, 1, m->d_model);
    *n = l.n;
    return l.t;
}

/* ---- values ------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * 0x2545f4914f6cdd1dull;
}

/* Near enough to N(0, 1): the sum of four uniforms, scaled. */
static float normal(uint64_t *s)
{
    const uint64_t r = next(s);
    const int sum =
        (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) + (int)(r >> 48);
    return (float)(sum - 131070) * (1.7320508f / 65536.0f);
}

static float uniform(uint64_t *s, float from, float to)
{
    return from + (to - from) * ((float)(next(s) >> 40) * 0x1p-24f);
}

/* The nearest number that F32, F16 and BF16 hold alike. */
static float exact(float v)
{
    if (fabsf(v) < 0x1p-14f) return 0;
    return fl_bf16_to_f32(fl_f32_to_bf16(v));
}

static float draw(const fl_make_tensor *t, uint64_t *s)
{
    switch (t->kind) {
    case FL_MAKE_MATRIX: return t->gain * normal(s) / sqrtf((float)t->cols);
    case FL_MAKE_EMBED: return normal(s);
    case FL_MAKE_NORM: return 0.2f * normal(s);
    case FL_MAKE_GATED_NORM: return 1 + 0.2f * normal(s);
    case FL_MAKE_CONV: return 0.4f * normal(s);
    case FL_MAKE_A_LOG: return uniform(s, -3.0f, 2.08f);
    case FL_MAKE_DT: return uniform(s, -4, 0.5f);
    case FL_MAKE_MIX: return uniform(s, 0.2f, 0.8f);
    }
    return 0;
}

float *fl_make_tensor_values(const fl_make *m, const fl_make_tensor *t)
{
    uint64_t h = 0xcbf29ce484222325ull ^ m->seed * 0x9e3779b97f4a7c15ull;
    for (const char *p = t->key; *p; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3ull;
    float *out = malloc((size_t)(t->n * t->rows * t->cols) * sizeof *out);
    if (!out) abort();
    const int64_t whole = t->whole_rows * t->cols, part = t->rows * t->cols;
    for (int64_t e = 0; e < t->n; e++) {
        /* Each matrix has a stream of its own; the rows before the wanted ones are skipped. */
        uint64_t s = (h ^ (uint64_t)(t->expert < 0 ? e : t->expert) * 0xd6e8feb86659fd93ull) | 1;
        for (int i = 0; i < 4; i++) next(&s);
        for (int64_t i = 0; i < whole; i++) {
            const float v = draw(t, &s);
            const int64_t at = i - t->row0 * t->cols;
            if (at >= 0 && at < part) out[e * part + at] = exact(v);
        }
    }
    return out;
}

/* Grouped value head of tiled position n': key head n' % k, copy n' / k. */
static int64_t grouped(const fl_make *m, int64_t tiled)
{
    const int64_t k = m->gdn_k_heads, r = m->gdn_v_heads / k;
    return r * (tiled % k) + tiled / k;
}

static void permute(const fl_make *m, float *v, int64_t unit)
{
    const size_t bytes = (size_t)unit * sizeof *v;
    float *copy = malloc(bytes * (size_t)m->gdn_v_heads);
    if (!copy) abort();
    memcpy(copy, v, bytes * (size_t)m->gdn_v_heads);
    for (int64_t h = 0; h < m->gdn_v_heads; h++)
        memcpy(v + h * unit, copy + grouped(m, h) * unit, bytes);
    free(copy);
}

void fl_make_to_gguf(const fl_make *m, const fl_make_tensor *t, float *v)
{
    const int64_t n = t->n * t->rows * t->cols;
    if (t->heads_row0 >= 0 && !m->v_grouped)
        permute(m, v + t->heads_row0 * t->cols, t->row_unit * t->cols);
    for (int64_t r = 0; t->col_unit && r < t->rows && !m->v_grouped; r++)
        permute(m, v + r * t->cols, t->col_unit);
    if (t->kind == FL_MAKE_NORM && !m->norms_zero_centred)
        for (int64_t i = 0; i < n; i++) v[i] += 1;
    if (t->kind == FL_MAKE_A_LOG && !m->a_as_log)
        for (int64_t i = 0; i < n; i++) v[i] = (float)-exp((double)v[i]);
}
