#include <assert.h>
#include <string.h>

#include "runtime/decode/loop.h"

/* Block diffusion. A block starts as masks (after what the prompt gives of it). Each denoise pass
 * predicts all masked rows; those whose confidence reaches the threshold are committed, at least
 * the surest one. Committed rows are never revised, so the unmasked head of the block streams out
 * at once. A full block is run clean, in one pass with the first denoise pass of the next block:
 * clean rows alone move the sequence's state. */

typedef struct block_run {
    fl_generator *g;
    const fl_gen_config *c;
    fl_gen_result *out;
    int size;      /* rows of the block */
    int n_emitted; /* rows given or already handed on */
    bool pending;  /* g->done is a full block that no clean pass has run yet */
    bool over;
} block_run;

static bool is_mask(const block_run *b, int row)
{
    return b->g->block[row] == b->c->clover.mask_id;
}

static bool any_mask(const block_run *b)
{
    for (int i = b->n_emitted; i < b->size; i++)
        if (is_mask(b, i)) return true;
    return false;
}

/* A row that is to be filled: a mask among the given rows is text like any other. */
static bool is_open(const block_run *b, int row) { return row >= b->n_emitted && is_mask(b, row); }

/* Masked rows into target, the pass's rows whose logits predict them into g->rows (row0 = the
 * block's first row in the pass), their positions into g->pos; the count. */
static int list_masked(const block_run *b, int row0, int *target)
{
    int n = 0;
    for (int i = 0; i < b->size; i++) {
        if (!is_open(b, i)) continue;
        target[n] = i;
        b->g->rows[n] = row0 + i - b->c->clover.pred_shift;
        b->g->pos[n] = b->g->engine->state.n + i;
        n++;
    }
    return n;
}

/* A row is final: later passes of the block count it too. */
static void put(block_run *b, int row, int32_t token)
{
    b->g->block[row] = token;
    fl_sampler_count(b->g->sampler, token, b->g->engine->state.n + row);
}

/* As many as the script says, the surest rows. */
static void commit_scripted(block_run *b, const int *target, int n)
{
    const int wanted = fl_routing_scripted(&b->g->engine->routing), most = wanted < n ? wanted : n;
    for (int k = 0; k < most; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (is_mask(b, target[i]) &&
                (best < 0 || b->g->picks[i].confidence > b->g->picks[best].confidence))
                best = i;
        put(b, target[best], b->g->picks[best].token);
    }
    fl_routing_done(&b->g->engine->routing, most);
}

/* Writes what reaches the threshold; if nothing does, the surest row, the lowest on ties. The bias
 * by length may want the same end at many rows: only the leftmost one is written, and the bias is
 * off for the rest of the block. */
static void commit(block_run *b, const int *target, int n)
{
    if (fl_routing_scripted(&b->g->engine->routing) > 0) {
        commit_scripted(b, target, n);
        return;
    }
    int best = 0, committed = 0;
    bool ended = false;
    for (int i = 0; i < n; i++) {
        const fl_pick p = b->g->picks[i];
        if (p.confidence > b->g->picks[best].confidence) best = i;
        if (p.confidence < b->c->clover.threshold || (p.biased && ended)) continue;
        put(b, target[i], p.token);
        b->out->committed_at_threshold++;
        ended |= p.biased;
        committed++;
    }
    if (committed == 0) put(b, target[best], b->g->picks[best].token);
    if (ended || (committed == 0 && b->g->picks[best].biased))
        fl_sampler_soft(b->g->sampler, false);
    fl_routing_done(&b->g->engine->routing, committed > 0 ? committed : 1);
}

/* Hands on the rows that have no mask before them. */
static void emit_head(block_run *b)
{
    while (!b->over && b->n_emitted < b->size && !is_mask(b, b->n_emitted))
        b->over = fl_loop_push(b->g, b->c, b->out, b->g->block[b->n_emitted++]);
}

static fl_status run_pending(block_run *b, fl_err *err)
{
    if (!b->pending) return FL_OK;
    b->pending = false;
    b->out->clean_passes++;
    if (b->c->clover.commit_mode == FL_COMMIT_BLOCK_BIDIR)
        return fl_forward_commit(b->g->engine, b->g->done, b->size, &b->c->clover, err);
    return fl_forward_clean(b->g->engine, b->g->done, b->size, err);
}

/* With shifted prediction the first row is predicted by the last clean row, before any pass. */
static fl_status seed_first_row(block_run *b, fl_err *err)
{
    if (!b->c->clover.pred_shift || !is_open(b, 0)) return FL_OK;
    FL_TRY(run_pending(b, err));
    b->g->rows[0] = -1;
    b->g->pos[0] = b->g->engine->state.n;
    FL_TRY(fl_loop_pick(b->g, NULL, 1, err));
    const fl_pick p = b->g->picks[0];
    put(b, 0, p.token);
    if (p.biased) fl_sampler_soft(b->g->sampler, false);
    emit_head(b);
    return FL_OK;
}

/* One pass over the block; *row0 gets the pass's row where the block begins. */
static fl_status run_pass(block_run *b, int *row0, fl_err *err)
{
    fl_generator *g = b->g;
    *row0 = 0;
    b->out->denoise_passes++;
    if (b->c->separate_commits || b->c->clover.commit_mode == FL_COMMIT_BLOCK_BIDIR)
        FL_TRY(run_pending(b, err));
    if (!b->pending) return fl_forward_denoise(g->engine, g->block, b->size, &b->c->clover, err);
    *row0 = b->size;
    b->pending = false;
    b->out->fused_passes++;
    return fl_forward_fused(g->engine, g->done, b->size, g->block, b->size, &b->c->clover, err);
}

/* Passes until no mask is left or the text is over. */
static fl_status fill_block(block_run *b, fl_err *err)
{
    fl_generator *g = b->g;
    int target[FL_MAX_BLOCK];
    int passes = 0;
    FL_TRY(seed_first_row(b, err));
    for (; !b->over && any_mask(b); passes++) {
        int row0 = 0;
        assert(passes < b->size);
        FL_TRY(run_pass(b, &row0, err));
        const int n = list_masked(b, row0, target);
        FL_TRY(fl_loop_pick(g, NULL, n, err));
        commit(b, target, n);
        emit_head(b);
        b->over = b->over || !fl_loop_between(g, b->c, b->out);
    }
    if (passes > b->out->max_passes) b->out->max_passes = passes;
    return FL_OK;
}

fl_status fl_loop_block(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                        int64_t n_prompt, fl_gen_result *out, fl_err *err)
{
    fl_engine *e = g->engine;
    block_run b = {.g = g, .c = c, .out = out, .size = c->clover.block_size};
    int64_t start = fl_loop_start(c, FL_GEN_BLOCK, n_prompt);
    int n_given = (int)(n_prompt - start);
    while (!b.over && start + b.size <= e->params.n_ctx) {
        for (int i = 0; i < b.size; i++)
            g->block[i] = i < n_given ? prompt[start + i] : c->clover.mask_id;
        b.n_emitted = n_given;
        out->blocks++;
        fl_sampler_soft(g->sampler, true);
        FL_TRY(fill_block(&b, err));
        memcpy(g->done, g->block, (size_t)b.size * sizeof(*g->done));
        b.pending = true;
        n_given = 0;
        start += b.size;
    }
    /* A block behind which none follows stays uncommitted: the state at its start is what a next
     * turn needs. */
    if (!b.over) out->finish = FL_FINISH_CONTEXT;
    return FL_OK;
}
