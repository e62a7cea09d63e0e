#include "runtime/model/index.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/base/file.h"
#include "tests/support/bytes.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

#define GOLDEN "tests/golden/model/"

/* A model opened and indexed. */
typedef struct opened {
    fl_source *src;
    fl_index *ix;
} opened;

static opened open_model(const char *path)
{
    fl_err err;
    opened o = {0};
    ASSERT_OK(fl_source_open(&o.src, path, &err));
    ASSERT_OK(fl_index_build(&o.ix, o.src, &err));
    return o;
}

static void close_model(opened *o)
{
    fl_index_free(&o->ix);
    fl_source_close(&o->src);
    assert_null(o->ix);
}

static void refused(const char *path, fl_status status, const char *words)
{
    fl_err err;
    fl_source *src;
    fl_index *ix = NULL;
    ASSERT_OK(fl_source_open(&src, path, &err));
    ASSERT_FAILS(fl_index_build(&ix, src, &err), status, words);
    assert_null(ix);
    assert_non_null(strstr(err.msg, fl_files.dir));
    fl_source_close(&src);
}

static bool noted(const fl_index *ix, const char *words)
{
    for (int i = 0; i < ix->n_notes; i++)
        if (strstr(ix->note[i], words)) return true;
    return false;
}

/* Replaces the first `old` in a file by `new` of the same length. */
static void patch(const char *path, const char *old, const char *new)
{
    fl_err err;
    char *data;
    uint64_t n;
    const size_t len = strlen(old);
    assert_int_equal(len, strlen(new));
    ASSERT_OK(fl_file_load(path, 1 << 28, &data, &n, &err));
    char *at = memmem(data, n, old, len);
    if (!at) fail_msg("'%s' is not in %s", old, path);
    memcpy(at, new, len);
    fl_tmp_write(path, data, n);
    free(data);
}

/* Sets the value of a u32 key. */
static void patch_u32(const char *path, const char *key, uint32_t v)
{
    fl_err err;
    char *data;
    uint64_t n;
    ASSERT_OK(fl_file_load(path, 1 << 28, &data, &n, &err));
    char *at = memmem(data, n, key, strlen(key));
    assert_non_null(at);
    memcpy(at + strlen(key) + 4, &v, 4);
    fl_tmp_write(path, data, n);
    free(data);
}

/* The same walk over all dense tensors and experts, with values as float32. */
static float *read_tensor(const fl_index *ix, const fl_tensor *t, int64_t *n)
{
    fl_err err;
    *n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    uint8_t *raw = malloc(t->bytes);
    float *v = malloc((size_t)*n * sizeof *v);
    ASSERT_OK(fl_source_read(ix->src, t, 0, raw, t->bytes, &err));
    fl_type_get(t->type)->dequantize(raw, v, *n);
    free(raw);
    return v;
}

static void check_values(const fl_index *ix, const fl_tensor *t, const fl_make *m, const char *hf,
                         float plus)
{
    int64_t n, want_n;
    float *v = read_tensor(ix, t, &n), *want = fl_make_values(m, hf, &want_n);
    assert_int_equal(n, want_n);
    for (int64_t i = 0; i < n; i++)
        if (v[i] != want[i] + plus) fail_msg("%s [%d]: %g %g", hf, (int)i, v[i], want[i] + plus);
    free(v);
    free(want);
}

