/* What each pass of the decoder leaves and reads, on random tiny weights: tests A1 to A7, A9 and
 * A13 of the decoder specification. Those that the type of the KV cache could break run with a
 * Q8_0 cache too. */
#include <math.h>
#include <stdlib.h>

#include "runtime/decode/loop.h"
#include "runtime/model/layers.h"
#include "tests/support/decoder.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* ---- A1 ---- */

static void A1_denoise_leaves_the_state_alone(void **state)
{
    (void)state;
    static const int prefixes[] = {0, 1, 2, 45, 200};
    fl_err err = {0};
    int32_t ids[256], block[32];
    fl_tiny_prompt(ids, 256);
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++) {
        fl_state_reset(&fl_tiny.engine->state);
        if (prefixes[i]) ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, prefixes[i], &err));
        const uint64_t before = fl_state_hash(&fl_tiny.engine->state);
        for (int mode = FL_GDN_CAUSAL; mode <= FL_GDN_BIDIR; mode++)
            for (int n = 1; n <= 32; n += 31) {
                for (int r = 0; r < n; r++) block[r] = fl_tiny.model->index->clover.mask_id;
                fl_clover sw = fl_tiny.model->index->clover;
                sw.gdn_block_mode = (fl_gdn_block_mode)mode;
                ASSERT_OK(fl_forward_denoise(fl_tiny.engine, block, n, &sw, &err));
                assert_true(fl_state_hash(&fl_tiny.engine->state) == before);
            }
    }
}

/* ---- A2 ---- */

static void A2_state_after_commits_equals_a_fresh_prefill(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[40 + FL_OUTPUT_IDS];
    fl_output o = {0};
    fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
    fl_tiny_prompt(ids, 40);
    for (int blocks = 1; blocks <= 4; blocks++) {
        c.max_tokens = 24 + 32 * (blocks - 1) + 5; /* ends inside the block after `blocks` ones */
        fl_tiny_run(&c, ids, 40, &o);
        assert_int_equal(fl_tiny.engine->state.n, 32 + 32 * blocks);
        assert_int_equal(o.r.clean_passes + o.r.fused_passes, blocks);
        const uint64_t got = fl_state_hash(&fl_tiny.engine->state);
        memcpy(ids + 40, o.ids, sizeof(o.ids));
        const int64_t n = fl_tiny.engine->state.n;
        fl_state_reset(&fl_tiny.engine->state);
        ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, n, &err));
        assert_true(fl_state_hash(&fl_tiny.engine->state) == got);
        /* The hash sees a difference. */
        ids[n - 1] ^= 1;
        fl_state_reset(&fl_tiny.engine->state);
        ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, n, &err));
        assert_true(fl_state_hash(&fl_tiny.engine->state) != got);
    }
}

/* ---- A4 ---- */

/* Layer 0's GDN over the n rows x, from the state as it is: clean rows, or with switches a block
 * that holds no mask. Its output is left in buf.y. */
static void gdn_rows(fl_engine *e, const float *x, int n, const fl_clover *sw)
{
    fl_err err = {0};
    const fl_pass p = {.exec = &e->exec,
                       .hp = &e->model->index->hp,
                       .weights = &e->weights,
                       .experts = &e->experts,
                       .store = e->store,
                       .buf = &e->buf,
                       .state = &e->state,
                       .n_write = sw ? 0 : n,
                       .n_rows = n,
                       .n_lead = n,
                       .sw = sw};
    memcpy(e->buf.xn, x, (size_t)(n * p.hp->d_model) * sizeof(float));
    ASSERT_OK(fl_gdn_forward(&p, 0, &err));
}

/* 32 rows of a hidden size of at most 64. */
static void some_rows(const fl_engine *e, float *x)
{
    const int64_t d = e->model->index->hp.d_model;
    assert_true(d <= 64 && !e->weights.layer[0].full_attention);
    for (int i = 0; i < 32 * d; i++) x[i] = (float)((i * 7919) % 997) / 400.0f - 1.2f;
}

