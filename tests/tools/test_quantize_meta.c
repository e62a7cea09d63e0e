/* fourleaf quantize: the metadata of what is written, its licence and sampling defaults. */
#include <stdlib.h>

#include "runtime/decode/generate.h"
#include "runtime/model/gguf_write.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

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
    check_int(g, "general.file_type", 7); /* rows too short for Q4_K: all is Q8_0 */
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
        fl_workplace f = fl_workplace_make();
        const fl_make m = fl_layout(1);
        fl_make_gguf(&m, f.gguf);
        fl_make_safetensors(&m, f.hf);
        ASSERT_OK(fl_quantize(from_gguf ? f.gguf : f.hf, f.out, NULL, NULL, &err));
        fl_source *s = fl_open_source(f.out), *ref = fl_open_source(f.gguf);
        check_metadata(fl_source_gguf(s), fl_source_gguf(ref), &m);
        fl_source_close(&s);
        fl_source_close(&ref);
        fl_workplace_remove(&f);
    }
}

static void check_license(const char *path, const char *want)
{
    fl_source *s = fl_open_source(path);
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
    fl_workplace f = fl_workplace_make();
    fl_make m = fl_layout(1);
    fl_make_safetensors(&m, f.hf);
    char *readme = fl_tmp_path(f.hf, "README.md"), *again = fl_tmp_path(f.dir, "again.gguf");
    ASSERT_OK(fl_quantize(f.hf, f.out, "f32", NULL, &err));
    check_license(f.out, NULL);
    ASSERT_OK(fl_quantize(f.out, again, NULL, NULL, &err));
    check_license(again, NULL);
    m.st_license = "Apache-2.0";
    fl_make_safetensors(&m, f.hf);
    ASSERT_OK(fl_quantize(f.hf, f.out, "f32", NULL, &err));
    check_license(f.out, "apache-2.0");
    fl_tmp_write(readme, card, sizeof card - 1);
    ASSERT_OK(fl_quantize(f.hf, f.out, "f32", NULL, &err));
    check_license(f.out, "cc-by-4.0");
    fl_source *s = fl_open_source(f.out);
    check_int(fl_source_gguf(s), "general.base_model.count", 1);
    check_text(fl_source_gguf(s), "general.base_model.0.name", "Qwen3.6 35B A3B");
    check_text(fl_source_gguf(s), "general.base_model.0.organization", "Qwen");
    check_text(fl_source_gguf(s), "general.base_model.0.repo_url",
               "https://huggingface.co/Qwen/Qwen3.6-35B-A3B");
    fl_source_close(&s);
    m.config_license = "mit";
    fl_make_safetensors(&m, f.hf);
    ASSERT_OK(fl_quantize(f.hf, f.out, "f32", NULL, &err));
    check_license(f.out, "mit");
    ASSERT_OK(fl_quantize(f.out, again, NULL, NULL, &err));
    check_license(again, "mit");
    free(readme);
    free(again);
    fl_workplace_remove(&f);
}

/* The trained test model states its own. */
static void clover_tiny_is_apache(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    ASSERT_OK(fl_quantize("tests/clover_tiny/model", f.out, "q8_0", NULL, &err));
    check_license(f.out, "apache-2.0");
    fl_workplace_remove(&f);
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
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(1);
    fl_make_safetensors(&m, f.hf);
    char *path = fl_tmp_path(f.hf, "generation_config.json");
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fl_tmp_write(path, t[i].json, strlen(t[i].json));
        ASSERT_OK(fl_quantize(f.hf, f.out, "q8_0", NULL, &err));
        const fl_sampler_config a = defaults_of(f.hf).sampler, b = defaults_of(f.out).sampler;
        assert_true(a.temp == t[i].temp && a.min_p == t[i].min_p);
        if (a.temp != b.temp || a.top_k != b.top_k || a.top_p != b.top_p || a.min_p != b.min_p ||
            a.presence != b.presence || a.frequency != b.frequency || a.repetition != b.repetition)
            fail_msg("%s: temp %g, top_k %lld, top_p %g, min_p %g", t[i].json, b.temp,
                     (long long)b.top_k, b.top_p, b.min_p);
    }
    free(path);
    fl_workplace_remove(&f);
}

/* What stock readers can load: no backward tensors, no key of block diffusion. */
static void the_base_architecture_can_be_written(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(1);
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(fl_quantize(f.gguf, f.out, "f32", "qwen35moe", &err));
    fl_compare_files(f.gguf, f.out, 0, false);
    fl_source *s = fl_open_source(f.out);
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
    fl_workplace_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_is_complete),
        cmocka_unit_test(the_licence_is_what_the_source_says),
        cmocka_unit_test(clover_tiny_is_apache),
        cmocka_unit_test(sampling_defaults_survive),
        cmocka_unit_test(the_base_architecture_can_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
