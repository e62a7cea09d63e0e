/* Each switch on a guess about Clover changes what it says, and nothing else: on random tiny
 * weights. Commits by a bidirectional pass. Wirings as they are stored. */
#include <math.h>
#include <stdlib.h>

#include "runtime/decode/loop.h"
#include "runtime/model/layers.h"
#include "tests/support/decoder.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"

static fl_err err;
enum { ROWS = 32, CLEAN = 37 };

/* Logits of a block of masks behind CLEAN tokens, under switches. */
static float *block(const fl_clover *sw, int rows)
{
    int32_t ids[ROWS], text[CLEAN];
    const int64_t vocab = fl_tiny.model->index->hp.n_vocab;
    const float *logits = NULL;
    float *out = malloc((size_t)(rows * vocab) * sizeof *out);
    assert_non_null(out);
    fl_tiny_prompt(text, CLEAN);
    fl_tiny_prompt(ids, ROWS);
    for (int i = 3; i < ROWS; i += 2) ids[i] = sw->mask_id;
    fl_state_reset(&fl_tiny.engine->state);
    ASSERT_OK(fl_forward_clean(fl_tiny.engine, text, CLEAN, &err));
    ASSERT_OK(fl_forward_denoise(fl_tiny.engine, ids, rows, sw, &err));
    for (int r = 0; r < rows; r++) {
        ASSERT_OK(fl_forward_logits(fl_tiny.engine, &r, 1, &logits, &err));
        memcpy(out + r * vocab, logits, (size_t)vocab * sizeof *out);
    }
    return out;
}

static bool same(float *a, float *b, int rows)
{
    const size_t n = (size_t)rows * (size_t)fl_tiny.model->index->hp.n_vocab * sizeof *a;
    const bool equal = memcmp(a, b, n) == 0;
    free(a);
    free(b);
    return equal;
}

static fl_clover with(const char *name, const char *word)
{
    fl_clover c = fl_tiny.model->index->clover;
    if (name) assert_true(fl_clover_set(&c, name, word));
    return c;
}

static void set_mix(float value, float *saved, bool restore)
{
    const fl_hparams *hp = &fl_tiny.model->index->hp;
    for (int l = 0, at = 0; l < hp->n_layer; l++) {
        float *mix = (float *)fl_tiny.engine->weights.layer[l].bwd_mix;
        for (int n = 0; mix && n < hp->gdn_v_heads; n++, at++) {
            if (!restore) saved[at] = mix[n];
            mix[n] = restore ? saved[at] : value;
        }
    }
}

/* One row sees nothing to its right: strict is the base layer, inclusive is not. */
static void an_inclusive_scan_sees_its_own_row(void **state)
{
    (void)state;
    const fl_clover causal = with("gdn_block_mode", "causal"), strict = with(NULL, NULL);
    const fl_clover inclusive = with("gdn_scan", "inclusive");
    assert_true(same(block(&strict, 1), block(&causal, 1), 1));
    assert_false(same(block(&inclusive, 1), block(&causal, 1), 1));
    assert_false(same(block(&inclusive, ROWS), block(&strict, ROWS), ROWS));
}

static void combinations_agree_where_they_must(void **state)
{
    (void)state;
    float saved[256];
    const fl_clover mix = with(NULL, NULL), sum = with("gdn_combine", "sum");
    const fl_clover gate = with("gdn_combine", "gate"), causal = with("gdn_block_mode", "causal");
    assert_false(same(block(&mix, ROWS), block(&sum, ROWS), ROWS));
    assert_false(same(block(&mix, ROWS), block(&gate, ROWS), ROWS));
    set_mix(1.0f, saved, false);
    assert_true(same(block(&mix, ROWS), block(&sum, ROWS), ROWS));
    set_mix(0, saved, true);
    set_mix(-200.0f, saved, false); /* a gate that is shut */
    assert_true(same(block(&gate, ROWS), block(&causal, ROWS), ROWS));
    set_mix(0, saved, true);
}

