/* A model run layer by layer: its rows against those of the engine, what is shown, what is read. */
#include <math.h>
#include <stdlib.h>

#include "runtime/model/sweep.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/kern.h"
#include "tests/support/make_model.h"
#include "tests/support/poison.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { BLOCK = 8, MOST_ROWS = 320, MOST_PASSES = 32, TOKENS = 70, PROMPT = 5 * BLOCK + 3 };

/* Sequences of clean rows with blocks behind them, as importance makes them. */
typedef struct text {
    fl_sweep_text t;
    fl_sweep_pass pass[MOST_PASSES];
    int32_t ids[MOST_ROWS];
} text;

/* n tokens, of which the first `prompt` come before the first block. */
static void add_sequence(text *x, int prompt, int n, int mask, bool blocks)
{
    for (int at = 0, clean; at < n; at += clean) {
        const int most = at == 0 ? prompt : BLOCK;
        clean = n - at < most ? n - at : most;
        const int block = blocks && at + clean + BLOCK <= n ? BLOCK : 0;
        for (int i = 0; i < clean + block; i++)
            x->ids[x->t.n_rows++] =
                i >= clean + at / BLOCK % 3 && fl_rnd_below(4) ? mask : fl_rnd_below(250);
        x->pass[x->t.n_passes++] = (fl_sweep_pass){x->t.n_seqs, at, clean, block};
        if (clean + block > x->t.max_rows) x->t.max_rows = clean + block;
        if (block > x->t.max_block) x->t.max_block = block;
    }
    if (n > x->t.n_ctx) x->t.n_ctx = n;
    x->t.n_seqs++;
}

static void make_text(text *x, const fl_model *m, bool blocks)
{
    *x = (text){0};
    add_sequence(x, BLOCK, TOKENS, m->index->clover.mask_id, blocks);
    add_sequence(x, BLOCK, 3 * BLOCK + 1, m->index->clover.mask_id, blocks);
    add_sequence(x, PROMPT, PROMPT + 2 * BLOCK, m->index->clover.mask_id, blocks);
    x->t.pass = x->pass;
    x->t.ids = x->ids;
}

static fl_make small_model(const char *arch, int top_k)
{
    fl_make m = fl_make_tiny();
    m.arch = arch;
    m.n_layer = 4;
    m.top_k = top_k;
    return m;
}

static fl_sweep *open_sweep(const fl_model *m, const text *x, const fl_clover *sw, int threads,
                            bool act_f32)
{
    fl_err err = {0};
    fl_sweep *s = NULL;
    const fl_sweep_params p = {.threads = threads, .act_f32 = act_f32, .kv_type = FL_TYPE_F16};
    ASSERT_OK(fl_sweep_open(&s, m, &x->t, sw, &p, &err));
    return s;
}

static void run_layers(fl_sweep *s, int n_layer, const fl_sweep_watch *w)
{
    fl_err err = {0};
    ASSERT_OK(fl_sweep_embed(s, &err));
    for (int i = 0; i < n_layer; i++) ASSERT_OK(fl_sweep_layer(s, i, w, &err));
    ASSERT_OK(fl_sweep_head(s, w, &err));
}

/* The rows of the same passes through the engine, [n_rows][d_model]: it takes a block's worth of
 * clean rows before a block, so those of a longer prompt go first. */
static float *engine_rows(fl_engine *e, const text *x, const fl_clover *sw)
{
    fl_err err = {0};
    const int64_t d = e->model->index->hp.d_model;
    float *out = malloc((size_t)(x->t.n_rows * d) * sizeof *out);
    int64_t row = 0;
    for (int i = 0; i < x->t.n_passes; i++) {
        const fl_sweep_pass *p = &x->pass[i];
        const int32_t *ids = x->ids + row;
        const int fused = p->n_block > 0 ? (p->n_write < BLOCK ? p->n_write : BLOCK) : 0;
        const int alone = p->n_write - fused;
        if (p->at == 0) fl_state_reset(&e->state);
        if (alone > 0) {
            ASSERT_OK(fl_forward_clean(e, ids, alone, &err));
            memcpy(out + row * d, e->buf.x, (size_t)(alone * d) * sizeof *out);
        }
        row += alone;
        ids += alone;
        if (p->n_block > 0) {
            ASSERT_OK(fl_forward_fused(e, ids, fused, ids + fused, p->n_block, sw, &err));
            memcpy(out + row * d, e->buf.x, (size_t)((fused + p->n_block) * d) * sizeof *out);
        }
        row += fused + p->n_block;
    }
    return out;
}

static fl_clover switches(const fl_model *m)
{
    fl_clover sw = m->index->clover;
    sw.block_size = BLOCK;
    return sw;
}

