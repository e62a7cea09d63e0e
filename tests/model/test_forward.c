/* The forward passes against independent programs, and against themselves over everything that
 * must not matter. */
#include <assert.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "tests/support/engine.h"
#include "tests/support/make_model.h"
#include "tests/support/npy.h"
#include "tests/support/poison.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* ---- clean passes: transformers ---- */

static void check_golden(fl_engine *e, const char *set, int n)
{
    char path[128];
    snprintf(path, sizeof(path), "tests/golden/model/%sids_%d.npy", set, n);
    fl_npy ids = fl_npy_load(path);
    snprintf(path, sizeof(path), "tests/golden/model/%slogits_%d.npy", set, n);
    fl_npy want = fl_npy_load(path);
    assert_int_equal(ids.cols, n);
    assert_int_equal(want.cols, e->model->index->hp.n_vocab);
    float *got = fl_clean_logits(e, ids.i, n);
    const double error = fl_max_error(got, want.f, want.rows * want.cols);
    if (!(error <= 1e-4)) fail_msg("%s %d tokens: relative error %g", path, n, error);
    free(got);
    fl_npy_free(&ids);
    fl_npy_free(&want);
}

static void check_goldens(const char *file, int64_t chunk)
{
    char path[128];
    fl_engine_params p = fl_exact_params();
    p.chunk = chunk;
    snprintf(path, sizeof(path), "tests/golden/model/%s", file);
    fl_loaded l = fl_load(path, &p);
    check_golden(l.engine, "", 1);
    check_golden(l.engine, "", 7);
    check_golden(l.engine, "", 64);
    if (!FL_SANITIZED || strcmp(file, "hf") == 0) check_golden(l.engine, "", 300);
    fl_unload(&l);
}

static void clean_logits_equal_transformers(void **state)
{
    (void)state;
    check_goldens("hf", 0);
    check_goldens("tiny-f32.gguf", 0);
}

static void clean_logits_equal_transformers_in_any_chunks(void **state)
{
    (void)state;
    check_goldens("tiny-f32.gguf", 1);
    check_goldens("tiny-f32.gguf", 37);
}

static void every_packing_gives_the_same_logits(void **state)
{
    (void)state;
    check_goldens("tiny-fused-f16.gguf", 0);
    check_goldens("tiny-split-bf16-00001-of-00002.gguf", 0);
    check_goldens("tiny-mtp-mixed.gguf", 0);
}

/* Row t of the golden: logits for token t + 2, from t's hidden row and token t + 1. */
static void mtp_logits_equal_the_golden(void **state)
{
    (void)state;
    static const char *const files[] = {"tiny-mtp-mixed.gguf", "hf"};
    fl_err err = {0};
    fl_npy ids = fl_npy_load("tests/golden/model/ids_64.npy");
    fl_npy want = fl_npy_load("tests/golden/model/mtp_logits_64.npy");
    for (int f = 0; f < 2; f++) {
        char path[128];
        fl_engine_params p = fl_exact_params();
        p.mtp = true;
        p.held_rows = 4;
        p.chunk = 16 + 7 * f;
        snprintf(path, sizeof path, "tests/golden/model/%s", files[f]);
        fl_loaded l = fl_load(path, &p);
        double most = 0.0;
        assert_int_equal(want.rows, 63);
        assert_int_equal(want.cols, l.model->index->hp.n_vocab);
        for (int t = 0; t < 63; t += FL_SANITIZED_OR(8, 1)) {
            const float *logits = NULL;
            fl_state_reset(&l.engine->state);
            ASSERT_OK(fl_forward_clean(l.engine, ids.i, t + 1, &err));
            ASSERT_OK(fl_forward_draft(l.engine, ids.i[t + 1], 0, &logits, &err));
            const double error = fl_max_error(logits, want.f + t * want.cols, want.cols);
            if (!(error <= 1e-4)) fail_msg("%s, row %d: relative error %g", path, t, error);
            if (error > most) most = error;
        }
        printf("# %s: relative error %g\n", files[f], most);
        fl_unload(&l);
    }
    fl_npy_free(&ids);
    fl_npy_free(&want);
}