/* The GDN layer alone on given rows, as a block behind the state; leaves its buffers. */
static void gdn_layer(const fl_clover *sw, const float *x, int n)
{
    fl_engine *e = fl_tiny.engine;
    const int64_t d = fl_tiny.model->index->hp.d_model;
    memset(e->buf.x, 0, (size_t)(n * d) * sizeof(float));
    memcpy(e->buf.xn, x, (size_t)(n * d) * sizeof(float));
    const fl_pass p = {.exec = &e->exec,
                       .hp = &fl_tiny.model->index->hp,
                       .weights = &e->weights,
                       .experts = &e->experts,
                       .store = e->store,
                       .buf = &e->buf,
                       .state = &e->state,
                       .n_rows = n,
                       .sw = sw};
    ASSERT_OK(fl_gdn_forward(&p, 0, &err));
}

static float silu(float x) { return x / (1.0f + expf(-x)); }

/* Past the right edge the backward convolution of the last row finds zeros, or that row thrice.
 * Channels of values are not normed, so they show it. */
static void the_backward_convolution_ends_as_it_says(void **state)
{
    (void)state;
    const fl_hparams *hp = &fl_tiny.model->index->hp;
    const fl_gdn_buffers *b = &fl_tiny.engine->buf.gdn;
    const int64_t c = fl_hparams_channels(hp), v = 2 * (int64_t)hp->gdn_k_heads * hp->gdn_dim;
    const float *w = fl_tiny.engine->weights.layer[0].bwd_conv;
    float x[ROWS * 64];
    assert_true(hp->d_model <= 64);
    for (int i = 0; i < ROWS * 64; i++) x[i] = sinf((float)i);
    for (int repeat = 0; repeat < 2; repeat++) {
        const fl_clover sw = with("gdn_conv_edge", repeat ? "repeat" : "zeros");
        fl_state_reset(&fl_tiny.engine->state);
        gdn_layer(&sw, x, ROWS);
        const float *u = b->u + (ROWS - 1) * c, *got = b->bwd_c + (ROWS - 1) * c;
        for (int64_t i = v; i < c; i++) {
            const float *t = w + 4 * i;
            const float want = silu((repeat ? t[0] + t[1] + t[2] + t[3] : t[3]) * u[i]);
            assert_true(fabsf(got[i] - want) <= 1e-5f * (1.0f + fabsf(want)));
        }
    }
}

/* Without the clean tail a block's convolution starts as at the beginning of a text. */
static void a_block_without_tail_starts_from_zeros(void **state)
{
    (void)state;
    const int64_t c = fl_hparams_channels(&fl_tiny.model->index->hp);
    const fl_gdn_buffers *b = &fl_tiny.engine->buf.gdn;
    const fl_clover clean = with(NULL, NULL), zeros = with("gdn_tail", "zeros");
    const size_t bytes = (size_t)(ROWS * c) * sizeof(float);
    float x[ROWS * 64];
    int32_t text[CLEAN];
    float *fresh = malloc(bytes);
    assert_non_null(fresh);
    for (int i = 0; i < ROWS * 64; i++) x[i] = cosf((float)i);
    fl_tiny_prompt(text, CLEAN);
    fl_state_reset(&fl_tiny.engine->state);
    gdn_layer(&clean, x, ROWS);
    memcpy(fresh, b->c, bytes);
    ASSERT_OK(fl_forward_clean(fl_tiny.engine, text, CLEAN, &err));
    gdn_layer(&clean, x, ROWS);
    assert_memory_not_equal(b->c, fresh, bytes);
    gdn_layer(&zeros, x, ROWS);
    assert_memory_equal(b->c, fresh, bytes);
    free(fresh);
}

/* Of one row a commit in mode causal is a clean pass, to the bit. Of a whole block the raw rows of
 * layer 0 are those of a clean pass and the later layers' state is not: attention looks to the
 * right. */
