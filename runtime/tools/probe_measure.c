#include "runtime/tools/probe_measure.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

fl_status fl_probe_rows_init(fl_probe_rows *r, const fl_probe_text *t, fl_probe_part part,
                             fl_err *err)
{
    r->n_answer = t->n_answer;
    r->n_levels = FL_MASK_LEVELS * (part == FL_PROBE_FIRST ? FL_PROBE_REMAINDERS : 1);
    r->nll = malloc((size_t)r->n_answer * (size_t)r->n_levels * sizeof *r->nll);
    if (!r->nll) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: no memory for its figures");
    for (int i = 0; i < r->n_answer * r->n_levels; i++) r->nll[i] = -1.0f;
    return FL_OK;
}

void fl_probe_rows_free(fl_probe_rows *r)
{
    free(r->nll);
    *r = (fl_probe_rows){0};
}

double fl_probe_mean(const fl_probe_rows *r, int level)
{
    double sum = 0;
    int n = 0;
    for (int l = level < 0 ? 0 : level; l < r->n_levels; l += level < 0 ? 1 : FL_MASK_LEVELS)
        for (int i = l * r->n_answer; i < (l + 1) * r->n_answer; i++) {
            if (r->nll[i] < 0) continue;
            sum += (double)r->nll[i];
            n++;
        }
    return n ? sum / n : 0;
}

/* Sum of a - b over a position's levels, and how many rows these were. */
static double position_diff(const fl_probe_rows *a, const fl_probe_rows *b, int at, int *n)
{
    double sum = 0;
    *n = 0;
    for (int level = 0; level < a->n_levels; level++) {
        const int i = level * a->n_answer + at;
        if (a->nll[i] < 0 || b->nll[i] < 0) continue;
        sum += (double)a->nll[i] - (double)b->nll[i];
        (*n)++;
    }
    return sum;
}

