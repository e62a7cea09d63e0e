#include "runtime/tools/probe_measure.h"

#include <math.h>
#include <stdlib.h>

fl_status fl_probe_rows_init(fl_probe_rows *r, const fl_probe_text *t, fl_err *err)
{
    r->n_answer = t->n_answer;
    r->nll = malloc((size_t)t->n_answer * FL_MASK_LEVELS * sizeof *r->nll);
    if (!r->nll) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: no memory for its figures");
    for (int i = 0; i < t->n_answer * FL_MASK_LEVELS; i++) r->nll[i] = -1.0f;
    return FL_OK;
}

void fl_probe_rows_free(fl_probe_rows *r)
{
    free(r->nll);
    *r = (fl_probe_rows){0};
}

double fl_probe_mean(const fl_probe_rows *r, int level)
{
    const int from = level < 0 ? 0 : level * r->n_answer;
    const int to = level < 0 ? FL_MASK_LEVELS * r->n_answer : from + r->n_answer;
    double sum = 0;
    int n = 0;
    for (int i = from; i < to; i++) {
        if (r->nll[i] < 0) continue;
        sum += (double)r->nll[i];
        n++;
    }
    return n ? sum / n : 0;
}

/* Sum of a - b over a position's levels; *n counts the rows. */
static double position_diff(const fl_probe_rows *a, const fl_probe_rows *b, int at, int *n)
{
    double sum = 0;
    for (int level = 0; level < FL_MASK_LEVELS; level++) {
        const int i = level * a->n_answer + at;
        if (a->nll[i] < 0 || b->nll[i] < 0) continue;
        sum += (double)a->nll[i] - (double)b->nll[i];
        (*n)++;
    }
    return sum;
}

fl_probe_diff fl_probe_compare(const fl_probe_rows *a, const fl_probe_rows *b,
                               const fl_probe_text *t, bool first_block, int block_size)
{
    double sum = 0, sum2 = 0;
    int rows = 0, positions = 0, at = 0;
    for (int d = 0; d < t->n_docs; d++)
        for (int pos = t->doc[d].n_prompt; pos < t->doc[d].n; pos++, at++) {
            if (first_block && pos / block_size != t->doc[d].n_prompt / block_size) continue;
            const double x = position_diff(a, b, at, &rows);
            sum += x;
            sum2 += x * x;
            positions++;
        }
    if (positions < 2) return (fl_probe_diff){0, 0};
    const double var = (sum2 - sum * sum / positions) * positions / (positions - 1);
    return (fl_probe_diff){sum / rows, var > 0 ? sqrt(var) / rows : 0};
}

/* A wiring that gives nothing finite is the worst there is. */
static double nll_of(const float *logits, int64_t n, int32_t id)
{
    const double nll = fl_nll(logits, n, id);
    return isfinite(nll) ? nll : (double)FL_PROBE_WORST;
}

typedef struct run {
    fl_engine *e;
    const fl_probe_text *t;
    const fl_clover *sw;
    fl_probe_rows *out;
    int doc, first_row; /* the conversation at hand; its first answer row among all */
} run;

/* One pass over the block at positions start .. with the rows of a level masked; NLL of those that
 * belong to the answer. */
static fl_status measure_level(const run *r, const int32_t *block, int start, int level,
                               fl_err *err)
{
    const fl_probe_ids *d = &r->t->doc[r->doc];
    const int64_t vocab = r->e->weights.output.rows;
    const fl_masked_block b = {block, r->doc, start, d->n_prompt, d->n};
    fl_masked_rows rows;
    float *nll = r->out->nll + level * r->out->n_answer + r->first_row - d->n_prompt;
    const fl_status st = fl_masked_pass(r->e, r->sw, &b, level, &rows, err);
    for (int i = 0; i < rows.n; i++) {
        const int pos = start + rows.row[i];
        nll[pos] = st == FL_OK ? (float)nll_of(rows.logits + i * vocab, vocab, d->ids[pos])
                               : FL_PROBE_WORST;
    }
    if (st != FL_E_NAN) return st;
    *err = (fl_err){0};
    return FL_OK;
}