static void golden_files_are_one_model(void **state)
{
    (void)state;
    const char *paths[] = {GOLDEN "tiny-f32.gguf", GOLDEN "tiny-fused-f16.gguf",
                           GOLDEN "tiny-split-bf16-00001-of-00002.gguf",
                           GOLDEN "tiny-mtp-mixed.gguf", GOLDEN "hf"};
    for (int i = 0; i < 5; i++) {
        opened o = open_model(paths[i]);
        const fl_hparams *hp = &o.ix->hp;
        const bool hf = i == 4;
        assert_string_equal(hp->arch, "qwen35moe");
        assert_int_equal(hp->n_layer, 4);
        assert_int_equal(hp->n_mtp, i >= 3);
        assert_int_equal(hp->d_model, 64);
        assert_int_equal(hp->n_vocab, 336);
        assert_int_equal(hp->n_ctx_train, 4096);
        assert_int_equal(hp->n_head, 4);
        assert_int_equal(hp->n_head_kv, 2);
        assert_int_equal(hp->head_dim, 32);
        assert_int_equal(hp->rot_dim, 8);
        assert_true(hp->rope_base == 1e7);
        assert_true(hp->eps == 1e-6f);
        assert_int_equal(hp->n_expert, 8);
        assert_int_equal(hp->top_k, 2);
        assert_int_equal(hp->d_ff, 16);
        assert_int_equal(hp->d_ff_shared, 32);
        assert_int_equal(hp->conv_kernel, 4);
        assert_int_equal(hp->gdn_dim, 16);
        assert_int_equal(hp->gdn_k_heads, 2);
        assert_int_equal(hp->gdn_v_heads, 4);
        assert_int_equal(hp->v_grouped, hf);
        assert_int_equal(hp->norm_add_one, hf);
        assert_int_equal(hp->a_is_log, hf);
        assert_int_equal(hp->n_stop_ids, 2);
        assert_int_equal(hp->stop_ids[0] + hp->stop_ids[1], 298 + 296);
        assert_int_equal(hp->eos_id, 298);
        assert_false(o.ix->clover.has_blocks);
        assert_int_equal(o.ix->clover.mask_id, -1);
        for (int l = 0; l < 4; l++) assert_int_equal(o.ix->layer[l].full_attention, l == 3);
        assert_int_equal(o.ix->layer[0].exp_gate_up.tensor != NULL, hf || i == 1);
        fl_index_sizes s;
        fl_index_measure(o.ix, &s);
        assert_int_equal(s.embed + s.output + s.attention + s.gdn + s.bwd + s.experts + s.shared +
                             s.router + s.norms + s.mtp + s.other,
                         s.total);
        assert_int_equal(s.mtp > 0, i >= 3);
        assert_int_equal(s.params_total, 253896);
        close_model(&o);
    }
}

static void both_forms_hold_the_made_weights(void **state)
{
    (void)state;
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    fl_make_gguf(&m, fl_files.gguf);
    fl_make_safetensors(&m, fl_files.folder);
    for (int hf = 0; hf < 2; hf++) {
        opened o = open_model(hf ? fl_files.folder : fl_files.gguf);
        const fl_layer_refs *g = &o.ix->layer[0], *a = &o.ix->layer[3];
        const float plus = hf ? 0 : 1;
        assert_int_equal(o.ix->n_notes, 0);
        assert_true(o.ix->clover.has_blocks);
        assert_true(o.ix->clover.has_bwd);
        assert_int_equal(o.ix->clover.gdn_block_mode, FL_GDN_BIDIR);
        assert_int_equal(o.ix->clover.mask_id, fl_make_mask_id(&m));
        assert_int_equal(o.ix->clover.block_size, 32);
        assert_int_equal(o.ix->clover.verdict, -1);
        assert_int_equal(o.ix->hp.stop_ids[0], fl_make_token(&m, "<|im_end|>"));
        assert_int_equal(o.ix->hp.stop_ids[1], fl_make_token(&m, "<|endoftext|>"));
        check_values(o.ix, o.ix->embed.tensor, &m, "embed_tokens.weight", 0);
        check_values(o.ix, o.ix->output.tensor, &m, "lm_head.weight", 0);
        check_values(o.ix, o.ix->output_norm.tensor, &m, "norm.weight", plus);
        check_values(o.ix, g->attn_norm.tensor, &m, "layers.0.input_layernorm.weight", plus);
        check_values(o.ix, a->ffn_norm.tensor, &m, "layers.3.post_attention_layernorm.weight",
                     plus);
        check_values(o.ix, a->q.tensor, &m, "layers.3.self_attn.q_proj.weight", 0);
        check_values(o.ix, a->k_norm.tensor, &m, "layers.3.self_attn.k_norm.weight", plus);
        check_values(o.ix, g->gdn_norm.tensor, &m, "layers.0.linear_attn.norm.weight", 0);
        check_values(o.ix, g->router.tensor, &m, "layers.0.mlp.gate.weight", 0);
        check_values(o.ix, g->exp_down.tensor, &m, "layers.0.mlp.experts.down_proj", 0);
        assert_non_null(g->bwd_mix.tensor);
        assert_null(a->bwd_mix.tensor);
        assert_null(a->qkv.tensor);
        close_model(&o);
    }
}

