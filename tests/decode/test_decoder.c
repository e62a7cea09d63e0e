/* What any decoder of this architecture must do when it generates, on random tiny weights: whole
 * texts in each mode, penalties, streaming, refusals. */
#include <math.h>
#include <stdlib.h>

#include "runtime/decode/loop.h"
#include "runtime/model/layers.h"
#include "tests/support/decoder.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* ---- A3 ---- */

static void A3_shifted_causal_blocks_of_one_equal_ar(void **state)
{
    (void)state;
    int32_t ids[19];
    fl_output ar = {0}, block = {0};
    fl_tiny_prompt(ids, 19);
    for (int sampled = 0; sampled < 2; sampled++) {
        fl_gen_config c = fl_tiny_config(FL_GEN_AR);
        if (sampled) c.sampler = (fl_sampler_config){.temp = 1.0, .top_p = 0.95, .seed = 77};
        c.max_tokens = 50;
        fl_tiny_run(&c, ids, 19, &ar);
        c.mode = FL_GEN_BLOCK;
        c.clover.block_size = 1;
        c.clover.pred_shift = 1;
        c.clover.gdn_block_mode = FL_GDN_CAUSAL;
        fl_tiny_run(&c, ids, 19, &block);
        assert_int_equal(block.r.n_generated, 50);
        assert_int_equal(block.r.denoise_passes, 0);
        assert_memory_equal(ar.ids, block.ids, 50 * sizeof(*ar.ids));
    }
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
    char *file = fl_tmp_path(fl_tiny.dir, "spec.gguf");
    int32_t ids[40];
    fl_tiny_prompt(ids, 40);
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
        p.n_ctx = FL_SANITIZED_OR(300, 1060);
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
        c.repeat_stop = false;
        c.max_tokens = -1;  /* until the context is full: 1,020 tokens, or 260 */
        c.draft_min = 0.0f; /* whole drafts, right or wrong */
        c.draft_always = true;
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        c.sampler = (fl_sampler_config){.temp = 0.7, .top_k = 5, .top_p = 0.95, .seed = 3};
        c.max_tokens = FL_SANITIZED_OR(60, 120);
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        c.draft_min = 0.3f;
        c.draft_always = false; /* AR takes turns as the clock says */
        check_speculation(g, l.engine, &c, ids, 33, &accepted);
        c.draft_passes = 3;
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        c.draft_own_noise = true;
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        c.sampler.presence = 0.5;
        c.sampler.frequency = 0.1;
        c.sampler.repetition = 1.1;
        check_speculation(g, l.engine, &c, ids, 40, &accepted);
        assert_true(accepted > (kind ? FL_SANITIZED_OR(60, 500) : FL_SANITIZED_OR(-1, 0)));
        fl_generator_destroy(&g);
        fl_unload(&l);
    }
    free(file);
}

/* ---- A10 ---- */

static void A10_the_mask_is_never_emitted_and_passes_are_bounded(void **state)
{
    (void)state;
    int32_t ids[40];
    fl_output o = {0};
    const int32_t mask = fl_tiny.model->index->clover.mask_id;
    const int64_t d = fl_tiny.model->index->hp.d_model;
    fl_tiny_prompt(ids, 40);
    assert_int_equal(fl_tiny.engine->weights.output.type, FL_TYPE_F32);

    for (int step = 0; step < 2; step++) {
        fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
        c.clover.threshold = 1.0f; /* one row a pass */
        c.max_tokens = 24 + 32;
        fl_tiny_run(&c, ids, 40, &o);
        assert_int_equal(o.r.n_generated, 56);
        assert_true(o.r.max_passes <= 32);
        assert_true(o.r.denoise_passes <= 24 + 32);
        for (int i = 0; i < 56; i++) {
            assert_int_not_equal(o.ids[i], mask);
            assert_true(fl_tokenizer_kind(fl_tiny.model->tokenizer, o.ids[i]) != FL_TOKEN_UNUSED);
        }
        /* Second round: the mask's logit is three times that of the first token picked. */
        float *rows = (float *)fl_tiny.engine->weights.output.data;
        for (int64_t j = 0; j < d; j++) rows[mask * d + j] = 3.0f * rows[(int64_t)o.ids[0] * d + j];
    }
    /* It is the raw favourite somewhere, and still never came out. */
    fl_err err = {0};
    const float *logits = NULL;
    const int last = -1;
    bool favourite = false;
    fl_state_reset(&fl_tiny.engine->state);
    for (int i = 0; i < 40 && !favourite; i++) {
        ASSERT_OK(fl_forward_clean(fl_tiny.engine, ids + i, 1, &err));
        ASSERT_OK(fl_forward_logits(fl_tiny.engine, &last, 1, &logits, &err));
        favourite = true;
        for (int64_t t = 0; t < fl_tiny.model->index->hp.n_vocab; t++)
            favourite = favourite && (t == mask || logits[t] < logits[mask]);
    }
    assert_true(favourite);
}