static fl_status measure_doc(const run *r, bool quick, fl_err *err)
{
    const fl_probe_ids *d = &r->t->doc[r->doc];
    const int size = r->sw->block_size;
    const bool absolute = r->sw->block_align == FL_ALIGN_ABSOLUTE;
    const int first = d->n_prompt - (absolute ? d->n_prompt % size : 0);
    int32_t block[FL_MAX_BLOCK];
    fl_state_reset(&r->e->state);
    if (first > 0) FL_TRY(fl_forward_clean(r->e, d->ids, first, err));
    for (int start = first; start < d->n; start += size) {
        for (int i = 0; i < size; i++) block[i] = start + i < d->n ? d->ids[start + i] : r->t->fill;
        for (int level = quick ? FL_MASK_LEVELS - 1 : 0; level < FL_MASK_LEVELS; level++)
            FL_TRY(measure_level(r, block, start, level, err));
        if (start + size < d->n) FL_TRY(fl_masked_commit(r->e, r->sw, block, err));
    }
    return FL_OK;
}

/* What becomes of a conversation whose clean rows are not finite: every row the worst. */
static void mark_worst(const run *r, bool quick)
{
    const fl_probe_ids *d = &r->t->doc[r->doc];
    for (int level = quick ? FL_MASK_LEVELS - 1 : 0; level < FL_MASK_LEVELS; level++)
        for (int pos = d->n_prompt; pos < d->n; pos++)
            if (fl_mask_at(r->doc, pos, level))
                r->out->nll[level * r->out->n_answer + r->first_row + pos - d->n_prompt] =
                    FL_PROBE_WORST;
}

fl_status fl_probe_masked(fl_engine *e, const fl_probe_text *t, const fl_clover *sw, bool quick,
                          fl_probe_rows *out, fl_err *err)
{
    run r = {.e = e, .t = t, .sw = sw, .out = out};
    for (r.doc = 0; r.doc < (quick && t->n_docs > 2 ? 2 : t->n_docs); r.doc++) {
        const fl_status st = measure_doc(&r, quick, err);
        if (st == FL_E_NAN)
            mark_worst(&r, quick);
        else if (st != FL_OK)
            return st;
        if (st == FL_E_NAN) *err = (fl_err){0};
        r.first_row += t->doc[r.doc].n - t->doc[r.doc].n_prompt;
    }
    return FL_OK;
}

fl_status fl_probe_causal_sum(fl_engine *e, const int32_t *ids, int from, int n, double *sum,
                              fl_err *err)
{
    int row[FL_MAX_BLOCK];
    const float *logits = NULL;
    const int64_t vocab = e->weights.output.rows;
    *sum = 0;
    fl_state_reset(&e->state);
    for (int at = 0; at < n - 1; at += e->params.block_size) {
        const int take = n - 1 - at < e->params.block_size ? n - 1 - at : e->params.block_size;
        int wanted = 0;
        FL_TRY(fl_forward_clean(e, ids + at, take, err));
        for (int i = 0; i < take; i++)
            if (at + i + 1 >= from) row[wanted++] = i;
        if (wanted == 0) continue;
        FL_TRY(fl_forward_logits(e, row, wanted, &logits, err));
        for (int i = 0; i < wanted; i++)
            *sum += nll_of(logits + i * vocab, vocab, ids[at + row[i] + 1]);
    }
    return FL_OK;
}

fl_status fl_probe_causal(fl_engine *e, const fl_probe_text *t, double *nll, fl_err *err)
{
    double total = 0;
    for (int d = 0; d < t->n_docs; d++) {
        const fl_probe_ids *x = &t->doc[d];
        double sum = 0;
        const fl_status st = fl_probe_causal_sum(e, x->ids, x->n_prompt, x->n, &sum, err);
        if (st == FL_E_NAN) {
            *err = (fl_err){0};
            sum = (double)FL_PROBE_WORST * (x->n - x->n_prompt);
        } else if (st != FL_OK) {
            return st;
        }
        total += sum;
    }
    *nll = total / t->n_answer;
    return FL_OK;
}
