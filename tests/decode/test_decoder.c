/* What any decoder of this architecture must do, on random tiny weights: those of the decoder
 * specification's tests A1 to A13 that concern what is built. */
#include <math.h>
#include <stdlib.h>

#include "runtime/decode/generate.h"
#include "runtime/decode/loop.h"
#include "runtime/model/layers.h"
#include "tests/support/engine.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* One tiny clover model, loaded once; tests put back what they change. */
static char *dir, *path;
static fl_loaded m;
static fl_generator *gen;

static int setup(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_make make = fl_make_tiny();
    fl_engine_params p = fl_engine_defaults();
    make.arch = "clover_moe";
    dir = fl_tmp_make();
    path = fl_tmp_path(dir, "m.gguf");
    fl_make_gguf(&make, path);
    p.threads = 1;
    p.n_ctx = 256;
    p.held_rows = 32;
    m = fl_load(path, &p);
    ASSERT_OK(fl_generator_create(&gen, m.engine, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fl_generator_destroy(&gen);
    fl_unload(&m);
    free(path);
    fl_tmp_remove(dir);
    return 0;
}

/* ---- helpers ---- */

enum { MAX_IDS = 256, MAX_TEXT = 8192 };

typedef struct output {
    fl_gen_result r;
    int32_t ids[MAX_IDS];
    char text[MAX_TEXT];
    size_t n_text;
    int cancel_after; /* pieces; 0 = never */
    int pieces;
} output;

static bool take(void *arg, const char *text, size_t n)
{
    output *o = arg;
    assert_true(o->n_text + n < MAX_TEXT);
    memcpy(o->text + o->n_text, text, n);
    o->n_text += n;
    o->text[o->n_text] = 0;
    o->pieces++;
    return !o->cancel_after || o->pieces < o->cancel_after;
}

/* Greedy, low threshold (random weights are never sure), no stop ids. */
static fl_gen_config base_config(fl_gen_mode mode)
{
    fl_gen_config c;
    fl_gen_config_init(&c, m.model);
    c.mode = mode;
    c.ignore_eos = true;
    c.clover.threshold = 0.02f;
    c.sampler = (fl_sampler_config){.top_p = 1.0};
    return c;
}

static void run(const fl_gen_config *config, const int32_t *prompt, int n, output *o)
{
    fl_err err = {0};
    fl_gen_config c = *config;
    const int cancel_after = o->cancel_after;
    *o = (output){.cancel_after = cancel_after};
    c.on_text = take;
    c.arg = o;
    ASSERT_OK(fl_generate(gen, &c, prompt, n, &o->r, &err));
    assert_true(o->r.n_generated <= MAX_IDS);
    memcpy(o->ids, o->r.ids, (size_t)o->r.n_generated * sizeof(*o->ids));
}

static void fill_prompt(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) ids[i] = 'a' + (i * 7 + i / 5) % 26;
}

/* ---- A1 ---- */

static void A1_denoise_leaves_the_state_alone(void **state)
{
    (void)state;
    static const int prefixes[] = {0, 1, 2, 45, 200};
    fl_err err = {0};
    int32_t ids[256], block[32];
    fill_prompt(ids, 256);
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++) {
        fl_state_reset(&m.engine->state);
        if (prefixes[i]) ASSERT_OK(fl_forward_clean(m.engine, ids, prefixes[i], &err));
        const uint64_t before = fl_state_hash(&m.engine->state);
        for (int mode = FL_GDN_CAUSAL; mode <= FL_GDN_BIDIR; mode++)
            for (int n = 1; n <= 32; n += 31) {
                for (int r = 0; r < n; r++) block[r] = m.model->index->clover.mask_id;
                fl_clover sw = m.model->index->clover;
                sw.gdn_block_mode = (fl_gdn_block_mode)mode;
                ASSERT_OK(fl_forward_denoise(m.engine, block, n, &sw, &err));
                assert_true(fl_state_hash(&m.engine->state) == before);
            }
    }
}

/* ---- A2 ---- */

