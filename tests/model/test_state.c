/* The rows of the KV cache: what each type keeps of a number. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "runtime/model/model.h"
#include "runtime/model/state.h"
#include "tests/support/engine.h"
#include "tests/support/kern.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *dir;
static fl_model *model;

static int open_model(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_make make = fl_make_tiny();
    make.n_head_kv = 2; /* two blocks of 32 a row */
    dir = fl_tmp_make();
    char *path = fl_tmp_path(dir, "m.gguf");
    fl_make_gguf(&make, path);
    ASSERT_OK(fl_model_open(&model, path, &err));
    free(path);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    fl_model_close(&model);
    fl_tmp_remove(dir);
    return 0;
}

enum { N_ROWS = 3 };

typedef struct cache {
    fl_state st;
    void *kv, *gdn;
    int layer; /* the first one with attention */
} cache;

static cache cache_make(uint32_t type)
{
    fl_err err = {0};
    cache c = {0};
    const fl_state_shape shape = {.n_ctx = N_ROWS, .kv_type = type};
    const fl_state_sizes n = fl_state_measure(model->index, &shape);
    c.kv = calloc(1, n.kv);
    c.gdn = calloc(1, n.gdn);
    assert_true(c.kv && c.gdn && n.held == 0);
    ASSERT_OK(fl_state_init(&c.st, model->index, &shape, c.kv, c.gdn, NULL, &err));
    while (!c.st.k[c.layer]) c.layer++;
    return c;
}

static void cache_free(cache *c)
{
    fl_state_fini(&c->st);
    free(c->kv);
    free(c->gdn);
}

/* Puts x as keys and its reverse as values into row 1 and reads both back. */
static void through(cache *c, const float *x, float *k, float *v)
{
    const int64_t n = c->st.kv_row;
    const uint64_t bytes = fl_state_kv_row_bytes(&c->st);
    const fl_type_info *t = fl_type_get(c->st.kv_type);
    float *back = malloc((size_t)n * sizeof *back);
    uint8_t *zero = calloc(1, bytes);
    assert_true(back && zero);
    for (int64_t i = 0; i < n; i++) back[i] = x[n - 1 - i];
    fl_state_put_kv(&c->st, c->layer, 1, x, back);
    for (int row = 0; row < N_ROWS; row += 2) {
        assert_memory_equal((uint8_t *)c->st.k[c->layer] + (uint64_t)row * bytes, zero, bytes);
        assert_memory_equal((uint8_t *)c->st.v[c->layer] + (uint64_t)row * bytes, zero, bytes);
    }
    t->dequantize((uint8_t *)c->st.k[c->layer] + bytes, k, n);
    t->dequantize((uint8_t *)c->st.v[c->layer] + bytes, v, n);
    free(back);
    free(zero);
}

static float largest(const float *x, int64_t n)
{
    float m = 0.0f;
    for (int64_t i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

/* Bytes of a row, and the error of a value against its block's largest. */
static void a_row_takes_its_bytes_and_keeps_its_precision(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t bytes_of_32;
        float error;
    } want[] = {{FL_TYPE_F32, 128, 0.0f}, {FL_TYPE_F16, 64, 0x1p-11f}, {FL_TYPE_Q8_0, 34, 0.0042f}};
    for (size_t t = 0; t < sizeof want / sizeof *want; t++) {
        cache c = cache_make(want[t].type);
        const int64_t n = c.st.kv_row;
        float x[64], k[64], v[64];
        assert_int_equal(n, 64);
        assert_true(fl_state_kv_row_bytes(&c.st) == (uint64_t)n / 32 * want[t].bytes_of_32);
        for (int round = 0; round < 200; round++) {
            fl_rnd_floats(x, n, round % 2);
            through(&c, x, k, v);
            for (int64_t i = 0; i < n; i++) {
                const float top = largest(x + i / 32 * 32, 32);
                assert_true(fabsf(k[i] - x[i]) <= top * want[t].error);
                assert_true(v[n - 1 - i] == k[i]);
            }
        }
        cache_free(&c);
    }
}

/* The bits of one Q8_0 row: d = half(max / 127), the rest to nearest even by 1 / d. */
static void the_bits_of_a_q8_0_row_are_stated(void **state)
{
    (void)state;
    cache c = cache_make(FL_TYPE_Q8_0);
    float x[64] = {0}, k[64], v[64];
    x[0] = 127.0f * 0.5f;
    x[1] = -0.25f; /* -0.5 steps: to even, 0 */
    x[2] = 0.75f;  /* 1.5 steps: to even, 2 */
    x[31] = -127.0f * 0.5f;
    through(&c, x, k, v);
    const uint8_t *b = (const uint8_t *)c.st.k[c.layer] + fl_state_kv_row_bytes(&c.st);
    static const uint8_t want[34] = {0x00, 0x38, 127, 0, 2, [33] = 0x81};
    assert_memory_equal(b, want, sizeof want);
    static const uint8_t zero[34] = {0};
    assert_memory_equal(b + 34, zero, sizeof zero);
    cache_free(&c);
}

static void large_values_saturate(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        float top;
    } want[] = {{FL_TYPE_F32, FLT_MAX}, {FL_TYPE_F16, 65504.0f}, {FL_TYPE_Q8_0, 65504.0f * 127}};
    for (size_t t = 0; t < sizeof want / sizeof *want; t++) {
        cache c = cache_make(want[t].type);
        float x[64] = {FLT_MAX, -FLT_MAX, 1.0f}, k[64], v[64];
        through(&c, x, k, v);
        assert_true(k[0] == want[t].top && k[1] == -want[t].top);
        /* One step of 65504 is the least that such a block of Q8_0 knows. */
        assert_true(k[2] == (want[t].type == FL_TYPE_Q8_0 ? 0.0f : 1.0f));
        cache_free(&c);
    }
}

