#include "runtime/tools/importance_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/importance_moments.h"
#include "runtime/tools/importance_sites.h"

struct fl_layer_moments {
    const fl_index *ix;
    const fl_exec *exec;
    fl_gguf_writer *w;
    char *path;
    int layer;
    bool has[FL_N_SITES];
    fl_moments site[FL_N_SITES]; /* FL_SITE_EXPERT_MID: of the expert at hand */
    fl_moments_work work;
    float *out; /* scratch: means as they are written */
    /* By expert. */
    double *in_sum, *in_rows;   /* [n_expert][d_model] squares; rows */
    double *mid_sum, *mid_rows; /* [n_expert][d_ff] */
    double *all;                /* packed triangle over d_ff: all experts together */
    int64_t n_bad;              /* rows of expert_in that were left out */
};

static int64_t site_cols(const fl_index *ix, int layer, fl_site site)
{
    const fl_hparams *hp = &ix->hp;
    switch (site) {
    case FL_SITE_MIXER_OUT:
        return ix->layer[layer].full_attention ? (int64_t)hp->n_head * hp->head_dim
                                               : (int64_t)hp->gdn_v_heads * hp->gdn_dim;
    case FL_SITE_SHARED_MID: return hp->d_ff_shared;
    case FL_SITE_EXPERT_MID: return hp->d_ff;
    default: return hp->d_model;
    }
}

/* Sites whose whole matrix is kept. */
static bool has_full(fl_site site) { return site != FL_SITE_EXPERT_IN; }

static bool of_experts(fl_site site)
{
    return site == FL_SITE_EXPERT_IN || site == FL_SITE_EXPERT_MID;
}

static bool has_site(const fl_index *ix, int layer, bool blocks, fl_site site)
{
    if (layer == ix->hp.n_layer) return site == FL_SITE_HEAD_IN;
    if (site == FL_SITE_HEAD_IN) return false;
    return site != FL_SITE_BLOCK_IN || (blocks && ix->layer[layer].bwd_mix.tensor);
}

uint64_t fl_layer_moments_bytes(const fl_index *ix, int threads)
{
    uint64_t most = 0;
    for (int l = 0; l <= ix->hp.n_layer; l++) {
        uint64_t n = 0;
        int64_t cols = 0;
        for (int s = 0; s < FL_N_SITES; s++) {
            if (!has_site(ix, l, true, (fl_site)s)) continue;
            const int64_t c = site_cols(ix, l, (fl_site)s);
            cols = c > cols ? c : cols;
            n += has_full((fl_site)s) ? fl_moments_bytes(c) : 0;
            n += of_experts((fl_site)s) ? (uint64_t)(ix->hp.n_expert * c) * sizeof(double) : 0;
        }
        n += (uint64_t)cols * (256 + 32 * (uint64_t)threads) * sizeof(float) +
             (uint64_t)fl_triangle(cols) * sizeof(float);
        most = n > most ? n : most;
    }
    return most;
}

uint64_t fl_layer_moments_file_bytes(const fl_index *ix, int layer, bool blocks)
{
    uint64_t values = 0;
    for (int s = 0; s < FL_N_SITES; s++) {
        if (!has_site(ix, layer, blocks, (fl_site)s)) continue;
        const uint64_t cols = (uint64_t)site_cols(ix, layer, (fl_site)s);
        const uint64_t full = has_full((fl_site)s) ? (uint64_t)fl_triangle((int64_t)cols) : 0;
        const uint64_t n = of_experts((fl_site)s) ? (uint64_t)ix->hp.n_expert : 1;
        values += n * (cols + full + 1) + (s == FL_SITE_EXPERT_MID ? full : 0);
    }
    return values * sizeof(float);
}