static void A2_state_after_commits_equals_a_fresh_prefill(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[40 + MAX_IDS];
    output o = {0};
    fl_gen_config c = base_config(FL_GEN_BLOCK);
    fill_prompt(ids, 40);
    for (int blocks = 1; blocks <= 4; blocks++) {
        c.max_tokens = 24 + 32 * (blocks - 1) + 5; /* ends inside the block after `blocks` ones */
        run(&c, ids, 40, &o);
        assert_int_equal(m.engine->state.n, 32 + 32 * blocks);
        assert_int_equal(o.r.clean_passes + o.r.fused_passes, blocks);
        const uint64_t got = fl_state_hash(&m.engine->state);
        memcpy(ids + 40, o.ids, sizeof(o.ids));
        const int64_t n = m.engine->state.n;
        fl_state_reset(&m.engine->state);
        ASSERT_OK(fl_forward_clean(m.engine, ids, n, &err));
        assert_true(fl_state_hash(&m.engine->state) == got);
        /* The hash sees a difference. */
        ids[n - 1] ^= 1;
        fl_state_reset(&m.engine->state);
        ASSERT_OK(fl_forward_clean(m.engine, ids, n, &err));
        assert_true(fl_state_hash(&m.engine->state) != got);
    }
}

/* ---- A3 ---- */

static void A3_shifted_causal_blocks_of_one_equal_ar(void **state)
{
    (void)state;
    int32_t ids[19];
    output ar = {0}, block = {0};
    fill_prompt(ids, 19);
    for (int sampled = 0; sampled < 2; sampled++) {
        fl_gen_config c = base_config(FL_GEN_AR);
        if (sampled) c.sampler = (fl_sampler_config){.temp = 1.0, .top_p = 0.95, .seed = 77};
        c.max_tokens = 50;
        run(&c, ids, 19, &ar);
        c.mode = FL_GEN_BLOCK;
        c.clover.block_size = 1;
        c.clover.pred_shift = 1;
        c.clover.gdn_block_mode = FL_GDN_CAUSAL;
        run(&c, ids, 19, &block);
        assert_int_equal(block.r.n_generated, 50);
        assert_int_equal(block.r.denoise_passes, 0);
        assert_memory_equal(ar.ids, block.ids, 50 * sizeof(*ar.ids));
    }
}

/* ---- A4: mixed with clean rows only reads like a clean pass; its last row sees the same ---- */

static void A4_mixed_with_all_rows_clean_reads_the_states_of_a_clean_pass(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[64];
    fill_prompt(ids, 64);
    fl_state_reset(&m.engine->state);
    ASSERT_OK(fl_forward_clean(m.engine, ids, 32, &err));
    float *mixed = fl_block_logits(m.engine, ids + 32, 32, FL_GDN_MIXED);
    float *causal = fl_block_logits(m.engine, ids + 32, 32, FL_GDN_CAUSAL);
    const size_t bytes = 32 * (size_t)m.model->index->hp.n_vocab * sizeof(float);
    assert_memory_equal(mixed, causal, bytes);
    /* A single row sees nothing to its right: any mode but bidir's mix equals the clean pass. */
    float *one = fl_block_logits(m.engine, ids + 32, 1, FL_GDN_BLOCKEND);
    ASSERT_OK(fl_forward_clean(m.engine, ids + 32, 1, &err));
    const int row = 0;
    const float *clean = NULL;
    ASSERT_OK(fl_forward_logits(m.engine, &row, 1, &clean, &err));
    assert_memory_equal(one, clean, bytes / 32);
    free(mixed);
    free(causal);
    free(one);
}

/* ---- A5 ---- */

static void set_mix(float value, float *saved)
{
    const fl_hparams *hp = &m.model->index->hp;
    for (int l = 0, at = 0; l < hp->n_layer; l++) {
        float *mix = (float *)m.engine->weights.layer[l].bwd_mix;
        for (int n = 0; mix && n < hp->gdn_v_heads; n++, at++) {
            if (saved) saved[at] = mix[n];
            mix[n] = value;
        }
    }
}

static void put_mix_back(const float *saved)
{
    const fl_hparams *hp = &m.model->index->hp;
    for (int l = 0, at = 0; l < hp->n_layer; l++) {
        float *mix = (float *)m.engine->weights.layer[l].bwd_mix;
        for (int n = 0; mix && n < hp->gdn_v_heads; n++) mix[n] = saved[at++];
    }
}

