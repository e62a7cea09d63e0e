/* fourleaf quantize: the mapping from Hugging Face to GGUF, types and errors of what is written,
 * metadata, and that a failed, interrupted or killed run leaves OUT as it was. */
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/decode/generate.h"
#include "runtime/model/forward.h"
#include "runtime/model/gguf_write.h"
#include "runtime/tools/quantize.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

static fl_status run_tool(const char *in, const char *out, const char *type, const char *arch)
{
    const char *args[2] = {in, out};
    const fl_options o = {
        .command = "quantize", .args = args, .n_args = 2, .type = type, .arch = arch, .threads = 2};
    err = (fl_err){0};
    return fl_tool_quantize(&o, &err);
}

/* The same with its lines on stderr thrown away. */
static fl_status quantize(const char *in, const char *out, const char *type, const char *arch)
{
    fflush(stderr);
    const int keep = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
    assert_true(keep >= 0 && null >= 0);
    dup2(null, STDERR_FILENO);
    const fl_status st = run_tool(in, out, type, arch);
    fflush(stderr);
    dup2(keep, STDERR_FILENO);
    close(keep);
    close(null);
    return st;
}

typedef struct folder {
    char *dir, *hf, *gguf, *out;
} folder;

static folder folder_make(void)
{
    folder f;
    f.dir = fl_tmp_make();
    f.hf = fl_tmp_path(f.dir, "hf");
    f.gguf = fl_tmp_path(f.dir, "in.gguf");
    f.out = fl_tmp_path(f.dir, "out.gguf");
    return f;
}

static void folder_remove(folder *f)
{
    free(f->hf);
    free(f->gguf);
    free(f->out);
    fl_tmp_remove(f->dir);
}

static fl_source *open_source(const char *path)
{
    fl_source *s;
    ASSERT_OK(fl_source_open(&s, path, &err));
    return s;
}

static const fl_tensor *find(const fl_source *s, const char *name)
{
    const fl_tensor *t = fl_source_find(s, name);
    if (!t) fail_msg("no tensor %s", name);
    return t;
}

static float *values_of(const fl_source *s, const fl_tensor *t, int64_t *n)
{
    const fl_type_info *ti = fl_type_get(t->type);
    uint8_t *raw = malloc(t->bytes);
    *n = (int64_t)(t->bytes / ti->block_bytes * ti->block_elems);
    float *v = malloc((size_t)*n * sizeof *v);
    assert_true(raw && v);
    ASSERT_OK(fl_source_read(s, t, 0, raw, t->bytes, &err));
    ti->dequantize(raw, v, *n);
    free(raw);
    return v;
}

/* Every tensor of `got` is in `want` (written by the test helper, which has a converter of its
 * own) with the same shape and, up to `bound` (relative RMS), the same values. Bound 0: the same
 * bits, but for the last one of exp. */
static void compare_files(const char *want, const char *got, double bound, bool all)
{
    fl_source *a = open_source(want), *b = open_source(got);
    if (all) assert_int_equal(fl_source_n_tensors(a), fl_source_n_tensors(b));
    for (size_t i = 0; i < fl_source_n_tensors(b); i++) {
        const fl_tensor *t = fl_source_tensor(b, i), *u = find(a, t->name);
        assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        int64_t n, m;
        float *x = values_of(a, u, &m), *y = values_of(b, t, &n);
        assert_int_equal(n, m);
        double e = 0, r = 0;
        for (int64_t k = 0; k < n; k++) {
            e += pow((double)x[k] - (double)y[k], 2);
            r += pow((double)x[k], 2);
        }
        const double limit = bound > 0 ? bound : strstr(t->name, "_a") ? 1e-7 : 0;
        if (!(sqrt(e) <= limit * sqrt(r))) fail_msg("%s: error %g", t->name, sqrt(e / r));
        free(x);
        free(y);
    }
    fl_source_close(&a);
    fl_source_close(&b);
}

