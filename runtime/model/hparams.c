#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/index_parts.h"

/* Reads settings one by one; the first failure stays in `st`, missing ones are collected. */
typedef struct reader {
    const fl_config *c;
    fl_status st;
    fl_err *err;
    char missing[400]; /* "block_count = 40, ..." */
} reader;

static void note_missing(reader *r, const char *gguf, const char *hf, double value)
{
    const size_t n = strlen(r->missing);
    snprintf(r->missing + n, sizeof r->missing - n, "%s%s = %.10g", n ? ", " : "",
             r->c->gguf ? gguf : hf, value);
}

static int64_t get_int(reader *r, const char *gguf, const char *hf, int64_t least, int64_t most,
                       int64_t def)
{
    int64_t v = def;
    if (!fl_config_int(r->c, gguf, hf, &v)) {
        note_missing(r, gguf, hf, (double)def);
        v = def;
    }
    if (r->st == FL_OK && (v < least || v > most))
        r->st = FL_FAIL(r->err, FL_E_FORMAT, 0,
                        "%s: %s is %lld, expected %lld to %lld: the file is damaged or not of this "
                        "architecture",
                        r->c->path, r->c->gguf ? gguf : hf, (long long)v, (long long)least,
                        (long long)most);
    return v < least || v > most ? least : v;
}

static double get_num(reader *r, const char *gguf, const char *hf, double least, double most,
                      double def)
{
    double v = def;
    if (!fl_config_num(r->c, gguf, hf, &v)) note_missing(r, gguf, hf, def);
    if (r->st == FL_OK && !(v >= least && v <= most))
        r->st = FL_FAIL(r->err, FL_E_FORMAT, 0, "%s: %s is %g, expected %g to %g", r->c->path,
                        r->c->gguf ? gguf : hf, v, least, most);
    return v >= least && v <= most ? v : def;
}

/* config.json keeps the rotary settings in rope_parameters or beside the others. */
static double rope_setting(const fl_config *c, const char *name, double def)
{
    const fl_json *nested = fl_json_get(fl_config_json(c, "rope_parameters"), name);
    if (!nested) nested = fl_json_get(fl_config_json(c, "rope_scaling"), name);
    return fl_json_num(nested ? nested : fl_config_json(c, name), def);
}

static void read_rope(reader *r, fl_hparams *hp)
{
    if (r->c->gguf) {
        hp->rot_dim = (int)get_int(r, "rope.dimension_count", NULL, 2, 1024, 64);
        hp->rope_base = get_num(r, "rope.freq_base", NULL, 1, 1e12, 1e7);
        return;
    }
    const double part = rope_setting(r->c, "partial_rotary_factor", 0.25);
    const double rot = part * hp->head_dim + 0.5;
    hp->rot_dim = rot >= 1 && rot <= 1024 ? (int)rot : 0;
    hp->rope_base = rope_setting(r->c, "rope_theta", 1e7);
    if (r->st == FL_OK && !(hp->rope_base >= 1 && hp->rope_base <= 1e12))
        r->st = FL_FAIL(r->err, FL_E_FORMAT, 0, "%s: rope_theta is %g, expected 1 to 1e12",
                        r->c->path, hp->rope_base);
}

static void read_attention(reader *r, fl_hparams *hp)
{
    hp->n_head = (int)get_int(r, "attention.head_count", "num_attention_heads", 1, 1024, 16);
    hp->n_head_kv = (int)get_int(r, "attention.head_count_kv", "num_key_value_heads", 1, 1024, 2);
    hp->head_dim = (int)get_int(r, "attention.key_length", "head_dim", 2, 1024, 256);
    hp->eps = (float)get_num(r, "attention.layer_norm_rms_epsilon", "rms_norm_eps", 0, 1, 1e-6);
    read_rope(r, hp);
}

static void read_gdn(reader *r, fl_hparams *hp)
{
    hp->conv_kernel = (int)get_int(r, "ssm.conv_kernel", "linear_conv_kernel_dim", 2, 16, 4);
    hp->gdn_dim = (int)get_int(r, "ssm.state_size", "linear_key_head_dim", 1, 1024, 128);
    hp->gdn_k_heads = (int)get_int(r, "ssm.group_count", "linear_num_key_heads", 1, 1024, 16);
    hp->gdn_v_heads = (int)get_int(r, "ssm.time_step_rank", "linear_num_value_heads", 1, 1024, 32);
}