static void a_bidirectional_commit_moves_the_state(void **state)
{
    (void)state;
    fl_engine *e = fl_tiny.engine;
    const fl_clover causal = with("gdn_block_mode", "causal"), bidir = with(NULL, NULL);
    int32_t text[CLEAN + ROWS];
    fl_tiny_prompt(text, CLEAN + ROWS);
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        fl_state_reset(&e->state);
        ASSERT_OK(fl_forward_clean(e, text, CLEAN, &err));
        if (i == 0)
            ASSERT_OK(fl_forward_clean(e, text + CLEAN, 1, &err));
        else
            ASSERT_OK(fl_forward_commit(e, text + CLEAN, 1, &causal, &err));
        assert_int_equal(e->state.n, CLEAN + 1);
        hash[i] = fl_state_hash(&e->state);
    }
    assert_true(hash[0] == hash[1]);
    const int64_t c = e->state.n_channels;
    float *tail = malloc((size_t)(3 * c) * sizeof *tail);
    assert_non_null(tail);
    fl_state_reset(&e->state);
    ASSERT_OK(fl_forward_clean(e, text, CLEAN + ROWS, &err));
    memcpy(tail, e->state.tail[0], (size_t)(3 * c) * sizeof *tail);
    hash[0] = fl_state_hash(&e->state);
    fl_state_reset(&e->state);
    ASSERT_OK(fl_forward_clean(e, text, CLEAN, &err));
    ASSERT_OK(fl_forward_commit(e, text + CLEAN, ROWS, &bidir, &err));
    assert_int_equal(e->state.n, CLEAN + ROWS);
    assert_memory_equal(tail, e->state.tail[0], (size_t)(3 * c) * sizeof *tail);
    hash[1] = fl_state_hash(&e->state);
    assert_true(hash[0] != hash[1]);
    /* And it is the same whenever it runs. */
    fl_state_reset(&e->state);
    ASSERT_OK(fl_forward_clean(e, text, CLEAN, &err));
    ASSERT_OK(fl_forward_commit(e, text + CLEAN, ROWS, &bidir, &err));
    assert_true(fl_state_hash(&e->state) == hash[1]);
    free(tail);
    ASSERT_FAILS(fl_forward_commit(e, text, ROWS + 1, &bidir, &err), FL_E_ARG, "a block pass");
}

/* Generation with such commits: every block but the last is committed by a pass of its own. */
static void block_mode_commits_as_told(void **state)
{
    (void)state;
    int32_t ids[40];
    fl_output a = {0}, b = {0};
    fl_gen_config c = fl_tiny_config(FL_GEN_BLOCK);
    c.clover.commit_mode = FL_COMMIT_BLOCK_BIDIR;
    c.max_tokens = 24 + 64 + 5;
    fl_tiny_prompt(ids, 40);
    fl_tiny_run(&c, ids, 40, &a);
    fl_tiny_run(&c, ids, 40, &b);
    assert_int_equal(a.r.n_generated, c.max_tokens);
    assert_memory_equal(a.ids, b.ids, (size_t)a.r.n_generated * sizeof *a.ids);
    assert_int_equal(a.r.fused_passes, 0);
    assert_int_equal(a.r.clean_passes, 3);
    c.clover.commit_mode = FL_COMMIT_CAUSAL;
    fl_tiny_run(&c, ids, 40, &b);
    assert_memory_equal(a.ids, b.ids, 24 * sizeof *a.ids); /* the first block knows of none */
}

/* ---- words and stored wirings ------------------------------------------------------------- */

