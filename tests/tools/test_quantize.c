/* fourleaf quantize: the mapping from Hugging Face to GGUF, types and errors of what is written,
 * and what is refused. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/model/forward.h"
#include "runtime/model/gguf_write.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

static void hugging_face_becomes_the_converters_gguf(void **state)
{
    (void)state;
    for (int i = 0; i < FL_N_LAYOUTS; i++) {
        fl_workplace f = fl_workplace_make();
        const fl_make m = fl_layout(i);
        fl_make_safetensors(&m, f.hf);
        fl_make_gguf(&m, f.gguf);
        ASSERT_OK(fl_quantize(f.hf, f.out, "f32", NULL, &err));
        fl_compare_files(f.gguf, f.out, 0, true);
        fl_workplace_remove(&f);
    }
}

/* A GGUF with the known quirks comes out in the standard form. */
static void quirks_are_straightened(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        fl_workplace f = fl_workplace_make();
        fl_make m = fl_layout(1);
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
        ASSERT_OK(fl_quantize(odd, f.out, "f32", NULL, &err));
        fl_compare_files(f.gguf, f.out, i == 0 ? 1e-6 : 0, true);
        free(odd);
        fl_workplace_remove(&f);
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
            assert_int_equal(fl_need_tensor(s, names[c][k])->type, want[c]);
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
    } t[] = {
        {"q4_k", FL_TYPE_Q4_K, FL_TYPE_Q8_0, 0.1},   {"q5_k", FL_TYPE_Q5_K, FL_TYPE_Q8_0, 0.05},
        {"q6_k", FL_TYPE_Q6_K, FL_TYPE_Q8_0, 0.025}, {"q4_0", FL_TYPE_Q4_0, FL_TYPE_Q8_0, 0.1},
        {"q8_0", FL_TYPE_Q8_0, FL_TYPE_Q8_0, 0.008}, {"bf16", FL_TYPE_BF16, FL_TYPE_BF16, 0},
        {"f16", FL_TYPE_F16, FL_TYPE_F16, 0}};
    fl_workplace f = fl_workplace_make();
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    m.n_layer = 2;
    m.interval = 2;
    m.type = FL_TYPE_F32;
    fl_make_gguf(&m, f.gguf);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        ASSERT_OK(fl_quantize(f.gguf, f.out, t[i].name, NULL, &err));
        fl_compare_files(f.gguf, f.out, t[i].bound, true);
        fl_source *s = fl_open_source(f.out);
        check_types(s, t[i].large, t[i].sensitive);
        fl_source_close(&s);
    }
    fl_workplace_remove(&f);
}

/* Rows that are no multiple of 256 take Q8_0. */
static void short_rows_fall_back(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0); /* rows of 32 and 64 */
    fl_make_gguf(&m, f.gguf);
    ASSERT_OK(fl_quantize(f.gguf, f.out, "q4_k", NULL, &err));
    fl_source *s = fl_open_source(f.out);
    assert_int_equal(fl_need_tensor(s, "blk.0.ffn_gate_exps.weight")->type, FL_TYPE_Q8_0);
    fl_source_close(&s);
    fl_compare_files(f.gguf, f.out, 0.008, true);
    fl_workplace_remove(&f);
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
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(1);
    fl_make_safetensors(&m, f.hf);
    ASSERT_OK(fl_quantize(f.hf, f.out, "f32", NULL, &err));
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
    fl_workplace_remove(&f);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    ASSERT_FAILS(fl_quantize("/no/such/model", f.out, NULL, NULL, &err), FL_E_IO, "/no/such/model");
    ASSERT_FAILS(fl_quantize(f.gguf, f.gguf, NULL, NULL, &err), FL_E_ARG,
                 "is a file of the model to read");
    ASSERT_FAILS(fl_quantize(f.gguf, f.dir, NULL, NULL, &err), FL_E_ARG, "folder");
    ASSERT_FAILS(fl_quantize(f.gguf, f.out, "q2_k", NULL, &err), FL_E_ARG, "q2_k");
    ASSERT_FAILS(fl_quantize(f.gguf, f.out, NULL, "clover_moe", &err), FL_E_ARG, "clover_moe");
    ASSERT_FAILS(fl_quantize(f.gguf, "/no/such/x.gguf", NULL, NULL, &err), FL_E_IO, "/no/such");
    m.type = FL_TYPE_Q8_0;
    fl_make_gguf(&m, f.gguf);
    ASSERT_FAILS(fl_quantize(f.gguf, f.out, "q4_0", NULL, &err), FL_E_UNSUPPORTED,
                 "quantized already");
    assert_int_equal(fl_tmp_count(f.dir), 1);
    fl_workplace_remove(&f);
}

