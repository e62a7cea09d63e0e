#include "runtime/tools/conversion_meta.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"
#include "runtime/base/file.h"
#include "runtime/model/shards.h"
#include "runtime/model/tokenizer.h"
#include "runtime/tools/card.h"

enum { KEY_MAX = 128, ARCH_MAX = 32, SMALL_FILE = 16 << 20 };

typedef struct meta {
    fl_gguf_writer *w;
    const fl_index *ix;
    const char *arch;
    char key[KEY_MAX + ARCH_MAX];
} meta;

static const char *arch_key(meta *m, const char *suffix)
{
    snprintf(m->key, sizeof m->key, "%.31s.%s", m->arch, suffix);
    return m->key;
}

static void u32(meta *m, const char *suffix, int64_t v)
{
    fl_gguf_put_u32(m->w, arch_key(m, suffix), (uint32_t)v);
}

static void f32(meta *m, const char *suffix, double v)
{
    fl_gguf_put_f32(m->w, arch_key(m, suffix), (float)v);
}

static void text(meta *m, const char *key, const char *s)
{
    fl_gguf_put_str(m->w, key, s, strlen(s));
}

/* The value of a key under the source's own architecture name; NULL when absent. */
static const fl_kv *source_kv(const fl_index *ix, const char *suffix)
{
    const fl_gguf *g = fl_source_gguf(ix->src);
    char key[KEY_MAX];
    if (!g) return NULL;
    const fl_str arch = fl_kv_str(fl_gguf_find(g, "general.architecture"));
    snprintf(key, sizeof key, "%.*s.%s", (int)arch.n, arch.p ? arch.p : "", suffix);
    return fl_gguf_find(g, key);
}

/* Hugging Face: text_config when there is one, else the top level. */
static const fl_json *text_config(const fl_index *ix)
{
    const fl_json *c = fl_source_config(ix->src), *t = fl_json_get(c, "text_config");
    return t ? t : c;
}

/* How many rotary frequencies time, height and width get. For text the three positions are equal,
 * so any split that sums to rot_dim / 2 gives the same angles; readers insist on four entries. */
static void put_sections(meta *m)
{
    const int half = m->ix->hp.rot_dim / 2, third = half / 3;
    int32_t s[4] = {half - (half - third) / 2 - third, (half - third) / 2, third, 0};
    const fl_kv *kv = source_kv(m->ix, "rope.dimension_sections");
    const fl_json *list =
        fl_json_get(fl_json_get(text_config(m->ix), "rope_parameters"), "mrope_section");
    int32_t given[4] = {0}, sum = 0;
    for (int i = 0; i < 4; i++) {
        if (kv && kv->type == FL_GGUF_ARRAY && (uint64_t)i < kv->count)
            given[i] = (int32_t)fl_kv_int_at(kv, (uint64_t)i, 0);
        else if (list)
            given[i] = (int32_t)fl_json_int(fl_json_at(list, (size_t)i), 0);
        sum += given[i];
    }
    fl_gguf_put_i32s(m->w, arch_key(m, "rope.dimension_sections"), sum == half ? given : s, 4);
}

/* Which layers are full attention: an interval, or a list where no interval fits. */
static void put_layer_kinds(meta *m)
{
    const fl_index *ix = m->ix;
    const int n = ix->hp.n_layer;
    bool recurrent[1024];
    for (int k = 1; k <= n + 1; k++) {
        bool fits = true;
        for (int i = 0; i < n; i++) fits &= ix->layer[i].full_attention == ((i + 1) % k == 0);
        if (!fits) continue;
        u32(m, "full_attention_interval", k);
        return;
    }
    for (int i = 0; i < n && i < 1024; i++) recurrent[i] = !ix->layer[i].full_attention;
    fl_gguf_put_bools(m->w, arch_key(m, "attention.recurrent_layers"), recurrent,
                      (uint64_t)(n < 1024 ? n : 1024));
}