enum { N_LAYOUTS = 8 };
static fl_make layout(int i)
{
    fl_make m = fl_make_tiny();
    m.type = FL_TYPE_F32;
    if (i > 0) m.arch = "clover_moe";
    switch (i) {
    case 2: m.st_type = FL_TYPE_BF16; break;
    case 3: m.st_per_expert = true; break;
    case 4: m.st_plain = m.st_flat = true; break;
    case 5: m.st_files = 3; break;
    case 6: m.tied = true; break;
    case 7: m.mtp = true; break;
    default: break;
    }
    return m;
}

static void hugging_face_becomes_the_converters_gguf(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        folder f = folder_make();
        const fl_make m = layout(i);
        fl_make_safetensors(&m, f.hf);
        fl_make_gguf(&m, f.gguf);
        ASSERT_OK(quantize(f.hf, f.out, "f32", NULL));
        compare_files(f.gguf, f.out, 0, true);
        folder_remove(&f);
    }
}

/* A GGUF with the known quirks comes out in the standard form. */
static void quirks_are_straightened(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        folder f = folder_make();
        fl_make m = layout(1);
        fl_make_gguf(&m, f.gguf);
        char *odd = fl_tmp_path(f.dir, "odd.gguf");
        m.norms_zero_centred = m.a_as_log = m.no_shared_count = i == 0;
        m.fused = i == 1;
        m.ollama = i == 2;
        m.n_files = i == 3 ? 2 : 1;
        m.v_grouped = i == 4;
        fl_make_gguf(&m, odd);
        if (i == 3) {
            free(odd);
            odd = fl_tmp_path(f.dir, "odd-00001-of-00002.gguf");
        }
        ASSERT_OK(quantize(odd, f.out, "f32", NULL));
        compare_files(f.gguf, f.out, i == 0 ? 1e-6 : 0, true);
        free(odd);
        folder_remove(&f);
    }
}

static void check_types(const fl_source *s, uint32_t large, uint32_t sensitive)
{
    static const char *const names[3][8] = {
        {"blk.0.ffn_down_exps.weight", "blk.0.attn_gate.weight", "blk.1.attn_q.weight",
         "blk.1.attn_output.weight", "blk.0.ffn_up_shexp.weight"},
        {"token_embd.weight", "output.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight",
         "blk.0.ssm_alpha.weight", "blk.0.ssm_bwd_beta.weight", "blk.0.attn_qkv.weight",
         "blk.0.ssm_out.weight"},
        {"output_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight",
         "blk.0.ssm_bwd_conv1d.weight", "blk.0.ssm_bwd_mix", "blk.0.ssm_dt.bias", "blk.0.ssm_a",
         "blk.0.ffn_gate_inp_shexp.weight"}};
    const uint32_t want[3] = {large, sensitive, FL_TYPE_F32};
    for (int c = 0; c < 3; c++)
        for (int k = 0; k < 8 && names[c][k]; k++)
            assert_int_equal(find(s, names[c][k])->type, want[c]);
    for (size_t k = 0; k < fl_source_n_tensors(s); k++)
        assert_int_equal(fl_source_tensor(s, k)->offset % FL_GGUF_ALIGN, 0);
}

static void each_type_is_close_to_the_source(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t large, sensitive;
        double bound;
    } t[] = {{"q4_k", FL_TYPE_Q4_K, FL_TYPE_Q8_0, 0.1},
             {"q8_0", FL_TYPE_Q8_0, FL_TYPE_Q8_0, 0.008},
             {"bf16", FL_TYPE_BF16, FL_TYPE_BF16, 0},
             {"f16", FL_TYPE_F16, FL_TYPE_F16, 0}};
    folder f = folder_make();
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    m.n_layer = 2;
    m.interval = 2;
    m.type = FL_TYPE_F32;
    fl_make_gguf(&m, f.gguf);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        ASSERT_OK(quantize(f.gguf, f.out, t[i].name, NULL));
        compare_files(f.gguf, f.out, t[i].bound, true);
        fl_source *s = open_source(f.out);
        check_types(s, t[i].large, t[i].sensitive);
        fl_source_close(&s);
    }
    folder_remove(&f);
}

