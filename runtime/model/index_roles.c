#include "runtime/model/index_roles.h"

#include <stdio.h>
#include <string.h>

#include "runtime/model/index_parts.h"

int64_t fl_role_dim(const fl_hparams *hp, uint8_t d)
{
    const int64_t value = (int64_t)hp->gdn_v_heads * hp->gdn_dim;
    switch ((fl_role_dims)d) {
    case D_NONE:
    case D_ONE: return 1;
    case D_MODEL: return hp->d_model;
    case D_2MODEL: return 2 * hp->d_model;
    case D_VOCAB: return hp->n_vocab;
    case D_Q2: return 2 * (int64_t)hp->n_head * hp->head_dim;
    case D_Q: return (int64_t)hp->n_head * hp->head_dim;
    case D_KV: return (int64_t)hp->n_head_kv * hp->head_dim;
    case D_HEAD: return hp->head_dim;
    case D_MIXED: return 2 * (int64_t)hp->gdn_k_heads * hp->gdn_dim + value;
    case D_VALUE: return value;
    case D_VHEADS: return hp->gdn_v_heads;
    case D_GDN: return hp->gdn_dim;
    case D_TAPS: return hp->conv_kernel;
    case D_EXPERTS: return hp->n_expert;
    case D_FF: return hp->d_ff;
    case D_2FF: return 2 * hp->d_ff;
    case D_SHARED: return hp->d_ff_shared;
    }
    return 1;
}