static void put_hparams(meta *m)
{
    const fl_hparams *hp = &m->ix->hp;
    u32(m, "block_count", hp->n_layer + hp->n_mtp);
    if (hp->n_mtp) u32(m, "nextn_predict_layers", hp->n_mtp);
    u32(m, "context_length", hp->n_ctx_train);
    u32(m, "embedding_length", hp->d_model);
    u32(m, "vocab_size", hp->n_vocab);
    u32(m, "attention.head_count", hp->n_head);
    u32(m, "attention.head_count_kv", hp->n_head_kv);
    u32(m, "attention.key_length", hp->head_dim);
    u32(m, "attention.value_length", hp->head_dim);
    f32(m, "attention.layer_norm_rms_epsilon", (double)hp->eps);
    u32(m, "rope.dimension_count", hp->rot_dim);
    put_sections(m);
    f32(m, "rope.freq_base", hp->rope_base);
    u32(m, "expert_count", hp->n_expert);
    u32(m, "expert_used_count", hp->top_k);
    u32(m, "expert_feed_forward_length", hp->d_ff);
    u32(m, "expert_shared_feed_forward_length", hp->d_ff_shared);
    u32(m, "ssm.conv_kernel", hp->conv_kernel);
    u32(m, "ssm.state_size", hp->gdn_dim);
    u32(m, "ssm.group_count", hp->gdn_k_heads);
    u32(m, "ssm.time_step_rank", hp->gdn_v_heads);
    u32(m, "ssm.inner_size", (int64_t)hp->gdn_v_heads * hp->gdn_dim);
    put_layer_kinds(m);
}

static void put_clover(meta *m)
{
    const fl_clover *c = &m->ix->clover;
    u32(m, "expert_shared_count", 1);
    u32(m, "block_size", c->block_size);
    u32(m, "mask_token_id", c->mask_id);
    f32(m, "confidence_threshold", (double)c->threshold);
    u32(m, "expert_pool_size", c->pool == FL_POOL_MAX ? c->pool_c : 0);
    if (c->verdict >= 0) u32(m, "verdict", c->verdict);
    if (c->soft_from_file) {
        u32(m, "soft_think_tokens", c->soft_think);
        u32(m, "soft_answer_tokens", c->soft_answer);
        f32(m, "soft_slope", (double)c->soft_slope);
    }
    if (c->pred_shift) u32(m, "pred_shift", c->pred_shift);
    for (const fl_switch *s = fl_switches; s->name; s++) {
        const char *word = fl_clover_word(c, s->name);
        const bool usual = strcmp(word, s->words[0]) == 0;
        const bool by_size = s->at == offsetof(fl_clover, pool) && c->pool == FL_POOL_MAX;
        if (s->at == offsetof(fl_clover, gdn_block_mode) || (!usual && !by_size))
            text(m, arch_key(m, s->name), word);
    }
}

static uint32_t file_type(uint32_t main_type)
{
    switch (main_type) { /* numbers of llama.cpp's llama_ftype */
    case FL_TYPE_F32: return 0;
    case FL_TYPE_F16: return 1;
    case FL_TYPE_Q4_0: return 2;
    case FL_TYPE_Q8_0: return 7;
    case FL_TYPE_Q5_K: return 17;
    case FL_TYPE_Q6_K: return 18;
    case FL_TYPE_IQ4_XS: return 30;
    case FL_TYPE_BF16: return 32;
    default: return 15; /* MOSTLY_Q4_K_M */
    }
}

static bool starts(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

/* Keys that describe the source's packing or that are written anew. */
static bool is_stale(const char *key)
{
    static const char *const stale[] = {"general.alignment", "general.architecture",
                                        "general.file_type", "general.quantization_version"};
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++)
        if (strcmp(key, stale[i]) == 0) return true;
    return starts(key, "split.") || starts(key, "quantize.");
}