void fl_importance_put_origin(fl_gguf_writer *w, const fl_importance_origin *o)
{
    const char *arch = FL_IMPORTANCE_ARCH;
    fl_gguf_put_str(w, "general.architecture", arch, strlen(arch));
    fl_gguf_put_u32(w, FL_IMPORTANCE_KEY("version"), FL_IMPORTANCE_VERSION);
    fl_gguf_put_str(w, FL_IMPORTANCE_KEY("model"), o->model, strlen(o->model));
    fl_gguf_put_str(w, FL_IMPORTANCE_KEY("identity"), o->identity, strlen(o->identity));
    fl_gguf_put_bool(w, FL_IMPORTANCE_KEY("tied"), o->tied);
    fl_gguf_put_u32(w, FL_IMPORTANCE_KEY("tokens"), o->tokens);
    fl_gguf_put_u32(w, FL_IMPORTANCE_KEY("block_rows"), o->block_rows);
}

/* ---- opening ---- */

static fl_status declare(fl_layer_moments *m, fl_site site, const char *part, int64_t values,
                         fl_err *err)
{
    char name[FL_SITE_NAME];
    const int64_t n = of_experts(site) ? m->ix->hp.n_expert : 1;
    const int64_t ne[2] = {values, n};
    const bool each = strcmp(part, "diag") == 0 || strcmp(part, "full") == 0;
    return fl_gguf_add_tensor(m->w, fl_site_name(name, site, m->layer, part), FL_TYPE_F32,
                              each ? 2 : 1, ne, err);
}

/* Tensors in the order in which they are written: the experts' matrices as they come, then the
 * rest. */
static fl_status declare_all(fl_layer_moments *m, fl_err *err)
{
    if (m->has[FL_SITE_EXPERT_MID]) {
        const int64_t n = fl_triangle(m->ix->hp.d_ff);
        FL_TRY(declare(m, FL_SITE_EXPERT_MID, "full", n, err));
        FL_TRY(declare(m, FL_SITE_EXPERT_MID, "all", n, err));
    }
    for (int s = 0; s < FL_N_SITES; s++) {
        const int64_t cols = m->has[s] ? site_cols(m->ix, m->layer, (fl_site)s) : 0;
        if (!m->has[s]) continue;
        const int64_t n = of_experts((fl_site)s) ? m->ix->hp.n_expert : 1;
        FL_TRY(declare(m, (fl_site)s, "rows", n, err));
        FL_TRY(declare(m, (fl_site)s, "odd", 2, err));
        FL_TRY(declare(m, (fl_site)s, "diag", cols, err));
        if (has_full((fl_site)s) && !of_experts((fl_site)s))
            FL_TRY(declare(m, (fl_site)s, "full", fl_triangle(cols), err));
    }
    return FL_OK;
}

static fl_status take_experts(fl_layer_moments *m, fl_err *err)
{
    const size_t n = (size_t)m->ix->hp.n_expert, d = (size_t)m->ix->hp.d_model;
    const size_t ff = (size_t)m->ix->hp.d_ff;
    m->in_sum = calloc(n * d, sizeof(double));
    m->mid_sum = calloc(n * ff, sizeof(double));
    m->in_rows = calloc(n, sizeof(double));
    m->mid_rows = calloc(n, sizeof(double));
    m->all = calloc((size_t)fl_triangle((int64_t)ff), sizeof(double));
    if (m->in_sum && m->mid_sum && m->in_rows && m->mid_rows && m->all) return FL_OK;
    return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for the moments of %zu experts", n);
}

static fl_status take_sites(fl_layer_moments *m, bool blocks, fl_err *err)
{
    const fl_hparams *hp = &m->ix->hp;
    int64_t most = 1;
    for (int s = 0; s < FL_N_SITES; s++) {
        m->has[s] = has_site(m->ix, m->layer, blocks, (fl_site)s);
        if (!m->has[s]) continue;
        const int64_t cols = site_cols(m->ix, m->layer, (fl_site)s);
        most = cols > most ? cols : most;
        if (has_full((fl_site)s)) FL_TRY(fl_moments_init(&m->site[s], cols, err));
    }
    if (m->layer < hp->n_layer && !m->ix->layer[m->layer].full_attention && hp->v_grouped) {
        fl_moments *out = &m->site[FL_SITE_MIXER_OUT];
        out->unit = hp->gdn_dim;
        out->n_k = hp->gdn_k_heads;
        out->n_r = hp->gdn_v_heads / hp->gdn_k_heads;
    }
    m->out = malloc((size_t)fl_triangle(most) * sizeof(float));
    if (!m->out) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory to write moments");
    return fl_moments_work_init(&m->work, most, fl_pool_threads(m->exec->pool), err);
}

