#include "runtime/decode/loop.h"

/* Lossless speculation. A round drafts a few tokens behind the last one, runs them all in one held
 * pass, and keeps the longest beginning that equals what AR picks from the same rows, plus AR's
 * own next token. Drafts come from one pass over masks where the model knows masks, else from the
 * last place in the text where the same tokens stood. The sampler's noise is keyed by position,
 * so a sampled draft and its check use the same noise, and the text is AR's whatever the draft. */

enum {
    NGRAM = 3,        /* tokens that must repeat */
    NGRAM_DRAFT = 8,  /* tokens taken from behind the earlier place */
    SLOW_ROUNDS = 64, /* rounds below AR's speed before AR takes over ... */
    REST_TOKENS = 64, /* ... for so many tokens */
    PROBE_TOKENS = 2  /* AR steps at the start, to know AR's speed */
};

typedef struct spec_run {
    fl_generator *g;
    const fl_gen_config *c;
    fl_gen_result *out;
    const int32_t *prompt;
    int64_t n_prompt;
    int32_t pending; /* picked and handed on, not yet run */
    /* Moving averages of nanoseconds per token; 0 = not measured. */
    double ar_ns, spec_ns;
    int slow, rest;
} spec_run;

static void average(double *mean, double value)
{
    *mean = *mean == 0.0 ? value : *mean + 0.1 * (value - *mean);
}

/* Token i of the text so far; the last one is the pending token. */
static int32_t text_at(const spec_run *r, int64_t i)
{
    return i < r->n_prompt ? r->prompt[i] : r->g->ids[i - r->n_prompt];
}

/* Fills x[1 ..) with what followed the latest earlier occurrence of the last NGRAM tokens. */
static int draft_from_text(const spec_run *r, int32_t *x, int max)
{
    const int64_t n = r->n_prompt + r->out->n_generated;
    if (max > NGRAM_DRAFT + 1) max = NGRAM_DRAFT + 1;
    for (int64_t at = n - 1; at >= NGRAM; at--) {
        int same = 0;
        while (same < NGRAM && text_at(r, at - 1 - same) == text_at(r, n - 1 - same)) same++;
        if (same < NGRAM) continue;
        int k = 1;
        for (; k < max && at + k - 1 < n; k++) x[k] = text_at(r, at + k - 1);
        return k;
    }
    return 1;
}

/* Fills x[1 .. max) by one pass over masks, up to the first token that is not sure enough; one at
 * least. */
static fl_status draft_from_masks(const spec_run *r, int32_t *x, int max, int *n_x, fl_err *err)
{
    fl_generator *g = r->g;
    const fl_clover *sw = &r->c->clover;
    const float *logits = NULL;
    for (int i = 1; i < max; i++) {
        x[i] = sw->mask_id;
        g->rows[i - 1] = i - sw->pred_shift;
        g->pos[i - 1] = g->engine->state.n + i;
    }
    *n_x = 1;
    if (max < 2) return FL_OK;
    FL_TRY(fl_forward_denoise(g->engine, x, max, sw, err));
    FL_TRY(fl_forward_logits(g->engine, g->rows, max - 1, &logits, err));
    fl_sampler_pick_rows(g->sampler, g->engine->exec.pool, logits, g->pos, NULL, max - 1, g->picks);
    r->out->denoise_passes++;
    for (int i = 1; i < max; i++) {
        if (i > 1 && g->picks[i - 1].confidence < r->c->draft_min) break;
        x[(*n_x)++] = g->picks[i - 1].token;
    }
    return FL_OK;
}

static fl_status draft(const spec_run *r, int32_t *x, int *n_x, fl_err *err)
{
    const fl_engine *e = r->g->engine;
    /* The token behind the last row needs a place in the context too. */
    const int64_t room = e->params.n_ctx - 1 - e->state.n;
    const int max = room < e->params.held_rows ? (int)room : e->params.held_rows;
    x[0] = r->pending;
    if (r->c->clover.has_blocks) return draft_from_masks(r, x, max, n_x, err);
    *n_x = draft_from_text(r, x, max);
    return FL_OK;
}

