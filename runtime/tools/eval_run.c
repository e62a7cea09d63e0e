#include "runtime/tools/eval_run.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/tools/progress.h"

typedef struct run {
    const fl_eval_job *job;
    fl_eval_stats *stats;
    int64_t vocab;
    uint64_t row_bytes;
    char *theirs, *mine; /* packed rows of a pass: the reference's, those to write */
    /* Of the window at hand: its first row in the reference, rows of each kind seen so far. */
    uint64_t base;
    int64_t causal, block;
    /* the pass at hand */
    const fl_eval_rows *rows;
    bool compared;
    fl_eval_row figure[FL_MAX_BLOCK];
    fl_progress progress;
    int64_t done, all;
} run;

static int32_t best_of(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Task: one row. */
static void measure_row(void *arg, int i, int worker)
{
    run *r = arg;
    (void)worker;
    const float *logits = r->rows->logits + i * r->vocab;
    fl_eval_row *f = &r->figure[i];
    *f = (fl_eval_row){.nll = fl_nll(logits, r->vocab, r->rows->id[i])};
    if (r->mine) fl_logit_row_pack(r->mine + (uint64_t)i * r->row_bytes, logits, r->vocab, f->nll);
    if (!r->compared) return;
    const char *theirs = r->theirs + (uint64_t)i * r->row_bytes;
    const fl_divergence d = fl_logit_row_compare(theirs, logits, r->vocab);
    f->kl = d.kl;
    f->rounding = d.error;
    f->delta = f->nll - fl_logit_row_nll(theirs);
    f->same = fl_logit_row_best(theirs) == best_of(logits, r->vocab);
}

/* The reference's rows of this pass, if it has them. */
static fl_status read_reference(run *r, fl_err *err)
{
    const fl_eval_plan *p = &r->job->reference_plan;
    const bool causal = r->rows->level == FL_EVAL_CAUSAL;
    int64_t *seen = causal ? &r->causal : &r->block;
    const uint64_t first = r->base + (uint64_t)*seen +
                           (causal ? 0 : (uint64_t)fl_eval_causal_rows(p, r->rows->window));
    *seen += r->rows->n;
    r->compared = r->job->reference && (causal ? p->causal : p->block_size > 0);
    if (!r->compared) return FL_OK;
    return fl_logit_reader_get(r->job->reference, first, (uint64_t)r->rows->n, r->theirs, err);
}

static void show(run *r)
{
    double spent = 0;
    char line[FL_PROGRESS_LINE];
    if (!fl_progress_due(&r->progress, &spent)) return;
    const double rate = (double)r->done / spent;
    snprintf(line, sizeof line, "%.40s: %3.0f %% of %lld rows, %.1f rows/s, %.0f s left",
             r->job->what, 100.0 * (double)r->done / (double)r->all, (long long)r->all, rate,
             (double)(r->all - r->done) / rate);
    fl_progress_line(&r->progress, line);
}

static fl_status take_rows(void *arg, const fl_eval_rows *rows, fl_err *err)
{
    run *r = arg;
    r->rows = rows;
    FL_TRY(read_reference(r, err));
    fl_pool_run(r->job->engine->exec.pool, measure_row, r, rows->n);
    if (r->mine) FL_TRY(fl_logit_writer_put(r->job->writer, r->mine, (uint64_t)rows->n, err));
    FL_TRY(fl_eval_stats_add(r->stats, rows->level, rows->window, rows->pos, r->figure, rows->n,
                             r->compared, err));
    r->done += rows->n;
    show(r);
    return FL_OK;
}

static fl_status run_windows(run *r, fl_err *err)
{
    const fl_eval_job *job = r->job;
    for (int64_t w = 0; w < job->plan->n_windows; w++) {
        r->causal = r->block = 0;
        FL_TRY(fl_eval_run_window(job->engine, job->sw, job->plan, w, take_rows, r, err));
        if (job->reference)
            r->base += (uint64_t)(fl_eval_causal_rows(&job->reference_plan, w) +
                                  fl_eval_block_rows(&job->reference_plan, w));
    }
    return FL_OK;
}

static char *packed_rows(const run *r, fl_status *st, fl_err *err)
{
    char *p = malloc((size_t)r->job->engine->params.block_size * r->row_bytes);
    if (!p) *st = FL_FAIL(err, FL_E_NOMEM, 0, "eval: no memory for rows of logits");
    return p;
}

fl_status fl_eval_run(const fl_eval_job *job, fl_eval_stats *stats, fl_err *err)
{
    fl_status st = FL_OK;
    run r = {.job = job,
             .stats = stats,
             .vocab = job->engine->weights.output.rows,
             .all = fl_eval_all_rows(job->plan)};
    r.row_bytes = fl_logit_row_bytes(r.vocab);
    stats->block_size = job->plan->block_size;
    if (job->reference) r.theirs = packed_rows(&r, &st, err);
    if (st == FL_OK && job->writer) r.mine = packed_rows(&r, &st, err);
    if (st == FL_OK) {
        fl_progress_start(&r.progress);
        st = run_windows(&r, err);
        fl_progress_end(&r.progress);
        fl_eval_stats_finish(stats);
    }
    free(r.theirs);
    free(r.mine);
    return st;
}
