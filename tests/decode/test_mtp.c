/* The MTP block as a source of drafts: its cache follows the state, and the text stays AR's. */
#include <math.h>
#include <stdlib.h>

#include "runtime/decode/session.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/heap.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_CTX = 512, HELD = 8 };

static int make_file(void **state)
{
    fl_make make = fl_make_tiny();
    fl_files_setup(state);
    make.mtp = true;
    fl_make_gguf(&make, fl_files.gguf);
    return 0;
}

static fl_engine_params mtp_params(uint32_t kv_type)
{
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = N_CTX;
    p.kv_type = kv_type;
    p.held_rows = HELD;
    p.mtp = true;
    return p;
}

static void make_ids(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) ids[i] = 'a' + (i * 7 + i / 5) % 26;
}

/* Logits of `steps` drafts behind the state, the tokens given; [steps][n_vocab]. */
static void draft(fl_engine *e, const int32_t *ids, int steps, float *out)
{
    fl_err err = {0};
    const int64_t vocab = e->model->index->hp.n_vocab;
    for (int i = 0; i < steps; i++) {
        const float *logits = NULL;
        ASSERT_OK(fl_forward_draft(e, ids[i], i, &logits, &err));
        memcpy(out + i * vocab, logits, (size_t)vocab * sizeof *out);
    }
}

/* ---- the cache ---- */

/* After held passes, whatever was drafted before them, everything is as after a fresh clean pass:
 * the state's hash sees the block's cache too. */
static void the_cache_follows_what_is_kept(void **state)
{
    (void)state;
    static const uint32_t types[] = {FL_TYPE_F16, FL_TYPE_Q8_0, FL_TYPE_F32};
    fl_err err = {0};
    static const int32_t wrong[4] = {1, 2, 3, 4};
    int32_t ids[64];
    make_ids(ids, 64);
    for (int t = 0; t < 3; t++) {
        const fl_engine_params p = mtp_params(types[t]);
        fl_loaded l = fl_load(fl_files.gguf, &p);
        fl_engine *e = l.engine;
        const size_t n = 4 * (size_t)l.model->index->hp.n_vocab;
        float *got = malloc(n * sizeof *got), *want = malloc(n * sizeof *want);
        assert_true(got && want && e->state.k[e->state.n_layer - 1]);
        for (int m = 1; m <= HELD; m++) {
            fl_state_reset(&e->state);
            ASSERT_OK(fl_forward_clean(e, ids, 20, &err));
            draft(e, wrong, 4, got);
            ASSERT_OK(fl_forward_held(e, ids + 20, HELD, &err));
            fl_forward_promote(e, m);
            draft(e, ids + 20 + m, 4, got);
            const uint64_t hash = fl_state_hash(&e->state);

            fl_state_reset(&e->state);
            ASSERT_OK(fl_forward_clean(e, ids, 20 + m, &err));
            draft(e, ids + 20 + m, 4, want);
            assert_true(fl_state_hash(&e->state) == hash);
            assert_memory_equal(got, want, n * sizeof *want);
        }
        free(got);
        free(want);
        fl_unload(&l);
    }
}

static void drafts_do_not_depend_on_chunks_threads_or_tiers(void **state)
{
    (void)state;
    static const struct {
        int64_t chunk;
        int threads;
        const char *tier;
    } cases[] = {{512, 1, NULL}, {1, 1, NULL}, {7, 2, NULL}, {33, 2, "reference"}};
    fl_err err = {0};
    int32_t ids[64];
    make_ids(ids, 64);
    float *want = NULL;
    uint64_t hash = 0;
    for (int i = 0; i < 4; i++) {
        fl_engine_params p = mtp_params(FL_TYPE_F16);
        p.chunk = cases[i].chunk;
        p.threads = cases[i].threads;
        p.cpu_tier = cases[i].tier;
        fl_loaded l = fl_load(fl_files.gguf, &p);
        const size_t n = 3 * (size_t)l.model->index->hp.n_vocab;
        float *got = malloc(n * sizeof *got);
        assert_non_null(got);
        ASSERT_OK(fl_forward_clean(l.engine, ids, 60, &err));
        draft(l.engine, ids + 60, 3, got);
        if (!want) {
            want = got;
            hash = fl_state_hash(&l.engine->state);
        } else {
            assert_memory_equal(got, want, n * sizeof *want);
            assert_true(fl_state_hash(&l.engine->state) == hash);
            free(got);
        }
        fl_unload(&l);
    }
    free(want);
}