fl_status fl_layer_moments_open(fl_layer_moments **out, const fl_index *ix, int layer, bool blocks,
                                const fl_exec *exec, const fl_importance_origin *origin,
                                const char *path, fl_err *err)
{
    fl_status st = FL_OK;
    *out = NULL;
    fl_layer_moments *m = calloc(1, sizeof *m);
    if (!m || !(m->path = strdup(path))) {
        free(m);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    }
    m->ix = ix;
    m->exec = exec;
    m->layer = layer;
    FL_GO(take_sites(m, blocks, err));
    if (layer < ix->hp.n_layer) FL_GO(take_experts(m, err));
    FL_GO(fl_gguf_writer_create(&m->w, path, 0, err));
    fl_importance_put_origin(m->w, origin);
    FL_GO(declare_all(m, err));
    FL_GO(fl_gguf_writer_begin(m->w, err));
    *out = m;
    m = NULL;
out:
    fl_layer_moments_discard(&m);
    return st;
}

void fl_layer_moments_discard(fl_layer_moments **pm)
{
    fl_layer_moments *m = *pm;
    if (!m) return;
    fl_gguf_writer_discard(&m->w);
    for (int s = 0; s < FL_N_SITES; s++) fl_moments_fini(&m->site[s]);
    fl_moments_work_fini(&m->work);
    free(m->in_sum);
    free(m->in_rows);
    free(m->mid_sum);
    free(m->mid_rows);
    free(m->all);
    free(m->out);
    free(m->path);
    free(m);
    *pm = NULL;
}

/* ---- gathering ---- */

typedef struct square_run {
    fl_layer_moments *m;
    double *sum;
    const fl_rows *in;
    const bool *skip;
} square_run;

enum { SQUARE_COLS = 256 };

static void square_task(void *arg, int task, int worker)
{
    const square_run *r = arg;
    const int64_t c0 = (int64_t)task * SQUARE_COLS;
    const int64_t c1 = c0 + SQUARE_COLS < r->in->cols ? c0 + SQUARE_COLS : r->in->cols;
    (void)worker;
    for (int t = 0; t < r->in->n; t++) {
        const float *x = r->in->x + t * r->in->ld;
        for (int64_t i = c0; i < c1 && !r->skip[t]; i++) r->sum[i] += (double)x[i] * (double)x[i];
    }
}

/* Squares alone, of rows that are finite. */
static void add_squares(fl_layer_moments *m, int expert, const fl_rows *in)
{
    bool skip[FL_MOMENTS_ROWS];
    for (int from = 0; from < in->n; from += FL_MOMENTS_ROWS) {
        fl_rows some = *in;
        some.x += from * in->ld;
        some.n = in->n - from < FL_MOMENTS_ROWS ? in->n - from : FL_MOMENTS_ROWS;
        for (int t = 0; t < some.n; t++) {
            skip[t] = false;
            for (int64_t i = 0; i < in->cols; i++) skip[t] |= !isfinite(some.x[t * some.ld + i]);
            m->n_bad += skip[t];
            m->in_rows[expert] += !skip[t];
        }
        square_run r = {m, m->in_sum + expert * in->cols, &some, skip};
        fl_pool_run(m->exec->pool, square_task, &r,
                    (int)((in->cols + SQUARE_COLS - 1) / SQUARE_COLS));
    }
}

void fl_layer_moments_rows(void *arg, fl_site site, int expert, const fl_rows *in)
{
    fl_layer_moments *m = arg;
    if (!m->has[site]) return;
    if (site == FL_SITE_EXPERT_IN)
        add_squares(m, expert, in);
    else
        fl_moments_add(&m->site[site], m->exec, &m->work, in);
}

/* ---- writing ---- */

static fl_status write_means(fl_layer_moments *m, const double *sum, int64_t n, double rows,
                             fl_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        m->out[i] = rows > 0.0 ? (float)(sum[i] / rows) : 0.0f;
        if (!isfinite(m->out[i]))
            return FL_FAIL(err, FL_E_NAN, 0,
                           "%s: values in layer %d are too large to be squared: the weights are "
                           "damaged or a file quirk was not recognised (see inspect)",
                           m->path, m->layer);
    }
    return fl_gguf_writer_write(m->w, m->out, (uint64_t)n * sizeof(float), err);
}

