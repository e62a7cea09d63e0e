#include <assert.h>

#include "runtime/decode/loop.h"

/* From any earlier sequence to the place where the answer starts: back to what both share, then the
 * rest of the prompt in chunks, leaving rungs. Bits do not depend on where chunks end, so a prefix
 * that was kept gives the text of one that was read. */

int64_t fl_loop_start(const fl_gen_config *c, fl_gen_mode mode, int64_t n_prompt)
{
    const bool aligned = mode == FL_GEN_BLOCK && c->clover.block_align == FL_ALIGN_ABSOLUTE;
    return aligned ? n_prompt - n_prompt % c->clover.block_size : n_prompt;
}

void fl_loop_go_back(fl_generator *g, const int32_t *prompt, int64_t end)
{
    fl_state *st = &g->engine->state;
    if (g->resets != st->resets) fl_ladder_drop(g->ladder, 0); /* rungs of another sequence */
    int64_t same = 0;
    while (same < st->n_causal && same < end && prompt[same] == st->ids[same]) same++;
    const fl_rung *r = fl_ladder_find(g->ladder, same);
    if (same == st->n && !st->broken) {
        /* All of it is the prompt's. */
    } else if (r) {
        fl_state_restore(st, &r->copy);
    } else {
        fl_state_reset(st);
    }
    fl_ladder_drop(g->ladder, st->n);
    g->resets = st->resets;
}

static void put_rung(fl_generator *g, int64_t at, unsigned kind)
{
    fl_state_copy *copy = fl_ladder_put(g->ladder, at, kind);
    if (copy && at == g->engine->state.n) fl_state_save(&g->engine->state, copy);
}

/* A fill wherever a full step lies between the highest rung and `to`. */
static void fill_up(fl_generator *g, int64_t to)
{
    for (;;) {
        int64_t at = fl_ladder_top(g->ladder) + FL_LADDER_STEP;
        if (at < g->engine->state.n) at = g->engine->state.n;
        if (at > to || g->ladder->n_max == 0) return;
        put_rung(g, at, FL_RUNG_FILL);
    }
}

/* The start of message i, and in block mode the block in which it lies: a short prompt that ends in
 * that block begins its answer there. */
static void put_message(fl_generator *g, const fl_gen_config *c, fl_gen_mode mode, int64_t i)
{
    const int64_t at = c->roles.start[i], block = fl_loop_start(c, mode, at);
    const bool head = c->roles.has_head && i == 1;
    if (block >= g->engine->state.n && block > fl_ladder_top(g->ladder))
        put_rung(g, block, FL_RUNG_FILL);
    put_rung(g, at, FL_RUNG_MESSAGE | (head ? FL_RUNG_HEAD : 0));
}

/* Rungs from the present state to `to`, `end` being where the answer starts; *next is the first
 * message that has none yet. Those above the state wait for the pass that reaches them. */
static void put_rungs(fl_generator *g, const fl_gen_config *c, fl_gen_mode mode, int64_t to,
                      int64_t end, int64_t *next)
{
    for (; *next < c->roles.n && c->roles.start[*next] <= to; ++*next) {
        const int64_t at = c->roles.start[*next];
        if (at == 0 || at < g->engine->state.n) continue;
        fill_up(g, at - 1);
        put_message(g, c, mode, *next);
    }
    fill_up(g, to);
    if (to == end && end > 0) put_rung(g, end, FL_RUNG_ANSWER);
}

/* One pass, which fills the rungs that wait for it. */
static fl_status read_chunk(fl_generator *g, const int32_t *ids, int64_t n, fl_err *err)
{
    const fl_state *st = &g->engine->state;
    const fl_ladder *l = g->ladder;
    const int64_t from = st->n;
    int first = l->n, n_copies = 0;
    while (first > 0 && l->rung[first - 1].copy.n > from) first--;
    for (int i = first; i < l->n; i++) g->copies[n_copies++] = l->rung[i].copy;
    const fl_status result = fl_forward_copying(g->engine, ids, n, g->copies, n_copies, err);
    if (result != FL_OK) fl_ladder_drop(g->ladder, from);
    return result;
}

fl_status fl_loop_prefill(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                          int64_t n_prompt, bool *go, fl_gen_result *out, fl_err *err)
{
    const fl_engine *e = g->engine;
    const uint64_t t0 = fl_clock_ns();
    const int64_t end = fl_loop_start(c, out->choice.mode, n_prompt);
    int64_t next = 0;
    fl_loop_go_back(g, prompt, end);
    out->n_reused = e->state.n;
    *go = true;
    for (;;) {
        const int64_t left = end - e->state.n;
        const int64_t rows = left < e->params.chunk ? left : e->params.chunk;
        if (!fl_loop_go(c, out, e->state.n - out->n_reused, end - out->n_reused)) {
            *go = false;
            break;
        }
        put_rungs(g, c, out->choice.mode, e->state.n + rows, end, &next);
        if (left == 0) break;
        FL_TRY(read_chunk(g, prompt + e->state.n, rows, err));
        out->prefill_passes++;
    }
    out->prefill_s = (double)(fl_clock_ns() - t0) * 1e-9;
    return FL_OK;
}

bool fl_loop_go(const fl_gen_config *c, fl_gen_result *out, int64_t done, int64_t total)
{
    if (!c->on_progress || c->on_progress(c->arg, done, total)) return true;
    out->finish = FL_FINISH_CANCELED;
    return false;
}

bool fl_loop_between(fl_generator *g, const fl_gen_config *c, fl_gen_result *out)
{
    const fl_state *st = &g->engine->state;
    if (st->n_causal == st->n) fill_up(g, st->n); /* else nobody could go back there */
    return fl_loop_go(c, out, out->n_prompt - out->n_reused, out->n_prompt - out->n_reused);
}