static void read_moe(reader *r, fl_hparams *hp)
{
    const int64_t wide = 1 << 20;
    hp->n_expert = (int)get_int(r, "expert_count", "num_experts", 1, 65536, 256);
    hp->top_k = (int)get_int(r, "expert_used_count", "num_experts_per_tok", 1, 65536, 8);
    hp->d_ff = get_int(r, "expert_feed_forward_length", "moe_intermediate_size", 1, wide, 512);
    hp->d_ff_shared = get_int(r, "expert_shared_feed_forward_length",
                              "shared_expert_intermediate_size", 1, wide, 512);
}

/* Two settings that must agree, or an inequality; `ok` false names them. */
static void must(reader *r, bool ok, const char *rule, int64_t a, int64_t b)
{
    if (ok || r->st != FL_OK) return;
    r->st = FL_FAIL(r->err, FL_E_FORMAT, 0,
                    "%s: %s does not hold (%lld and %lld): the settings are damaged or of another "
                    "architecture",
                    r->c->path, rule, (long long)a, (long long)b);
}

static void check_relations(reader *r, const fl_hparams *hp)
{
    int64_t v;
    must(r, hp->n_head % hp->n_head_kv == 0, "kv heads divide query heads", hp->n_head_kv,
         hp->n_head);
    must(r, hp->gdn_v_heads % hp->gdn_k_heads == 0, "GDN key heads divide value heads",
         hp->gdn_k_heads, hp->gdn_v_heads);
    must(r, hp->rot_dim >= 2 && hp->rot_dim % 2 == 0 && hp->rot_dim <= hp->head_dim,
         "rotary dimensions are even and at most the head dimension", hp->rot_dim, hp->head_dim);
    must(r, hp->top_k <= hp->n_expert, "experts used are at most the experts there are", hp->top_k,
         hp->n_expert);
    if (fl_config_int(r->c, "attention.value_length", NULL, &v))
        must(r, v == hp->head_dim, "attention value length = key length", v, hp->head_dim);
    if (fl_config_int(r->c, "ssm.inner_size", NULL, &v))
        must(r, v == (int64_t)hp->gdn_v_heads * hp->gdn_dim,
             "ssm.inner_size = value heads * state size", v,
             (int64_t)hp->gdn_v_heads * hp->gdn_dim);
    if (fl_config_int(r->c, NULL, "linear_value_head_dim", &v))
        must(r, v == hp->gdn_dim, "linear_value_head_dim = linear_key_head_dim", v, hp->gdn_dim);
}

/* The one setting that clover_moe asks for and its published file lacks. */
static fl_status shared_count(fl_index *ix, const fl_config *c, fl_err *err)
{
    int64_t n;
    if (!fl_config_int(c, "expert_shared_count", NULL, &n)) {
        if (!c->gguf || strcmp(c->arch, "clover_moe") != 0) return FL_OK;
        return fl_index_note(ix, err,
                             "clover_moe.expert_shared_count is missing: taken as 1 (the published "
                             "file lacks it)");
    }
    if (n == 1) return FL_OK;
    return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                   "%s: expert_shared_count is %lld, this program runs models with 1 shared expert",
                   c->path, (long long)n);
}

static fl_status rope_scaling(fl_index *ix, const fl_config *c, fl_err *err)
{
    char type[64] = "";
    if (!fl_config_str(c, "rope.scaling.type", NULL, type)) {
        const fl_json *p = fl_config_json(c, "rope_parameters");
        if (!p) p = fl_config_json(c, "rope_scaling");
        snprintf(type, sizeof type, "%.63s", fl_json_str(fl_json_get(p, "rope_type"), ""));
    }
    if (!*type || strcmp(type, "none") == 0 || strcmp(type, "default") == 0) return FL_OK;
    double original = rope_setting(c, "original_max_position_embeddings", 0);
    fl_config_num(c, "rope.scaling.original_context_length", NULL, &original);
    if (original >= 1 && original < (double)ix->hp.n_ctx_train)
        ix->hp.n_ctx_train = (int64_t)original;
    return fl_index_note(
        ix, err,
        "rope scaling '%s' is not applied: the context is limited to the %lld tokens "
        "without it",
        type, (long long)ix->hp.n_ctx_train);
}