/* A later step is a first step behind a state whose hidden row is the block's own output. */
static void a_later_step_reads_the_output_of_the_one_before(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[32];
    make_ids(ids, 32);
    const fl_engine_params p = mtp_params(FL_TYPE_F16);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    fl_engine *e = l.engine;
    const size_t n = (size_t)l.model->index->hp.n_vocab, d = (size_t)l.model->index->hp.d_model;
    float *chain = malloc(2 * n * sizeof *chain), *one = malloc(n * sizeof *one);
    assert_true(chain && one);
    ASSERT_OK(fl_forward_clean(e, ids, 20, &err));
    const uint64_t before = fl_state_hash(&e->state);
    draft(e, ids + 20, 2, chain);
    assert_true(fl_state_hash(&e->state) == before);
    draft(e, ids + 20, 1, one);
    assert_memory_equal(one, chain, n * sizeof *one);
    memcpy(e->state.h_last, e->buf.mtp_h, d * sizeof *one);
    e->state.n++;
    draft(e, ids + 21, 1, one);
    assert_memory_equal(one, chain + n, n * sizeof *one);
    assert_memory_not_equal(one, chain, n * sizeof *one);
    free(chain);
    free(one);
    fl_unload(&l);
}

/* Going back to a copy of the state, as the checkpoints do. */
static void the_cache_follows_a_step_back(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[64], other[10] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    make_ids(ids, 64);
    const fl_engine_params p = mtp_params(FL_TYPE_F16);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    fl_engine *e = l.engine;
    fl_state_copy copy = {.memory = malloc(e->state.gdn_bytes)};
    assert_non_null(copy.memory);
    ASSERT_OK(fl_forward_clean(e, ids, 60, &err));
    const uint64_t want = fl_state_hash(&e->state);
    fl_state_reset(&e->state);
    ASSERT_OK(fl_forward_clean(e, ids, 40, &err));
    fl_state_save(&e->state, &copy);
    ASSERT_OK(fl_forward_clean(e, other, 10, &err));
    fl_state_restore(&e->state, &copy);
    ASSERT_OK(fl_forward_clean(e, ids + 40, 20, &err));
    assert_true(fl_state_hash(&e->state) == want);
    free(copy.memory);
    fl_unload(&l);
}

/* A session saved with the block (or without) goes on in a run with it and in one without. */
static void sessions_with_and_without_the_block_fit(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[64];
    char *path = fl_tmp_path(fl_files.dir, "chat.session");
    make_ids(ids, 64);
    for (int i = 0; i < 4; i++) {
        const bool saved_with = i & 1, restored_with = i & 2;
        uint64_t hash[2], bytes;
        float *next[2];
        for (int k = 0; k < 2; k++) {
            fl_generator *g = NULL;
            fl_session *s = NULL;
            fl_engine_params p = mtp_params(FL_TYPE_Q8_0);
            p.mtp = k ? restored_with : saved_with;
            fl_loaded l = fl_load(fl_files.gguf, &p);
            fl_engine *e = l.engine;
            const size_t vocab = (size_t)l.model->index->hp.n_vocab;
            ASSERT_OK(fl_generator_create(&g, e, &err));
            if (k) {
                ASSERT_OK(fl_forward_clean(e, ids + 30, 33, &err)); /* something to forget */
                ASSERT_OK(fl_session_open(&s, path, &err));
                ASSERT_OK(fl_session_restore(s, g, 1, &err));
                fl_session_close(&s);
            } else {
                ASSERT_OK(fl_forward_clean(e, ids, 40, &err));
                ASSERT_OK(fl_session_save(g, 1, path, "", 0, &bytes, &err));
            }
            hash[k] = fl_state_hash(&e->state);
            const float *logits = NULL;
            if (p.mtp) ASSERT_OK(fl_forward_draft(e, ids[40], 0, &logits, &err));
            ASSERT_OK(fl_forward_clean(e, ids + 40, 5, &err));
            ASSERT_OK(fl_forward_logits(e, (const int[]){-1}, 1, &logits, &err));
            next[k] = malloc(vocab * sizeof(float));
            assert_non_null(next[k]);
            memcpy(next[k], logits, vocab * sizeof(float));
            if (k) assert_memory_equal(next[0], next[1], vocab * sizeof(float));
            fl_generator_destroy(&g);
            fl_unload(&l);
        }
        assert_int_equal(hash[0] == hash[1], saved_with == restored_with);
        free(next[0]);
        free(next[1]);
    }
    free(path);
}