static void A4_mixed_with_all_rows_clean_equals_clean_in_a_gdn_layer(void **state)
{
    (void)state;
    static const int prefixes[] = {0, 1, 2, 45};
    fl_err err = {0};
    fl_engine *e = fl_tiny.engine;
    int32_t ids[45];
    float x[32 * 64], mixed[32 * 64];
    fl_clover sw = fl_tiny.model->index->clover;
    sw.gdn_block_mode = FL_GDN_MIXED;
    fl_tiny_prompt(ids, 45);
    some_rows(e, x);
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
        for (int n = 1; n <= 32; n++) {
            const size_t bytes = (size_t)(n * e->model->index->hp.d_model) * sizeof(float);
            fl_state_reset(&e->state);
            if (prefixes[i]) ASSERT_OK(fl_forward_clean(e, ids, prefixes[i], &err));
            gdn_rows(e, x, n, &sw);
            memcpy(mixed, e->buf.y, bytes);
            gdn_rows(e, x, n, NULL);
            assert_memory_equal(mixed, e->buf.y, bytes);
        }
}

/* In a whole model a block's rows see each other in attention, a clean pass's do not. Attention is
 * this model's last layer, so its last row sees the same in both. */
static void A4_mixed_with_all_rows_clean_equals_clean_in_the_last_row(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 31, 32};
    fl_err err = {0};
    int32_t ids[64];
    const int64_t vocab = fl_tiny.model->index->hp.n_vocab;
    assert_true(fl_tiny.engine->weights.layer[3].full_attention);
    assert_int_equal(fl_tiny.model->index->hp.n_layer, 4);
    fl_tiny_prompt(ids, 64);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const int n = sizes[i], last = n - 1;
        const float *clean = NULL;
        fl_state_reset(&fl_tiny.engine->state);
        ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, 32, &err));
        float *mixed = fl_block_logits(fl_tiny.engine, ids + 32, n, FL_GDN_MIXED);
        float *end = fl_block_logits(fl_tiny.engine, ids + 32, n, FL_GDN_BLOCKEND);
        if (n > 1) assert_memory_not_equal(mixed, end, (size_t)vocab * sizeof(float));
        ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids + 32, n, &err));
        ASSERT_OK(fl_forward_logits(fl_tiny.engine, &last, 1, &clean, &err));
        assert_memory_equal(mixed + last * vocab, clean, (size_t)vocab * sizeof(float));
        free(mixed);
        free(end);
    }
}

/* ---- A5 ---- */

static void set_mix(float value, float *saved)
{
    const fl_hparams *hp = &fl_tiny.model->index->hp;
    for (int l = 0, at = 0; l < hp->n_layer; l++) {
        float *mix = (float *)fl_tiny.engine->weights.layer[l].bwd_mix;
        for (int n = 0; mix && n < hp->gdn_v_heads; n++, at++) {
            if (saved) saved[at] = mix[n];
            mix[n] = value;
        }
    }
}

static void put_mix_back(const float *saved)
{
    const fl_hparams *hp = &fl_tiny.model->index->hp;
    for (int l = 0, at = 0; l < hp->n_layer; l++) {
        float *mix = (float *)fl_tiny.engine->weights.layer[l].bwd_mix;
        for (int n = 0; mix && n < hp->gdn_v_heads; n++) mix[n] = saved[at++];
    }
}

static void A5_bidir_without_mix_equals_causal(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[64];
    float saved[256];
    const size_t bytes = 32 * (size_t)fl_tiny.model->index->hp.n_vocab * sizeof(float);
    fl_tiny_prompt(ids, 64);
    for (int i = 40; i < 64; i++) ids[i] = fl_tiny.model->index->clover.mask_id;
    fl_state_reset(&fl_tiny.engine->state);
    ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, 32, &err));
    float *causal = fl_block_logits(fl_tiny.engine, ids + 32, 32, FL_GDN_CAUSAL);
    float *mixed_in = fl_block_logits(fl_tiny.engine, ids + 32, 32, FL_GDN_BIDIR);
    set_mix(0.0f, saved);
    float *none = fl_block_logits(fl_tiny.engine, ids + 32, 32, FL_GDN_BIDIR);
    /* The branch is computed and weighs nothing: the same values by arithmetic. */
    set_mix(-0.0f, NULL);
    float *minus = fl_block_logits(fl_tiny.engine, ids + 32, 32, FL_GDN_BIDIR);
    set_mix(1e-30f, NULL);
    float *tiny = fl_block_logits(fl_tiny.engine, ids + 32, 32, FL_GDN_BIDIR);
    put_mix_back(saved);
    assert_memory_equal(none, causal, bytes);
    assert_memory_equal(minus, causal, bytes);
    assert_memory_equal(tiny, causal, bytes);
    assert_memory_not_equal(mixed_in, causal, bytes);
    free(causal);
    free(mixed_in);
    free(none);
    free(minus);
    free(tiny);
}

