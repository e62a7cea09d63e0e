#include "runtime/decode/generate.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/decode/loop.h"

const char *fl_finish_name(fl_finish f)
{
    switch (f) {
    case FL_FINISH_STOP: return "stop";
    case FL_FINISH_STOP_STRING: return "stop_string";
    case FL_FINISH_LENGTH: return "length";
    case FL_FINISH_CONTEXT: return "context";
    case FL_FINISH_CANCELED: return "canceled";
    case FL_FINISH_REPEAT: return "repeat";
    }
    return "?";
}

const char *fl_finish_openai(fl_finish f)
{
    return f == FL_FINISH_STOP || f == FL_FINISH_STOP_STRING ? "stop" : "length";
}

void fl_gen_config_init(fl_gen_config *c, const fl_model *model)
{
    *c = (fl_gen_config){.max_tokens = -1,
                         .repeat_stop = true,
                         .draft_min = 0.5f,
                         .draft_passes = 1,
                         .facts = fl_mode_facts_none(),
                         .clover = model->index->clover};
    fl_defaults_read(&c->sampler, c->from, model);
}

/* ---- the generator ---- */

/* Ids that are never picked: the mask, padding that is no stop id, unused and unnamed ids. */
static void ban_ids(fl_sampler *s, const fl_model *model)
{
    const fl_hparams *hp = &model->index->hp;
    const fl_tokenizer *t = model->tokenizer;
    fl_sampler_ban(s, model->index->clover.mask_id);
    bool pad_stops = false;
    for (int i = 0; i < hp->n_stop_ids; i++) pad_stops |= hp->stop_ids[i] == hp->pad_id;
    if (!pad_stops) fl_sampler_ban(s, hp->pad_id);
    if (!t) return;
    for (int32_t id = 0; id < hp->n_vocab; id++)
        if (id >= fl_tokenizer_size(t) || fl_tokenizer_kind(t, id) == FL_TOKEN_UNUSED)
            fl_sampler_ban(s, id);
}

fl_status fl_generator_create(fl_generator **out, fl_engine *engine, fl_err *err)
{
    fl_status st = FL_OK;
    const size_t block = (size_t)engine->params.block_size;
    fl_generator *g = calloc(1, sizeof(*g));
    if (!g) return FL_FAIL(err, FL_E_NOMEM, 0, "generator: out of memory");
    g->engine = engine;
    g->ids = malloc((size_t)engine->params.n_ctx * sizeof(*g->ids));
    g->block = malloc(block * sizeof(*g->block));
    g->done = malloc(block * sizeof(*g->done));
    g->rows = malloc(block * sizeof(*g->rows));
    g->pos = malloc(block * sizeof(*g->pos));
    g->picks = malloc(block * sizeof(*g->picks));
    if (!g->ids || !g->block || !g->done || !g->rows || !g->pos || !g->picks)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "generator: out of memory"));
    FL_GO(fl_ladder_create(&g->ladder, engine->state.gdn_bytes, engine->params.state_budget,
                           engine->params.n_ctx, err));
    g->copies = malloc(((size_t)g->ladder->n_max + 1) * sizeof(*g->copies));
    if (!g->copies) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "generator: out of memory"));
    FL_GO(fl_sampler_create(&g->sampler, &engine->exec.k, engine->model->index->hp.n_vocab,
                            fl_pool_threads(engine->exec.pool), err));
    FL_GO(fl_sampler_reserve_rows(g->sampler, (int)block, err));
    ban_ids(g->sampler, engine->model);
    *out = g;
    return FL_OK;
out:
    fl_generator_destroy(&g);
    return st;
}

void fl_generator_destroy(fl_generator **gen)
{
    fl_generator *g = *gen;
    if (!g) return;
    fl_sampler_destroy(&g->sampler);
    fl_ladder_destroy(&g->ladder);
    free(g->copies);
    free(g->ids);
    free(g->block);
    free(g->done);
    free(g->rows);
    free(g->pos);
    free(g->picks);
    free(g);
    *gen = NULL;
}

void fl_generator_checkpoints(const fl_generator *g, int *n, int *most, uint64_t *bytes)
{
    *n = g->ladder->n;
    *most = g->ladder->n_max;
    *bytes = g->ladder->copy_bytes;
}

/* ---- one generation ---- */

