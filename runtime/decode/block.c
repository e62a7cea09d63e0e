#include <assert.h>
#include <string.h>

#include "runtime/decode/loop.h"

/* Block diffusion. A block starts as masks (after what the prompt gives of it). Each denoise pass
 * predicts all masked rows; those whose confidence reaches the threshold are committed, at least
 * the surest one. Committed rows are never revised, so the unmasked head of the block streams out
 * at once. A full block is run clean: that pass alone moves the sequence's state. */

typedef struct block_run {
    fl_generator *g;
    const fl_gen_config *c;
    fl_gen_result *out;
    int size;      /* rows of the block */
    int n_given;   /* leading rows from the prompt */
    int n_emitted; /* rows given or already handed on */
    bool over;
} block_run;

static bool is_mask(const block_run *b, int row)
{
    return b->g->block[row] == b->c->clover.mask_id;
}

/* Masked rows into g->rows (the row whose logits predict each) and g->pos; the count. */
static int list_masked(const block_run *b, int *target)
{
    int n = 0;
    for (int i = 0; i < b->size; i++) {
        if (!is_mask(b, i)) continue;
        target[n] = i;
        b->g->rows[n] = i - b->c->clover.pred_shift;
        b->g->pos[n] = b->g->engine->state.n + i;
        n++;
    }
    return n;
}

/* Writes what reaches the threshold; if nothing does, the surest row, the lowest on ties. */
static void commit(block_run *b, const int *target, int n)
{
    int best = 0;
    bool any = false;
    for (int i = 0; i < n; i++) {
        const fl_pick p = b->g->picks[i];
        if (p.confidence > b->g->picks[best].confidence) best = i;
        if (p.confidence < b->c->clover.threshold) continue;
        b->g->block[target[i]] = p.token;
        b->out->committed_at_threshold++;
        any = true;
    }
    if (!any) b->g->block[target[best]] = b->g->picks[best].token;
}

/* Hands on the rows that have no mask before them. */
static void emit_head(block_run *b)
{
    while (!b->over && b->n_emitted < b->size && !is_mask(b, b->n_emitted))
        b->over = fl_loop_push(b->g, b->c, b->out, b->g->block[b->n_emitted++]);
}

/* With shifted prediction the first row is predicted by the last clean row, before any pass. */
static fl_status seed_first_row(block_run *b, fl_err *err)
{
    fl_engine *e = b->g->engine;
    const int h_last = -1;
    const float *logits = NULL;
    if (!b->c->clover.pred_shift || !is_mask(b, 0)) return FL_OK;
    FL_TRY(fl_forward_logits(e, &h_last, 1, &logits, err));
    b->g->block[0] = fl_sampler_pick(b->g->sampler, logits, e->state.n, 0).token;
    emit_head(b);
    return FL_OK;
}

/* Passes until no mask is left or the text is over. */
static fl_status fill_block(block_run *b, fl_err *err)
{
    fl_generator *g = b->g;
    fl_engine *e = g->engine;
    const fl_clover *sw = &b->c->clover;
    int target[256];
    int passes = 0;
    assert(b->size <= (int)(sizeof(target) / sizeof(target[0])));
    FL_TRY(seed_first_row(b, err));
    for (int n; !b->over && (n = list_masked(b, target)) > 0; passes++) {
        const float *logits = NULL;
        assert(passes < b->size);
        FL_TRY(fl_forward_denoise(e, g->block, b->size, sw->gdn_block_mode, b->n_emitted, err));
        FL_TRY(fl_forward_logits(e, g->rows, n, &logits, err));
        fl_sampler_pick_rows(g->sampler, e->exec.pool, logits, g->pos, n, g->picks);
        commit(b, target, n);
        b->out->denoise_passes++;
        emit_head(b);
    }
    if (passes > b->out->max_passes) b->out->max_passes = passes;
    return FL_OK;
}

static fl_status check_room(const fl_generator *g, int64_t start, int64_t n_prompt, int size,
                            fl_err *err)
{
    if (start + size <= g->engine->params.n_ctx) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0,
                   "the prompt has %lld tokens and the context %lld: no room for a block of %d; "
                   "raise --ctx or shorten the prompt",
                   (long long)n_prompt, (long long)g->engine->params.n_ctx, size);
}

fl_status fl_loop_block(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                        int64_t n_prompt, fl_gen_result *out, fl_err *err)
{
    fl_engine *e = g->engine;
    block_run b = {.g = g, .c = c, .out = out, .size = c->clover.block_size};
    int64_t start = n_prompt;
    if (c->clover.block_align == FL_ALIGN_ABSOLUTE) start -= n_prompt % b.size;
    FL_TRY(check_room(g, start, n_prompt, b.size, err));
    FL_TRY(fl_loop_prefill(g, prompt, start, out, err));

    b.n_given = (int)(n_prompt - start);
    while (!b.over && e->state.n + b.size <= e->params.n_ctx) {
        memcpy(g->block, prompt + start, (size_t)b.n_given * sizeof(*g->block));
        for (int i = b.n_given; i < b.size; i++) g->block[i] = c->clover.mask_id;
        b.n_emitted = b.n_given;
        out->blocks++;
        FL_TRY(fill_block(&b, err));
        /* No later block, no commit: the state at the block's start is what a next turn needs. */
        if (b.over || e->state.n + 2 * b.size > e->params.n_ctx) break;
        FL_TRY(fl_forward_clean(e, g->block, b.size, err));
        out->clean_passes++;
        b.n_given = 0;
    }
    if (!b.over) out->finish = FL_FINISH_CONTEXT;
    return FL_OK;
}