static void A5_bidir_without_mix_equals_causal(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[64];
    float saved[256];
    const size_t bytes = 32 * (size_t)m.model->index->hp.n_vocab * sizeof(float);
    fill_prompt(ids, 64);
    for (int i = 40; i < 64; i++) ids[i] = m.model->index->clover.mask_id;
    fl_state_reset(&m.engine->state);
    ASSERT_OK(fl_forward_clean(m.engine, ids, 32, &err));
    float *causal = fl_block_logits(m.engine, ids + 32, 32, FL_GDN_CAUSAL);
    float *mixed_in = fl_block_logits(m.engine, ids + 32, 32, FL_GDN_BIDIR);
    set_mix(0.0f, saved);
    float *none = fl_block_logits(m.engine, ids + 32, 32, FL_GDN_BIDIR);
    /* The branch is computed and weighs nothing: the same values by arithmetic. */
    set_mix(-0.0f, NULL);
    float *minus = fl_block_logits(m.engine, ids + 32, 32, FL_GDN_BIDIR);
    set_mix(1e-30f, NULL);
    float *tiny = fl_block_logits(m.engine, ids + 32, 32, FL_GDN_BIDIR);
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

/* A pass over the rows x (reversed or not) through layer 0's GDN from an empty sequence, on one
 * thread, so that worker 0's scratch keeps the last value head's backward state. */
static void gdn_pass(fl_engine *e, const float *x, int n, bool reversed, bool denoise)
{
    fl_err err = {0};
    const int64_t d = e->model->index->hp.d_model;
    fl_state_reset(&e->state);
    const fl_pass p = {.exec = &e->exec,
                       .hp = &e->model->index->hp,
                       .weights = &e->weights,
                       .experts = &e->experts,
                       .store = e->store,
                       .buf = &e->buf,
                       .state = &e->state,
                       .n_write = denoise ? 0 : n,
                       .n_rows = n,
                       .sw = &e->model->index->clover};
    assert_int_equal(p.sw->gdn_block_mode, FL_GDN_BIDIR);
    for (int r = 0; r < n; r++)
        memcpy(e->buf.xn + r * d, x + (reversed ? n - 1 - r : r) * d, (size_t)d * sizeof(float));
    ASSERT_OK(fl_gdn_forward(&p, 0, &err));
}

static void A6_backward_states_equal_forward_states_over_the_reversed_block(void **state)
{
    (void)state;
    fl_engine_params p = fl_exact_params();
    p.threads = 1;
    fl_loaded one = fl_load(path, &p);
    fl_engine *e = one.engine;
    const fl_hparams *hp = &one.model->index->hp;
    const int64_t head = (int64_t)hp->gdn_dim * hp->gdn_dim;
    fl_layer_weights *w = &e->weights.layer[0];
    float x[32 * 64];
    assert_true(hp->d_model <= 64 && w->has_bwd && !w->full_attention);
    for (int i = 0; i < 32 * hp->d_model; i++) x[i] = (float)((i * 7919) % 997) / 400.0f - 1.2f;
    w->bwd_alpha = w->alpha;
    w->bwd_beta = w->beta;
    w->bwd_conv = w->conv;
    w->bwd_a = w->a;
    w->bwd_dt = w->dt;
    for (int n = 1; n <= 32; n++) {
        gdn_pass(e, x, n, true, false);
        float *want = malloc((size_t)head * sizeof(float));
        assert_non_null(want);
        memcpy(want, e->state.s[0] + (hp->gdn_v_heads - 1) * head, (size_t)head * sizeof(float));
        gdn_pass(e, x, n, false, true);
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
    const int64_t d = m.model->index->hp.d_model;
    const size_t bytes = 32 * (size_t)m.model->index->hp.n_vocab * sizeof(float);
    fill_prompt(ids, 96);
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
        /* Short ones at the start, where the old tail matters; every m further on. */
        for (int n = 1; n <= (prefixes[i] < 3 ? 4 : 32); n++) {
            const int prefix = prefixes[i];
            fl_state *s = &m.engine->state;
            fl_state_reset(s);
            if (prefix) ASSERT_OK(fl_forward_clean(m.engine, ids, prefix, &err));
            const uint64_t before = fl_state_hash(s);
            ASSERT_OK(fl_forward_held(m.engine, ids + prefix, 32, &err));
            assert_true(fl_state_hash(s) == before);
            fl_forward_promote(m.engine, n);
            const uint64_t got = fl_state_hash(s);
            float h_last[64];
            assert_true(d <= 64);
            memcpy(h_last, s->h_last, (size_t)d * sizeof(float));
            assert_int_equal(s->n, prefix + n);
            /* What follows is right too. */
            float *next = fl_block_logits(m.engine, ids + 64, 32, FL_GDN_CAUSAL);

            fl_state_reset(s);
            ASSERT_OK(fl_forward_clean(m.engine, ids, prefix + n, &err));
            assert_true(fl_state_hash(s) == got);
            assert_memory_equal(h_last, s->h_last, (size_t)d * sizeof(float));
            float *want = fl_block_logits(m.engine, ids + 64, 32, FL_GDN_CAUSAL);
            assert_memory_equal(next, want, bytes);
            free(next);
            free(want);
        }
    ASSERT_FAILS(fl_forward_held(m.engine, ids, 33, &err), FL_E_ARG, "at most 32");
}

/* ---- A8 ---- */

/* AR and speculation on one engine: tokens, text, finish and the state they leave. */
static void check_speculation(fl_generator *g, fl_engine *e, const fl_gen_config *config,
                              const int32_t *prompt, int n, int64_t *accepted)
{
    fl_err err = {0};
    fl_gen_config c = *config;
    fl_gen_result r;
    c.mode = FL_GEN_AR;
    ASSERT_OK(fl_generate(g, &c, prompt, n, &r, &err));
    const int64_t n_want = r.n_generated;
    const fl_finish finish = r.finish;
    const uint64_t hash = fl_state_hash(&e->state);
    int32_t *want = malloc((size_t)n_want * sizeof(*want) + 1);
    assert_non_null(want);
    memcpy(want, r.ids, (size_t)n_want * sizeof(*want));

    c.mode = FL_GEN_SPEC;
    ASSERT_OK(fl_generate(g, &c, prompt, n, &r, &err));
    assert_int_equal(r.n_generated, n_want);
    assert_int_equal(r.finish, finish);
    assert_memory_equal(r.ids, want, (size_t)n_want * sizeof(*want));
    assert_true(fl_state_hash(&e->state) == hash);
    assert_true(r.held_passes + r.clean_passes > 0);
    *accepted += r.accepted;
    free(want);
}

static void A8_speculation_gives_the_text_of_ar(void **state)
{
    (void)state;
    static const char *const arch[] = {"clover_moe", "qwen35moe"};
    fl_err err = {0};
    char *file = fl_tmp_path(dir, "spec.gguf");
    int32_t ids[40];
    fill_prompt(ids, 40);
    for (int kind = 0; kind < 2; kind++) {
        int64_t accepted = 0;
        fl_generator *g = NULL;
        fl_make make = fl_make_tiny();
        make.arch = arch[kind];
        make.n_layer = make.interval = 2;
        make.n_ctx = 2048;
        fl_make_gguf(&make, file);
        fl_engine_params p = fl_engine_defaults();
        p.threads = 1;
        p.n_ctx = 1060;
        p.held_rows = 32;
        fl_loaded l = fl_load(file, &p);
        ASSERT_OK(fl_generator_create(&g, l.engine, &err));
        /* Tokens that outweigh their past make the text run in circles: drafts from it are right.
         */
        float *embed = (float *)l.engine->weights.embed.data;
        for (int64_t i = 0; i < l.engine->weights.embed.rows * make.d_model; i++) embed[i] *= 30.0f;

        fl_gen_config c;
        fl_gen_config_init(&c, l.model);
        c.sampler = (fl_sampler_config){.top_p = 1.0};
        c.ignore_eos = true;
        c.max_tokens = -1;  /* until the context is full: 1,020 tokens */
        c.draft_min = 0.0f; /* whole drafts, right or wrong */
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        c.sampler = (fl_sampler_config){.temp = 0.7, .top_k = 5, .top_p = 0.95, .seed = 3};
        c.max_tokens = 120;
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        c.draft_min = 0.3f;
        check_speculation(g, l.engine, &c, ids, 33, &accepted);
        c.sampler.presence = 0.5;
        c.sampler.frequency = 0.1;
        c.sampler.repetition = 1.1;
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        assert_true(accepted > (kind ? 500 : 0));
        fl_generator_destroy(&g);
        fl_unload(&l);
    }
    free(file);
}

/* ---- A9 ---- */

static void A9_the_fused_pass_equals_two_passes(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[96];
    const size_t bytes = 32 * (size_t)m.model->index->hp.n_vocab * sizeof(float);
    fill_prompt(ids, 96);
    for (int i = 70; i < 96; i++) ids[i] = m.model->index->clover.mask_id;
    for (int mode = FL_GDN_CAUSAL; mode <= FL_GDN_BIDIR; mode++)
        for (int n_clean = 1; n_clean <= 32; n_clean += mode == FL_GDN_BIDIR ? 1 : 31) {
            fl_clover sw = m.model->index->clover;
            sw.gdn_block_mode = (fl_gdn_block_mode)mode;
            sw.pool = n_clean % 2 ? FL_POOL_OFF : FL_POOL_MAX;
            sw.pool_c = 2;
            int rows[32];
            const float *logits = NULL;
            fl_state_reset(&m.engine->state);
            ASSERT_OK(fl_forward_clean(m.engine, ids, 32, &err));
            ASSERT_OK(fl_forward_clean(m.engine, ids + 32, n_clean, &err));
            ASSERT_OK(fl_forward_denoise(m.engine, ids + 64, 32, &sw, &err));
            for (int i = 0; i < 32; i++) rows[i] = i;
            ASSERT_OK(fl_forward_logits(m.engine, rows, 32, &logits, &err));
            float *want = malloc(bytes);
            assert_non_null(want);
            memcpy(want, logits, bytes);
            const uint64_t hash = fl_state_hash(&m.engine->state);

            fl_state_reset(&m.engine->state);
            ASSERT_OK(fl_forward_clean(m.engine, ids, 32, &err));
            ASSERT_OK(fl_forward_fused(m.engine, ids + 32, n_clean, ids + 64, 32, &sw, &err));
            for (int i = 0; i < 32; i++) rows[i] = n_clean + i;
            ASSERT_OK(fl_forward_logits(m.engine, rows, 32, &logits, &err));
            assert_memory_equal(logits, want, bytes);
            assert_true(fl_state_hash(&m.engine->state) == hash);
            assert_int_equal(m.engine->state.n, 32 + n_clean);
            free(want);
        }
}

static void A9_generation_with_fused_passes_equals_generation_without(void **state)
{
    (void)state;
    int32_t ids[41];
    output fused = {0}, apart = {0};
    fill_prompt(ids, 41);
    for (int relative = 0; relative < 2; relative++) {
        fl_gen_config c = base_config(FL_GEN_BLOCK);
        c.clover.block_align = relative ? FL_ALIGN_RELATIVE : FL_ALIGN_ABSOLUTE;
        c.max_tokens = 150;
        run(&c, ids, 41, &fused);
        c.separate_commits = true;
        run(&c, ids, 41, &apart);
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
    char *file = fl_tmp_path(dir, "many.gguf");
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
    fill_prompt(block, 32);
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

/* ---- A10 ---- */

static void A10_the_mask_is_never_emitted_and_passes_are_bounded(void **state)
{
    (void)state;
    int32_t ids[40];
    output o = {0};
    const int32_t mask = m.model->index->clover.mask_id;
    const int64_t d = m.model->index->hp.d_model;
    fill_prompt(ids, 40);
    assert_int_equal(m.engine->weights.output.type, FL_TYPE_F32);

    for (int step = 0; step < 2; step++) {
        fl_gen_config c = base_config(FL_GEN_BLOCK);
        c.clover.threshold = 1.0f; /* one row a pass */
        c.max_tokens = 24 + 32;
        run(&c, ids, 40, &o);
        assert_int_equal(o.r.n_generated, 56);
        assert_true(o.r.max_passes <= 32);
        assert_true(o.r.denoise_passes <= 24 + 32);
        for (int i = 0; i < 56; i++) {
            assert_int_not_equal(o.ids[i], mask);
            assert_true(fl_tokenizer_kind(m.model->tokenizer, o.ids[i]) != FL_TOKEN_UNUSED);
        }
        /* Second round: the mask's logit is three times that of the first token picked. */
        float *rows = (float *)m.engine->weights.output.data;
        for (int64_t j = 0; j < d; j++) rows[mask * d + j] = 3.0f * rows[(int64_t)o.ids[0] * d + j];
    }
    /* It is the raw favourite somewhere, and still never came out. */
    fl_err err = {0};
    const float *logits = NULL;
    const int last = -1;
    bool favourite = false;
    fl_state_reset(&m.engine->state);
    for (int i = 0; i < 40 && !favourite; i++) {
        ASSERT_OK(fl_forward_clean(m.engine, ids + i, 1, &err));
        ASSERT_OK(fl_forward_logits(m.engine, &last, 1, &logits, &err));
        favourite = true;
        for (int64_t t = 0; t < m.model->index->hp.n_vocab; t++)
            favourite = favourite && (t == mask || logits[t] < logits[mask]);
    }
    assert_true(favourite);
}

static void A10_masks_that_the_prompt_gives_are_left_alone(void **state)
{
    (void)state;
    int32_t ids[40];
    output o = {0};
    const int32_t mask = m.model->index->clover.mask_id;
    fill_prompt(ids, 40);
    ids[10] = ids[32] = ids[35] = ids[39] = mask;
    for (int separate = 0; separate < 2; separate++) {
        fl_gen_config c = base_config(FL_GEN_BLOCK);
        c.clover.threshold = 1e-6f; /* every open row in one pass */
        c.separate_commits = separate;
        c.max_tokens = 24; /* the first block: 8 given rows, 24 open ones */
        run(&c, ids, 40, &o);
        assert_int_equal(o.r.n_generated, 24);
        assert_int_equal(o.r.denoise_passes, 1);
        assert_int_equal(o.r.committed_at_threshold, 24);
        assert_memory_equal(gen->block, ids + 32, 8 * sizeof(*ids));
        for (int i = 0; i < 24; i++) assert_int_not_equal(o.ids[i], mask);
    }
}

/* ---- A11: ends ---- */

static int find_text(const char *hay, size_t n, const char *needle, size_t k)
{
    for (size_t i = 0; i + k <= n; i++)
        if (memcmp(hay + i, needle, k) == 0) return (int)i;
    return -1;
}

/* Index of the first occurrence of a generated id. */
static int first_of(const output *o, int32_t id)
{
    int i = 0;
    while (o->ids[i] != id) i++;
    return i;
}

static void set_stop_ids(int32_t a, int32_t b)
{
    m.model->index->hp.stop_ids[0] = a;
    m.model->index->hp.stop_ids[1] = b;
    m.model->index->hp.n_stop_ids = 2;
}

static void A11_stop_ids_end_the_text_wherever_they_stand(void **state)
{
    (void)state;
    int32_t ids[41];
    output all = {0}, o = {0};
    const fl_hparams saved = m.model->index->hp;
    fill_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = base_config((fl_gen_mode)mode);
        c.max_tokens = 100;
        run(&c, ids, 41, &all);
        c.ignore_eos = false;
        /* Every position of two blocks: row 0, row 31 and all between. */
        for (int at = 0; at < 60; at += mode == FL_GEN_BLOCK ? 1 : 7) {
            const int want = first_of(&all, all.ids[at]);
            set_stop_ids(all.ids[at], 99999);
            run(&c, ids, 41, &o);
            assert_int_equal(o.r.finish, FL_FINISH_STOP);
            assert_int_equal(o.r.stop_id, all.ids[at]);
            assert_int_equal(o.r.n_generated, want + 1);
            assert_memory_equal(o.ids, all.ids, (size_t)(want + 1) * sizeof(*o.ids));
        }
        /* Of two stop ids the earlier one ends it. */
        set_stop_ids(all.ids[50], all.ids[20]);
        run(&c, ids, 41, &o);
        const int a = first_of(&all, all.ids[50]), b = first_of(&all, all.ids[20]);
        assert_int_equal(o.r.n_generated, (a < b ? a : b) + 1);
        /* One inside the prompt's remainder ends nothing: position 35 of 41, row 3 of its block. */
        set_stop_ids(ids[35], ids[35]);
        int n = 100;
        for (int i = 99; i >= 0; i--)
            if (all.ids[i] == ids[35]) n = i + 1;
        run(&c, ids, 41, &o);
        assert_int_equal(o.r.n_generated, n);
    }
    m.model->index->hp = saved;
}

static void A11_stop_strings_end_the_text_before_them_across_block_borders(void **state)
{
    (void)state;
    int32_t ids[41];
    output all = {0}, o = {0};
    char stop[64];
    fill_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = base_config((fl_gen_mode)mode);
        c.max_tokens = 80;
        run(&c, ids, 41, &all);
        assert_true(all.n_text > 40);
        const char *list[2] = {"no such text \x01\x02", stop};
        c.stop = list;
        c.n_stop = 2;
        int tried = 0;
        for (size_t k = 1; k <= 9; k += 4)
            for (size_t at = 0; at + k <= all.n_text && at < 60;
                 at += mode == FL_GEN_SPEC ? 15 : 5, tried++) {
                memcpy(stop, all.text + at, k);
                stop[k] = 0;
                if (strlen(stop) != k) continue;
                const int want = find_text(all.text, all.n_text, stop, k);
                run(&c, ids, 41, &o);
                assert_int_equal(o.r.finish, FL_FINISH_STOP_STRING);
                assert_int_equal(o.n_text, want);
                assert_memory_equal(o.text, all.text, (size_t)want);
            }
        assert_true(tried > 10);
        /* Without a match nothing is lost, not even a held-back beginning. */
        memcpy(stop, all.text + all.n_text - 1, 1);
        memcpy(stop + 1, "\x01", 2);
        run(&c, ids, 41, &o);
        assert_int_equal(o.r.finish, FL_FINISH_LENGTH);
        assert_int_equal(o.n_text, all.n_text);
        assert_memory_equal(o.text, all.text, all.n_text);
    }
}

static void A11_max_tokens_ends_it_inside_a_block(void **state)
{
    (void)state;
    int32_t ids[41];
    output all = {0}, o = {0};
    fill_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = base_config((fl_gen_mode)mode);
        c.max_tokens = 100;
        run(&c, ids, 41, &all);
        for (int n = 0; n <= 90; n += n < 2 ? 1 : 11) {
            c.max_tokens = n;
            run(&c, ids, 41, &o);
            assert_int_equal(o.r.n_generated, n);
            assert_int_equal(o.r.finish, FL_FINISH_LENGTH);
            assert_memory_equal(o.ids, all.ids, (size_t)n * sizeof(*o.ids));
        }
    }
}

static void A11_the_context_holds_the_last_block_too(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[300];
    output o = {0};
    fl_gen_result r;
    fill_prompt(ids, 300);
    fl_gen_config c = base_config(FL_GEN_AR);
    run(&c, ids, 200, &o);
    assert_int_equal(o.r.finish, FL_FINISH_CONTEXT);
    assert_int_equal(o.r.n_generated, 56);
    run(&c, ids, 255, &o);
    assert_int_equal(o.r.n_generated, 1);
    ASSERT_FAILS(fl_generate(gen, &c, ids, 256, &r, &err), FL_E_ARG, "256 tokens");
    c.mode = FL_GEN_BLOCK;
    run(&c, ids, 200, &o);
    assert_int_equal(o.r.finish, FL_FINISH_CONTEXT);
    assert_int_equal(o.r.n_generated, 56); /* the block of 192 and one more */
    ASSERT_FAILS(fl_generate(gen, &c, ids, 256, &r, &err), FL_E_ARG, "no room for a block of 32");
    ASSERT_FAILS(fl_generate(gen, &c, ids, 0, &r, &err), FL_E_ARG, "empty");

    /* A context that is no multiple of the block: the last part of it stays free. */
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = 100;
    fl_loaded other = fl_load(path, &p);
    fl_generator *g = NULL;
    ASSERT_OK(fl_generator_create(&g, other.engine, &err));
    c.on_text = NULL;
    ASSERT_OK(fl_generate(g, &c, ids, 40, &r, &err));
    assert_int_equal(r.finish, FL_FINISH_CONTEXT);
    assert_int_equal(r.n_generated, 96 - 40);
    fl_generator_destroy(&g);
    fl_unload(&other);
    /* The hard limit itself. */
    fl_model *model = NULL;
    fl_engine *e = NULL;
    ASSERT_OK(fl_model_open(&model, path, &err));
    model->index->hp.n_ctx_train = 1 << 20;
    p.n_ctx = 131073;
    ASSERT_FAILS(fl_engine_open(&e, model, &p, &err), FL_E_ARG, "131072");
    fl_model_close(&model);
}

/* ---- C083: penalties count what was generated, never the prompt ---- */

static void C083_penalties_do_not_count_the_prompt(void **state)
{
    (void)state;
    int32_t ids[41];
    output plain = {0}, o = {0};
    fill_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = base_config((fl_gen_mode)mode);
        c.clover.threshold = 1.0f;
        c.max_tokens = 60;
        run(&c, ids, 41, &plain);
        /* A prompt made of the very token that comes first would lose it if it counted. */
        int32_t same[41];
        for (int i = 0; i < 41; i++) same[i] = plain.ids[0];
        c.max_tokens = 1;
        run(&c, same, 41, &plain);
        c.sampler.presence = 2.0;
        c.sampler.repetition = 10.0;
        run(&c, same, 41, &o);
        /* In a block other rows may be final, and count, before the first one. */
        if (mode != FL_GEN_BLOCK) assert_int_equal(o.ids[0], plain.ids[0]);
        /* What was generated counts: the penalized text repeats less. */
        int seen[512] = {0}, repeats[2] = {0};
        for (int penalized = 0; penalized < 2; penalized++) {
            c = base_config((fl_gen_mode)mode);
            c.clover.threshold = 1.0f;
            c.max_tokens = 60;
            if (penalized) c.sampler.presence = 2.0;
            run(&c, ids, 41, &o);
            memset(seen, 0, sizeof(seen));
            for (int i = 0; i < 60; i++) repeats[penalized] += seen[o.ids[i]]++ > 0;
        }
        assert_true(repeats[0] > repeats[1]);
    }
}

