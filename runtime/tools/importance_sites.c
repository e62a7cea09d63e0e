#include "runtime/tools/importance_sites.h"

#include <stdio.h>
#include <string.h>

static const char *const site_name[FL_N_SITES] = {"mixer_in",   "block_in",  "mixer_out",
                                                  "ffn_in",     "expert_in", "shared_mid",
                                                  "expert_mid", "head_in"};

static const struct {
    const char *suffix;
    fl_site site;
} matrices[] = {
    {"attn_q.weight", FL_SITE_MIXER_IN},           {"attn_k.weight", FL_SITE_MIXER_IN},
    {"attn_v.weight", FL_SITE_MIXER_IN},           {"attn_qkv.weight", FL_SITE_MIXER_IN},
    {"attn_gate.weight", FL_SITE_MIXER_IN},        {"ssm_alpha.weight", FL_SITE_MIXER_IN},
    {"ssm_beta.weight", FL_SITE_MIXER_IN},         {"ssm_bwd_alpha.weight", FL_SITE_BLOCK_IN},
    {"ssm_bwd_beta.weight", FL_SITE_BLOCK_IN},     {"attn_output.weight", FL_SITE_MIXER_OUT},
    {"ssm_out.weight", FL_SITE_MIXER_OUT},         {"ffn_gate_inp.weight", FL_SITE_FFN_IN},
    {"ffn_gate_inp_shexp.weight", FL_SITE_FFN_IN}, {"ffn_gate_shexp.weight", FL_SITE_FFN_IN},
    {"ffn_up_shexp.weight", FL_SITE_FFN_IN},       {"ffn_gate_exps.weight", FL_SITE_EXPERT_IN},
    {"ffn_up_exps.weight", FL_SITE_EXPERT_IN},     {"ffn_gate_up_exps.weight", FL_SITE_EXPERT_IN},
    {"ffn_down_shexp.weight", FL_SITE_SHARED_MID}, {"ffn_down_exps.weight", FL_SITE_EXPERT_MID},
};

const char *fl_site_name(char buf[FL_SITE_NAME], fl_site site, int layer, const char *part)
{
    if (site == FL_SITE_HEAD_IN)
        snprintf(buf, FL_SITE_NAME, "%s.%s", site_name[site], part);
    else
        snprintf(buf, FL_SITE_NAME, "blk.%d.%s.%s", layer, site_name[site], part);
    return buf;
}

bool fl_site_of(const char *name, fl_site *site, int *layer)
{
    int used = 0;
    *layer = 0;
    if (strcmp(name, "output.weight") == 0 || strcmp(name, "token_embd.weight") == 0) {
        *site = FL_SITE_HEAD_IN;
        return true;
    }
    if (sscanf(name, "blk.%6d.%n", layer, &used) != 1 || used == 0 || *layer < 0) return false;
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        if (strcmp(name + used, matrices[i].suffix) == 0) {
            *site = matrices[i].site;
            return true;
        }
    return false;
}
