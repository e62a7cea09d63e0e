#include "runtime/decode/draft.h"

#include <string.h>

enum {
    NGRAM = 3,       /* tokens that must repeat */
    NGRAM_DRAFT = 8, /* tokens taken from behind the earlier place */
    MTP_DRAFT = 4    /* steps of the MTP block, which was trained for one */
};

/* ---- from the text so far ---- */

/* Token i of the text so far; the last one is the pending token. */
static int32_t text_at(const fl_draft_view *v, int64_t i)
{
    return i < v->n_prompt ? v->prompt[i] : v->g->ids[i - v->n_prompt];
}

/* What followed the latest earlier occurrence of the last NGRAM tokens. */
static fl_status draft_from_text(const fl_draft_view *v, int32_t *x, int max, int *n_x, fl_err *err)
{
    (void)err;
    const int64_t n = v->n_prompt + v->out->n_generated;
    if (max > NGRAM_DRAFT + 1) max = NGRAM_DRAFT + 1;
    *n_x = 1;
    for (int64_t at = n - 1; at >= NGRAM; at--) {
        int same = 0;
        while (same < NGRAM && text_at(v, at - 1 - same) == text_at(v, n - 1 - same)) same++;
        if (same < NGRAM) continue;
        for (; *n_x < max && at + *n_x - 1 < n; (*n_x)++) x[*n_x] = text_at(v, at + *n_x - 1);
        return FL_OK;
    }
    return FL_OK;
}

/* ---- from masks ---- */

typedef struct mask_draft {
    const fl_draft_view *v;
    int32_t *x;
    int n;                          /* rows, the pending token's included */
    float confidence[FL_MAX_BLOCK]; /* of each filled row */
} mask_draft;

/* Fills rows that are sure enough, at least the surest; with `all` every one. True: none is left.
 */
static bool fill(mask_draft *d, int n_open, bool all)
{
    fl_generator *g = d->v->g;
    const float threshold = d->v->c->clover.threshold;
    const int shift = d->v->c->clover.pred_shift;
    int best = 0, filled = 0;
    for (int i = 1; i < n_open; i++)
        if (g->picks[i].confidence > g->picks[best].confidence) best = i;
    for (int i = 0; i < n_open; i++) {
        if (!all && i != best && g->picks[i].confidence < threshold) continue;
        d->x[g->rows[i] + shift] = g->picks[i].token;
        d->confidence[g->rows[i] + shift] = g->picks[i].confidence;
        filled++;
    }
    return filled == n_open;
}

static void pick_drafts(fl_generator *g, const fl_gen_config *c, const float *logits, int n)
{
    fl_pool *pool = g->engine->exec.pool;
    if (fl_drafts_by_ratio(c)) {
        fl_sampler_draw_drafts(g->sampler, pool, logits, g->pos, n, g->picks);
        return;
    }
    if (c->draft_own_noise) fl_sampler_reseed(g->sampler, ~c->sampler.seed);
    fl_sampler_pick_rows(g->sampler, pool, logits, g->pos, NULL, n, g->picks);
    if (c->draft_own_noise) fl_sampler_reseed(g->sampler, c->sampler.seed);
}

/* One pass over the draft; true when no row is open any more. */
static fl_status mask_pass(mask_draft *d, bool last, bool *full, fl_err *err)
{
    fl_generator *g = d->v->g;
    const fl_gen_config *c = d->v->c;
    const float *logits = NULL;
    int n = 0;
    for (int i = 1; i < d->n; i++) {
        if (d->confidence[i] >= 0.0f) continue;
        g->rows[n] = i - c->clover.pred_shift;
        g->pos[n++] = g->engine->state.n + i;
    }
    FL_TRY(fl_forward_denoise(g->engine, d->x, d->n, &c->clover, err));
    FL_TRY(fl_forward_logits(g->engine, g->rows, n, &logits, err));
    pick_drafts(g, c, logits, n);
    d->v->out->denoise_passes++;
    *full = fill(d, n, last);
    return FL_OK;
}

/* draft_passes passes over masks; the draft ends before the first token that is not sure enough,
 * but has one at least. */
static fl_status draft_from_masks(const fl_draft_view *v, int32_t *x, int max, int *n_x,
                                  fl_err *err)
{
    mask_draft d = {.v = v, .x = x, .n = max};
    bool full = false;
    for (int i = 1; i < max; i++) {
        x[i] = v->c->clover.mask_id;
        d.confidence[i] = -1.0f;
    }
    for (int pass = 1; !full; pass++) FL_TRY(mask_pass(&d, pass >= v->c->draft_passes, &full, err));
    *n_x = 2;
    while (*n_x < max && d.confidence[*n_x] >= v->c->draft_min) (*n_x)++;
    return FL_OK;
}

/* ---- from the MTP block ---- */

/* A token per step, up to the first one that is not sure enough; one at least. */
static fl_status draft_from_mtp(const fl_draft_view *v, int32_t *x, int max, int *n_x, fl_err *err)
{
    fl_generator *g = v->g;
    const float *logits = NULL;
    if (max > MTP_DRAFT + 1) max = MTP_DRAFT + 1;
    for (*n_x = 1; *n_x < max; (*n_x)++) {
        const int step = *n_x - 1;
        FL_TRY(fl_forward_draft(g->engine, x[step], step, &logits, err));
        v->out->draft_steps++;
        g->pos[0] = g->engine->state.n + step + 1;
        pick_drafts(g, v->c, logits, 1);
        if (step > 0 && g->picks[0].confidence < v->c->draft_min) break;
        x[step + 1] = g->picks[0].token;
    }
    return FL_OK;
}

const fl_draft_source *fl_draft_choose(const fl_gen_config *c, const fl_engine *e)
{
    static const fl_draft_source masks = {"masks", draft_from_masks};
    static const fl_draft_source text = {"the text so far", draft_from_text};
    static const fl_draft_source mtp = {"the MTP block", draft_from_mtp};
    return c->clover.has_blocks ? &masks : e->params.mtp ? &mtp : &text;
}