/* Rows that are no multiple of 256 take Q8_0. */
static void short_rows_fall_back(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(0); /* rows of 32 and 64 */
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(quantize(f.gguf, f.out, "q4_k", NULL));
    fl_source *s = open_source(f.out);
    assert_int_equal(find(s, "blk.0.ffn_gate_exps.weight")->type, FL_TYPE_Q8_0);
    fl_source_close(&s);
    compare_files(f.gguf, f.out, 0.008, true);
    folder_remove(&f);
}

static void check_int(const fl_gguf *g, const char *key, int64_t want)
{
    const fl_kv *kv = fl_gguf_find(g, key);
    if (!kv) fail_msg("no key %s", key);
    if (fl_kv_int(kv, -99) != want)
        fail_msg("%s is %lld, not %lld", key, (long long)fl_kv_int(kv, -99), (long long)want);
}

static void check_text(const fl_gguf *g, const char *key, const char *want)
{
    const fl_str s = fl_kv_str(fl_gguf_find(g, key));
    if (!s.p) fail_msg("no key %s", key);
    assert_int_equal(s.n, strlen(want));
    assert_memory_equal(s.p, want, s.n);
}

static void check_same_list(const fl_gguf *g, const fl_gguf *r, const char *key)
{
    const fl_kv *a = fl_gguf_find(g, key), *b = fl_gguf_find(r, key);
    if (!a || !b) fail_msg("no key %s", key);
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->elem_type, b->elem_type);
    assert_int_equal(a->data_bytes, b->data_bytes);
    assert_memory_equal(a->data, b->data, a->data_bytes);
}

static void check_metadata(const fl_gguf *g, const fl_gguf *r, const fl_make *m)
{
    check_text(g, "general.architecture", "clover_moe");
    check_text(g, "tokenizer.ggml.model", "gpt2");
    check_text(g, "tokenizer.ggml.pre", "qwen35");
    check_int(g, "general.file_type", 15);
    check_int(g, "general.quantization_version", 2);
    check_int(g, "general.alignment", FL_GGUF_ALIGN);
    check_int(g, "clover_moe.block_count", m->n_layer);
    check_int(g, "clover_moe.full_attention_interval", m->interval);
    check_int(g, "clover_moe.expert_count", m->n_expert);
    check_int(g, "clover_moe.expert_shared_count", 1);
    check_int(g, "clover_moe.block_size", 32);
    check_int(g, "clover_moe.mask_token_id", fl_make_mask_id(m));
    check_int(g, "clover_moe.ssm.inner_size", m->gdn_v_heads * m->gdn_dim);
    check_int(g, "tokenizer.ggml.eos_token_id", fl_make_token(m, "<|im_end|>"));
    const fl_kv *sections = fl_gguf_find(g, "clover_moe.rope.dimension_sections");
    assert_non_null(sections);
    assert_int_equal(sections->count, 4);
    int64_t sum = 0;
    for (uint64_t i = 0; i < 4; i++) sum += fl_kv_int_at(sections, i, 0);
    assert_int_equal(sum, m->rot_dim / 2);
    check_same_list(g, r, "tokenizer.ggml.tokens");
    check_same_list(g, r, "tokenizer.ggml.token_type");
    check_same_list(g, r, "tokenizer.ggml.merges");
}

static void metadata_is_complete(void **state)
{
    (void)state;
    for (int from_gguf = 0; from_gguf < 2; from_gguf++) {
        folder f = folder_make();
        const fl_make m = layout(1);
        fl_make_gguf(&m, f.gguf);
        fl_make_safetensors(&m, f.hf);
        ASSERT_OK(quantize(from_gguf ? f.gguf : f.hf, f.out, NULL, NULL));
        fl_source *s = open_source(f.out), *ref = open_source(f.gguf);
        check_metadata(fl_source_gguf(s), fl_source_gguf(ref), &m);
        fl_source_close(&s);
        fl_source_close(&ref);
        folder_remove(&f);
    }
}