/* ---- A6 ---- */

static void A6_backward_states_equal_forward_states_over_the_reversed_block(void **state)
{
    (void)state;
    fl_engine_params p = fl_exact_params();
    p.threads = 1;
    fl_loaded one = fl_load(fl_tiny.path, &p);
    fl_engine *e = one.engine;
    const fl_hparams *hp = &one.model->index->hp;
    const int64_t head = (int64_t)hp->gdn_dim * hp->gdn_dim;
    fl_layer_weights *w = &e->weights.layer[0];
    const fl_clover *sw = &one.model->index->clover;
    const int64_t d = hp->d_model;
    float x[32 * 64], reversed[32 * 64];
    some_rows(e, x);
    assert_true(w->has_bwd && sw->gdn_block_mode == FL_GDN_BIDIR);
    w->bwd_alpha = w->alpha;
    w->bwd_beta = w->beta;
    w->bwd_conv = w->conv;
    w->bwd_a = w->a;
    w->bwd_dt = w->dt;
    for (int n = 1; n <= 32; n++) {
        for (int r = 0; r < n; r++)
            memcpy(reversed + r * d, x + (n - 1 - r) * d, (size_t)d * sizeof(float));
        fl_state_reset(&e->state);
        gdn_rows(e, reversed, n, NULL);
        float *want = malloc((size_t)head * sizeof(float));
        assert_non_null(want);
        memcpy(want, e->state.s[0] + (hp->gdn_v_heads - 1) * head, (size_t)head * sizeof(float));
        /* One thread: worker 0's scratch keeps the last value head's backward state. */
        fl_state_reset(&e->state);
        gdn_rows(e, x, n, sw);
        assert_memory_equal(e->buf.gdn.worker_s, want, (size_t)head * sizeof(float));
        free(want);
    }
    fl_unload(&one);
}

/* ---- A7 ---- */

static void A7_promoting_m_held_rows_equals_a_clean_pass_of_them(void **state)
{
    (void)state;
    static const int prefixes[] = {0, 1, 2, 45};
    fl_err err = {0};
    int32_t ids[96];
    const int64_t d = fl_tiny.model->index->hp.d_model;
    const size_t bytes = 32 * (size_t)fl_tiny.model->index->hp.n_vocab * sizeof(float);
    fl_tiny_prompt(ids, 96);
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
        /* Short ones at the start, where the old tail matters; every m further on. */
        for (int n = 1; n <= (prefixes[i] < 3 ? 4 : 32); n++) {
            const int prefix = prefixes[i];
            fl_state *s = &fl_tiny.engine->state;
            fl_state_reset(s);
            if (prefix) ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, prefix, &err));
            const uint64_t before = fl_state_hash(s);
            ASSERT_OK(fl_forward_held(fl_tiny.engine, ids + prefix, 32, &err));
            assert_true(fl_state_hash(s) == before);
            fl_forward_promote(fl_tiny.engine, n);
            const uint64_t got = fl_state_hash(s);
            float h_last[64];
            assert_true(d <= 64);
            memcpy(h_last, s->h_last, (size_t)d * sizeof(float));
            assert_int_equal(s->n, prefix + n);
            /* What follows is right too. */
            float *next = fl_block_logits(fl_tiny.engine, ids + 64, 32, FL_GDN_CAUSAL);

            fl_state_reset(s);
            ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, prefix + n, &err));
            assert_true(fl_state_hash(s) == got);
            assert_memory_equal(h_last, s->h_last, (size_t)d * sizeof(float));
            float *want = fl_block_logits(fl_tiny.engine, ids + 64, 32, FL_GDN_CAUSAL);
            assert_memory_equal(next, want, bytes);
            free(next);
            free(want);
        }
    ASSERT_FAILS(fl_forward_held(fl_tiny.engine, ids, 33, &err), FL_E_ARG, "at most 32");
}