static void every_block_type_gives_the_logits_of_its_weights(void **state)
{
    (void)state;
    fl_engine_params p = fl_exact_params();
    fl_loaded l = fl_load("tests/golden/model/tiny-quantized.gguf", &p);
    check_golden(l.engine, "quantized_", 1);
    check_golden(l.engine, "quantized_", 7);
    check_golden(l.engine, "quantized_", 64);
    fl_unload(&l);
}

/* The law rounds activations to 8 bits: close to the float path, and not equal to it. */
static void law_is_near_the_float_path(void **state)
{
    (void)state;
    fl_engine_params p = fl_exact_params();
    fl_npy ids = fl_npy_load("tests/golden/model/quantized_ids_64.npy");
    fl_npy want = fl_npy_load("tests/golden/model/quantized_logits_64.npy");
    p.act_f32 = false;
    fl_loaded l = fl_load("tests/golden/model/tiny-quantized.gguf", &p);
    float *got = fl_clean_logits(l.engine, ids.i, ids.cols);
    /* The median row: a flipped expert choice moves single rows by more. */
    int near = 0;
    for (int64_t r = 0; r < want.rows; r++) {
        const double e = fl_max_error(got + r * want.cols, want.f + r * want.cols, want.cols);
        assert_true(isfinite(e));
        near += e < 0.05;
    }
    assert_true(near > want.rows / 2);
    assert_true(fl_max_error(got, want.f, want.rows * want.cols) > 1e-6);
    free(got);
    fl_unload(&l);
    fl_npy_free(&ids);
    fl_npy_free(&want);
}

/* ---- block passes: the PyTorch reference ---- */

static int read_tokens(const fl_json *array, int32_t *out, int max)
{
    const int n = (int)fl_json_size(array);
    assert_true(n <= max);
    for (int i = 0; i < n; i++) out[i] = (int32_t)fl_json_int(fl_json_at(array, (size_t)i), -1);
    return n;
}

static void check_case(fl_engine *e, const char *folder, const fl_json *c)
{
    fl_err err = {0};
    int32_t prefix[256], tokens[32], rows[32];
    char path[400];
    const int n_prefix = read_tokens(fl_json_get(c, "prefix"), prefix, 256);
    const int n = read_tokens(fl_json_get(c, "tokens"), tokens, 32);
    const int n_rows = read_tokens(fl_json_get(c, "rows"), rows, 32);
    const char *mode = fl_json_str(fl_json_get(c, "mode"), "");
    snprintf(path, sizeof(path), "%s/%s", folder, fl_json_str(fl_json_get(c, "logits"), ""));
    fl_npy want = fl_npy_load(path);
    const int64_t vocab = want.cols;
    float *got = NULL;
    assert_int_equal(want.rows, n_rows);

    fl_state_reset(&e->state);
    if (strcmp(mode, "clean") == 0) {
        int32_t all[288];
        memcpy(all, prefix, sizeof(prefix));
        memcpy(all + n_prefix, tokens, sizeof(tokens));
        got = fl_clean_logits(e, all, n_prefix + n);
        memmove(got, got + n_prefix * vocab, (size_t)(n * vocab) * sizeof(float));
    } else {
        fl_gdn_block_mode m;
        assert_true(fl_gdn_block_mode_parse(mode, &m));
        if (n_prefix) ASSERT_OK(fl_forward_clean(e, prefix, n_prefix, &err));
        got = fl_block_logits(e, tokens, n, m);
    }
    for (int r = 0; r < n_rows; r++) {
        const double error = fl_max_error(got + rows[r] * vocab, want.f + r * vocab, vocab);
        if (!(error <= 1e-3)) fail_msg("%s, row %d: relative error %g", path, rows[r], error);
    }
    free(got);
    fl_npy_free(&want);
}

static void check_block_goldens(const char *folder, const char *model)
{
    fl_err err = {0};
    char path[400], *text = NULL;
    uint64_t n = 0;
    fl_json *j = NULL;
    fl_engine_params p = fl_exact_params();
    fl_loaded l = fl_load(model, &p);
    snprintf(path, sizeof(path), "%s/index.json", folder);
    ASSERT_OK(fl_file_load(path, 1 << 20, &text, &n, &err));
    ASSERT_OK(fl_json_parse(text, n, path, &j, &err));
    const fl_json *cases = fl_json_get(j, "cases");
    assert_true(fl_json_size(cases) >= 10);
    /* Every mode comes in every fifth place. */
    for (size_t i = 0; i < fl_json_size(cases); i += FL_SANITIZED_OR(3, 1))
        check_case(l.engine, folder, fl_json_at(cases, i));
    fl_json_free(&j);
    free(text);
    fl_unload(&l);
}

