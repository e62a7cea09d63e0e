#include "runtime/decode/draft.h"
#include "runtime/decode/pace.h"

/* Lossless speculation. A round drafts a few tokens behind the last one, runs them all in one held
 * pass, and keeps the longest beginning that equals what AR picks from the same rows, plus AR's
 * own next token. The sampler's noise is keyed by position, so a sampled draft and its check use
 * the same noise, and the text is AR's whatever the draft; so AR may also take turns. */

typedef struct spec_run {
    fl_draft_view view;
    const fl_draft_source *source;
    fl_pace pace;
    int32_t pending; /* picked and handed on, not yet run */
} spec_run;

static fl_status draft(const spec_run *r, int32_t *x, int *n_x, fl_err *err)
{
    const fl_engine *e = r->view.g->engine;
    /* The token behind the last row needs a place in the context too. */
    const int64_t room = e->params.n_ctx - 1 - e->state.n;
    const int max = room < e->params.held_rows ? (int)room : e->params.held_rows;
    x[0] = r->pending;
    *n_x = 1;
    return max < 2 ? FL_OK : r->source->draft(&r->view, x, max, n_x, err);
}

/* Hands on a picked token and makes it the pending one. True when the text is over. */
static bool push(spec_run *r, int32_t token)
{
    r->pending = token;
    fl_sampler_count(r->view.g->sampler, token, r->view.n_prompt + r->view.out->n_generated);
    return fl_loop_push(r->view.g, r->view.c, r->view.out, token);
}

/* Runs x, keeps the right beginning and takes the next token from its last row. */
static fl_status verify(spec_run *r, const int32_t *x, int n, bool *over, fl_err *err)
{
    fl_generator *g = r->view.g;
    fl_gen_result *out = r->view.out;
    const float *logits = NULL;
    for (int i = 0; i < n; i++) {
        g->rows[i] = i;
        g->pos[i] = g->engine->state.n + i + 1;
    }
    FL_TRY(fl_forward_held(g->engine, x, n, err));
    if (fl_drafts_by_ratio(r->view.c)) {
        FL_TRY(fl_forward_logits(g->engine, g->rows, n, &logits, err));
        fl_sampler_check_drafts(g->sampler, g->engine->exec.pool, logits, g->pos, x + 1, n,
                                g->picks);
    } else {
        FL_TRY(fl_loop_pick(g, x + 1, n, err));
    }
    out->held_passes++;
    out->drafted += n - 1;
    /* Row m - 1 is the last one whose tokens are all AR's; a token that ends the text is not
     * run, as in AR. */
    int m = 1;
    const int scripted = fl_routing_scripted(&g->engine->routing);
    *over = push(r, g->picks[0].token);
    while (!*over && m < n && (scripted ? m < scripted : x[m] == g->picks[m - 1].token)) {
        *over = push(r, g->picks[m].token);
        m++;
    }
    out->accepted += m - 1;
    fl_routing_done(&g->engine->routing, m);
    fl_forward_promote(g->engine, m);
    return FL_OK;
}

static fl_status step(spec_run *r, bool *over, fl_err *err)
{
    const uint64_t t0 = fl_clock_ns();
    int32_t token = 0;
    FL_TRY(fl_forward_clean(r->view.g->engine, &r->pending, 1, err));
    FL_TRY(fl_loop_next(r->view.g, &token, err));
    r->view.out->clean_passes++;
    fl_pace_step(&r->pace, fl_clock_ns() - t0);
    *over = push(r, token);
    return FL_OK;
}

/* Drafts that are accepted by ratio give another text than AR's steps: there the clock must not
 * have a say. */
static bool may_take_turns(const fl_gen_config *c)
{
    return !c->draft_always && !fl_drafts_by_ratio(c);
}

static fl_status round_or_step(spec_run *r, bool *over, fl_err *err)
{
    int32_t *x = r->view.g->block;
    const uint64_t t0 = fl_clock_ns();
    const int64_t before = r->view.out->n_generated;
    int n = 1;
    if (may_take_turns(r->view.c) && fl_pace_wants_step(&r->pace)) return step(r, over, err);
    FL_TRY(draft(r, x, &n, err));
    if (n < 2) return step(r, over, err);
    FL_TRY(verify(r, x, n, over, err));
    fl_pace_round(&r->pace, fl_clock_ns() - t0, r->view.out->n_generated - before);
    return FL_OK;
}

fl_status fl_loop_spec(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                       int64_t n_prompt, fl_gen_result *out, fl_err *err)
{
    spec_run r = {.view = {g, c, out, prompt, n_prompt}, .source = fl_draft_choose(c, g->engine)};
    int32_t first = 0;
    out->draft_source = r.source->name;
    fl_pace_init(&r.pace);
    if (fl_drafts_by_ratio(c))
        FL_TRY(fl_sampler_reserve_drafts(g->sampler, g->engine->params.held_rows, err));
    FL_TRY(fl_loop_next(g, &first, err));
    for (bool over = push(&r, first); !over;) {
        if (g->engine->state.n + 1 >= g->engine->params.n_ctx) {
            out->finish = FL_FINISH_CONTEXT;
            break;
        }
        FL_TRY(round_or_step(&r, &over, err));
        over = over || !fl_loop_between(g, c, out);
    }
    return FL_OK;
}