/* ---- streaming and refusals ---- */

static void text_streams_in_order_and_can_be_canceled(void **state)
{
    (void)state;
    int32_t ids[41];
    output all = {0}, o = {0};
    fill_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = base_config((fl_gen_mode)mode);
        c.max_tokens = 100;
        run(&c, ids, 41, &all);
        assert_true(all.pieces > 10);
        o.cancel_after = 5;
        run(&c, ids, 41, &o);
        assert_int_equal(o.r.finish, FL_FINISH_CANCELED);
        assert_int_equal(o.pieces, 5);
        assert_memory_equal(o.text, all.text, o.n_text);
    }
}

static void settings_that_cannot_work_are_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    const int32_t ids[] = {'a', 'b'};
    fl_gen_result r;
    fl_gen_config c = base_config(FL_GEN_BLOCK);
    c.clover.has_blocks = false;
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_UNSUPPORTED, "--mode ar");
    c = base_config(FL_GEN_BLOCK);
    c.clover.mask_id = 1 << 20;
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_FORMAT, "mask token id");
    c = base_config(FL_GEN_BLOCK);
    c.clover.block_size = 64;
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_ARG, "block size 64");
    c = base_config(FL_GEN_BLOCK);
    c.clover.threshold = 0.0f;
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_ARG, "--threshold");
    c = base_config(FL_GEN_BLOCK);
    c.clover.commit_mode = FL_COMMIT_BLOCK_BIDIR;
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_UNSUPPORTED, "commit");
    const int held = m.engine->params.held_rows;
    m.engine->params.held_rows = 0;
    c = base_config(FL_GEN_SPEC);
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_ARG, "held_rows");
    m.engine->params.held_rows = held;
    c = base_config(FL_GEN_AR);
    c.sampler.temp = -1.0;
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_ARG, "--temp");
    c = base_config(FL_GEN_AR);
    const char *empty = "";
    c.stop = &empty;
    c.n_stop = 1;
    ASSERT_FAILS(fl_generate(gen, &c, ids, 2, &r, &err), FL_E_ARG, "stop string 1");
}