static void check_license(const char *path, const char *want)
{
    fl_source *s = open_source(path);
    const fl_gguf *g = fl_source_gguf(s);
    if (want)
        check_text(g, "general.license", want);
    else
        assert_null(fl_gguf_find(g, "general.license"));
    fl_source_close(&s);
}

/* config.json, then README.md, then the weights' own metadata; a GGUF's key moves on. */
static void the_licence_is_what_the_source_says(void **state)
{
    (void)state;
    static const char card[] =
        "---\nlicense: cc-by-4.0\nbase_model:\n- Qwen/Qwen3.6-35B-A3B\n---\n";
    folder f = folder_make();
    fl_make m = layout(1);
    fl_make_safetensors(&m, f.hf);
    char *readme = fl_tmp_path(f.hf, "README.md"), *again = fl_tmp_path(f.dir, "again.gguf");
    ASSERT_OK(quantize(f.hf, f.out, "f32", NULL));
    check_license(f.out, NULL);
    ASSERT_OK(quantize(f.out, again, NULL, NULL));
    check_license(again, NULL);
    m.st_license = "Apache-2.0";
    fl_make_safetensors(&m, f.hf);
    ASSERT_OK(quantize(f.hf, f.out, "f32", NULL));
    check_license(f.out, "apache-2.0");
    fl_tmp_write(readme, card, sizeof card - 1);
    ASSERT_OK(quantize(f.hf, f.out, "f32", NULL));
    check_license(f.out, "cc-by-4.0");
    fl_source *s = open_source(f.out);
    check_int(fl_source_gguf(s), "general.base_model.count", 1);
    check_text(fl_source_gguf(s), "general.base_model.0.name", "Qwen3.6 35B A3B");
    check_text(fl_source_gguf(s), "general.base_model.0.organization", "Qwen");
    check_text(fl_source_gguf(s), "general.base_model.0.repo_url",
               "https://huggingface.co/Qwen/Qwen3.6-35B-A3B");
    fl_source_close(&s);
    m.config_license = "mit";
    fl_make_safetensors(&m, f.hf);
    ASSERT_OK(quantize(f.hf, f.out, "f32", NULL));
    check_license(f.out, "mit");
    ASSERT_OK(quantize(f.out, again, NULL, NULL));
    check_license(again, "mit");
    free(readme);
    free(again);
    folder_remove(&f);
}

/* The trained test model states its own. */
static void clover_tiny_is_apache(void **state)
{
    (void)state;
    folder f = folder_make();
    ASSERT_OK(quantize("tests/clover_tiny/model", f.out, "q8_0", NULL));
    check_license(f.out, "apache-2.0");
    folder_remove(&f);
}

static fl_gen_config defaults_of(const char *path)
{
    fl_model *m;
    fl_gen_config c;
    ASSERT_OK(fl_model_open(&m, path, &err));
    fl_gen_config_init(&c, m);
    fl_model_close(&m);
    return c;
}

/* A folder and the GGUF made of it generate alike. */
static void sampling_defaults_survive(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        double temp, min_p;
    } t[] = {{"{\"do_sample\":false,\"temperature\":1.0,\"top_k\":20,\"top_p\":0.95,\"min_p\":0.1}",
              0, 0},
             {"{\"do_sample\":true,\"temperature\":0.5,\"top_k\":40,\"top_p\":0.75,\"min_p\":0.25,"
              "\"repetition_penalty\":1.5,\"presence_penalty\":0.5,\"frequency_penalty\":-0.25}",
              0.5, 0.25},
             {"{\"temperature\":0.5,\"top_k\":null,\"top_p\":null}", 0.5, 0},
             {"{\"temperature\":null,\"top_k\":5}", 0, 0},
             {"{}", 0, 0}};
    folder f = folder_make();
    const fl_make m = layout(1);
    fl_make_safetensors(&m, f.hf);
    char *path = fl_tmp_path(f.hf, "generation_config.json");
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fl_tmp_write(path, t[i].json, strlen(t[i].json));
        ASSERT_OK(quantize(f.hf, f.out, "q8_0", NULL));
        const fl_sampler_config a = defaults_of(f.hf).sampler, b = defaults_of(f.out).sampler;
        assert_true(a.temp == t[i].temp && a.min_p == t[i].min_p);
        if (a.temp != b.temp || a.top_k != b.top_k || a.top_p != b.top_p || a.min_p != b.min_p ||
            a.presence != b.presence || a.frequency != b.frequency || a.repetition != b.repetition)
            fail_msg("%s: temp %g, top_k %lld, top_p %g, min_p %g", t[i].json, b.temp,
                     (long long)b.top_k, b.top_p, b.min_p);
    }
    free(path);
    folder_remove(&f);
}

