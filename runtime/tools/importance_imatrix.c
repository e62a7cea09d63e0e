#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/importance_parts.h"

/* llama.cpp's imatrix: for a tensor NAME the sums of squares NAME.in_sum2 [columns, experts] and
 * how many rows went into each, NAME.counts [1, experts]. */

static const fl_tensor *find(const fl_importance *im, const char *name, const char *part)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return fl_source_find(im->src, full);
}

fl_status fl_importance_open_imatrix(fl_importance *im, fl_err *err)
{
    const fl_gguf *g = fl_source_gguf(im->src);
    const fl_str type = fl_kv_str(fl_gguf_find(g, "general.type"));
    if (type.n != 7 || memcmp(type.p, "imatrix", 7) != 0)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: a GGUF file, but neither of fourleaf importance nor of llama-imatrix",
                       im->path);
    im->info = (fl_importance_info){.kind = "imatrix",
                                    .model = "",
                                    .identity = "",
                                    .tokens = fl_kv_num(fl_gguf_find(g, "imatrix.chunk_count"), 0) *
                                              fl_kv_num(fl_gguf_find(g, "imatrix.chunk_size"), 0)};
    return FL_OK;
}

/* Sums that are no numbers or below 0 become the mean of the others; how many. */
static int repair(float *x, int64_t n)
{
    double sum = 0.0;
    int bad = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i]) && x[i] >= 0.0f)
            sum += (double)x[i];
        else
            bad++;
    }
    const float mean = bad < n ? (float)(sum / (double)(n - bad)) : 0.0f;
    for (int64_t i = 0; i < n && bad > 0; i++)
        if (!isfinite(x[i]) || x[i] < 0.0f) x[i] = mean;
    return bad;
}

/* Mean squares of one expert; *rows 0 where nothing was counted or all sums are 0. */
static fl_status read_expert(const fl_importance *im, const fl_tensor *sums,
                             const fl_tensor *counts, int expert, float *x, double *rows,
                             int *repaired, fl_err *err)
{
    const int64_t cols = sums->ne[0];
    float n = 0.0f;
    double total = 0.0;
    FL_TRY(fl_importance_read(im, counts, expert, 1, &n, err));
    FL_TRY(fl_importance_read(im, sums, expert * cols, cols, x, err));
    *repaired = repair(x, cols);
    for (int64_t i = 0; i < cols; i++) total += (double)x[i];
    *rows = isfinite(n) && n > 0.0f && total > 0.0 ? (double)n : 0.0;
    for (int64_t i = 0; i<cols && * rows> 0.0; i++) x[i] = (float)((double)x[i] / *rows);
    return FL_OK;
}

/* The mean over all experts into p [cols]; *rows: all they saw. */
static fl_status read_mean(const fl_importance *im, const fl_tensor *sums, const fl_tensor *counts,
                           float *p, float *x, double *rows, fl_err *err)
{
    const int64_t cols = sums->ne[0];
    double *total = calloc((size_t)cols, sizeof *total);
    fl_status st = FL_OK;
    *rows = 0.0;
    if (!total) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", im->path);
    for (int e = 0; e < sums->ne[1] && st == FL_OK; e++) {
        double n = 0.0;
        int repaired;
        st = read_expert(im, sums, counts, e, x, &n, &repaired, err);
        for (int64_t i = 0; i < cols && st == FL_OK; i++) total[i] += n * (double)x[i];
        *rows += n;
    }
    for (int64_t i = 0; i < cols; i++) p[i] = *rows > 0.0 ? (float)(total[i] / *rows) : 0.0f;
    free(total);
    return st;
}

static double sum_of(const float *x, int64_t n)
{
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i];
    return s;
}

static fl_status get_expert(const fl_importance *im, const fl_tensor *sums, const fl_tensor *counts,
                            int expert, double prior_rows, float *diag, fl_importance_found *found,
                            fl_err *err)
{
    const int64_t cols = sums->ne[0];
    double all = 0.0;
    float *p = malloc((size_t)cols * sizeof *p);
    if (!p) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", im->path);
    fl_status st = read_mean(im, sums, counts, p, diag, &all, err);
    if (st == FL_OK)
        st = read_expert(im, sums, counts, expert, diag, &found->rows, &found->repaired, err);
    if (st == FL_OK && all > 0.0) {
        fl_importance_mix(diag, found->rows, p, prior_rows, cols, sum_of(diag, cols),
                          sum_of(p, cols));
        found->prior = found->rows < prior_rows;
        found->diag = true;
    }
    free(p);
    return st;
}

fl_status fl_importance_get_imatrix(const fl_importance *im, const char *name, int64_t cols,
                                    int expert, double prior_rows, float *diag,
                                    fl_importance_found *found, fl_err *err)
{
    const fl_tensor *sums = find(im, name, "in_sum2"), *counts = find(im, name, "counts");
    if (!sums || !counts) return FL_OK;
    if (sums->ne[0] != cols || expert >= sums->ne[1] ||
        counts->bytes != (uint64_t)sums->ne[1] * sizeof(float))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: %s is [%lld, %lld], expert %d with %lld inputs was asked for: measured "
                       "on another model",
                       im->path, sums->name, (long long)sums->ne[0], (long long)sums->ne[1], expert,
                       (long long)cols);
    if (sums->ne[1] > 1) return get_expert(im, sums, counts, expert, prior_rows, diag, found, err);
    FL_TRY(read_expert(im, sums, counts, 0, diag, &found->rows, &found->repaired, err));
    found->diag = found->rows > 0.0;
    return FL_OK;
}