/* One expert's matrix through fl_index_expert against the maker's values. */
static void check_expert(const fl_index *ix, const fl_make *m, int layer, int e, int part)
{
    fl_err err;
    fl_expert_mat x;
    char name[64];
    int64_t n;
    fl_index_expert(ix, layer, e, part, &x);
    assert_int_equal(x.rows, part == 2 ? m->d_model : m->d_ff);
    assert_int_equal(x.cols, part == 2 ? m->d_ff : m->d_model);
    snprintf(name, sizeof name, "layers.%d.mlp.experts.%s", layer,
             part == 2 ? "down_proj" : "gate_up_proj");
    fl_make whole = *m;
    whole.st_per_expert = false;
    float *want = fl_make_values(&whole, name, &n);
    const int64_t size = x.rows * x.cols;
    const float *from = want + (part == 2 ? e * size : (2 * e + part) * size);
    uint8_t *raw = malloc(x.bytes);
    float *v = malloc((size_t)size * sizeof *v);
    ASSERT_OK(fl_file_read_at(fl_source_fd(ix->src, x.file), raw, x.bytes, x.offset, "m", &err));
    fl_type_get(x.type)->dequantize(raw, v, size);
    assert_memory_equal(v, from, (size_t)size * sizeof *v);
    free(raw);
    free(v);
    free(want);
}

static void experts_are_found_in_every_packing(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.type = FL_TYPE_F16;
    m.mtp = true;
    for (int i = 0; i < 6; i++) {
        m.fused = i == 1;
        m.n_files = i == 2 ? 3 : 1;
        m.st_per_expert = i == 4;
        m.st_files = i == 5 ? 2 : 1;
        m.st_plain = i == 4;
        m.st_flat = i == 5;
        char *path = i == 2  ? fl_tmp_path(fl_files.dir, "model-00002-of-00003.gguf")
                     : i < 3 ? strdup(fl_files.gguf)
                             : fl_tmp_path(fl_files.dir, (const char *[]){"a", "b", "c"}[i - 3]);
        i < 3 ? fl_make_gguf(&m, fl_files.gguf) : fl_make_safetensors(&m, path);
        opened o = open_model(path);
        assert_int_equal(o.ix->hp.n_mtp, 1);
        assert_int_equal(o.ix->n_notes, 0);
        assert_int_equal(o.ix->layer[0].per_expert != NULL, i == 4);
        for (int part = 0; part < 3; part++) {
            check_expert(o.ix, &m, 0, 0, part);
            check_expert(o.ix, &m, 2, 3, part);
        }
        assert_non_null(o.ix->mtp[0].nextn_proj.tensor);
        fl_index_sizes s;
        fl_index_measure(o.ix, &s);
        assert_int_equal(s.other, 0);
        assert_int_equal(s.experts, 2 * 4 * 3 * 4 * 64 * 32);
        assert_int_equal(s.params_active, s.params_total - 4 * 3 * 2 * 64 * 32 - 320 * 64 + 64);
        close_model(&o);
        free(path);
    }
}

static void quirks_of_the_published_file_are_found(void **state)
{
    (void)state;
    for (int bits = 0; bits < 16; bits++) {
        fl_make m = fl_make_tiny();
        m.arch = "clover_moe";
        m.no_shared_count = bits & 1;
        m.norms_zero_centred = bits & 2;
        m.a_as_log = bits & 4;
        m.v_grouped = bits & 8;
        fl_make_gguf(&m, fl_files.gguf);
        opened o = open_model(fl_files.gguf);
        assert_int_equal(o.ix->hp.norm_add_one, m.norms_zero_centred);
        assert_int_equal(o.ix->hp.a_is_log, m.a_as_log);
        assert_int_equal(o.ix->hp.v_grouped, m.v_grouped);
        assert_int_equal(noted(o.ix, "expert_shared_count is missing"), m.no_shared_count);
        assert_int_equal(noted(o.ix, "zero-centred"), m.norms_zero_centred);
        assert_int_equal(noted(o.ix, "A_log"), m.a_as_log);
        assert_int_equal(noted(o.ix, "v_head_reordered"), m.v_grouped);
        assert_int_equal(o.ix->n_notes, !!(bits & 1) + !!(bits & 2) + !!(bits & 4) + !!(bits & 8));
        close_model(&o);
    }
}

static void ollama_spelling_is_read(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.ollama = true;
    fl_make_gguf(&m, fl_files.gguf);
    opened o = open_model(fl_files.gguf);
    assert_int_equal(o.ix->hp.n_head_kv, 1);
    assert_non_null(o.ix->layer[0].dt.tensor);
    assert_false(o.ix->hp.v_grouped);
    assert_int_equal(o.ix->n_notes, 0);
    close_model(&o);
}