/* What stock readers can load: no backward tensors, no key of block diffusion. */
static void the_base_architecture_can_be_written(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(1);
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(quantize(f.gguf, f.out, "f32", "qwen35moe"));
    compare_files(f.gguf, f.out, 0, false);
    fl_source *s = open_source(f.out);
    const fl_gguf *g = fl_source_gguf(s);
    check_text(g, "general.architecture", "qwen35moe");
    check_int(g, "qwen35moe.block_count", m.n_layer);
    for (size_t i = 0; i < fl_gguf_n_kv(g); i++) {
        char key[128];
        const fl_str k = fl_gguf_kv_at(g, i)->key;
        snprintf(key, sizeof key, "%.*s", (int)k.n, k.p);
        assert_null(strstr(key, "clover"));
        assert_null(strstr(key, "mask_token"));
    }
    for (size_t i = 0; i < fl_source_n_tensors(s); i++)
        assert_null(strstr(fl_source_tensor(s, i)->name, "bwd"));
    fl_source_close(&s);
    folder_remove(&f);
}

static void last_logits(const char *path, float **out, int64_t *n)
{
    fl_model *m;
    fl_engine *e;
    fl_engine_params p = fl_engine_defaults();
    p.kv_type = FL_TYPE_F32;
    p.threads = 1;
    int32_t ids[40];
    for (int i = 0; i < 40; i++) ids[i] = (i * 37 + 11) % 256;
    ASSERT_OK(fl_model_open(&m, path, &err));
    ASSERT_OK(fl_engine_open(&e, m, &p, &err));
    ASSERT_OK(fl_engine_load(e, NULL, NULL, &err));
    ASSERT_OK(fl_forward_clean(e, ids, 40, &err));
    const int row = -1;
    const float *l;
    ASSERT_OK(fl_forward_logits(e, &row, 1, &l, &err));
    *n = m->index->hp.n_vocab;
    *out = malloc((size_t)*n * sizeof(float));
    assert_non_null(*out);
    memcpy(*out, l, (size_t)*n * sizeof(float));
    fl_engine_close(&e);
    fl_model_close(&m);
}

/* The converted file is the same model: only the order of sums over value heads differs. */
static void the_forward_pass_agrees(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(1);
    fl_make_safetensors(&m, f.hf);
    ASSERT_OK(quantize(f.hf, f.out, "f32", NULL));
    float *a, *b, peak = 0, diff = 0;
    int64_t n, k;
    last_logits(f.hf, &a, &n);
    last_logits(f.out, &b, &k);
    assert_int_equal(n, k);
    for (int64_t i = 0; i < n; i++) {
        peak = fmaxf(peak, fabsf(a[i]));
        diff = fmaxf(diff, fabsf(a[i] - b[i]));
    }
    print_message("largest logit %g, largest difference %g\n", (double)peak, (double)diff);
    assert_true(peak > 0 && diff <= 1e-5f * peak);
    free(a);
    free(b);
    folder_remove(&f);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    folder f = folder_make();
    fl_make m = layout(0);
    fl_make_gguf(&m, f.gguf);
    ASSERT_FAILS(quantize("/no/such/model", f.out, NULL, NULL), FL_E_IO, "/no/such/model");
    ASSERT_FAILS(quantize(f.gguf, f.gguf, NULL, NULL), FL_E_ARG, "is a file of the model to read");
    ASSERT_FAILS(quantize(f.gguf, f.dir, NULL, NULL), FL_E_ARG, "folder");
    ASSERT_FAILS(quantize(f.gguf, f.out, "q2_k", NULL), FL_E_ARG, "q2_k");
    ASSERT_FAILS(quantize(f.gguf, f.out, NULL, "clover_moe"), FL_E_ARG, "clover_moe");
    ASSERT_FAILS(quantize(f.gguf, "/no/such/x.gguf", NULL, NULL), FL_E_IO, "/no/such");
    m.type = FL_TYPE_Q8_0;
    fl_make_gguf(&m, f.gguf);
    ASSERT_FAILS(quantize(f.gguf, f.out, NULL, NULL), FL_E_UNSUPPORTED, "quantized already");
    assert_int_equal(fl_tmp_count(f.dir), 1);
    folder_remove(&f);
}