/* With one expert a row there is one order of summing: the same bits. With more, the last bits
 * differ, and nothing else. */
static void rows_are_the_engines(const char *arch, int top_k, bool blocks, bool pool)
{
    const fl_make m = small_model(arch, top_k);
    text x;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.block_size = BLOCK;
    fl_make_gguf(&m, fl_files.gguf);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    fl_clover sw = switches(l.model);
    if (pool) sw.pool = FL_POOL_MAX, sw.pool_c = 3;
    make_text(&x, l.model, blocks);
    const int64_t n = x.t.n_rows * l.model->index->hp.d_model;
    float *want = engine_rows(l.engine, &x, &sw);
    fl_sweep *s = open_sweep(l.model, &x, &sw, 2, false);
    run_layers(s, m.n_layer, NULL);
    if (top_k == 1)
        fl_same_bits(fl_sweep_rows(s), want, n, "sweep", arch);
    else
        assert_true(fl_max_error(fl_sweep_rows(s), want, n) < 1e-4);
    fl_sweep_close(&s);
    free(want);
    fl_unload(&l);
}

static void rows_equal_the_engines(void **state)
{
    (void)state;
    rows_are_the_engines("qwen35moe", 1, false, false);
    rows_are_the_engines("clover_moe", 1, true, false);
    rows_are_the_engines("clover_moe", 2, true, false);
    rows_are_the_engines("clover_moe", 1, true, true);
}

/* ---- what is shown ---- */

typedef struct seen {
    const fl_hparams *hp;
    int layer;
    int64_t rows[FL_N_SITES];
    int64_t expert_rows[16];
    int64_t ended; /* experts */
    double sum[FL_N_SITES];
    fl_engine *e; /* whose last pass is compared, or NULL */
    float *mid;   /* [top_k * rows][d_ff] of the last layer, by expert */
    float *in, *shared;
} seen;

static void see(void *arg, fl_site site, int expert, const fl_rows *in)
{
    seen *s = arg;
    for (int t = 0; t < in->n; t++)
        for (int64_t i = 0; i < in->cols; i++)
            s->sum[site] += (double)in->x[t * in->ld + i] * (double)in->x[t * in->ld + i];
    if (site == FL_SITE_EXPERT_MID && s->mid)
        memcpy(s->mid + s->rows[site] * in->cols, in->x,
               (size_t)(in->n * in->cols) * sizeof(float));
    if (site == FL_SITE_FFN_IN && s->in)
        memcpy(s->in + s->rows[site] * in->cols, in->x, (size_t)(in->n * in->cols) * sizeof(float));
    if (site == FL_SITE_SHARED_MID && s->shared)
        memcpy(s->shared + s->rows[site] * in->cols, in->x,
               (size_t)(in->n * in->cols) * sizeof(float));
    s->rows[site] += in->n;
    if (expert >= 0 && site == FL_SITE_EXPERT_IN) s->expert_rows[expert] += in->n;
}

static fl_status end_expert(void *arg, int expert, fl_err *err)
{
    seen *s = arg;
    (void)err;
    assert_int_equal(expert, s->ended++);
    return FL_OK;
}

/* Every site sees every row once, experts what was routed to them. */
static void every_row_is_shown(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe", 2);
    fl_err err = {0};
    text x;
    fl_model *model = NULL;
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    const fl_clover sw = switches(model);
    make_text(&x, model, true);
    int64_t block_rows = 0;
    for (int i = 0; i < x.t.n_passes; i++) block_rows += x.pass[i].n_block;
    assert_true(block_rows > 0);
    fl_sweep *s = open_sweep(model, &x, &sw, 2, false);
    ASSERT_OK(fl_sweep_embed(s, &err));
    for (int l = 0; l < m.n_layer; l++) {
        seen look = {0};
        const fl_sweep_watch w = {.see = {see, &look}, .expert = end_expert, .arg = &look};
        ASSERT_OK(fl_sweep_layer(s, l, &w, &err));
        assert_int_equal(look.rows[FL_SITE_MIXER_IN], x.t.n_rows);
        assert_int_equal(look.rows[FL_SITE_MIXER_OUT], x.t.n_rows);
        assert_int_equal(look.rows[FL_SITE_FFN_IN], x.t.n_rows);
        assert_int_equal(look.rows[FL_SITE_SHARED_MID], x.t.n_rows);
        assert_int_equal(look.rows[FL_SITE_EXPERT_IN], 2 * x.t.n_rows);
        assert_int_equal(look.rows[FL_SITE_EXPERT_MID], 2 * x.t.n_rows);
        const bool attention = model->index->layer[l].full_attention;
        assert_int_equal(look.rows[FL_SITE_BLOCK_IN], attention ? 0 : block_rows);
        assert_int_equal(look.rows[FL_SITE_HEAD_IN], 0);
        assert_int_equal(look.ended, m.n_expert);
    }
    seen look = {0};
    const fl_sweep_watch w = {.see = {see, &look}};
    ASSERT_OK(fl_sweep_head(s, &w, &err));
    assert_int_equal(look.rows[FL_SITE_HEAD_IN], x.t.n_rows);
    fl_sweep_close(&s);
    fl_model_close(&model);
}