/* Keys under the architecture's name that must not move into the new file. */
static bool is_stale_arch(const char *suffix, bool blocks)
{
    static const char *const packing[] = {"ssm.v_head_reordered"};
    static const char *const clover[] = {
        "expert_shared_count", "block_size",         "mask_token_id", "confidence_threshold",
        "expert_pool_size",    "block_mode_earned",  "pred_shift",    "verdict",
        "soft_think_tokens",   "soft_answer_tokens", "soft_slope"};
    for (size_t i = 0; i < sizeof packing / sizeof *packing; i++)
        if (strcmp(suffix, packing[i]) == 0) return true;
    for (size_t i = 0; !blocks && i < sizeof clover / sizeof *clover; i++)
        if (strcmp(suffix, clover[i]) == 0) return true;
    for (const fl_switch *s = fl_switches; !blocks && s->name; s++)
        if (strcmp(suffix, s->name) == 0) return true;
    return false;
}

/* Everything of a GGUF source that was not put yet and still holds. */
static void keep_source_keys(meta *m, const fl_gguf *g, bool blocks)
{
    const fl_str arch = fl_kv_str(fl_gguf_find(g, "general.architecture"));
    for (size_t i = 0; i < fl_gguf_n_kv(g); i++) {
        const fl_kv *kv = fl_gguf_kv_at(g, i);
        char key[KEY_MAX];
        if (kv->key.n >= sizeof key) continue;
        snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
        if (is_stale(key)) continue;
        if (kv->key.n > arch.n && memcmp(key, arch.p, arch.n) == 0 && key[arch.n] == '.') {
            char suffix[KEY_MAX];
            snprintf(suffix, sizeof suffix, "%s", key + arch.n + 1);
            if (is_stale_arch(suffix, blocks)) continue;
            const char *moved = arch_key(m, suffix);
            if (!fl_gguf_has_key(m->w, moved)) fl_gguf_put_copy(m->w, moved, kv);
        } else if (!fl_gguf_has_key(m->w, key)) {
            fl_gguf_put_copy(m->w, key, kv);
        }
    }
}