/* Whatever name leads to it, no file of the source is overwritten. */
static void the_source_is_never_the_target(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "model.safetensors.index.json"};
    folder f = folder_make();
    fl_make m = layout(0);
    m.st_files = 3;
    fl_make_safetensors(&m, f.hf);
    fl_source *s = open_source(f.hf);
    char *weights = strdup(fl_source_paths(s)[2]);
    fl_source_close(&s);
    const int n = fl_tmp_count(f.hf);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = fl_tmp_path(f.hf, names[i]);
        ASSERT_FAILS(quantize(f.hf, path, "f32", NULL), FL_E_ARG, "is a file of the model to read");
        ASSERT_FAILS(quantize(weights, path, "f32", NULL), FL_E_ARG, "of the model to read");
        free(path);
    }
    ASSERT_FAILS(quantize(f.hf, weights, "f32", NULL), FL_E_ARG, "of the model to read");
    assert_int_equal(symlink(weights, f.out), 0);
    ASSERT_FAILS(quantize(f.hf, f.out, "f32", NULL), FL_E_ARG, "of the model to read");
    assert_int_equal(fl_tmp_count(f.hf), n);
    assert_int_equal(unlink(f.out), 0);
    ASSERT_OK(quantize(f.hf, f.out, "f32", NULL)); /* all of it is still there */
    free(weights);
    folder_remove(&f);
}

/* Puts a value into row 1, column 3 of a tensor of an F32 GGUF. */
static void poke(const char *path, const char *name, float v)
{
    fl_source *s = open_source(path);
    const fl_tensor *t = find(s, name);
    const off_t at = (off_t)(t->offset + 4 * (uint64_t)(t->ne[0] + 3));
    fl_source_close(&s);
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &v, sizeof v, at), sizeof v);
    close(fd);
}

static void damaged_weights_are_named(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(0);
    fl_make_gguf(&m, f.gguf);
    poke(f.gguf, "blk.1.ffn_down_exps.weight", 1e6f);
    ASSERT_FAILS(quantize(f.gguf, f.out, "f16", NULL), FL_E_ARG, "blk.1.ffn_down_exps");
    assert_int_equal(fl_tmp_count(f.dir), 1);
    ASSERT_OK(quantize(f.gguf, f.out, "bf16", NULL));
    poke(f.gguf, "blk.1.ffn_down_exps.weight", NAN);
    ASSERT_FAILS(quantize(f.gguf, f.out, NULL, NULL), FL_E_NAN, "row 1, column 3");
    assert_int_equal(fl_tmp_count(f.dir), 2); /* the source and the good run's output */
    folder_remove(&f);
}

/* Starts the tool in a child whose stderr is a pipe of one page that is nearly full, so it comes
 * to stand in the middle of the file; `sig`, which it inherits as ignored or not, is then sent.
 * Returns the wait status: 42 for a run that says it was interrupted. */