static void a_round_allocates_nothing(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[64];
    make_ids(ids, 64);
    fl_engine_params p = mtp_params(FL_TYPE_F16);
    p.vram = fl_vram_for(fl_files.gguf, &p, 25);
    p.ram = 0;
    fl_loaded l = fl_load(fl_files.gguf, &p);
    const uint64_t calls = fl_heap_calls();
    const float *logits = NULL;
    ASSERT_OK(fl_forward_clean(l.engine, ids, 20, &err));
    for (int i = 0; i < 3; i++)
        ASSERT_OK(fl_forward_draft(l.engine, ids[20 + i], i, &logits, &err));
    ASSERT_OK(fl_forward_held(l.engine, ids + 20, 4, &err));
    fl_forward_promote(l.engine, 3);
    assert_int_equal(fl_heap_calls(), calls);
    fl_unload(&l);
}

/* ---- the plan ---- */

/* What a load takes is what its plan says, and drafts are the same wherever the block's experts
 * lie. */
static void the_plan_counts_the_block(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[64];
    make_ids(ids, 64);
    fl_engine_params p = mtp_params(FL_TYPE_F16);
    p.mtp = false;
    fl_loaded l = fl_load(fl_files.gguf, &p);
    const uint64_t without = l.engine->plan.device_bytes, experts = l.engine->plan.expert_bytes;
    assert_int_equal(l.engine->plan.n_total, 4 * 4);
    fl_unload(&l);
    p.mtp = true;
    float *want = NULL;
    uint64_t caps[3] = {0};
    for (int i = 0; i < 3; i++) {
        p.vram = caps[i];
        p.ram = i == 2 ? 0 : FL_RAM_FREE;
        l = fl_load(fl_files.gguf, &p);
        const fl_plan *plan = &l.engine->plan;
        const fl_budget *b = fl_device_budget(l.engine->dev);
        const size_t n = 4 * (size_t)l.model->index->hp.n_vocab;
        float *got = malloc(n * sizeof *got);
        assert_non_null(got);
        assert_int_equal(plan->n_total, 5 * 4);
        assert_string_equal(plan->in.item[plan->in.n_items - 1].name, "MTP block, dense part");
        assert_true(plan->expert_bytes == experts / 4 * 5);
        if (i == 0) {
            assert_true(plan->device_bytes > without + experts / 4);
            caps[1] = plan->fixed_bytes + plan->expert_bytes / 2;
            caps[2] = plan->min_device_cap;
        }
        ASSERT_OK(fl_forward_clean(l.engine, ids, 60, &err));
        draft(l.engine, ids + 60, 4, got);
        assert_true(b->used == plan->device_bytes && b->peak == plan->device_bytes);
        if (want) assert_memory_equal(got, want, n * sizeof *want);
        if (want) assert_true(plan->n_resident < plan->n_total);
        if (want) free(got);
        want = want ? want : got;
        fl_unload(&l);
    }
    free(want);
}

/* ---- the text ---- */

/* Token embeddings that outweigh the rest make the model nearly a table of what follows what; with
 * the block's fc passing the embedding on, the block knows that table too. */
static void teach(fl_engine *e)
{
    fl_weights *w = &e->weights;
    const int64_t d = w->mtp.fc.rows;
    float *embed = (float *)w->embed.data, *fc = (float *)w->mtp.fc.data;
    assert_true(w->embed.type == FL_TYPE_F32 && w->mtp.fc.type == FL_TYPE_F32);
    for (int64_t i = 0; i < w->embed.rows * d; i++) embed[i] *= 30.0f;
    memset(fc, 0, (size_t)(2 * d * d) * sizeof *fc);
    for (int64_t i = 0; i < d; i++) {
        fc[i * 2 * d + i] = 30.0f;
        ((float *)w->mtp.enorm)[i] = 1.0f;
        ((float *)w->mtp.norm)[i] = w->output_norm[i];
    }
}

static void run(fl_generator *g, const fl_gen_config *config, fl_gen_mode mode, int32_t *out,
                fl_gen_result *r)
{
    fl_err err = {0};
    int32_t prompt[24];
    fl_gen_config c = *config;
    make_ids(prompt, 24);
    c.mode = mode;
    ASSERT_OK(fl_generate(g, &c, prompt, 24, r, &err));
    assert_true(r->n_generated <= N_CTX);
    memcpy(out, r->ids, (size_t)r->n_generated * sizeof *out);
}