static fl_status check_block(const fl_gen_config *c, const fl_engine *e, fl_err *err)
{
    if (!c->clover.has_blocks || c->clover.mask_id < 0)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--mode block: this model (%s) knows no mask token; use --mode ar or spec",
                       e->model->index->hp.arch);
    if (c->clover.mask_id >= e->model->index->hp.n_vocab)
        return FL_FAIL(err, FL_E_FORMAT, 0, "mask token id %d is outside the vocabulary of %lld",
                       c->clover.mask_id, (long long)e->model->index->hp.n_vocab);
    if (c->clover.block_size < 1 || c->clover.block_size > e->params.block_size)
        return FL_FAIL(err, FL_E_ARG, 0, "block size %d: expected 1 to %d", c->clover.block_size,
                       e->params.block_size);
    if (!(c->clover.threshold > 0.0f && c->clover.threshold <= 1.0f))
        return FL_FAIL(err, FL_E_ARG, 0, "--threshold %g: expected a value above 0, at most 1",
                       (double)c->clover.threshold);
    return FL_OK;
}

static fl_choice choose(const fl_gen_config *c, const fl_engine *e)
{
    return fl_gen_choose(c->mode, &c->clover, &c->facts, e->params.held_rows > 1);
}

/* Room for one token behind the prompt; in block mode for the block that holds it. */
static fl_status check_room(const fl_gen_config *c, const fl_engine *e, fl_gen_mode mode,
                            int64_t n_prompt, fl_err *err)
{
    const int64_t n_ctx = e->params.n_ctx, most = fl_engine_max_context(&e->model->index->hp);
    int64_t end = n_prompt + 1;
    char what[48] = "an answer", advice[64] = "raise --ctx or shorten the prompt";
    if (mode == FL_GEN_BLOCK) {
        end = fl_loop_start(c, mode, n_prompt) + c->clover.block_size;
        snprintf(what, sizeof(what), "a block of %d", c->clover.block_size);
    }
    if (end <= n_ctx) return FL_OK;
    if (end > most)
        snprintf(advice, sizeof(advice), "this model takes at most %lld tokens", (long long)most);
    return FL_FAIL(err, FL_E_ARG, 0,
                   "the prompt has %lld tokens and the context %lld: no room for %s; %s",
                   (long long)n_prompt, (long long)n_ctx, what, advice);
}

/* A row that another drafted token moved would be accepted at a wrong rate. */
static fl_status check_ratio(const fl_gen_config *c, fl_err *err)
{
    if (!c->draft_ratio || (c->draft_passes == 1 && c->clover.has_blocks)) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0,
                   "draft_ratio wants drafts of one pass over masks; found %d passes%s",
                   c->draft_passes, c->clover.has_blocks ? "" : " on a model without masks");
}

fl_status fl_gen_check_mode(const fl_gen_config *c, const fl_engine *e, fl_err *err)
{
    return choose(c, e).mode == FL_GEN_BLOCK ? check_block(c, e, err) : FL_OK;
}

fl_status fl_gen_check(const fl_gen_config *c, const fl_engine *e, int64_t n_prompt, fl_err *err)
{
    const fl_gen_mode mode = choose(c, e).mode;
    if (n_prompt < 1) return FL_FAIL(err, FL_E_ARG, 0, "the prompt is empty");
    FL_TRY(fl_gen_check_mode(c, e, err));
    if (mode == FL_GEN_SPEC && e->params.held_rows < 2)
        return FL_FAIL(err, FL_E_ARG, 0, "speculation needs an engine opened with held_rows");
    if (mode == FL_GEN_SPEC) FL_TRY(check_ratio(c, err));
    FL_TRY(fl_defaults_check(&c->sampler, c->from, e->model, err));
    FL_TRY(fl_sampler_check(&c->sampler, e->model->index->hp.n_vocab, err));
    FL_TRY(fl_emitter_check(c, err));
    FL_TRY(fl_roles_check(&c->roles, n_prompt, err));
    return c->max_tokens == 0 ? FL_OK : check_room(c, e, mode, n_prompt, err);
}

bool fl_loop_push(fl_generator *g, const fl_gen_config *c, fl_gen_result *out, int32_t id)
{
    g->ids[out->n_generated++] = id;
    const fl_guard_event circle = c->repeat_stop ? fl_guard_push(&g->guard, id) : FL_GUARD_GO;
    /* A second closing tag is no text. */
    const fl_emit_event ev = circle == FL_GUARD_TAG ? FL_EMIT_GO : fl_emitter_push(&g->emitter, id);
    if (g->emitter.any_text && out->first_text_s == 0.0)
        out->first_text_s = (double)(fl_clock_ns() - g->start_ns) * 1e-9;
    if (ev == FL_EMIT_STOP_ID) {
        out->finish = FL_FINISH_STOP;
        out->stop_id = id;
    } else if (ev == FL_EMIT_STOP_STRING) {
        out->finish = FL_FINISH_STOP_STRING;
    } else if (ev == FL_EMIT_CANCELED) {
        out->finish = FL_FINISH_CANCELED;
    } else if (circle != FL_GUARD_GO) {
        out->finish = FL_FINISH_REPEAT;
        out->period = g->guard.period;
    } else if (c->max_tokens >= 0 && out->n_generated >= c->max_tokens) {
        out->finish = FL_FINISH_LENGTH;
    } else {
        return false;
    }
    return true;
}