static void scales_and_mixed_types_are_read(void **state)
{
    (void)state;
    fl_make m = fl_make_default();
    m.scales = true;
    m.type = FL_TYPE_Q8_0;
    m.mix[0].part = "ffn_down_exps", m.mix[0].type = FL_TYPE_Q4_0;
    m.mix[1].part = "output.weight", m.mix[1].type = FL_TYPE_BF16;
    m.alignment = 4096;
    m.tied = false;
    fl_make_gguf(&m, fl_files.gguf);
    opened o = open_model(fl_files.gguf);
    fl_expert_mat x;
    fl_index_expert(o.ix, 1, 5, 2, &x);
    assert_int_equal(x.type, FL_TYPE_Q4_0);
    assert_int_equal(x.bytes, 256 * 256 / 32 * 18);
    assert_int_equal(x.scale->ne[0], 8);
    assert_int_equal((x.offset - 5 * x.bytes) % 4096, 0);
    fl_index_expert(o.ix, 1, 5, 0, &x);
    assert_int_equal(x.type, FL_TYPE_Q8_0);
    assert_non_null(o.ix->output.scale);
    assert_null(o.ix->embed.scale);
    assert_null(o.ix->layer[0].router.scale);
    assert_int_equal(o.ix->n_notes, 0);
    close_model(&o);
}

static void tied_and_missing_settings_are_noted(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.tied = true;
    fl_make_gguf(&m, fl_files.gguf);
    fl_make_safetensors(&m, fl_files.folder);
    const char *paths[] = {fl_files.gguf, fl_files.folder};
    for (int i = 0; i < 2; i++) {
        opened o = open_model(paths[i]);
        assert_ptr_equal(o.ix->output.tensor, o.ix->embed.tensor);
        assert_true(noted(o.ix, "tied"));
        close_model(&o);
    }
    patch(fl_files.gguf, "qwen35moe.rope.freq_base", "qwen35moe.rope.freq_bass");
    patch(fl_files.gguf, "qwen35moe.full_attention_interval", "qwen35moe.full_attention_intervaX");
    patch(fl_files.gguf, "qwen35moe.ssm.conv_kernel", "qwen35moe.ssm.conv_kerneX");
    opened o = open_model(fl_files.gguf);
    assert_true(o.ix->hp.rope_base == 1e7);
    assert_true(noted(o.ix, "ssm.conv_kernel = 4, rope.freq_base = 1e7") ||
                noted(o.ix, "rope.freq_base = 10000000, ssm.conv_kernel = 4"));
    close_model(&o);
}

static void what_is_not_the_model_is_noted(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.mtp = true;
    fl_make_gguf(&m, fl_files.gguf);
    patch(fl_files.gguf, "blk.4.nextn.enorm.weight", "blk.4.nextn.enorX.weight");
    opened o = open_model(fl_files.gguf);
    assert_int_equal(o.ix->hp.n_layer, 4);
    assert_int_equal(o.ix->hp.n_mtp, 0);
    assert_true(noted(o.ix, "MTP block 0 is not usable"));
    assert_true(noted(o.ix, "tensors outside the text model skipped"));
    close_model(&o);
    /* Without the key the block is known by its tensors. */
    fl_make_gguf(&m, fl_files.gguf);
    patch(fl_files.gguf, "qwen35moe.nextn_predict_layers", "qwen35moe.nextn_predict_layerX");
    o = open_model(fl_files.gguf);
    assert_int_equal(o.ix->hp.n_layer, 4);
    assert_int_equal(o.ix->hp.n_mtp, 1);
    close_model(&o);
    fl_make_gguf(&m, fl_files.gguf);
    patch(fl_files.gguf, "blk.4.nextn.shared_head_norm", "blk.4.nextn.shared_head_head");
    o = open_model(fl_files.gguf);
    assert_int_equal(o.ix->hp.n_mtp, 0);
    assert_true(noted(o.ix, "matrices of its own"));
    close_model(&o);
    m.st_per_expert = true;
    fl_make_safetensors(&m, fl_files.folder);
    char *st = fl_tmp_path(fl_files.folder, "model.safetensors");
    patch(st, "mtp.layers.0.mlp.experts.3.up_proj.weight",
          "mtp.layers.0.mlp.experts.Z.up_proj.weight");
    o = open_model(fl_files.folder);
    assert_true(noted(o.ix, "MTP block 0 is not usable"));
    close_model(&o);
    free(st);
}