/* What is not finite is found further on: it stays, or its block becomes NaN. */
static void what_is_not_finite_does_not_become_a_number(void **state)
{
    (void)state;
    static const uint32_t types[] = {FL_TYPE_F32, FL_TYPE_F16, FL_TYPE_Q8_0};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int t = 0; t < 3; t++) {
        cache c = cache_make(types[t]);
        for (int i = 0; i < 3; i++) {
            float x[64] = {1.0f, 2.0f}, k[64], v[64];
            x[33] = bad[i];
            through(&c, x, k, v);
            assert_true(!isfinite(k[33]) && !isfinite(v[c.st.kv_row - 34]));
            assert_true(isfinite(k[0]) && k[0] > 0.9f && isfinite(k[31]));
            if (types[t] != FL_TYPE_Q8_0) continue;
            for (int j = 32; j < 64; j++) assert_true(isnan(k[j]));
        }
        cache_free(&c);
    }
}

static double divergence(const float *p, const float *q, int64_t n)
{
    double sp = 0, sq = 0, kl = 0;
    for (int64_t i = 0; i < n; i++) {
        sp += exp((double)p[i]);
        sq += exp((double)q[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        const double lp = (double)p[i] - log(sp), lq = (double)q[i] - log(sq);
        kl += exp(lp) * (lp - lq);
    }
    return kl;
}

/* Mean KL divergence of the trained model's next-token distributions from those with an F32
 * cache; quant/FORMAT.md has figures over more text. */
static void a_small_cache_moves_the_trained_model_little(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        double least, most;
    } want[] = {{FL_TYPE_F16, 0.0, 1e-6}, {FL_TYPE_Q8_0, 1e-8, 1e-3}};
    fl_err err = {0};
    fl_model *tiny = NULL;
    ASSERT_OK(fl_model_open(&tiny, "tests/clover_tiny/model", &err));
    int32_t *ids = NULL;
    size_t n = 0;
    const char *text = "<|im_start|>user\nWhat is the capital of Greece?<|im_end|>\n"
                       "<|im_start|>assistant\n<think>\n\n</think>\n\n"
                       "The capital of Greece is Athens.<|im_end|>";
    ASSERT_OK(fl_tokenizer_encode(tiny->tokenizer, text, strlen(text), true, &ids, &n, &err));
    fl_model_close(&tiny);
    fl_engine_params p = fl_exact_params();
    p.n_ctx = 128;
    fl_loaded l = fl_load("tests/clover_tiny/model", &p);
    const int64_t vocab = l.model->index->hp.n_vocab;
    float *exact = fl_clean_logits(l.engine, ids, (int64_t)n);
    fl_unload(&l);
    for (size_t t = 0; t < sizeof want / sizeof *want; t++) {
        p.kv_type = want[t].type;
        l = fl_load("tests/clover_tiny/model", &p);
        float *got = fl_clean_logits(l.engine, ids, (int64_t)n);
        double kl = 0;
        for (size_t i = 0; i < n; i++)
            kl += divergence(exact + (int64_t)i * vocab, got + (int64_t)i * vocab, vocab);
        kl /= (double)n;
        if (!(kl >= want[t].least && kl <= want[t].most))
            fail_msg("%s: a divergence of %g", fl_type_get(want[t].type)->name, kl);
        free(got);
        fl_unload(&l);
    }
    free(exact);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_takes_its_bytes_and_keeps_its_precision),
        cmocka_unit_test(the_bits_of_a_q8_0_row_are_stated),
        cmocka_unit_test(large_values_saturate),
        cmocka_unit_test(what_is_not_finite_does_not_become_a_number),
        cmocka_unit_test(a_small_cache_moves_the_trained_model_little),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