/* ---- A9 ---- */

static void A9_the_fused_pass_equals_two_passes(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[96];
    const size_t bytes = 32 * (size_t)fl_tiny.model->index->hp.n_vocab * sizeof(float);
    fl_tiny_prompt(ids, 96);
    for (int i = 70; i < 96; i++) ids[i] = fl_tiny.model->index->clover.mask_id;
    for (int mode = FL_GDN_CAUSAL; mode <= FL_GDN_BIDIR; mode++)
        for (int n_clean = 1; n_clean <= 32; n_clean += mode == FL_GDN_BIDIR ? 1 : 31) {
            fl_clover sw = fl_tiny.model->index->clover;
            sw.gdn_block_mode = (fl_gdn_block_mode)mode;
            sw.pool = n_clean % 2 ? FL_POOL_OFF : FL_POOL_MAX;
            sw.pool_c = 2;
            int rows[32];
            const float *logits = NULL;
            fl_state_reset(&fl_tiny.engine->state);
            ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, 32, &err));
            ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids + 32, n_clean, &err));
            ASSERT_OK(fl_forward_denoise(fl_tiny.engine, ids + 64, 32, &sw, &err));
            for (int i = 0; i < 32; i++) rows[i] = i;
            ASSERT_OK(fl_forward_logits(fl_tiny.engine, rows, 32, &logits, &err));
            float *want = malloc(bytes);
            assert_non_null(want);
            memcpy(want, logits, bytes);
            const uint64_t hash = fl_state_hash(&fl_tiny.engine->state);

            fl_state_reset(&fl_tiny.engine->state);
            ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids, 32, &err));
            ASSERT_OK(fl_forward_fused(fl_tiny.engine, ids + 32, n_clean, ids + 64, 32, &sw, &err));
            for (int i = 0; i < 32; i++) rows[i] = n_clean + i;
            ASSERT_OK(fl_forward_logits(fl_tiny.engine, rows, 32, &logits, &err));
            assert_memory_equal(logits, want, bytes);
            assert_true(fl_state_hash(&fl_tiny.engine->state) == hash);
            assert_int_equal(fl_tiny.engine->state.n, 32 + n_clean);
            free(want);
        }
}

static void A9_generation_with_fused_passes_equals_generation_without(void **state)
{
    (void)state;
    int32_t ids[41];
    fl_output fused = {0}, apart = {0};
    fl_tiny_prompt(ids, 41);
    for (int relative = 0; relative < 2; relative++) {
        fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
        c.clover.block_align = relative ? FL_ALIGN_RELATIVE : FL_ALIGN_ABSOLUTE;
        c.max_tokens = 150;
        fl_tiny_run(&c, ids, 41, &fused);
        c.separate_commits = true;
        fl_tiny_run(&c, ids, 41, &apart);
        assert_int_equal(fused.r.n_generated, 150);
        assert_memory_equal(fused.ids, apart.ids, 150 * sizeof(*fused.ids));
        assert_int_equal(fused.r.clean_passes, 0);
        assert_int_equal(apart.r.fused_passes, 0);
        assert_int_equal(fused.r.fused_passes, apart.r.clean_passes);
        assert_int_equal(fused.r.denoise_passes, apart.r.denoise_passes);
    }
}

/* ---- A13 ---- */

/* The last layer's choices of a block pass: all inside the pool; returns the pool's size. */
static int check_pool(const fl_engine *e, int n_rows)
{
    const fl_hparams *hp = &e->model->index->hp;
    const fl_route_buffers *r = &e->buf.route;
    int size = 0;
    for (int i = 0; i < hp->n_expert; i++) size += r->pool_in[i];
    for (int i = 0; i < n_rows * hp->top_k; i++) assert_true(r->pool_in[r->expert[i]]);
    return size;
}