static void architectures_are_told_apart(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    fl_make_safetensors(&m, fl_files.folder);
    char *config = fl_tmp_path(fl_files.folder, "config.json");
    patch(config, "\"model_type\":\"qwen3_5_moe\"", "\"model_type\":\"clover-moe\" ");
    opened o = open_model(fl_files.folder);
    assert_string_equal(o.ix->hp.arch, "clover_moe");
    assert_false(o.ix->clover.has_bwd);
    assert_false(o.ix->clover.has_blocks); /* no mask id that this vocabulary holds */
    assert_true(noted(o.ix, "block mode is off"));
    close_model(&o);
    patch(config, "\"model_type\":\"clover-moe\" ", "\"model_type\":\"qwen3_moe\"  ");
    refused(fl_files.folder, FL_E_UNSUPPORTED, "architecture 'qwen3_moe' does not run here");
    patch(config, "\"model_type\":\"qwen3_moe\"  ", "\"model_tipe\":\"qwen3_moe\"  ");
    o = open_model(fl_files.folder); /* text_config says it too */
    close_model(&o);
    patch(config, "qwen3_5_moe_text", "                ");
    refused(fl_files.folder, FL_E_UNSUPPORTED, "architecture '");
    remove(config);
    refused(fl_files.folder, FL_E_FORMAT, "config.json is missing");
    free(config);

    m.arch = "qwen3_5_moe"; /* keys under the file's own spelling */
    fl_make_gguf(&m, fl_files.gguf);
    o = open_model(fl_files.gguf);
    assert_string_equal(o.ix->hp.arch, "qwen35moe");
    assert_int_equal(o.ix->n_notes, 0);
    close_model(&o);
    m.arch = "llama";
    fl_make_gguf(&m, fl_files.gguf);
    refused(fl_files.gguf, FL_E_UNSUPPORTED, "architecture 'llama' does not run here");
    patch(fl_files.gguf, "general.architecture", "general.architectuXX");
    refused(fl_files.gguf, FL_E_FORMAT, "general.architecture is missing");
}