typedef struct part_reader {
    const fl_sampler *s;
    fl_sampler_rows rows;
} part_reader;

static void read_part(void *arg, int row, int64_t first, int64_t n, const float *logits, int worker)
{
    const part_reader *r = arg;
    fl_sampler_part(r->s, &r->rows, row, first, n, logits, worker);
}

fl_status fl_loop_pick(fl_generator *g, const int32_t *ahead, int n, fl_err *err)
{
    fl_engine *e = g->engine;
    const float *logits = NULL;
    _Static_assert(FL_SAMPLER_PART == (int)FL_HEAD_PART, "the head's parts are the sampler's");
    if (fl_sampler_by_parts(g->sampler)) {
        part_reader r = {g->sampler, {g->pos, ahead, n}};
        FL_TRY(fl_forward_head(e, g->rows, n, &(fl_head_reader){read_part, &r}, err));
        fl_sampler_join(g->sampler, &r.rows, g->picks);
        return FL_OK;
    }
    FL_TRY(fl_forward_logits(e, g->rows, n, &logits, err));
    fl_sampler_pick_rows(g->sampler, e->exec.pool, logits, g->pos, ahead, n, g->picks);
    return FL_OK;
}

fl_status fl_loop_next(fl_generator *g, int32_t *token, fl_err *err)
{
    g->rows[0] = -1;
    g->pos[0] = g->engine->state.n;
    FL_TRY(fl_loop_pick(g, NULL, 1, err));
    *token = g->picks[0].token;
    return FL_OK;
}

fl_status fl_loop_ar(fl_generator *g, const fl_gen_config *c, fl_gen_result *out, fl_err *err)
{
    fl_engine *e = g->engine;
    for (;;) {
        int32_t token = 0;
        FL_TRY(fl_loop_next(g, &token, err));
        fl_sampler_count(g->sampler, token, e->state.n);
        if (fl_loop_push(g, c, out, token)) return FL_OK;
        if (e->state.n + 1 >= e->params.n_ctx) break;
        FL_TRY(fl_forward_clean(e, &token, 1, err));
        out->clean_passes++;
        if (!fl_loop_between(g, c, out)) return FL_OK;
    }
    out->finish = FL_FINISH_CONTEXT;
    return FL_OK;
}

static fl_status run_loop(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                          int64_t n_prompt, fl_gen_result *out, fl_err *err)
{
    switch (out->choice.mode) {
    case FL_GEN_BLOCK: return fl_loop_block(g, c, prompt, n_prompt, out, err);
    case FL_GEN_SPEC: return fl_loop_spec(g, c, prompt, n_prompt, out, err);
    default: return fl_loop_ar(g, c, out, err);
    }
}

/* What looks at the text as it grows: the guard and the biases by length. */
static void start_text(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                       int64_t n_prompt)
{
    const fl_tokenizer *t = g->engine->model->tokenizer;
    const fl_soft_ids ids = {.open = t ? fl_tokenizer_special(t, "<think>") : -1,
                             .close = t ? fl_tokenizer_special(t, "</think>") : -1,
                             .end = c->ignore_eos ? -1 : g->engine->model->index->hp.eos_id};
    fl_guard_start(&g->guard, ids.open, ids.close);
    fl_sampler_begin(g->sampler, ids, prompt, n_prompt);
}

fl_status fl_generate(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                      int64_t n_prompt, fl_gen_result *out, fl_err *err)
{
    bool go = true;
    *out = (fl_gen_result){.n_prompt = n_prompt, .ids = g->ids, .stop_id = -1};
    g->start_ns = fl_clock_ns();
    out->choice = choose(c, g->engine);
    FL_TRY(fl_gen_check(c, g->engine, n_prompt, err));
    FL_TRY(fl_sampler_configure(g->sampler, &c->sampler, err));
    fl_emitter_init(&g->emitter, c, g->engine->model);
    start_text(g, c, prompt, n_prompt);
    if (c->max_tokens == 0) {
        out->finish = FL_FINISH_LENGTH;
        return FL_OK;
    }
    FL_TRY(fl_engine_check_files(g->engine, err));
    FL_TRY(fl_loop_prefill(g, c, prompt, n_prompt, &go, out, err));
    if (!go) return FL_OK;
    FL_TRY(run_loop(g, c, prompt, n_prompt, out, err));
    if (out->finish != FL_FINISH_STOP_STRING) fl_emitter_flush(&g->emitter);
    out->decode_s = (double)(fl_clock_ns() - g->start_ns) * 1e-9 - out->prefill_s;
    return FL_OK;
}