static void the_text_is_that_of_ar(void **state)
{
    (void)state;
    static const fl_sampler_config samplers[] = {
        {.top_p = 1.0},
        {.temp = 0.8, .top_p = 0.95, .seed = 5},
        {.temp = 1.0, .top_k = 20, .top_p = 1.0, .seed = 6, .presence = 0.5, .repetition = 1.1}};
    fl_err err = {0};
    fl_generator *g = NULL;
    int64_t right = 0;
    const fl_engine_params p = mtp_params(FL_TYPE_Q8_0);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    for (int taught = 0; taught < 2; taught++) {
        if (taught) teach(l.engine);
        for (int i = 0; i < 3; i++) {
            int32_t want[N_CTX], got[N_CTX];
            fl_gen_result ar, spec;
            fl_gen_config c;
            fl_gen_config_init(&c, l.model);
            c.sampler = samplers[i];
            c.max_tokens = FL_SANITIZED_OR(120, -1);
            c.ignore_eos = c.draft_always = true;
            c.repeat_stop = false;
            c.draft_min = taught ? 0.3f : 0.0f;
            run(g, &c, FL_GEN_AR, want, &ar);
            assert_int_equal(ar.draft_steps, 0);
            const uint64_t hash = fl_state_hash(&l.engine->state);
            run(g, &c, FL_GEN_SPEC, got, &spec);
            assert_string_equal(spec.draft_source, "the MTP block");
            assert_int_equal(spec.n_generated, ar.n_generated);
            assert_memory_equal(got, want, (size_t)ar.n_generated * sizeof *want);
            assert_true(fl_state_hash(&l.engine->state) == hash);
            assert_true(spec.draft_steps >= spec.drafted && spec.drafted > 0);
            assert_true(taught || spec.accepted < spec.drafted / 10);
            if (taught) right += spec.accepted;
        }
    }
    assert_true(right > FL_SANITIZED_OR(80, 400));
    fl_generator_destroy(&g);
    fl_unload(&l);
}

/* ---- what is not right ---- */

static void what_is_not_finite_in_the_block_stops_drafts_only(void **state)
{
    (void)state;
    fl_err err = {0};
    int32_t ids[32];
    const float *logits = NULL;
    make_ids(ids, 32);
    for (int act_f32 = 0; act_f32 < 2; act_f32++) {
        fl_engine_params p = mtp_params(FL_TYPE_F16);
        p.act_f32 = act_f32;
        fl_loaded l = fl_load(fl_files.gguf, &p);
        fl_engine *e = l.engine;
        float *hnorm = (float *)e->weights.mtp.hnorm;
        const float right = hnorm[0];
        hnorm[0] = NAN;
        ASSERT_OK(fl_forward_clean(e, ids, 20, &err));
        ASSERT_FAILS(fl_forward_draft(e, ids[20], 0, &logits, &err), FL_E_NAN, "layer 4");
        /* The rows of the cache remember it. */
        hnorm[0] = right;
        ASSERT_FAILS(fl_forward_draft(e, ids[20], 0, &logits, &err), FL_E_NAN, "layer 4");
        ASSERT_OK(fl_forward_clean(e, ids + 20, 5, &err));
        fl_state_reset(&e->state);
        ASSERT_OK(fl_forward_clean(e, ids, 20, &err));
        ASSERT_OK(fl_forward_draft(e, ids[20], 0, &logits, &err));
        fl_unload(&l);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_model *m = NULL;
    fl_engine *e = NULL;
    const float *logits = NULL;
    fl_engine_params p = mtp_params(FL_TYPE_F16);
    p.held_rows = 1;
    ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "held passes");
    fl_model_close(&m);
    p = mtp_params(FL_TYPE_F16);
    p.n_ctx = 20;
    fl_loaded l = fl_load(fl_files.gguf, &p);
    int32_t ids[20];
    make_ids(ids, 20);
    ASSERT_OK(fl_forward_clean(l.engine, ids, 18, &err));
    ASSERT_FAILS(fl_forward_draft(l.engine, -1, 0, &logits, &err), FL_E_ARG, "token id -1");
    ASSERT_FAILS(fl_forward_draft(l.engine, 1, 2, &logits, &err), FL_E_ARG, "do not fit");
    ASSERT_OK(fl_forward_draft(l.engine, 1, 0, &logits, &err));
    ASSERT_OK(fl_forward_draft(l.engine, 1, 1, &logits, &err));
    fl_unload(&l);
}

int main(void)
{
    fl_heap_watch();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cache_follows_what_is_kept),
        cmocka_unit_test(drafts_do_not_depend_on_chunks_threads_or_tiers),
        cmocka_unit_test(a_later_step_reads_the_output_of_the_one_before),
        cmocka_unit_test(the_cache_follows_a_step_back),
        cmocka_unit_test(sessions_with_and_without_the_block_fit),
        cmocka_unit_test(a_round_allocates_nothing),
        cmocka_unit_test(the_plan_counts_the_block),
        cmocka_unit_test(the_text_is_that_of_ar),
        cmocka_unit_test(what_is_not_finite_in_the_block_stops_drafts_only),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, make_file, fl_files_teardown);
}