static void damaged_settings_are_refused(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    static const struct {
        const char *key;
        uint32_t value;
        const char *words;
    } bad[] = {
        {".block_count", 0, "block_count is 0, expected 1 to 1024"},
        {".block_count", 5, "blk.4.attn_norm.weight' is missing"},
        {".embedding_length", 65, "has shape [64, 320], expected [65, 320]"},
        {".attention.head_count", 3, "expected [64, 192]"},
        {".attention.head_count", 0xffffffff, "attention.head_count is 4294967295"},
        {".expert_count", 5, "expected [64, 5]"},
        {".expert_used_count", 5, "experts used are at most"},
        {".ssm.time_step_rank", 3, "GDN key heads divide value heads"},
        {".ssm.inner_size", 65, "ssm.inner_size = value heads"},
        {".rope.dimension_count", 7, "rotary dimensions are even"},
        {".rope.dimension_count", 64, "rotary dimensions are even"},
        {".attention.value_length", 16, "value length = key length"},
        {".full_attention_interval", 0, "full_attention_interval is 0"},
        {".full_attention_interval", 3, "is missing"},
        {".expert_shared_count", 2, "runs models with 1 shared expert"},
        {".block_size", 0, "clover_moe.block_size is 0"},
        {".mask_token_id", 320, "mask_token_id is 320, the vocabulary has 320"},
        {".confidence_threshold", 0xbf800000, "confidence_threshold is -1"},
        {".expert_pool_size", 5000, "expert_pool_size is 5000"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_make_gguf(&m, fl_files.gguf);
        patch_u32(fl_files.gguf, bad[i].key, bad[i].value);
        refused(fl_files.gguf, i == 14 ? FL_E_UNSUPPORTED : FL_E_FORMAT, bad[i].words);
    }
}

/* Replaces the first `old` in the header of a safetensors file by a longer text. */
static void grow_header(const char *path, const char *old, const char *new)
{
    fl_err err;
    char *data;
    uint64_t n, header;
    ASSERT_OK(fl_file_load(path, 1 << 28, &data, &n, &err));
    const char *at = memmem(data, n, old, strlen(old));
    assert_non_null(at);
    const size_t before = (size_t)(at - data), behind = before + strlen(old);
    fl_bytes b = {0};
    memcpy(&header, data, 8);
    fl_bytes_u64(&b, header + strlen(new) - strlen(old));
    fl_bytes_put(&b, data + 8, before - 8);
    fl_bytes_text(&b, new);
    fl_bytes_put(&b, data + behind, n - behind);
    fl_tmp_write(path, b.p, b.n);
    fl_bytes_free(&b);
    free(data);
}

static void damaged_tables_are_refused(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    static const char *const names[] = {
        "token_embd.weight",     "output_norm.weight", "blk.3.attn_q.weight",     "blk.0.ssm_a",
        "blk.1.ssm_bwd_dt.bias", "blk.2.ssm_bwd_mix",  "blk.0.ffn_up_exps.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char wrong[64];
        fl_make_gguf(&m, fl_files.gguf);
        snprintf(wrong, sizeof wrong, "%s", names[i]);
        wrong[strlen(wrong) - 1] = '#';
        patch(fl_files.gguf, names[i], wrong);
        refused(fl_files.gguf, FL_E_FORMAT, names[i]);
    }
    fl_make_safetensors(&m, fl_files.folder);
    char *st = fl_tmp_path(fl_files.folder, "model.safetensors");
    patch(st, "[4,64]", "[8,32]"); /* the first in_proj_a */
    refused(fl_files.folder, FL_E_FORMAT, "has shape [8, 32], expected [4, 64]");
    /* The same elements as 256 rows of one: the layer's outputs would run over their buffer. */
    fl_make_safetensors(&m, fl_files.folder);
    grow_header(st, "[4,64]", "[4,64,1]");
    refused(fl_files.folder, FL_E_FORMAT, "has shape [4, 64, 1], expected [4, 64]");
    free(st);
}

/* The type field of a tensor: behind name, n_dims and dims. */
static void patch_type(const char *path, const char *name, int n_dims, uint32_t type)
{
    fl_err err;
    char *data;
    uint64_t n;
    ASSERT_OK(fl_file_load(path, 1 << 28, &data, &n, &err));
    char *at = memmem(data, n, name, strlen(name));
    assert_non_null(at);
    memcpy(at + strlen(name) + 4 + 8 * n_dims, &type, 4);
    fl_tmp_write(path, data, n);
    free(data);
}

static void unreadable_types_say_what_to_take(void **state)
{
    (void)state;
    static const uint32_t types[] = {16, 17, 18, 19, 21, 22, 29, 34, 35, 41, 99};
    fl_make m = fl_make_tiny();
    m.d_model = 256; /* rows of whole blocks in every type */
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        fl_make_gguf(&m, fl_files.gguf);
        patch_type(fl_files.gguf, "blk.1.ffn_gate_exps.weight", 3, types[i]);
        refused(fl_files.gguf, FL_E_UNSUPPORTED, "Q4_K_M");
        refused(fl_files.gguf, FL_E_UNSUPPORTED, "blk.1.ffn_gate_exps.weight");
    }
    patch_type(fl_files.gguf, "blk.1.ffn_gate_exps.weight", 3, FL_TYPE_I32);
    refused(fl_files.gguf, FL_E_UNSUPPORTED, "i32");
    m = fl_make_tiny();
    fl_make_safetensors(&m, fl_files.folder);
    char *st = fl_tmp_path(fl_files.folder, "model.safetensors");
    patch(st, "layers.0.mlp.gate.weight\":{\"dtype\":\"BF16\"",
          "layers.0.mlp.gate.weight\":{\"dtype\":\"U16\" ");
    refused(fl_files.folder, FL_E_UNSUPPORTED,
            "type U16: which is not read; take the BF16 safetensors");
    free(st);
}

static void config_json_is_checked(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    fl_make_safetensors(&m, fl_files.folder);
    char *config = fl_tmp_path(fl_files.folder, "config.json");
    patch(config, "\"full_attention\"", "\"sparse_attenti\"");
    refused(fl_files.folder, FL_E_UNSUPPORTED, "layer 3 is of type 'sparse_attenti'");
    fl_make_safetensors(&m, fl_files.folder);
    patch(config, "\"linear_attention\",", "                   ");
    refused(fl_files.folder, FL_E_FORMAT, "layer_types has 3 entries for 4 layers");
    fl_make_safetensors(&m, fl_files.folder);
    patch(config, "\"rope_theta\":10000000", "\"rope_theta\":0.5     ");
    refused(fl_files.folder, FL_E_FORMAT, "rope_theta is 0.5");
    fl_make_safetensors(&m, fl_files.folder);
    patch(config, "\"rope_type\":\"default\"", "\"rope_type\":\"yarn\"   ");
    opened o = open_model(fl_files.folder);
    assert_true(noted(o.ix, "rope scaling 'yarn' is not applied"));
    close_model(&o);
    fl_make_safetensors(&m, fl_files.folder);
    patch(config, "\"hidden_size\":64", "\"hidden_size\":\"\"");
    refused(fl_files.folder, FL_E_FORMAT, "expected [320, 2048]");
    free(config);
}