static int stopped_half_way(const folder *f, int sig, bool ignored)
{
    enum { JUNK = 3600 };
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        static const char junk[JUNK];
        close(fd[0]);
        if (fcntl(fd[1], F_SETPIPE_SZ, 4096) < 0 || write(fd[1], junk, JUNK) != JUNK) _exit(3);
        dup2(fd[1], STDERR_FILENO);
        if (sig != SIGKILL) signal(sig, ignored ? SIG_IGN : SIG_DFL);
        const fl_status st = run_tool(f->gguf, f->out, "q8_0", NULL);
        _exit(st == FL_E_CANCELED ? 42 : st == FL_OK ? 0 : 1);
    }
    close(fd[1]);
    char buf[JUNK + 1];
    for (size_t got = 0; got < sizeof buf;) { /* one byte behind the junk: a tensor is written */
        const ssize_t n = read(fd[0], buf, sizeof buf - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
    assert_int_equal(kill(pid, sig), 0);
    int rc;
    if (sig == SIGKILL) {
        assert_int_equal(waitpid(pid, &rc, 0), pid);
    } else {
        /* Let go only after the signal has arrived: it ends the write that stands. */
        usleep(100000);
        while (read(fd[0], buf, sizeof buf) > 0) {}
        assert_int_equal(waitpid(pid, &rc, 0), pid);
    }
    close(fd[0]);
    return rc;
}

static void check_old(const char *path)
{
    char buf[8] = {0};
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, buf, sizeof buf), 3);
    close(fd);
    assert_string_equal(buf, "old");
}

static void a_killed_run_leaves_the_old_file(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(0);
    fl_make_gguf(&m, f.gguf);
    fl_tmp_write(f.out, "old", 3);
    const int rc = stopped_half_way(&f, SIGKILL, false);
    assert_true(WIFSIGNALED(rc) && WTERMSIG(rc) == SIGKILL);
    check_old(f.out);
    assert_int_equal(fl_tmp_count(f.dir), 3); /* and the temporary of the killed one */
    ASSERT_OK(quantize(f.gguf, f.out, "q8_0", NULL));
    assert_int_equal(fl_tmp_count(f.dir), 2);
    folder_remove(&f);
}

static void an_interrupted_run_cleans_up(void **state)
{
    (void)state;
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
    folder f = folder_make();
    const fl_make m = layout(0);
    fl_make_gguf(&m, f.gguf);
    fl_tmp_write(f.out, "old", 3);
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        const int rc = stopped_half_way(&f, sigs[i], false);
        assert_true(WIFEXITED(rc));
        assert_int_equal(WEXITSTATUS(rc), 42);
        check_old(f.out);
        assert_int_equal(fl_tmp_count(f.dir), 2);
    }
    folder_remove(&f);
}

/* Under nohup, or in the background of a shell without job control. */
static void an_ignored_signal_stays_ignored(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(0);
    fl_make_gguf(&m, f.gguf);
    for (int i = 0; i < 2; i++) {
        const int rc = stopped_half_way(&f, i ? SIGINT : SIGHUP, true);
        assert_true(WIFEXITED(rc));
        assert_int_equal(WEXITSTATUS(rc), 0);
        compare_files(f.gguf, f.out, 0.008, true);
        assert_int_equal(fl_tmp_count(f.dir), 2);
        assert_int_equal(unlink(f.out), 0);
    }
    folder_remove(&f);
}

/* quantize IN OUT 2>&1 | head -1 */
static void a_reader_of_stderr_may_leave(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(0);
    fl_make_gguf(&m, f.gguf);
    int fd[2], rc;
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fd[0]);
        dup2(fd[1], STDERR_FILENO);
        signal(SIGPIPE, SIG_DFL);
        _exit(run_tool(f.gguf, f.out, "q8_0", NULL) == FL_OK ? 0 : 1);
    }
    close(fd[0]);
    close(fd[1]);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), 0);
    compare_files(f.gguf, f.out, 0.008, true);
    assert_int_equal(fl_tmp_count(f.dir), 2);
    folder_remove(&f);
}

/* A file size limit stands for a disk that fills up while it is written. */
static void a_full_disk_leaves_nothing(void **state)
{
    (void)state;
    folder f = folder_make();
    const fl_make m = layout(0);
    fl_make_gguf(&m, f.gguf);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit lim = {100000, 100000};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &lim) != 0) _exit(3);
        const fl_status st = quantize(f.gguf, f.out, "f32", NULL);
        const bool named = strstr(err.msg, f.out) && !strchr(err.msg, '\n');
        _exit(st == FL_E_IO && named ? 0 : 1);
    }
    int rc;
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), 0);
    assert_int_equal(fl_tmp_count(f.dir), 1);
    folder_remove(&f);
}