static void A10_masks_that_the_prompt_gives_are_left_alone(void **state)
{
    (void)state;
    int32_t ids[40];
    fl_output o = {0};
    const int32_t mask = fl_tiny.model->index->clover.mask_id;
    fl_tiny_prompt(ids, 40);
    ids[10] = ids[32] = ids[35] = ids[39] = mask;
    for (int separate = 0; separate < 2; separate++) {
        fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
        c.clover.threshold = 1e-6f; /* every open row in one pass */
        c.separate_commits = separate;
        c.max_tokens = 24; /* the first block: 8 given rows, 24 open ones */
        fl_tiny_run(&c, ids, 40, &o);
        assert_int_equal(o.r.n_generated, 24);
        assert_int_equal(o.r.denoise_passes, 1);
        assert_int_equal(o.r.committed_at_threshold, 24);
        assert_memory_equal(fl_tiny.gen->block, ids + 32, 8 * sizeof(*ids));
        for (int i = 0; i < 24; i++) assert_int_not_equal(o.ids[i], mask);
    }
}

/* ---- C083: penalties count what was generated, never the prompt ---- */

static void C083_penalties_do_not_count_the_prompt(void **state)
{
    (void)state;
    int32_t ids[41];
    fl_output plain = {0}, o = {0};
    fl_tiny_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = fl_tiny_config((fl_gen_mode)mode);
        /* A prompt made of the very token that comes first would lose it if it counted; in a block
         * other rows may be final, and count, before the first one. */
        if (mode != FL_GEN_BLOCK) {
            int32_t same[41];
            c.max_tokens = 1;
            fl_tiny_run(&c, ids, 41, &plain);
            for (int i = 0; i < 41; i++) same[i] = plain.ids[0];
            fl_tiny_run(&c, same, 41, &plain);
            c.sampler.presence = 2.0;
            c.sampler.repetition = 10.0;
            fl_tiny_run(&c, same, 41, &o);
            assert_int_equal(o.ids[0], plain.ids[0]);
        }
        /* What was generated counts: the penalized text repeats less. */
        int seen[512] = {0}, repeats[2] = {0};
        for (int penalized = 0; penalized < 2; penalized++) {
            c = fl_tiny_config((fl_gen_mode)mode);
            c.clover.threshold = 1.0f;
            c.max_tokens = 60;
            if (penalized) c.sampler.presence = 2.0;
            fl_tiny_run(&c, ids, 41, &o);
            memset(seen, 0, sizeof(seen));
            for (int i = 0; i < 60; i++) repeats[penalized] += seen[o.ids[i]]++ > 0;
        }
        assert_true(repeats[0] > repeats[1]);
    }
}

/* One block by hand, a row a pass: each pass counts the rows of the passes before it, wherever in
 * the block they stand, and none of its own. Ids behind the prompt go to out. */
static void fill_by_hand(const fl_gen_config *c, const int32_t *prompt, int n, int32_t *out)
{
    fl_err err = {0};
    fl_engine *e = fl_tiny.engine;
    const int first = n - n % 32;
    fl_sampler *s = NULL;
    int32_t block[32];
    ASSERT_OK(fl_sampler_create(&s, &e->exec.k, e->model->index->hp.n_vocab, 1, &err));
    for (int32_t id = 0; id < e->model->index->hp.n_vocab; id++)
        if (fl_sampler_banned(fl_tiny.gen->sampler, id)) fl_sampler_ban(s, id);
    ASSERT_OK(fl_sampler_configure(s, &c->sampler, &err));
    fl_state_reset(&e->state);
    ASSERT_OK(fl_forward_clean(e, prompt, first, &err));
    for (int i = 0; i < 32; i++) block[i] = first + i < n ? prompt[first + i] : c->clover.mask_id;
    for (int left = 32 - n % 32; left > 0; left--) {
        const float *logits = NULL;
        int best = -1;
        fl_pick surest = {0};
        ASSERT_OK(fl_forward_denoise(e, block, 32, &c->clover, &err));
        for (int i = 0; i < 32; i++) {
            if (block[i] != c->clover.mask_id) continue;
            ASSERT_OK(fl_forward_logits(e, &i, 1, &logits, &err));
            const fl_pick p = fl_sampler_pick(s, logits, first + i, 0);
            if (best >= 0 && p.confidence <= surest.confidence) continue;
            best = i;
            surest = p;
        }
        block[best] = surest.token;
        fl_sampler_count(s, surest.token, first + best);
    }
    memcpy(out, block + n % 32, (size_t)(32 - n % 32) * sizeof(*out));
    fl_sampler_destroy(&s);
}