static void clover_switches_are_read(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.st_flat = true;
    fl_make_safetensors(&m, fl_files.folder);
    char *path = fl_tmp_path(fl_files.folder, "config.json");
    static const struct {
        const char *setting;
        fl_status status;
        const char *words;
    } cases[] = {
        {"\"pred_shift\":1,\"block_align\":\"relative\",\"commit_mode\":\"block_bidir\","
         "\"confidence_source\":\"raw\",\"gdn_block_mode\":\"mixed\",\"verdict\":1,",
         FL_OK, ""},
        {"\"block_mode_earned\":false,", FL_OK, ""},
        {"\"block_mode\":{\"block_mode_earned\":true},", FL_OK, ""},
        {"\"pred_shift\":2,", FL_E_FORMAT, "pred_shift is 2"},
        {"\"block_align\":\"x\",", FL_E_FORMAT, "block_align is 'x'"},
        {"\"gdn_block_mode\":\"x\",", FL_E_FORMAT, "gdn_block_mode is 'x'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_err err;
        char *text, *whole;
        uint64_t n;
        fl_make_safetensors(&m, fl_files.folder);
        ASSERT_OK(fl_file_load(path, 1 << 20, &text, &n, &err));
        assert_true(asprintf(&whole, "{%s%s", cases[i].setting, text + 1) > 0);
        fl_tmp_write(path, whole, strlen(whole));
        free(whole);
        free(text);
        if (cases[i].status != FL_OK) {
            refused(fl_files.folder, cases[i].status, cases[i].words);
            continue;
        }
        opened o = open_model(fl_files.folder);
        const fl_clover *c = &o.ix->clover;
        assert_int_equal(c->verdict, i != 1);
        assert_int_equal(c->pred_shift, i == 0);
        assert_int_equal(c->block_align, i == 0 ? FL_ALIGN_RELATIVE : FL_ALIGN_ABSOLUTE);
        assert_int_equal(c->commit_mode, i == 0 ? FL_COMMIT_BLOCK_BIDIR : FL_COMMIT_CAUSAL);
        assert_int_equal(c->conf, i == 0 ? FL_CONF_RAW : FL_CONF_PROCESSED);
        assert_int_equal(c->gdn_block_mode, i == 0 ? FL_GDN_MIXED : FL_GDN_BIDIR);
        assert_int_equal(c->pool, FL_POOL_OFF);
        close_model(&o);
    }
    free(path);
    m.no_bwd = true;
    fl_make_gguf(&m, fl_files.gguf);
    opened o = open_model(fl_files.gguf);
    assert_false(o.ix->clover.has_bwd);
    assert_string_equal(fl_gdn_block_mode_name(o.ix->clover.gdn_block_mode), "blockend");
    close_model(&o);
    fl_gdn_block_mode mode;
    assert_false(fl_gdn_block_mode_parse("sideways", &mode));
    assert_true(fl_gdn_block_mode_parse("causal", &mode));
    assert_int_equal(mode, FL_GDN_CAUSAL);
}

static void ends_of_text_are_found_without_a_generation_config(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    fl_make_safetensors(&m, fl_files.folder);
    char *gen = fl_tmp_path(fl_files.folder, "generation_config.json");
    char *tok = fl_tmp_path(fl_files.folder, "tokenizer.json");
    const int end = fl_make_token(&m, "<|im_end|>"), text = fl_make_token(&m, "<|endoftext|>");
    remove(gen);
    opened o = open_model(fl_files.folder);
    assert_int_equal(o.ix->hp.n_stop_ids, 2);
    assert_int_equal(o.ix->hp.stop_ids[0] + o.ix->hp.stop_ids[1], end + text);
    close_model(&o);
    static const char *const damaged[] = {"", "{\"added_tokens\":[{\"id\":-1}]}",
                                          "{\"added_tokens\":[{\"id\":99999999999,\"content\":"
                                          "\"<|im_end|>\"}]}"};
    for (int i = 0; i < 3; i++) {
        fl_tmp_write(tok, damaged[i], strlen(damaged[i]));
        o = open_model(fl_files.folder); /* the index; opening the tokenizer reports it */
        assert_int_equal(o.ix->hp.n_stop_ids, 1);
        assert_int_equal(o.ix->hp.eos_id, text);
        close_model(&o);
    }
    free(gen);
    free(tok);
}

/* Against what the file shows, in words that say what is done with it. */
static void what_is_known_otherwise_is_noted(void **state)
{
    (void)state;
    static const char *const words[2][3] = {
        {"norm weights are used as they are stored", "ssm_a is used as it is stored",
         "value heads are read as tiled, because --v-heads or a probe says so"},
        {"1 is added to norm weights on load: the probe", "ssm_a is converted to -exp(A_log)",
         "value heads are read as grouped, because --v-heads or a probe says so"}};
    fl_make m = fl_make_tiny();
    for (int known = 0; known < 2; known++) {
        fl_err err;
        opened o = {0};
        fl_wiring w = fl_wiring_none();
        m.norms_zero_centred = m.a_as_log = m.v_grouped = !known;
        w.norm_add_one = w.a_is_log = w.v_grouped = known;
        fl_make_gguf(&m, fl_files.gguf);
        ASSERT_OK(fl_source_open(&o.src, fl_files.gguf, &err));
        ASSERT_OK(fl_index_build_as(&o.ix, o.src, &w, &err));
        assert_int_equal(o.ix->hp.norm_add_one, known);
        for (int i = 0; i < 3; i++) assert_true(noted(o.ix, words[known][i]));
        assert_int_equal(o.ix->n_notes, 3); /* none of what the file shows */
        fl_index_free(&o.ix);
        /* What the file shows too is no news. */
        w.norm_add_one = w.a_is_log = w.v_grouped = !known;
        ASSERT_OK(fl_index_build_as(&o.ix, o.src, &w, &err));
        for (int i = 0; i < 6; i++) assert_false(noted(o.ix, words[i / 3][i % 3]));
        close_model(&o);
    }
}

/* What clean passes read: every switch and every name counts, those of block mode do not. */
static void the_digest_tells_ways_of_reading_apart(void **state)
{
    (void)state;
    fl_make make = fl_make_tiny();
    make.arch = "clover_moe";
    fl_make_gguf(&make, fl_files.gguf);
    opened o = open_model(fl_files.gguf), again = open_model(fl_files.gguf);
    const uint64_t d = fl_index_digest(o.ix);
    assert_int_equal(fl_index_digest(again.ix), d);
    close_model(&again);
    bool *const stored[] = {&o.ix->hp.norm_add_one, &o.ix->hp.a_is_log, &o.ix->hp.v_grouped};
    for (int i = 0; i < 3; i++) {
        *stored[i] = !*stored[i];
        assert_int_not_equal(fl_index_digest(o.ix), d);
        *stored[i] = !*stored[i];
    }
    fl_layer_refs *l = &o.ix->layer[0];
    assert_non_null(l->bwd_alpha.tensor);
    const fl_tref alpha = l->alpha, beta = l->beta;
    l->alpha = beta;
    l->beta = alpha;
    assert_int_not_equal(fl_index_digest(o.ix), d);
    l->alpha = alpha;
    l->beta = beta;
    l->bwd_alpha = l->bwd_beta;
    o.ix->clover.gdn_scan = FL_SCAN_INCLUSIVE;
    assert_int_equal(fl_index_digest(o.ix), d);
    close_model(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_files_are_one_model),
        cmocka_unit_test_setup_teardown(both_forms_hold_the_made_weights, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(experts_are_found_in_every_packing, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(quirks_of_the_published_file_are_found, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(ollama_spelling_is_read, fl_files_setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(scales_and_mixed_types_are_read, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(tied_and_missing_settings_are_noted, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(what_is_not_the_model_is_noted, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(architectures_are_told_apart, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(damaged_settings_are_refused, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(damaged_tables_are_refused, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(unreadable_types_say_what_to_take, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(config_json_is_checked, fl_files_setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(clover_switches_are_read, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(what_is_known_otherwise_is_noted, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(the_digest_tells_ways_of_reading_apart, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(ends_of_text_are_found_without_a_generation_config,
                                        fl_files_setup, fl_files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