fl_probe_diff fl_probe_compare(const fl_probe_rows *a, const fl_probe_rows *b)
{
    double sum = 0, sum2 = 0;
    int rows = 0, positions = 0, n;
    for (int at = 0; at < a->n_answer; at++) {
        const double x = position_diff(a, b, at, &n);
        if (n == 0) continue;
        sum += x;
        sum2 += x * x;
        rows += n;
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
    const fl_probe_ids *d; /* the conversation at hand, maybe with other text before it */
    int doc, first_row;    /* its number; its first answer row among all */
    int hidden;            /* every row from this position on is masked, and none is measured */
    int first_level;       /* levels before it are left out */
    int level0;            /* where its levels begin among those of `out` */
} run;

static int end_of(const run *r) { return r->d->n < r->hidden ? r->d->n : r->hidden; }

static float *rows_at(const run *r, int level)
{
    return r->out->nll + (r->level0 + level) * r->out->n_answer + r->first_row - r->d->n_prompt;
}

/* One pass over the block at positions start .. with the rows of a level masked; NLL of those that
 * belong to the answer. */
static fl_status measure_level(const run *r, const int32_t *block, int start, int level,
                               fl_err *err)
{
    const int64_t vocab = r->e->weights.output.rows;
    const fl_masked_block b = {block, r->doc, start, r->d->n_prompt, end_of(r)};
    fl_masked_rows rows;
    float *nll = rows_at(r, level);
    const fl_status st = fl_masked_pass(r->e, r->sw, &b, level, &rows, err);
    for (int i = 0; i < rows.n; i++) {
        const int pos = start + rows.row[i];
        nll[pos] = st == FL_OK ? (float)nll_of(rows.logits + i * vocab, vocab, r->d->ids[pos])
                               : FL_PROBE_WORST;
    }
    if (st != FL_E_NAN) return st;
    *err = (fl_err){0};
    return FL_OK;
}

static fl_status measure_blocks(const run *r, fl_err *err)
{
    const fl_probe_ids *d = r->d;
    const int size = r->sw->block_size, end = end_of(r);
    const bool absolute = r->sw->block_align == FL_ALIGN_ABSOLUTE;
    const int first = d->n_prompt - (absolute ? d->n_prompt % size : 0);
    int32_t block[FL_MAX_BLOCK];
    fl_state_reset(&r->e->state);
    if (first > 0) FL_TRY(fl_forward_clean(r->e, d->ids, first, err));
    for (int start = first; start < end; start += size) {
        for (int i = 0; i < size; i++) {
            block[i] = start + i < d->n ? d->ids[start + i] : r->t->fill;
            if (start + i >= r->hidden) block[i] = r->sw->mask_id;
        }
        for (int level = r->first_level; level < FL_MASK_LEVELS; level++)
            FL_TRY(measure_level(r, block, start, level, err));
        if (start + size < end) FL_TRY(fl_masked_commit(r->e, r->sw, block, err));
    }
    return FL_OK;
}

/* What becomes of a conversation whose clean rows are not finite: every row the worst. */
static fl_status measure_doc(const run *r, fl_err *err)
{
    const fl_status st = measure_blocks(r, err);
    if (st != FL_E_NAN) return st;
    *err = (fl_err){0};
    for (int level = r->first_level; level < FL_MASK_LEVELS; level++)
        for (int pos = r->d->n_prompt; pos < end_of(r); pos++)
            if (fl_mask_at(r->doc, pos, level)) rows_at(r, level)[pos] = FL_PROBE_WORST;
    return FL_OK;
}

/* The conversation with the end of the one before it in front, so that the prompt has n tokens. */
static fl_status lengthen(const run *r, int n, fl_probe_ids *out, fl_err *err)
{
    const fl_probe_ids *d = r->d, *before = &r->t->doc[(r->doc + r->t->n_docs - 1) % r->t->n_docs];
    const int more = n - d->n_prompt;
    out->ids = malloc((size_t)(d->n + more) * sizeof *out->ids);
    if (!out->ids) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: no memory for its text");
    for (int i = 0; i < more; i++)
        out->ids[i] = before->ids[(before->n * FL_MAX_BLOCK + i - more) % before->n];
    memcpy(out->ids + more, d->ids, (size_t)d->n * sizeof *out->ids);
    out->n_prompt = n;
    out->n = d->n + more;
    return FL_OK;
}

/* The first block of the answer to the conversation at hand, behind a prompt of every remainder. */
static fl_status measure_first(run *r, fl_err *err)
{
    const fl_probe_ids *d = r->d;
    const int size = r->sw->block_size;
    fl_status st = FL_OK;
    for (int i = 0; i < FL_PROBE_REMAINDERS && st == FL_OK; i++) {
        fl_probe_ids x;
        const int remainder = size * (i + 1) / (FL_PROBE_REMAINDERS + 1);
        const int n = d->n_prompt + (size + remainder - d->n_prompt % size) % size;
        FL_TRY(lengthen(r, n, &x, err));
        r->d = &x;
        r->hidden = n - remainder + size;
        r->level0 = i * FL_MASK_LEVELS;
        st = measure_doc(r, err);
        free(x.ids);
        r->d = d;
    }
    return st;
}

fl_status fl_probe_masked(fl_engine *e, const fl_probe_text *t, const fl_clover *sw,
                          fl_probe_part part, fl_probe_rows *out, fl_err *err)
{
    const bool quick = part == FL_PROBE_QUICK;
    run r = {.e = e, .t = t, .sw = sw, .out = out, .hidden = INT_MAX};
    if (quick) r.first_level = FL_MASK_LEVELS - 1;
    for (r.doc = 0; r.doc < (quick && t->n_docs > 2 ? 2 : t->n_docs); r.doc++) {
        r.d = &t->doc[r.doc];
        FL_TRY(part == FL_PROBE_FIRST ? measure_first(&r, err) : measure_doc(&r, err));
        r.first_row += r.d->n - r.d->n_prompt;
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
