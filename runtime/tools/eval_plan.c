#include "runtime/tools/eval_plan.h"

#include <stdlib.h>

/* ---- windows ---- */

static int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

static void add_window(fl_eval_plan *p, int doc, int64_t start, int n, int from, int room)
{
    const fl_corpus_doc *d = &p->text->doc[doc];
    if (from >= n) return;
    p->window[p->n_windows++] = (fl_eval_window){.doc = doc,
                                                 .start = start,
                                                 .n = n,
                                                 .from = from,
                                                 .block_to = least(n, room),
                                                 .ids = p->text->ids + d->start + start};
}

fl_status fl_eval_plan_windows(fl_eval_plan *p, fl_block_align align, fl_err *err)
{
    const fl_corpus *t = p->text;
    /* Blocks end within the context; those that begin anywhere need up to a block more. */
    const int size = p->block_size ? p->block_size : 1;
    const int room = align == FL_ALIGN_ABSOLUTE ? p->ctx - p->ctx % size : p->ctx - size + 1;
    int64_t most = t->n_docs;
    for (int i = 0; i < t->n_docs; i++) most += t->doc[i].n / p->ctx;
    p->n_windows = 0;
    p->window = malloc((size_t)(most + 1) * sizeof *p->window);
    if (!p->window) return FL_FAIL(err, FL_E_NOMEM, 0, "eval: out of memory");
    for (int i = 0; i < t->n_docs; i++) {
        const fl_corpus_doc *d = &t->doc[i];
        if (d->line > 0) {
            const int from = p->prompts || d->prompt < 1 ? 1 : least(d->prompt, p->ctx);
            add_window(p, i, 0, least(d->n, p->ctx), from, room);
            continue;
        }
        for (int64_t at = 0; at + p->ctx <= d->n; at += p->ctx)
            add_window(p, i, at, p->ctx, p->ctx / 2 + 1, room);
    }
    return FL_OK;
}

/* ---- counting ---- */

int64_t fl_eval_causal_rows(const fl_eval_plan *p, int64_t w)
{
    return p->causal ? p->window[w].n - p->window[w].from : 0;
}

int64_t fl_eval_block_rows(const fl_eval_plan *p, int64_t w)
{
    const fl_eval_window *x = &p->window[w];
    int64_t n = 0;
    if (p->block_size == 0) return 0;
    for (int pos = x->from; pos < x->block_to; pos++)
        for (int level = 0; level < FL_MASK_LEVELS; level++)
            n += fl_mask_at(x->doc, x->start + pos, level);
    return n;
}

int64_t fl_eval_all_rows(const fl_eval_plan *p)
{
    int64_t n = 0;
    for (int64_t w = 0; w < p->n_windows; w++)
        n += fl_eval_causal_rows(p, w) + fl_eval_block_rows(p, w);
    return n;
}

/* ---- passes ---- */

typedef struct sweep {
    fl_engine *e;
    const fl_clover *sw;
    const fl_eval_plan *p;
    const fl_eval_window *x;
    fl_eval_sink sink;
    void *arg;
    fl_eval_rows rows;
} sweep;

static fl_status give(sweep *s, const int *pos, int n, const float *logits, fl_err *err)
{
    s->rows.pos = pos;
    s->rows.n = n;
    s->rows.logits = logits;
    for (int i = 0; i < n; i++) s->rows.id[i] = s->x->ids[pos[i]];
    return s->sink(s->arg, &s->rows, err);
}

/* Rows [from, to) of the pass that began at position `at`. */
static fl_status give_causal(sweep *s, int at, int from, int to, fl_err *err)
{
    const int most = s->e->params.block_size;
    int row[FL_MAX_BLOCK], pos[FL_MAX_BLOCK];
    const float *logits = NULL;
    for (int n; from < to; from += n) {
        n = to - from < most ? to - from : most;
        for (int i = 0; i < n; i++) {
            row[i] = from + i - at;
            pos[i] = from + i + 1;
        }
        FL_TRY(fl_forward_logits(s->e, row, n, &logits, err));
        FL_TRY(give(s, pos, n, logits, err));
    }
    return FL_OK;
}

static fl_status run_causal(sweep *s, fl_err *err)
{
    const int last = s->x->n - 1; /* its row would predict what is behind the window */
    const int first = s->x->from - 1;
    const int chunk = (int)s->e->params.chunk;
    s->rows.level = FL_EVAL_CAUSAL;
    fl_state_reset(&s->e->state);
    for (int at = 0, n; at < last; at += n) {
        n = least(last - at, chunk);
        FL_TRY(fl_forward_clean(s->e, s->x->ids + at, n, err));
        FL_TRY(give_causal(s, at, at > first ? at : first, at + n, err));
    }
    return FL_OK;
}

static fl_status run_block(sweep *s, const int32_t *ids, int at, fl_err *err)
{
    const fl_eval_window *x = s->x;
    const fl_masked_block b = {.ids = ids,
                               .text = x->doc,
                               .start = x->start + at,
                               .from = x->start + x->from,
                               .to = x->start + x->block_to};
    fl_masked_rows rows;
    for (int level = 0; level < FL_MASK_LEVELS; level++) {
        FL_TRY(fl_masked_pass(s->e, s->sw, &b, level, &rows, err));
        if (rows.n == 0) continue;
        for (int i = 0; i < rows.n; i++) rows.row[i] += at;
        s->rows.level = level;
        FL_TRY(give(s, rows.row, rows.n, rows.logits, err));
    }
    return FL_OK;
}

static fl_status run_blocks(sweep *s, fl_err *err)
{
    const fl_eval_window *x = s->x;
    const int size = s->p->block_size;
    int32_t ids[FL_MAX_BLOCK];
    int at = x->from - (s->sw->block_align == FL_ALIGN_ABSOLUTE ? x->from % size : 0);
    fl_state_reset(&s->e->state);
    if (at > 0) FL_TRY(fl_forward_clean(s->e, x->ids, at, err));
    for (; at < x->block_to; at += size) {
        for (int i = 0; i < size; i++) ids[i] = at + i < x->n ? x->ids[at + i] : s->p->fill;
        FL_TRY(run_block(s, ids, at, err));
        if (at + size < x->block_to) FL_TRY(fl_masked_commit(s->e, s->sw, ids, err));
    }
    return FL_OK;
}

fl_status fl_eval_run_window(fl_engine *e, const fl_clover *sw, const fl_eval_plan *p, int64_t w,
                             fl_eval_sink sink, void *arg, fl_err *err)
{
    sweep s = {e, sw, p, &p->window[w], sink, arg, {.window = w}};
    if (p->causal) FL_TRY(run_causal(&s, err));
    return p->block_size ? run_blocks(&s, err) : FL_OK;
}