static void auto_mode_follows_the_verdict(void **state)
{
    (void)state;
    int32_t ids[5];
    output o = {0};
    fill_prompt(ids, 5);
    fl_gen_config c = base_config(FL_GEN_AUTO);
    c.max_tokens = 2;
    c.clover.verdict = 1;
    run(&c, ids, 5, &o);
    assert_int_equal(o.r.mode, FL_GEN_BLOCK);
    assert_non_null(strstr(o.r.reason, "earned"));
    c.clover.verdict = 0;
    run(&c, ids, 5, &o);
    assert_int_equal(o.r.mode, FL_GEN_SPEC);
    c.clover.verdict = -1;
    run(&c, ids, 5, &o);
    assert_int_equal(o.r.mode, FL_GEN_SPEC);
    /* An engine without room for held rows takes AR. */
    const int held = m.engine->params.held_rows;
    m.engine->params.held_rows = 0;
    run(&c, ids, 5, &o);
    assert_int_equal(o.r.mode, FL_GEN_AR);
    m.engine->params.held_rows = held;
    c.clover.has_blocks = false;
    run(&c, ids, 5, &o);
    assert_int_equal(o.r.mode, FL_GEN_AR);
    assert_non_null(strstr(o.r.reason, "no masks"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A1_denoise_leaves_the_state_alone),
        cmocka_unit_test(A2_state_after_commits_equals_a_fresh_prefill),
        cmocka_unit_test(A3_shifted_causal_blocks_of_one_equal_ar),
        cmocka_unit_test(A4_mixed_with_all_rows_clean_reads_the_states_of_a_clean_pass),
        cmocka_unit_test(A5_bidir_without_mix_equals_causal),
        cmocka_unit_test(A6_backward_states_equal_forward_states_over_the_reversed_block),
        cmocka_unit_test(A7_promoting_m_held_rows_equals_a_clean_pass_of_them),
        cmocka_unit_test(A8_speculation_gives_the_text_of_ar),
        cmocka_unit_test(A9_the_fused_pass_equals_two_passes),
        cmocka_unit_test(A9_generation_with_fused_passes_equals_generation_without),
        cmocka_unit_test(A13_rows_of_a_block_share_a_pool_of_experts),
        cmocka_unit_test(A11_stop_ids_end_the_text_wherever_they_stand),
        cmocka_unit_test(A11_stop_strings_end_the_text_before_them_across_block_borders),
        cmocka_unit_test(A11_max_tokens_ends_it_inside_a_block),
        cmocka_unit_test(A11_the_context_holds_the_last_block_too),
        cmocka_unit_test(C083_penalties_do_not_count_the_prompt),
        cmocka_unit_test(text_streams_in_order_and_can_be_canceled),
        cmocka_unit_test(settings_that_cannot_work_are_refused),
        cmocka_unit_test(auto_mode_follows_the_verdict),
        /* Last: it changes the loaded weights. */
        cmocka_unit_test(A10_the_mask_is_never_emitted_and_passes_are_bounded),
        cmocka_unit_test(A10_masks_that_the_prompt_gives_are_left_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