static void every_word_is_set_and_read(void **state)
{
    (void)state;
    fl_clover c = {.block_size = 32};
    for (const fl_switch *s = fl_switches; s->name; s++)
        for (int i = 0; s->words[i]; i++) {
            assert_true(fl_clover_set(&c, s->name, s->words[i]));
            assert_string_equal(fl_clover_word(&c, s->name), s->words[i]);
        }
    assert_int_equal(c.gdn_scan, FL_SCAN_INCLUSIVE);
    assert_int_equal(c.gdn_combine, FL_COMBINE_GATE);
    assert_int_equal(c.gdn_conv_edge, FL_EDGE_REPEAT);
    assert_int_equal(c.gdn_tail, FL_TAIL_ZEROS);
    assert_int_equal(c.pool, FL_POOL_MASS);
    assert_int_equal(c.block_size, 32);
    assert_false(fl_clover_set(&c, "gdn_scan", "sideways"));
    assert_false(fl_clover_set(&c, "nothing", "strict"));
}

static void a_wiring_is_stored_and_read_again(void **state)
{
    (void)state;
    fl_wiring w = fl_wiring_none(), r;
    char text[256];
    w.norm_add_one = 1;
    w.v_grouped = 0;
    w.clover = (fl_clover){.has_blocks = true, .mask_id = 77, .pred_shift = 1, .pool_c = 12};
    w.clover.gdn_block_mode = FL_GDN_BIDIR;
    w.clover.gdn_scan = FL_SCAN_INCLUSIVE;
    w.clover.verdict = 1;
    ASSERT_OK(fl_role_map_put(&w.roles, "ssm_bwd_a", "blk.*.x", "test", &err));
    fl_json *j = fl_wiring_to_json(&w);
    assert_true(fl_wiring_from_json(&r, j));
    assert_true(r.probed);
    assert_int_equal(r.norm_add_one, 1);
    assert_int_equal(r.a_is_log, -1);
    assert_int_equal(r.v_grouped, 0);
    assert_string_equal(fl_role_map_get(&r.roles, "ssm_bwd_a"), "blk.*.x");
    assert_null(fl_role_map_get(&r.roles, "ssm_bwd_mix"));
    assert_true(r.clover.has_blocks);
    assert_int_equal(r.clover.mask_id, 77);
    assert_int_equal(r.clover.pred_shift, 1);
    assert_int_equal(r.clover.pool_c, 12);
    assert_int_equal(r.clover.verdict, 1);
    assert_string_equal(fl_wiring_text(&r, text),
                        "mask token 77, row i-1 predicts row i, GDN bidir inclusive mix, blocks "
                        "absolute, commits causal");
    /* What cannot be is nothing known. */
    fl_json_set_int(j, "version", 99);
    assert_false(fl_wiring_from_json(&r, j));
    assert_false(r.probed);
    assert_int_equal(r.norm_add_one, -1);
    fl_json_free(&j);
    static const struct {
        const char *key;
        int64_t value;
    } bad[] = {{"mask_token_id", -5}, {"pred_shift", 2}, {"expert_pool_size", 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        j = fl_wiring_to_json(&w);
        fl_json_set_int((fl_json *)fl_json_get(j, "clover"), bad[i].key, bad[i].value);
        assert_false(fl_wiring_from_json(&r, j));
        fl_json_free(&j);
    }
    j = fl_wiring_to_json(&w);
    fl_json_set_str((fl_json *)fl_json_get(j, "clover"), "gdn_scan", "sideways");
    assert_false(fl_wiring_from_json(&r, j));
    fl_json_free(&j);
    assert_false(fl_wiring_from_json(&r, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_inclusive_scan_sees_its_own_row),
        cmocka_unit_test(combinations_agree_where_they_must),
        cmocka_unit_test(the_backward_convolution_ends_as_it_says),
        cmocka_unit_test(a_block_without_tail_starts_from_zeros),
        cmocka_unit_test(a_bidirectional_commit_moves_the_state),
        cmocka_unit_test(block_mode_commits_as_told),
        cmocka_unit_test(every_word_is_set_and_read),
        cmocka_unit_test(a_wiring_is_stored_and_read_again),
    };
    return cmocka_run_group_tests(tests, fl_tiny_setup, fl_tiny_teardown);
}