const fl_role fl_roles[FL_N_ROLES] = {
    {AT(attn_norm), IN_ALL, {D_MODEL}, "attn_norm.weight", "input_layernorm.weight"},
    {AT(ffn_norm),
     IN_ALL,
     {D_MODEL},
     "post_attention_norm.weight",
     "post_attention_layernorm.weight"},
    {AT(q), IN_FULL, {D_MODEL, D_Q2}, "attn_q.weight", "self_attn.q_proj.weight"},
    {AT(k), IN_FULL, {D_MODEL, D_KV}, "attn_k.weight", "self_attn.k_proj.weight"},
    {AT(v), IN_FULL, {D_MODEL, D_KV}, "attn_v.weight", "self_attn.v_proj.weight"},
    {AT(o), IN_FULL, {D_Q, D_MODEL}, "attn_output.weight", "self_attn.o_proj.weight"},
    {AT(q_norm), IN_FULL, {D_HEAD}, "attn_q_norm.weight", "self_attn.q_norm.weight"},
    {AT(k_norm), IN_FULL, {D_HEAD}, "attn_k_norm.weight", "self_attn.k_norm.weight"},
    {AT(qkv), IN_GDN, {D_MODEL, D_MIXED}, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {AT(z), IN_GDN, {D_MODEL, D_VALUE}, "attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {AT(alpha), IN_GDN, {D_MODEL, D_VHEADS}, "ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {AT(beta), IN_GDN, {D_MODEL, D_VHEADS}, "ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {AT(conv), IN_GDN, {D_TAPS, D_MIXED}, "ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {AT(a), IN_GDN, {D_VHEADS}, "ssm_a", "linear_attn.A_log"},
    {AT(dt), IN_GDN, {D_VHEADS}, "ssm_dt.bias", "linear_attn.dt_bias"},
    {AT(gdn_norm), IN_GDN, {D_GDN}, "ssm_norm.weight", "linear_attn.norm.weight"},
    {AT(out), IN_GDN, {D_VALUE, D_MODEL}, "ssm_out.weight", "linear_attn.out_proj.weight"},
    {AT(bwd_alpha),
     IN_BWD,
     {D_MODEL, D_VHEADS},
     "ssm_bwd_alpha.weight",
     "linear_attn.bwd.in_proj_a.weight"},
    {AT(bwd_beta),
     IN_BWD,
     {D_MODEL, D_VHEADS},
     "ssm_bwd_beta.weight",
     "linear_attn.bwd.in_proj_b.weight"},
    {AT(bwd_conv),
     IN_BWD,
     {D_TAPS, D_MIXED},
     "ssm_bwd_conv1d.weight",
     "linear_attn.bwd.conv1d.weight"},
    {AT(bwd_a), IN_BWD, {D_VHEADS}, "ssm_bwd_a", "linear_attn.bwd.A_log"},
    {AT(bwd_dt), IN_BWD, {D_VHEADS}, "ssm_bwd_dt.bias", "linear_attn.bwd.dt_bias"},
    {AT(bwd_mix), IN_BWD, {D_VHEADS}, "ssm_bwd_mix", "linear_attn.bwd.mix"},
    {AT(router), IN_ALL, {D_MODEL, D_EXPERTS}, "ffn_gate_inp.weight", "mlp.gate.weight"},
    {AT(shared_gate_inp),
     IN_ALL,
     {D_MODEL},
     "ffn_gate_inp_shexp.weight",
     "mlp.shared_expert_gate.weight"},
    {AT(shared_gate),
     IN_ALL,
     {D_MODEL, D_SHARED},
     "ffn_gate_shexp.weight",
     "mlp.shared_expert.gate_proj.weight"},
    {AT(shared_up),
     IN_ALL,
     {D_MODEL, D_SHARED},
     "ffn_up_shexp.weight",
     "mlp.shared_expert.up_proj.weight"},
    {AT(shared_down),
     IN_ALL,
     {D_SHARED, D_MODEL},
     "ffn_down_shexp.weight",
     "mlp.shared_expert.down_proj.weight"},
    {AT(exp_gate_up),
     IN_FUSED,
     {D_MODEL, D_2FF, D_EXPERTS},
     "ffn_gate_up_exps.weight",
     "mlp.experts.gate_up_proj"},
    {AT(exp_gate),
     IN_APART,
     {D_MODEL, D_FF, D_EXPERTS},
     "ffn_gate_exps.weight",
     "mlp.experts.gate_proj"},
    {AT(exp_up), IN_APART, {D_MODEL, D_FF, D_EXPERTS}, "ffn_up_exps.weight", "mlp.experts.up_proj"},
    {AT(exp_down),
     IN_DOWN,
     {D_FF, D_MODEL, D_EXPERTS},
     "ffn_down_exps.weight",
     "mlp.experts.down_proj"},
    {AT(nextn_enorm), IN_MTP, {D_MODEL}, "nextn.enorm.weight", "pre_fc_norm_embedding.weight"},
    {AT(nextn_hnorm), IN_MTP, {D_MODEL}, "nextn.hnorm.weight", "pre_fc_norm_hidden.weight"},
    {AT(nextn_proj), IN_MTP, {D_2MODEL, D_MODEL}, "nextn.eh_proj.weight", "fc.weight"},
    {AT(nextn_norm), IN_MTP, {D_MODEL}, "nextn.shared_head_norm.weight", "norm.weight"},
};

bool fl_role_known(const char *name)
{
    for (int r = 0; r < FL_N_ROLES; r++)
        if (strcmp(fl_roles[r].gguf, name) == 0) return true;
    return false;
}

static bool has_role(const fl_role *r, bool full, bool bwd)
{
    switch ((fl_role_where)r->where) {
    case IN_ALL:
    case IN_APART:
    case IN_DOWN: return true;
    case IN_FULL: return full;
    case IN_GDN: return !full;
    case IN_BWD: return !full && bwd;
    case IN_FUSED:
    case IN_MTP: return false;
    }
    return false;
}

int fl_role_shapes(const fl_hparams *hp, int layer, bool full, bool bwd,
                   fl_role_shape out[FL_N_ROLES])
{
    int n = 0;
    for (const fl_role *r = fl_roles; r < fl_roles + FL_N_ROLES; r++) {
        if (!has_role(r, full, bwd)) continue;
        fl_role_shape *s = &out[n++];
        snprintf(s->name, sizeof s->name, "blk.%d.%s", layer, r->gguf);
        s->n_dims = r->ne[2] ? 3 : r->ne[1] ? 2 : 1;
        for (int i = 0; i < 3; i++) s->ne[i] = fl_role_dim(hp, r->ne[i]);
        s->f32 = s->n_dims == 1 || r->ne[0] == D_TAPS || r->ne[1] == D_EXPERTS;
    }
    return n;
}