static void penalties_count_the_rows_of_a_blocks_earlier_passes(void **state)
{
    (void)state;
    int32_t ids[41], want[23];
    static fl_output o;
    fl_tiny_prompt(ids, 41);
    for (int sampled = FL_SANITIZED; sampled < 2; sampled++) {
        fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
        c.clover.threshold = 1.0f;
        c.max_tokens = 23;
        c.sampler.presence = 1.0;
        c.sampler.frequency = 0.5;
        c.sampler.repetition = 1.5;
        if (sampled) c.sampler.temp = 0.7;
        fill_by_hand(&c, ids, 41, want);
        fl_tiny_run(&c, ids, 41, &o);
        assert_int_equal(o.r.denoise_passes, 23);
        assert_memory_equal(o.ids, want, sizeof want);
    }
}

/* ---- streaming and refusals ---- */

static void text_streams_in_order_and_can_be_canceled(void **state)
{
    (void)state;
    int32_t ids[41];
    fl_output all = {0}, o = {0};
    fl_tiny_prompt(ids, 41);
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c = fl_tiny_config((fl_gen_mode)mode);
        c.max_tokens = 100;
        fl_tiny_run(&c, ids, 41, &all);
        assert_true(all.pieces > 10);
        o.cancel_after = 5;
        fl_tiny_run(&c, ids, 41, &o);
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
    fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
    c.clover.has_blocks = false;
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 2, &r, &err), FL_E_ARG, "--mode ar");
    c = fl_tiny_config(FL_GEN_BLOCK);
    c.clover.mask_id = 1 << 20;
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 2, &r, &err), FL_E_FORMAT, "mask token id");
    c = fl_tiny_config(FL_GEN_BLOCK);
    c.clover.block_size = 64;
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 2, &r, &err), FL_E_ARG, "block size 64");
    c = fl_tiny_config(FL_GEN_BLOCK);
    c.clover.threshold = 0.0f;
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 2, &r, &err), FL_E_ARG, "--threshold");
    const int held = fl_tiny.engine->params.held_rows;
    fl_tiny.engine->params.held_rows = 0;
    c = fl_tiny_config(FL_GEN_SPEC);
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 2, &r, &err), FL_E_ARG, "held_rows");
    fl_tiny.engine->params.held_rows = held;
    c = fl_tiny_config(FL_GEN_AR);
    c.sampler.temp = -1.0;
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 2, &r, &err), FL_E_ARG, "--temp");
    c = fl_tiny_config(FL_GEN_AR);
    const char *empty = "";
    c.stop = &empty;
    c.n_stop = 1;
    ASSERT_FAILS(fl_generate(fl_tiny.gen, &c, ids, 2, &r, &err), FL_E_ARG, "stop string 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A3_shifted_causal_blocks_of_one_equal_ar),
        cmocka_unit_test(A8_speculation_gives_the_text_of_ar),
        cmocka_unit_test(C083_penalties_do_not_count_the_prompt),
        cmocka_unit_test(penalties_count_the_rows_of_a_blocks_earlier_passes),
        cmocka_unit_test(text_streams_in_order_and_can_be_canceled),
        cmocka_unit_test(settings_that_cannot_work_are_refused),
        /* Last: it changes the loaded weights. */
        cmocka_unit_test(A10_the_mask_is_never_emitted_and_passes_are_bounded),
        /* Last: it changes the loaded weights. */
        cmocka_unit_test(A10_masks_that_the_prompt_gives_are_left_alone),
    };
    return cmocka_run_group_tests(tests, fl_tiny_setup, fl_tiny_teardown);
}