/* The rows that the last layer's matrices got, as the engine's buffers hold them after a pass. */
static void shown_rows_are_those_of_the_engine(void **state)
{
    (void)state;
    fl_make m = small_model("qwen35moe", 1);
    text x = {0};
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    fl_err err = {0};
    m.n_layer = 2;
    fl_make_gguf(&m, fl_files.gguf);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    const int n = 40;
    for (int i = 0; i < n; i++) x.ids[i] = fl_rnd_below(250);
    x.pass[0] = (fl_sweep_pass){0, 0, n, 0};
    x.t = (fl_sweep_text){x.pass, 1, x.ids, n, 1, n, n, 0};
    ASSERT_OK(fl_forward_clean(l.engine, x.ids, n, &err));
    const fl_buffers *b = &l.engine->buf;
    seen look = {0};
    look.mid = malloc((size_t)(n * m.d_ff) * sizeof(float));
    look.in = malloc((size_t)(n * m.d_model) * sizeof(float));
    look.shared = malloc((size_t)(n * m.d_ff_shared) * sizeof(float));
    const fl_sweep_watch w = {.see = {see, &look}};
    const fl_clover sw = switches(l.model);
    fl_sweep *s = open_sweep(l.model, &x, &sw, 1, false);
    ASSERT_OK(fl_sweep_embed(s, &err));
    ASSERT_OK(fl_sweep_layer(s, 0, NULL, &err));
    ASSERT_OK(fl_sweep_layer(s, 1, &w, &err));
    fl_same_bits(look.in, b->xn, n * m.d_model, "sweep", "ffn_in");
    fl_same_bits(look.shared, b->moe.shared_g, n * m.d_ff_shared, "sweep", "shared_mid");
    /* The engine's pairs go by its own order of experts. */
    int64_t at = 0;
    for (int e = 0; e < m.n_expert; e++)
        for (int t = 0; t < n; t++) {
            if (b->route.expert[t] != e) continue;
            fl_same_bits(look.mid + at++ * m.d_ff, b->moe.pair_g + b->route.pair[t] * m.d_ff,
                         m.d_ff, "sweep", "expert_mid");
        }
    assert_int_equal(at, n);
    fl_sweep_close(&s);
    free(look.mid);
    free(look.in);
    free(look.shared);
    fl_unload(&l);
}

/* ---- threads, reading, failures ---- */

static void threads_change_nothing(void **state)
{
    (void)state;
    fl_make m = small_model("clover_moe", 2);
    m.type = FL_TYPE_Q8_0;
    fl_err err = {0};
    text x;
    fl_model *model = NULL;
    float *first = NULL;
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    const fl_clover sw = switches(model);
    make_text(&x, model, true);
    const size_t bytes = (size_t)(x.t.n_rows * m.d_model) * sizeof(float);
    for (int threads = 1; threads <= 4; threads += 3) {
        fl_sweep *s = open_sweep(model, &x, &sw, threads, false);
        run_layers(s, m.n_layer, NULL);
        if (first) assert_memory_equal(fl_sweep_rows(s), first, bytes);
        if (!first) first = memcpy(malloc(bytes), fl_sweep_rows(s), bytes);
        fl_sweep_close(&s);
    }
    free(first);
    fl_model_close(&model);
}

/* Each matrix once, the output not at all, of the embedding the rows that are used. */
static void every_weight_is_read_once(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe", 2);
    fl_err err = {0};
    text x;
    fl_model *model = NULL;
    bool used[320] = {false};
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    const fl_clover sw = switches(model);
    make_text(&x, model, true);
    uint64_t want = 0;
    for (size_t i = 0; i < fl_source_n_tensors(model->src); i++) {
        const fl_tensor *t = fl_source_tensor(model->src, i);
        const bool vector = t->n_dims == 1 || strstr(t->name, "conv1d");
        if (strncmp(t->name, "blk.", 4) == 0 && (!vector || strstr(t->name, "gate_inp_shexp")))
            want += t->bytes;
    }
    for (int i = 0; i < x.t.n_rows; i++) {
        want += used[x.ids[i]] ? 0 : (uint64_t)m.d_model * sizeof(float);
        used[x.ids[i]] = true;
    }
    fl_sweep *s = open_sweep(model, &x, &sw, 1, false);
    seen look = {0};
    const fl_sweep_watch w = {.see = {see, &look}};
    run_layers(s, m.n_layer, &w);
    for (int e = 0; e < m.n_expert; e++) assert_true(look.expert_rows[e] > 0);
    assert_int_equal(fl_sweep_bytes_read(s), want);
    fl_sweep_close(&s);
    fl_model_close(&model);
}