/* Every set of goldens there is: a model of random weights (its folder lies in the set) and, named
 * "model", the trained one beside them. */
static void A2_logits_equal_the_pytorch_reference_in_every_mode(void **state)
{
    (void)state;
    bool random = false;
    DIR *d = opendir("tests/clover_tiny/golden");
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));) {
        char folder[300], model[320];
        if (x->d_name[0] == '.') continue;
        snprintf(folder, sizeof(folder), "tests/clover_tiny/golden/%s", x->d_name);
        snprintf(model, sizeof(model), "%s/model", folder);
        if (access(model, R_OK) != 0)
            snprintf(model, sizeof(model), "tests/clover_tiny/%s", x->d_name);
        check_block_goldens(folder, model);
        random = random || strcmp(x->d_name, "random") == 0;
    }
    closedir(d);
    assert_true(random);
}

/* ---- what must not matter ---- */

/* Logits under the law, bit for bit, over chunk sizes and threads. */
static void bits_do_not_depend_on_chunks_or_threads(void **state)
{
    (void)state;
    static const struct {
        int64_t chunk;
        int threads;
    } other[] = {{1, 1}, {7, 2}, {64, 3}, {512, 2}};
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    fl_make m = fl_make_default();
    int32_t ids[70];
    enum { N = sizeof(ids) / sizeof(*ids) };
    m.type = FL_TYPE_Q4_K;
    fl_make_quick_experts(&m);
    m.n_layer = m.interval = 2;
    fl_make_gguf(&m, path);
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + 11) % 256;

    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    fl_loaded l = fl_load(path, &p);
    float *want = fl_clean_logits(l.engine, ids, N);
    const uint64_t hash = fl_state_hash(&l.engine->state);
    fl_unload(&l);
    for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++) {
        if (FL_SANITIZED && other[i].threads == 1) continue;
        p.chunk = other[i].chunk;
        p.threads = other[i].threads;
        l = fl_load(path, &p);
        float *got = fl_clean_logits(l.engine, ids, N);
        assert_memory_equal(got, want, (size_t)(N * m.n_vocab) * sizeof(float));
        assert_true(fl_state_hash(&l.engine->state) == hash);
        free(got);
        fl_unload(&l);
    }
    free(want);
    free(path);
    fl_tmp_remove(dir);
}

/* Hidden rows behind 700 tokens: one row, the last of 20 and of a block of 32; rows [3][d_model].
 * Few rows of several threads share out the keys, in one window of chunks or in two. */
static uint64_t long_context(const char *path, int threads, float *rows)
{
    fl_err err = {0};
    int32_t ids[700];
    fl_engine_params p = fl_engine_defaults();
    p.threads = threads;
    fl_loaded l = fl_load(path, &p);
    const int64_t d = l.model->index->hp.d_model;
    for (int i = 0; i < 700; i++) ids[i] = (i * 37 + i / 11) % 256;
    ASSERT_OK(fl_forward_clean(l.engine, ids, 700, &err));
    ASSERT_OK(fl_forward_clean(l.engine, ids + 5, 1, &err));
    fl_forward_hidden(l.engine, 0, rows);
    ASSERT_OK(fl_forward_clean(l.engine, ids, 20, &err));
    fl_forward_hidden(l.engine, 19, rows + d);
    ASSERT_OK(fl_forward_denoise(l.engine, ids, 32, &l.model->index->clover, &err));
    fl_forward_hidden(l.engine, 31, rows + 2 * d);
    const uint64_t hash = fl_state_hash(&l.engine->state);
    fl_unload(&l);
    return hash;
}

static void bits_of_a_long_context_do_not_depend_on_threads(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    fl_make m = fl_make_tiny();
    float want[3 * 64], got[3 * 64];
    assert_int_equal(m.d_model, 64);
    m.n_layer = m.interval = 2;
    fl_make_gguf(&m, path);
    const uint64_t hash = long_context(path, 1, want);
    for (int threads = 2; threads <= 8; threads += 3) {
        assert_true(long_context(path, threads, got) == hash);
        assert_memory_equal(got, want, sizeof got);
    }
    free(path);
    fl_tmp_remove(dir);
}