/* Whatever name leads to it, no file of the source is overwritten. */
static void the_source_is_never_the_target(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "model.safetensors.index.json"};
    fl_workplace f = fl_workplace_make();
    fl_make m = fl_layout(0);
    m.st_files = 3;
    fl_make_safetensors(&m, f.hf);
    fl_source *s = fl_open_source(f.hf);
    char *weights = strdup(fl_source_paths(s)[2]);
    fl_source_close(&s);
    const int n = fl_tmp_count(f.hf);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = fl_tmp_path(f.hf, names[i]);
        ASSERT_FAILS(fl_quantize(f.hf, path, "f32", NULL, &err), FL_E_ARG,
                     "is a file of the model to read");
        ASSERT_FAILS(fl_quantize(weights, path, "f32", NULL, &err), FL_E_ARG,
                     "of the model to read");
        free(path);
    }
    ASSERT_FAILS(fl_quantize(f.hf, weights, "f32", NULL, &err), FL_E_ARG, "of the model to read");
    assert_int_equal(symlink(weights, f.out), 0);
    ASSERT_FAILS(fl_quantize(f.hf, f.out, "f32", NULL, &err), FL_E_ARG, "of the model to read");
    assert_int_equal(fl_tmp_count(f.hf), n);
    assert_int_equal(unlink(f.out), 0);
    ASSERT_OK(fl_quantize(f.hf, f.out, "f32", NULL, &err)); /* all of it is still there */
    free(weights);
    fl_workplace_remove(&f);
}

/* Puts a value into row 1, column 3 of a tensor of an F32 GGUF. */
static void poke(const char *path, const char *name, float v)
{
    fl_source *s = fl_open_source(path);
    const fl_tensor *t = fl_need_tensor(s, name);
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
    fl_workplace f = fl_workplace_make();
    const fl_make m = fl_layout(0);
    fl_make_gguf(&m, f.gguf);
    poke(f.gguf, "blk.1.ffn_down_exps.weight", 1e6f);
    ASSERT_FAILS(fl_quantize(f.gguf, f.out, "f16", NULL, &err), FL_E_ARG, "blk.1.ffn_down_exps");
    assert_int_equal(fl_tmp_count(f.dir), 1);
    ASSERT_OK(fl_quantize(f.gguf, f.out, "bf16", NULL, &err));
    poke(f.gguf, "blk.1.ffn_down_exps.weight", NAN);
    ASSERT_FAILS(fl_quantize(f.gguf, f.out, NULL, NULL, &err), FL_E_NAN, "row 1, column 3");
    assert_int_equal(fl_tmp_count(f.dir), 2); /* the source and the good run's output */
    fl_workplace_remove(&f);
}

static void runs_give_the_same_bytes(void **state)
{
    (void)state;
    fl_workplace f = fl_workplace_make();
    fl_make m = fl_make_default();
    m.n_layer = m.interval = 1;
    m.type = FL_TYPE_F32;
    fl_make_gguf(&m, f.gguf);
    char *again = fl_tmp_path(f.dir, "again.gguf");
    ASSERT_OK(fl_quantize(f.gguf, f.out, NULL, NULL, &err));
    ASSERT_OK(fl_quantize(f.gguf, again, NULL, NULL, &err));
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
    fl_workplace_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hugging_face_becomes_the_converters_gguf),
        cmocka_unit_test(quirks_are_straightened),
        cmocka_unit_test(each_type_is_close_to_the_source),
        cmocka_unit_test(short_rows_fall_back),
        cmocka_unit_test(the_forward_pass_agrees),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(the_source_is_never_the_target),
        cmocka_unit_test(damaged_weights_are_named),
        cmocka_unit_test(runs_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