static bool stop_at(void *arg, int64_t done, int64_t total)
{
    assert_true(done <= total);
    return --*(int *)arg > 0;
}

static void failures_are_told(void **state)
{
    (void)state;
    const fl_make m = small_model("clover_moe", 2);
    fl_err err = {0};
    text x;
    fl_model *model = NULL;
    fl_sweep *s = NULL;
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    const fl_clover sw = switches(model);
    make_text(&x, model, true);
    fl_sweep_params p = {.threads = 1, .kv_type = FL_TYPE_F16, .cpu_tier = "none"};
    ASSERT_FAILS(fl_sweep_open(&s, model, &x.t, &sw, &p, &err), FL_E_ARG, "no such tier");
    p.cpu_tier = NULL;
    x.t.n_ctx = 1 << 20;
    ASSERT_FAILS(fl_sweep_open(&s, model, &x.t, &sw, &p, &err), FL_E_ARG, "positions");
    x.t.n_ctx = TOKENS;
    x.ids[3] = 320;
    ASSERT_FAILS(fl_sweep_open(&s, model, &x.t, &sw, &p, &err), FL_E_ARG, "token id 320");
    x.ids[3] = 1;
    int left = 4;
    const fl_sweep_watch w = {.go_on = stop_at, .arg = &left};
    s = open_sweep(model, &x, &sw, 1, false);
    ASSERT_OK(fl_sweep_embed(s, &err));
    ASSERT_FAILS(fl_sweep_layer(s, 0, &w, &err), FL_E_CANCELED, "interrupted");
    fl_sweep_close(&s);
    fl_model_close(&model);
    fl_poison(fl_files.gguf, "blk.1.attn_qkv.weight", 64, 1, 0, NAN);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    s = open_sweep(model, &x, &sw, 1, false);
    ASSERT_OK(fl_sweep_embed(s, &err));
    ASSERT_OK(fl_sweep_layer(s, 0, NULL, &err));
    ASSERT_FAILS(fl_sweep_layer(s, 1, NULL, &err), FL_E_NAN, "layer 1");
    fl_sweep_close(&s);
    fl_model_close(&model);
}

/* A sequence whose token drives the layer to infinity is left out, the other's rows stay what they
 * are; so is one that the caller leaves out. */
static void a_lost_sequence_leaves_the_others_alone(void **state)
{
    (void)state;
    fl_make m = small_model("qwen35moe", 1);
    fl_err err = {0};
    text x = {0};
    fl_model *model = NULL;
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    const fl_clover sw = switches(model);
    make_text(&x, model, false);
    fl_sweep *all = open_sweep(model, &x, &sw, 1, false),
             *some = open_sweep(model, &x, &sw, 1, false);
    seen look = {0};
    const fl_sweep_watch w = {.see = {see, &look}};
    run_layers(all, m.n_layer, NULL);
    fl_sweep_lose(some, 0);
    run_layers(some, m.n_layer, &w);
    assert_true(fl_sweep_is_lost(some, 0));
    assert_false(fl_sweep_is_lost(some, 1));
    assert_int_equal(fl_sweep_n_lost(some), 1);
    assert_int_equal(look.rows[FL_SITE_HEAD_IN], x.t.n_rows - TOKENS);
    const int64_t at = (int64_t)TOKENS * m.d_model;
    fl_same_bits(fl_sweep_rows(some) + at, fl_sweep_rows(all) + at, x.t.n_rows * m.d_model - at,
                 "sweep", "the other sequence");
    fl_sweep_close(&all);
    /* Infinity in the rows of one sequence. */
    ASSERT_OK(fl_sweep_embed(some, &err));
    fl_sweep_close(&some);
    some = open_sweep(model, &x, &sw, 1, false);
    ASSERT_OK(fl_sweep_embed(some, &err));
    fl_sweep_rows(some)[3] = INFINITY;
    ASSERT_OK(fl_sweep_layer(some, 0, NULL, &err));
    assert_true(fl_sweep_is_lost(some, 0));
    assert_int_equal(fl_sweep_n_lost(some), 1);
    fl_sweep_close(&some);
    fl_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_the_engines),
        cmocka_unit_test(every_row_is_shown),
        cmocka_unit_test(shown_rows_are_those_of_the_engine),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(every_weight_is_read_once),
        cmocka_unit_test(failures_are_told),
        cmocka_unit_test(a_lost_sequence_leaves_the_others_alone),
    };
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