/* ---- the head a part at a time ---- */

enum { HEAD_VOCAB = 2 * FL_HEAD_PART + 300, HEAD_ROWS = 3 };

typedef struct shown {
    float l[HEAD_ROWS][HEAD_VOCAB];
    int times[HEAD_ROWS][HEAD_VOCAB];
    int n_workers;
} shown;

static void take_part(void *arg, int row, int64_t first, int64_t n, const float *logits, int worker)
{
    shown *s = arg;
    assert(first % FL_HEAD_PART == 0 && first + n <= HEAD_VOCAB && worker < s->n_workers);
    for (int64_t i = 0; i < n; i++) {
        s->l[row][first + i] = logits[i];
        s->times[row][first + i]++;
    }
}

static void parts_of_the_head_are_its_logits(void **state)
{
    (void)state;
    static shown s;
    static const int rows[HEAD_ROWS] = {1, -1, 0};
    const int32_t ids[] = {1, 2, 3};
    const float *want = NULL;
    fl_err err = {0};
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    fl_make m = fl_make_tiny();
    m.no_tokenizer = true;
    m.n_vocab = HEAD_VOCAB;
    fl_make_gguf(&m, path);
    const fl_head_reader reader = {take_part, &s};
    for (int threads = 1; threads <= 3; threads++) {
        fl_engine_params p = fl_exact_params();
        p.threads = threads;
        p.act_f32 = threads == 2;
        fl_loaded l = fl_load(path, &p);
        ASSERT_OK(fl_forward_clean(l.engine, ids, 3, &err));
        s = (shown){.n_workers = threads};
        ASSERT_OK(fl_forward_head(l.engine, rows, HEAD_ROWS, &reader, &err));
        ASSERT_OK(fl_forward_logits(l.engine, rows, HEAD_ROWS, &want, &err));
        assert_memory_equal(s.l, want, sizeof s.l);
        for (int r = 0; r < HEAD_ROWS; r++)
            for (int i = 0; i < HEAD_VOCAB; i++) assert_int_equal(s.times[r][i], 1);
        fl_unload(&l);
    }
    /* Of two parts that are damaged the first is named. */
    const unsigned long row_bytes = (unsigned long)m.d_model * 4;
    fl_poison(path, "output.weight", (FL_HEAD_PART + 7) * row_bytes, 1, 4, NAN);
    fl_poison(path, "output.weight", (2 * FL_HEAD_PART + 1) * row_bytes, 1, 4, NAN);
    fl_engine_params p = fl_exact_params();
    p.threads = 2;
    fl_loaded l = fl_load(path, &p);
    ASSERT_OK(fl_forward_clean(l.engine, ids, 3, &err));
    ASSERT_FAILS(fl_forward_head(l.engine, rows, HEAD_ROWS, &reader, &err), FL_E_NAN,
                 "LM head, token 2055)");
    fl_unload(&l);
    free(path);
    fl_tmp_remove(dir);
}

/* ---- errors ---- */

static void a_nan_is_an_error_that_names_the_layer(void **state)
{
    (void)state;
    fl_err err = {0};
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    const int32_t ids[] = {1, 2, 3};
    fl_make m = fl_make_tiny();
    fl_make_gguf(&m, path);
    fl_poison(path, "blk.2.attn_qkv.weight", 4, 1, 4, NAN); /* a vector is refused at load */
    for (int law = 0; law < 2; law++) {
        fl_engine_params p = fl_exact_params();
        p.act_f32 = !law;
        fl_loaded l = fl_load(path, &p);
        ASSERT_FAILS(fl_forward_clean(l.engine, ids, 3, &err), FL_E_NAN, "layer 2");
        ASSERT_FAILS(fl_forward_clean(l.engine, ids, 3, &err), FL_E_ARG, "failed pass");
        fl_state_reset(&l.engine->state);
        ASSERT_FAILS(fl_forward_clean(l.engine, ids, 3, &err), FL_E_NAN, "layer 2");
        fl_unload(&l);
    }
    /* In the last matrix only the logits can tell. */
    fl_make_gguf(&m, path);
    fl_poison(path, "output.weight", 0, 1, 4, INFINITY);
    fl_engine_params p = fl_exact_params();
    fl_loaded l = fl_load(path, &p);
    const int row = 2;
    const float *logits = NULL;
    ASSERT_OK(fl_forward_clean(l.engine, ids, 3, &err));
    ASSERT_FAILS(fl_forward_logits(l.engine, &row, 1, &logits, &err), FL_E_NAN, "LM head, token 0");
    fl_unload(&l);
    free(path);
    fl_tmp_remove(dir);
}