/* Layers and MTP blocks: GGUF counts both in block_count. */
static void read_layers(reader *r, fl_hparams *hp)
{
    int64_t mtp = 0;
    const int64_t n = get_int(r, "block_count", "num_hidden_layers", 1, 1024, 40);
    char name[64];
    if (!fl_config_int(r->c, "nextn_predict_layers", "mtp_num_hidden_layers", &mtp)) {
        snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", (int)n - 1);
        mtp = r->c->gguf && n > 1 && fl_source_find(r->c->src, name) ? 1 : 0;
    }
    must(r, mtp >= 0 && mtp <= 16 && (!r->c->gguf || mtp < n), "MTP blocks are among the blocks",
         mtp, n);
    if (r->st != FL_OK) mtp = 0;
    hp->n_layer = (int)(r->c->gguf ? n - mtp : n);
    hp->n_mtp = (int)mtp;
}

static fl_status read_kinds(const fl_config *c, int n_layer, bool *full, fl_err *err)
{
    int64_t interval = 4;
    fl_config_int(c, "full_attention_interval", "full_attention_interval", &interval);
    if (interval < 1 || interval > 1 << 20)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: full_attention_interval is %lld, expected 1 or more", c->path,
                       (long long)interval);
    const fl_kv *recurrent = fl_config_kv(c, "attention.recurrent_layers");
    const fl_json *types = fl_config_json(c, "layer_types");
    if (recurrent && (recurrent->type != FL_GGUF_ARRAY || recurrent->count < (uint64_t)n_layer))
        recurrent = NULL;
    if (types && fl_json_size(types) < (size_t)n_layer)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: layer_types has %zu entries for %d layers: config.json is damaged",
                       c->path, fl_json_size(types), n_layer);
    for (int i = 0; i < n_layer; i++) {
        full[i] = (i + 1) % interval == 0;
        if (recurrent) full[i] = fl_kv_int_at(recurrent, (uint64_t)i, !full[i]) == 0;
        if (!types) continue;
        const char *kind = fl_json_str(fl_json_at(types, (size_t)i), "");
        full[i] = strcmp(kind, "full_attention") == 0;
        if (!full[i] && strcmp(kind, "linear_attention") != 0)
            return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                           "%s: layer %d is of type '%.40s', known are linear_attention and "
                           "full_attention",
                           c->path, i, kind);
    }
    return FL_OK;
}

/* What the model calls itself: its general.name, or the name of its folder. */
static void read_name(fl_hparams *hp, const fl_config *c)
{
    const fl_str s = c->gguf ? fl_kv_str(fl_gguf_find(c->gguf, "general.name")) : (fl_str){0};
    if (s.p) {
        snprintf(hp->name, sizeof hp->name, "%.*s", (int)(s.n < 127 ? s.n : 127), s.p);
        return;
    }
    const char *end = c->path + strlen(c->path), *file = strrchr(c->path, '/');
    if (!c->gguf && file) end = file; /* the folder, not model.safetensors */
    const char *from = end;
    while (from > c->path && from[-1] != '/') from--;
    snprintf(hp->name, sizeof hp->name, "%.*s", (int)(end - from < 127 ? end - from : 127), from);
}

fl_status fl_hparams_read(fl_index *ix, const fl_config *c, bool **full, fl_err *err)
{
    fl_hparams *hp = &ix->hp;
    reader r = {.c = c, .err = err};
    snprintf(hp->arch, sizeof hp->arch, "%s", c->arch);
    read_name(hp, c);
    read_layers(&r, hp);
    hp->d_model = get_int(&r, "embedding_length", "hidden_size", 1, 1 << 20, 2048);
    hp->n_ctx_train =
        get_int(&r, "context_length", "max_position_embeddings", 1, INT32_MAX, 262144);
    read_attention(&r, hp);
    read_gdn(&r, hp);
    read_moe(&r, hp);
    check_relations(&r, hp);
    if (r.st != FL_OK) return r.st;
    if (*r.missing)
        FL_TRY(fl_index_note(ix, err, "settings missing in the file, taken as: %s", r.missing));
    FL_TRY(shared_count(ix, c, err));
    FL_TRY(rope_scaling(ix, c, err));
    *full = calloc((size_t)hp->n_layer, sizeof **full);
    if (!*full) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", c->path);
    return read_kinds(c, hp->n_layer, *full, err);
}
