#include "runtime/model/linear.h"

#include <assert.h>
#include <stdatomic.h>

bool fl_exec_uses_law(const fl_exec *x, uint32_t type, int64_t cols)
{
    const fl_type_info *t = fl_type_get(type);
    return !x->act_f32 && t && t->law != FL_LAW_FLOAT && t->law != FL_LAW_NONE && cols % 256 == 0;
}

typedef struct quantize_run {
    const fl_exec *x;
    const fl_rows *rows;
    fl_act *out;
    atomic_bool bad;
} quantize_run;

static void quantize_row(void *arg, int r, int worker)
{
    quantize_run *q = arg;
    const int64_t cols = q->rows->cols;
    (void)worker;
    if (!q->x->k.act_quantize(q->rows->x + r * q->rows->ld, cols, q->out + r * (cols / 256)))
        atomic_store_explicit(&q->bad, true, memory_order_relaxed);
}

bool fl_rows_quantize(const fl_exec *x, fl_rows *rows, fl_act *out)
{
    quantize_run q = {.x = x, .rows = rows, .out = out};
    atomic_init(&q.bad, false);
    if (rows->n == 1)
        quantize_row(&q, 0, 0);
    else
        fl_pool_run(x->pool, quantize_row, &q, rows->n);
    rows->q = out;
    return !atomic_load_explicit(&q.bad, memory_order_relaxed);
}

bool fl_rows_prepare(const fl_exec *x, fl_rows *rows, fl_act *out, const fl_linear_job *jobs,
                     int n_jobs)
{
    for (int i = 0; i < n_jobs; i++)
        if (fl_exec_uses_law(x, jobs[i].w->type, jobs[i].w->cols))
            return fl_rows_quantize(x, rows, out);
    return true;
}

void fl_linear_piece(const fl_exec *x, const fl_mat *w, int64_t n0, int64_t n1, const fl_rows *in,
                     float *y, int64_t ldy)
{
    assert(w->cols == in->cols && n0 >= 0 && n1 <= w->rows);
    if (fl_exec_uses_law(x, w->type, w->cols)) {
        assert(in->q);
        x->k.mul_law(w, n0, n1, in->q, in->n, y, ldy);
    } else {
        x->k.mul_float(w, n0, n1, in->x, in->ld, in->n, y, ldy);
    }
}

enum { MANY_ROWS = 5, LONGEST_PIECE = 1024 };

typedef struct linear_run {
    const fl_exec *x;
    const fl_linear_job *jobs;
    const fl_rows *in;
    int n_jobs;
    int64_t piece;
} linear_run;

static void linear_task(void *arg, int task, int worker)
{
    const linear_run *r = arg;
    const fl_linear_job *j = r->jobs;
    int64_t n0 = task * r->piece;
    (void)worker;
    for (; n0 >= (j->w->rows + r->piece - 1) / r->piece * r->piece; j++)
        n0 -= (j->w->rows + r->piece - 1) / r->piece * r->piece;
    const int64_t n1 = n0 + r->piece < j->w->rows ? n0 + r->piece : j->w->rows;
    fl_linear_piece(r->x, j->w, n0, n1, r->in, j->y, j->ldy);
}

void fl_linear_run(const fl_exec *x, const fl_linear_job *jobs, int n_jobs, const fl_rows *in)
{
    assert(n_jobs <= FL_LINEAR_MAX_JOBS);
    /* The last piece of a job is what threads wait for: short ones. But rows that are many are
     * packed anew for each piece, so those are cut into fewer. 16 outputs at least keep the
     * kernels' row blocking whole. */
    const int threads = fl_pool_threads(x->pool), per_thread = in->n < MANY_ROWS ? 32 : 8;
    int64_t outputs = 0;
    for (int i = 0; i < n_jobs; i++) outputs += jobs[i].w->rows;
    int64_t piece = (outputs / (threads * per_thread) + 15) / 16 * 16;
    if (piece < 16) piece = 16;
    if (piece > LONGEST_PIECE) piece = LONGEST_PIECE;
    int64_t tasks = 0;
    for (int i = 0; i < n_jobs; i++) tasks += (jobs[i].w->rows + piece - 1) / piece;
    linear_run r = {x, jobs, in, n_jobs, piece};
    fl_pool_run(x->pool, linear_task, &r, (int)tasks);
}
