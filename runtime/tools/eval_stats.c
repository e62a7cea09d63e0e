#include "runtime/tools/eval_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- means ---- */

void fl_mean_add(fl_mean *m, double sum, int64_t n)
{
    m->clusters++;
    m->n += n;
    m->x += sum;
    m->xx += sum * sum;
    m->xn += sum * (double)n;
    m->nn += (double)n * (double)n;
}

double fl_mean_value(const fl_mean *m) { return m->n ? m->x / (double)m->n : 0; }

double fl_mean_error(const fl_mean *m)
{
    if (m->clusters < 2) return 0;
    const double mean = fl_mean_value(m), k = (double)m->clusters;
    const double squares = m->xx - 2 * mean * m->xn + mean * mean * m->nn;
    return squares > 0 ? sqrt(squares * k / (k - 1)) / (double)m->n : 0;
}

/* ---- rows ---- */

static void add_cluster(fl_eval_figures *f, const fl_eval_row *sum, int same, int n)
{
    fl_mean_add(&f->nll, sum->nll, n);
    fl_mean_add(&f->kl, sum->kl, n);
    fl_mean_add(&f->rounding, sum->rounding, n);
    fl_mean_add(&f->delta, sum->delta, n);
    fl_mean_add(&f->same, same, n);
}

static fl_status add_kl(fl_eval_figures *f, double kl, int64_t window, int pos, fl_err *err)
{
    if (f->n_kls == f->room) {
        const int64_t room = f->room ? 2 * f->room : 4096;
        double *grown = realloc(f->kls, (size_t)room * sizeof *grown);
        if (!grown) return FL_FAIL(err, FL_E_NOMEM, 0, "eval: out of memory");
        f->kls = grown;
        f->room = room;
    }
    f->kls[f->n_kls++] = kl;
    if (f->n_kls > 1 && kl <= f->worst) return FL_OK;
    f->worst = kl;
    f->worst_window = window;
    f->worst_pos = pos;
    return FL_OK;
}

static void close_block(fl_eval_stats *s)
{
    for (int i = 0; i < FL_MAX_BLOCK; i++)
        if (s->n[i]) add_cluster(&s->kind[FL_EVAL_OF_BLOCKS], &s->sum[i], s->same[i], s->n[i]);
    memset(s->sum, 0, sizeof s->sum);
    memset(s->same, 0, sizeof s->same);
    memset(s->n, 0, sizeof s->n);
}

static void add_to_block(fl_eval_stats *s, int64_t window, int pos, const fl_eval_row *r)
{
    const int size = s->block_size;
    if (s->window != window || s->block != pos / size) close_block(s);
    s->window = window;
    s->block = pos / size;
    fl_eval_row *sum = &s->sum[pos % size];
    sum->nll += r->nll;
    sum->kl += r->kl;
    sum->rounding += r->rounding;
    sum->delta += r->delta;
    s->same[pos % size] += r->same;
    s->n[pos % size]++;
}

fl_status fl_eval_stats_add(fl_eval_stats *s, int level, int64_t window, const int *pos,
                            const fl_eval_row *row, int n, bool compared, fl_err *err)
{
    fl_eval_figures *f = &s->kind[level < 0 ? FL_EVAL_OF_CAUSAL : FL_EVAL_OF_LEVEL + level];
    for (int i = 0; i < n; i++) {
        add_cluster(f, &row[i], row[i].same, 1);
        if (compared) FL_TRY(add_kl(f, row[i].kl, window, pos[i], err));
        if (level < 0) continue;
        add_to_block(s, window, pos[i], &row[i]);
        if (compared) FL_TRY(add_kl(&s->kind[FL_EVAL_OF_BLOCKS], row[i].kl, window, pos[i], err));
    }
    return FL_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void fl_eval_stats_finish(fl_eval_stats *s)
{
    close_block(s);
    for (int i = 0; i < FL_EVAL_KINDS; i++)
        if (s->kind[i].n_kls)
            qsort(s->kind[i].kls, (size_t)s->kind[i].n_kls, sizeof(double), by_value);
}

void fl_eval_stats_free(fl_eval_stats *s)
{
    for (int i = 0; i < FL_EVAL_KINDS; i++) free(s->kind[i].kls);
    *s = (fl_eval_stats){0};
}

double fl_eval_quantile(const fl_eval_figures *f, double q)
{
    if (f->n_kls == 0) return 0;
    const double at = q * (double)(f->n_kls - 1);
    const int64_t below = (int64_t)at;
    const double low = f->kls[below], high = f->kls[below + 1 < f->n_kls ? below + 1 : below];
    return low + (at - (double)below) * (high - low);
}