static void source_dir(const meta *m, char dir[4096])
{
    const char *file = fl_source_paths(m->ix->src)[0], *slash = strrchr(file, '/');
    snprintf(dir, 4096, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
}

/* The template's text beside the weights: chat_template.jinja or tokenizer_config.json. */
static fl_status put_template(meta *m, const char *dir, fl_err *err)
{
    char *path = NULL, *data = NULL;
    uint64_t n = 0;
    fl_json *j = NULL;
    fl_status st;
    FL_GO(fl_path_join(&path, dir, "chat_template.jinja", err));
    if (fl_path_exists(path)) {
        FL_GO(fl_file_load(path, SMALL_FILE, &data, &n, err));
        fl_gguf_put_str(m->w, "tokenizer.chat_template", data, n);
        goto out;
    }
    free(path);
    FL_GO(fl_path_join(&path, dir, "tokenizer_config.json", err));
    if (!fl_path_exists(path)) goto out;
    FL_GO(fl_file_load(path, SMALL_FILE, &data, &n, err));
    FL_GO(fl_json_parse(data, n, path, &j, err));
    const char *t = fl_json_str(fl_json_get(j, "chat_template"), NULL);
    if (t) text(m, "tokenizer.chat_template", t);
out:
    fl_json_free(&j);
    free(data);
    free(path);
    return st;
}

static fl_status put_vocabulary(meta *m, const fl_tokenizer *t, fl_err *err)
{
    const int64_t n = m->ix->hp.n_vocab;
    const int32_t known = fl_tokenizer_size(t);
    const size_t n_merges = fl_tokenizer_n_merges(t);
    fl_str *piece = calloc((size_t)n, sizeof *piece), *merge = calloc(n_merges + 1, sizeof *merge);
    int32_t *kind = calloc((size_t)n, sizeof *kind);
    char *pad = malloc((size_t)n * 24); /* "[PAD%d]" each */
    fl_status st = FL_OK;
    if (!piece || !kind || !pad || !merge) {
        st = FL_FAIL(err, FL_E_NOMEM, 0, "no memory for a vocabulary of %lld tokens", (long long)n);
        goto out;
    }
    for (int32_t i = 0; i < n; i++) {
        if (i < known) piece[i] = fl_tokenizer_piece(t, i);
        if (piece[i].n) {
            kind[i] = (int32_t)fl_tokenizer_kind(t, i);
            continue;
        }
        piece[i].p = pad + 24 * (size_t)i;
        piece[i].n = (size_t)snprintf(pad + 24 * (size_t)i, 24, "[PAD%d]", i);
        kind[i] = FL_TOKEN_UNUSED;
    }
    for (size_t i = 0; i < n_merges; i++) merge[i] = fl_tokenizer_merge(t, i);
    fl_gguf_put_strings(m->w, "tokenizer.ggml.tokens", piece, (uint64_t)n);
    fl_gguf_put_i32s(m->w, "tokenizer.ggml.token_type", kind, (uint64_t)n);
    fl_gguf_put_strings(m->w, "tokenizer.ggml.merges", merge, n_merges);
out:
    free(piece);
    free(merge);
    free(kind);
    free(pad);
    return st;
}

/* The end of an answer is the end of a turn, whatever config.json calls eos; the padding token is
 * the end of a text. */
static void put_special_ids(meta *m, const fl_tokenizer *t)
{
    int32_t eos = fl_tokenizer_special(t, "<|im_end|>");
    int32_t pad = fl_tokenizer_special(t, "<|endoftext|>");
    if (eos < 0) eos = m->ix->hp.eos_id;
    if (pad < 0) pad = m->ix->hp.pad_id;
    if (eos >= 0) fl_gguf_put_u32(m->w, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    if (pad >= 0) fl_gguf_put_u32(m->w, "tokenizer.ggml.padding_token_id", (uint32_t)pad);
    fl_gguf_put_bool(m->w, "tokenizer.ggml.add_bos_token", false);
}

static fl_status put_tokenizer(meta *m, fl_err *err)
{
    fl_tokenizer *t = NULL;
    fl_status st;
    FL_GO(fl_tokenizer_open(&t, m->ix->src, err));
    const char *pre = fl_tokenizer_gguf_pre(t);
    if (!pre) {
        st = FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                     "%s: its pre-tokenizer has no name in GGUF; Qwen's was expected",
                     fl_source_paths(m->ix->src)[0]);
        goto out;
    }
    text(m, "tokenizer.ggml.model", "gpt2");
    text(m, "tokenizer.ggml.pre", pre);
    FL_GO(put_vocabulary(m, t, err));
    put_special_ids(m, t);
    char dir[4096];
    source_dir(m, dir);
    st = put_template(m, dir, err);
out:
    fl_tokenizer_close(&t);
    return st;
}

/* Sampling defaults of generation_config.json under the keys that llama.cpp reads (the last two it
 * does not know), so that fl_gen_config_init gives the same for both. Without do_sample
 * temperature 0 says so, and the penalties alone are in force. */
static void put_sampling(meta *m)
{
    static const struct {
        const char *hf, *gguf;
    } number[] = {{"temperature", "general.sampling.temp"},
                  {"top_p", "general.sampling.top_p"},
                  {"min_p", "general.sampling.min_p"},
                  {"repetition_penalty", "general.sampling.penalty_repeat"},
                  {"presence_penalty", "general.sampling.penalty_present"},
                  {"frequency_penalty", "general.sampling.penalty_freq"}};
    enum { FIRST_PENALTY = 3 };
    const fl_json *g = fl_source_generation_config(m->ix->src);
    if (!g) return;
    const bool sample = fl_json_bool(fl_json_get(g, "do_sample"), true);
    if (!sample) fl_gguf_put_f32(m->w, "general.sampling.temp", 0.0f);
    for (size_t i = sample ? 0 : FIRST_PENALTY; i < sizeof number / sizeof *number; i++) {
        const double v = fl_json_num(fl_json_get(g, number[i].hf), NAN);
        if (!isnan(v)) fl_gguf_put_f32(m->w, number[i].gguf, (float)v);
    }
    if (!sample) return;
    const int64_t k = fl_json_int(fl_json_get(g, "top_k"), -1);
    if (k >= 0 && k <= INT32_MAX) fl_gguf_put_i32(m->w, "general.sampling.top_k", (int32_t)k);
}

static bool is_plain(const char *s)
{
    while (*s >= 0x20 && *s < 0x7f) s++;
    return *s == 0;
}

static void put_license(meta *m, const fl_card *card)
{
    const fl_json *given = fl_json_get(fl_source_config(m->ix->src), "license");
    const char *places[3] = {fl_json_str(given, NULL), card->license,
                             fl_source_license(m->ix->src)};
    char id[FL_CARD_VALUE];
    for (int i = 0; i < 3; i++) {
        const size_t n = places[i] ? strlen(places[i]) : 0;
        if (n == 0 || n >= sizeof id || !is_plain(places[i])) continue;
        for (size_t k = 0; k <= n; k++)
            id[k] = (char)(places[i][k] >= 'A' && places[i][k] <= 'Z' ? places[i][k] + 32
                                                                      : places[i][k]);
        text(m, "general.license", id);
        return;
    }
}

static void put_base(meta *m, int i, const char *id)
{
    char key[KEY_MAX];
    fl_card_base b;
    fl_card_split_base(&b, id);
    const char *const part[3][2] = {
        {"name", b.name}, {"organization", b.organization}, {"repo_url", b.repo_url}};
    for (int k = 0; k < 3; k++) {
        if (!part[k][1][0]) continue;
        snprintf(key, sizeof key, "general.base_model.%d.%s", i, part[k][0]);
        text(m, key, part[k][1]);
    }
}

/* Where the model comes from, as its folder says: config.json, the model card, the weights'
 * __metadata__, in this order. Nothing stated: nothing written. Licences are in lower case, as the
 * Hub's names for them are. */
static fl_status put_origin(meta *m, fl_err *err)
{
    char dir[4096];
    fl_card card;
    source_dir(m, dir);
    FL_TRY(fl_card_read(&card, dir, err));
    put_license(m, &card);
    if (card.license_name[0]) text(m, "general.license.name", card.license_name);
    if (card.license_link[0]) text(m, "general.license.link", card.license_link);
    if (card.n_base) fl_gguf_put_u32(m->w, "general.base_model.count", (uint32_t)card.n_base);
    for (int i = 0; i < card.n_base; i++) put_base(m, i, card.base[i]);
    return FL_OK;
}

fl_status fl_conv_metadata(fl_gguf_writer *w, const fl_index *ix, const char *arch,
                           uint32_t main_type, fl_err *err)
{
    meta m = {.w = w, .ix = ix, .arch = arch};
    const fl_gguf *g = fl_source_gguf(ix->src);
    const bool blocks = strcmp(arch, "clover_moe") == 0;
    text(&m, "general.architecture", arch);
    fl_gguf_put_u32(w, "general.file_type", file_type(main_type));
    fl_gguf_put_u32(w, "general.quantization_version", 2);
    put_hparams(&m);
    if (blocks) put_clover(&m);
    if (g) {
        keep_source_keys(&m, g, blocks);
    } else {
        FL_TRY(put_tokenizer(&m, err));
        FL_TRY(put_origin(&m, err));
    }
    put_sampling(&m);
    if (!fl_gguf_has_key(w, "general.type")) text(&m, "general.type", "model");
    if (!fl_gguf_has_key(w, "general.name") && ix->hp.name[0])
        text(&m, "general.name", ix->hp.name);
    if (!fl_gguf_has_key(w, "tokenizer.ggml.pre")) text(&m, "tokenizer.ggml.pre", "qwen35");
    return FL_OK;
}

fl_status fl_conv_declare(fl_gguf_writer *w, const fl_conv *c, const fl_index *ix, const char *arch,
                          fl_err *err)
{
    FL_TRY(fl_conv_metadata(w, ix, arch, fl_conv_main_type(c), err));
    for (int i = 0; i < c->n; i++) {
        const fl_conv_tensor *t = &c->tensor[i];
        FL_TRY(fl_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne, err));
    }
    return FL_OK;
}