static void A13_rows_of_a_block_share_a_pool_of_experts(void **state)
{
    (void)state;
    fl_err err = {0};
    char *file = fl_tmp_path(fl_tiny.dir, "many.gguf");
    fl_make make = fl_make_tiny();
    make.arch = "clover_moe";
    make.n_layer = make.interval = 2;
    make.n_expert = 32;
    make.top_k = 4;
    fl_make_gguf(&make, file);
    fl_engine_params p = fl_exact_params();
    fl_loaded l = fl_load(file, &p);
    fl_clover sw = l.model->index->clover;
    int32_t block[32];
    const size_t bytes = 32 * (size_t)l.model->index->hp.n_vocab * sizeof(float);
    fl_tiny_prompt(block, 32);
    ASSERT_OK(fl_forward_clean(l.engine, block, 32, &err));
    l.model->index->clover.pool = FL_POOL_OFF;
    float *off = fl_block_logits(l.engine, block, 32, FL_GDN_BIDIR);

    sw.pool = FL_POOL_MAX;
    for (sw.pool_c = 1; sw.pool_c <= 32; sw.pool_c += 3) {
        ASSERT_OK(fl_forward_denoise(l.engine, block, 32, &sw, &err));
        /* Never fewer than one row needs. */
        assert_int_equal(check_pool(l.engine, 32), sw.pool_c < 4 ? 4 : sw.pool_c);
    }
    sw.pool = FL_POOL_MASS;
    ASSERT_OK(fl_forward_denoise(l.engine, block, 32, &sw, &err));
    const int size = check_pool(l.engine, 32);
    assert_in_range(size, 16, 31);

    /* A pool of all experts, and a pool over one row, change nothing. */
    l.model->index->clover.pool = FL_POOL_MAX;
    l.model->index->clover.pool_c = 32;
    float *all = fl_block_logits(l.engine, block, 32, FL_GDN_BIDIR);
    assert_memory_equal(all, off, bytes);
    l.model->index->clover.pool_c = 4;
    float *few = fl_block_logits(l.engine, block, 32, FL_GDN_BIDIR);
    assert_memory_not_equal(few, off, bytes);
    float *one = fl_block_logits(l.engine, block, 1, FL_GDN_BIDIR);
    l.model->index->clover.pool = FL_POOL_OFF;
    float *token = fl_block_logits(l.engine, block, 1, FL_GDN_BIDIR);
    assert_memory_equal(one, token, bytes / 32);
    free(off);
    free(all);
    free(few);
    free(one);
    free(token);
    fl_unload(&l);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A1_denoise_leaves_the_state_alone),
        cmocka_unit_test(A2_state_after_commits_equals_a_fresh_prefill),
        cmocka_unit_test(A4_mixed_with_all_rows_clean_equals_clean_in_a_gdn_layer),
        cmocka_unit_test(A4_mixed_with_all_rows_clean_equals_clean_in_the_last_row),
        cmocka_unit_test(A5_bidir_without_mix_equals_causal),
        cmocka_unit_test(A6_backward_states_equal_forward_states_over_the_reversed_block),
        cmocka_unit_test(A7_promoting_m_held_rows_equals_a_clean_pass_of_them),
        cmocka_unit_test(A9_the_fused_pass_equals_two_passes),
        cmocka_unit_test(A9_generation_with_fused_passes_equals_generation_without),
        cmocka_unit_test(A13_rows_of_a_block_share_a_pool_of_experts),
    };
    const struct CMUnitTest q8_0[] = {
        cmocka_unit_test(A1_denoise_leaves_the_state_alone),
        cmocka_unit_test(A2_state_after_commits_equals_a_fresh_prefill),
        cmocka_unit_test(A4_mixed_with_all_rows_clean_equals_clean_in_the_last_row),
        cmocka_unit_test(A7_promoting_m_held_rows_equals_a_clean_pass_of_them),
        cmocka_unit_test(A9_the_fused_pass_equals_two_passes),
        cmocka_unit_test(A9_generation_with_fused_passes_equals_generation_without),
    };
    return cmocka_run_group_tests(tests, fl_tiny_setup, fl_tiny_teardown) +
           cmocka_run_group_tests_name("q8_0", q8_0, fl_tiny_setup_q8_0, fl_tiny_teardown);
}