/* Activations far outside the range of half floats stay finite. */
static void large_activations_give_finite_logits(void **state)
{
    (void)state;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    const int32_t ids[] = {5, 6, 5, 7};
    fl_make m = fl_make_tiny();
    fl_make_gguf(&m, path);
    fl_poison(path, "token_embd.weight", 5u * (unsigned)m.d_model * 4, m.d_model / 2, 4, 60000.0f);
    fl_poison(path, "token_embd.weight", 6u * (unsigned)m.d_model * 4, m.d_model, 4, -60000.0f);
    fl_poison(path, "blk.3.attn_v.weight", 0, m.d_model * 4, 4, 30000.0f);
    for (int law = 0; law < 2; law++) {
        fl_engine_params p = fl_engine_defaults();
        p.act_f32 = !law;
        p.threads = 1;
        fl_loaded l = fl_load(path, &p);
        free(fl_clean_logits(l.engine, ids, 4));
        fl_unload(&l);
    }
    free(path);
    fl_tmp_remove(dir);
}

static void impossible_requests_are_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_engine_params p = fl_exact_params();
    int32_t ids[64] = {0};
    const fl_clover causal = {.gdn_block_mode = FL_GDN_CAUSAL, .mask_id = -1};
    const fl_clover bidir = {.gdn_block_mode = FL_GDN_BIDIR, .mask_id = -1};
    p.n_ctx = 40;
    fl_loaded l = fl_load("tests/golden/model/tiny-f32.gguf", &p);
    ids[1] = -1;
    ASSERT_FAILS(fl_forward_clean(l.engine, ids, 2, &err), FL_E_ARG, "token id -1");
    ids[1] = (int32_t)l.model->index->hp.n_vocab;
    fl_state_reset(&l.engine->state);
    ASSERT_FAILS(fl_forward_clean(l.engine, ids, 2, &err), FL_E_ARG, "vocabulary");
    ids[1] = 0;
    fl_state_reset(&l.engine->state);
    ASSERT_FAILS(fl_forward_clean(l.engine, ids, 41, &err), FL_E_ARG, "41 tokens");
    ASSERT_FAILS(fl_forward_clean(l.engine, ids, 0, &err), FL_E_ARG, "0 tokens");
    ASSERT_OK(fl_forward_clean(l.engine, ids, 30, &err));
    ASSERT_FAILS(fl_forward_clean(l.engine, ids, 11, &err), FL_E_ARG, "30 of 40");
    ASSERT_FAILS(fl_forward_denoise(l.engine, ids, 11, &causal, &err), FL_E_ARG, "30 of 40");
    ASSERT_FAILS(fl_forward_denoise(l.engine, ids, 10, &bidir, &err), FL_E_ARG, "block-mode");
    ASSERT_OK(fl_forward_denoise(l.engine, ids, 10, &causal, &err));
    fl_unload(&l);
    p.n_ctx = 0;
    l = fl_load("tests/golden/model/tiny-f32.gguf", &p);
    ASSERT_FAILS(fl_forward_denoise(l.engine, ids, 33, &causal, &err), FL_E_ARG, "1 to 32");
    fl_unload(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_logits_equal_transformers),
        cmocka_unit_test(clean_logits_equal_transformers_in_any_chunks),
        cmocka_unit_test(every_packing_gives_the_same_logits),
        cmocka_unit_test(mtp_logits_equal_the_golden),
        cmocka_unit_test(every_block_type_gives_the_logits_of_its_weights),
        cmocka_unit_test(law_is_near_the_float_path),
        cmocka_unit_test(A2_logits_equal_the_pytorch_reference_in_every_mode),
        cmocka_unit_test(bits_do_not_depend_on_chunks_or_threads),
        cmocka_unit_test(bits_of_a_long_context_do_not_depend_on_threads),
        cmocka_unit_test(parts_of_the_head_are_its_logits),
        cmocka_unit_test(a_nan_is_an_error_that_names_the_layer),
        cmocka_unit_test(large_activations_give_finite_logits),
        cmocka_unit_test(impossible_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