static fl_status write_rows(fl_layer_moments *m, const double *rows, int64_t n, fl_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        const float r = (float)rows[i];
        FL_TRY(fl_gguf_writer_write(m->w, &r, sizeof r, err));
    }
    return FL_OK;
}

fl_status fl_layer_moments_expert(void *arg, int expert, fl_err *err)
{
    fl_layer_moments *m = arg;
    fl_moments *mid = &m->site[FL_SITE_EXPERT_MID];
    const int64_t ff = mid->cols, n = fl_triangle(ff);
    fl_moments_flush(mid, m->exec, &m->work);
    m->mid_rows[expert] = mid->rows;
    for (int64_t i = 0; i < ff; i++) m->mid_sum[expert * ff + i] = mid->sum[fl_triangle(i) + i];
    for (int64_t i = 0; i < n && mid->rows > 0.0; i++) m->all[i] += mid->sum[i];
    FL_TRY(write_means(m, mid->sum, n, mid->rows, err));
    if (mid->rows > 0.0) fl_moments_reset(mid);
    return FL_OK;
}

/* Rows of zeros, and those that were left out. */
static fl_status write_odd(fl_layer_moments *m, int64_t n_zero, int64_t n_bad, fl_err *err)
{
    const double odd[2] = {(double)n_zero, (double)n_bad};
    return write_rows(m, odd, 2, err);
}

static fl_status write_expert_site(fl_layer_moments *m, const double *sum, const double *rows,
                                   int64_t cols, fl_err *err)
{
    const bool mid = rows == m->mid_rows;
    FL_TRY(write_rows(m, rows, m->ix->hp.n_expert, err));
    FL_TRY(mid ? write_odd(m, m->site[FL_SITE_EXPERT_MID].n_zero, m->site[FL_SITE_EXPERT_MID].n_bad,
                           err)
               : write_odd(m, 0, m->n_bad, err));
    for (int e = 0; e < m->ix->hp.n_expert; e++)
        FL_TRY(write_means(m, sum + e * cols, cols, rows[e], err));
    return FL_OK;
}

static fl_status write_site(fl_layer_moments *m, fl_moments *s, fl_err *err)
{
    fl_moments_flush(s, m->exec, &m->work);
    FL_TRY(write_rows(m, &s->rows, 1, err));
    FL_TRY(write_odd(m, s->n_zero, s->n_bad, err));
    for (int64_t i = 0; i < s->cols; i++)
        FL_TRY(write_means(m, s->sum + fl_triangle(i) + i, 1, s->rows, err));
    return write_means(m, s->sum, fl_triangle(s->cols), s->rows, err);
}

static fl_status write_all(fl_layer_moments *m, fl_err *err)
{
    if (m->has[FL_SITE_EXPERT_MID]) {
        double rows = 0.0;
        for (int e = 0; e < m->ix->hp.n_expert; e++) rows += m->mid_rows[e];
        FL_TRY(write_means(m, m->all, fl_triangle(m->ix->hp.d_ff), rows, err));
    }
    for (int s = 0; s < FL_N_SITES; s++) {
        if (!m->has[s]) continue;
        if (s == FL_SITE_EXPERT_IN)
            FL_TRY(write_expert_site(m, m->in_sum, m->in_rows, m->ix->hp.d_model, err));
        else if (s == FL_SITE_EXPERT_MID)
            FL_TRY(write_expert_site(m, m->mid_sum, m->mid_rows, m->ix->hp.d_ff, err));
        else
            FL_TRY(write_site(m, &m->site[s], err));
    }
    return FL_OK;
}

fl_status fl_layer_moments_finish(fl_layer_moments **pm, fl_err *err)
{
    fl_layer_moments *m = *pm;
    fl_status st = write_all(m, err);
    if (st == FL_OK) st = fl_gguf_writer_commit(&m->w, err);
    fl_layer_moments_discard(pm);
    return st;
}