/* Peak resident memory, in KiB, of a child that writes a model (m not NULL) or quantizes one. What
 * the parent holds counts too, so it holds little. */
static long peak_of_child(const fl_make *m, const char *in, const char *out)
{
    malloc_trim(0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0 && m) {
        fl_make_gguf(m, out);
        _exit(0);
    }
    if (pid == 0) _exit(quantize(in, out, "q8_0", NULL) == FL_OK ? 0 : 1);
    int rc;
    struct rusage use;
    assert_int_equal(wait4(pid, &rc, 0, &use), pid);
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), 0);
    return use.ru_maxrss;
}

/* The thread sanitizer keeps about four shadow bytes for each byte touched: a kept model would
 * show there as 100 MB. */
#if defined(__SANITIZE_THREAD__)
enum { MOST_GROWTH_KIB = 30 * 1024 };
#else
enum { MOST_GROWTH_KIB = 6 * 1024 };
#endif

/* C137, C139, C140: four times the layers, 20 MB more weights, the same memory. */
static void memory_does_not_grow_with_the_model(void **state)
{
    (void)state;
    folder f = folder_make();
    fl_make m = fl_make_default();
    char *large = fl_tmp_path(f.dir, "large.gguf");
    m.type = FL_TYPE_F32;
    m.n_layer = m.interval = 1;
    peak_of_child(&m, NULL, f.gguf);
    m.n_layer = m.interval = 4;
    peak_of_child(&m, NULL, large);
    const long a = peak_of_child(NULL, f.gguf, f.out), b = peak_of_child(NULL, large, f.out);
    print_message("peak memory: 1 layer %ld KiB, 4 layers %ld KiB\n", a, b);
    assert_true(b - a < MOST_GROWTH_KIB);
    free(large);
    folder_remove(&f);
}

static void runs_give_the_same_bytes(void **state)
{
    (void)state;
    folder f = folder_make();
    fl_make m = fl_make_default();
    m.n_layer = m.interval = 1;
    m.type = FL_TYPE_F32;
    fl_make_gguf(&m, f.gguf);
    char *again = fl_tmp_path(f.dir, "again.gguf");
    ASSERT_OK(quantize(f.gguf, f.out, NULL, NULL));
    ASSERT_OK(quantize(f.gguf, again, NULL, NULL));
    FILE *a = fopen(f.out, "rb"), *b = fopen(again, "rb");
    assert_true(a && b);
    int x, y;
    do {
        x = getc(a);
        y = getc(b);
        if (x != y) fail_msg("the files differ at byte %ld", ftell(a));
    } while (x != EOF);
    fclose(a);
    fclose(b);
    free(again);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hugging_face_becomes_the_converters_gguf),
        cmocka_unit_test(quirks_are_straightened),
        cmocka_unit_test(each_type_is_close_to_the_source),
        cmocka_unit_test(short_rows_fall_back),
        cmocka_unit_test(metadata_is_complete),
        cmocka_unit_test(the_licence_is_what_the_source_says),
        cmocka_unit_test(clover_tiny_is_apache),
        cmocka_unit_test(sampling_defaults_survive),
        cmocka_unit_test(the_base_architecture_can_be_written),
        cmocka_unit_test(the_forward_pass_agrees),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(the_source_is_never_the_target),
        cmocka_unit_test(damaged_weights_are_named),
        cmocka_unit_test(a_killed_run_leaves_the_old_file),
        cmocka_unit_test(an_interrupted_run_cleans_up),
        cmocka_unit_test(an_ignored_signal_stays_ignored),
        cmocka_unit_test(a_reader_of_stderr_may_leave),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(memory_does_not_grow_with_the_model),
        cmocka_unit_test(runs_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