/* Hands on a picked token and makes it the pending one. True when the text is over. */
static bool push(spec_run *r, int32_t token)
{
    r->pending = token;
    fl_sampler_count(r->g->sampler, token);
    return fl_loop_push(r->g, r->c, r->out, token);
}

/* Runs x, keeps the right beginning and takes the next token from its last row. */
static fl_status verify(spec_run *r, const int32_t *x, int n, bool *over, fl_err *err)
{
    fl_generator *g = r->g;
    const float *logits = NULL;
    for (int i = 0; i < n; i++) {
        g->rows[i] = i;
        g->pos[i] = g->engine->state.n + i + 1;
    }
    FL_TRY(fl_forward_held(g->engine, x, n, err));
    FL_TRY(fl_forward_logits(g->engine, g->rows, n, &logits, err));
    fl_sampler_pick_rows(g->sampler, g->engine->exec.pool, logits, g->pos, x + 1, n, g->picks);
    r->out->held_passes++;
    r->out->drafted += n - 1;
    /* Row m - 1 is the last one whose tokens are all AR's; a token that ends the text is not
     * run, as in AR. */
    int m = 1;
    *over = push(r, g->picks[0].token);
    while (!*over && m < n && x[m] == g->picks[m - 1].token) {
        *over = push(r, g->picks[m].token);
        m++;
    }
    r->out->accepted += m - 1;
    fl_forward_promote(g->engine, m);
    return FL_OK;
}

static fl_status step(spec_run *r, bool *over, fl_err *err)
{
    const uint64_t t0 = fl_clock_ns();
    int32_t token = 0;
    FL_TRY(fl_forward_clean(r->g->engine, &r->pending, 1, err));
    FL_TRY(fl_loop_next(r->g, &token, err));
    r->out->clean_passes++;
    average(&r->ar_ns, (double)(fl_clock_ns() - t0));
    *over = push(r, token);
    return FL_OK;
}

/* A round that costs more per token than AR counts; enough of them in a row give AR a turn. */
static void keep_pace(spec_run *r, uint64_t ns, int64_t tokens)
{
    average(&r->spec_ns, (double)ns / (double)tokens);
    r->slow = r->spec_ns > r->ar_ns ? r->slow + 1 : 0;
    if (r->slow < SLOW_ROUNDS) return;
    r->rest = REST_TOKENS;
    r->slow = 0;
    r->spec_ns = 0.0;
}

static fl_status round_or_step(spec_run *r, bool *over, fl_err *err)
{
    int32_t *x = r->g->block;
    const uint64_t t0 = fl_clock_ns();
    const int64_t before = r->out->n_generated;
    int n = 1;
    if (r->rest > 0) {
        r->rest--;
        return step(r, over, err);
    }
    FL_TRY(draft(r, x, &n, err));
    if (n < 2) return step(r, over, err);
    FL_TRY(verify(r, x, n, over, err));
    keep_pace(r, fl_clock_ns() - t0, r->out->n_generated - before);
    return FL_OK;
}

fl_status fl_loop_spec(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                       int64_t n_prompt, fl_gen_result *out, fl_err *err)
{
    spec_run r = {.g = g, .c = c, .out = out, .prompt = prompt, .n_prompt = n_prompt};
    int32_t first = 0;
    r.rest = PROBE_TOKENS;
    FL_TRY(fl_loop_prefill(g, prompt, n_prompt, out, err));
    FL_TRY(fl_loop_next(g, &first, err));
    for (bool over = push(&r, first); !over;) {
        if (g->engine->state.n + 1 >= g->engine->params.n_ctx) {
            out->finish = FL_FINISH_CONTEXT;
            break;
        }
        FL_TRY(round_or_step(&r, &over, err));
    }
    return FL_OK;
}
