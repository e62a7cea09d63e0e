#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/importance_parts.h"

/* llama.cpp's imatrix: for a tensor NAME the sums of squares NAME.in_sum2 [columns, experts] and
 * how many rows went into each, NAME.counts [1, experts]. The older form has one number for all
 * experts of a tensor, by which their mean squares are multiplied. */
typedef struct sums_of {
    const fl_importance *im;
    const fl_tensor *sums, *counts;
    const fl_dat_entry *entry; /* the older form; then the two above are NULL */
    int64_t cols, n_experts;
} sums_of;

static const fl_tensor *find(const fl_importance *im, const char *name, const char *part)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return fl_source_find(im->src, full);
}

static const fl_dat_entry *find_entry(const fl_importance *im, const char *name)
{
    for (int i = 0; i < im->n_entries; i++)
        if (im->entry[i].name.n == strlen(name) &&
            memcmp(im->entry[i].name.p, name, im->entry[i].name.n) == 0)
            return &im->entry[i];
    return NULL;
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

static fl_status read_sums(const sums_of *s, int expert, float *x, float *n, fl_err *err)
{
    if (s->entry) {
        *n = (float)s->entry->calls;
        memcpy(x, s->entry->data + (size_t)(expert * s->cols) * sizeof *x,
               (size_t)s->cols * sizeof *x);
        return FL_OK;
    }
    FL_TRY(fl_importance_read(s->im, s->counts, expert, 1, n, err));
    return fl_importance_read(s->im, s->sums, expert * s->cols, s->cols, x, err);
}

/* Mean squares of one expert; *rows 0 where nothing was counted or all sums are 0. */
static fl_status read_expert(const sums_of *s, int expert, float *x, double *rows, int *repaired,
                             fl_err *err)
{
    float n = 0.0f;
    double total = 0.0;
    FL_TRY(read_sums(s, expert, x, &n, err));
    *repaired = repair(x, s->cols);
    for (int64_t i = 0; i < s->cols; i++) total += (double)x[i];
    *rows = isfinite(n) && n >= 1.0f && total > 0.0 ? (double)n : 0.0;
    for (int64_t i = 0; i<s->cols && * rows> 0.0; i++) x[i] = (float)((double)x[i] / *rows);
    return FL_OK;
}

/* The mean over all experts into p [cols]; *rows: all they saw. */
static fl_status read_mean(const sums_of *s, float *p, float *x, double *rows, fl_err *err)
{
    const int64_t cols = s->cols;
    double *total = calloc((size_t)cols, sizeof *total);
    fl_status st = FL_OK;
    *rows = 0.0;
    if (!total) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", s->im->path);
    for (int e = 0; e < s->n_experts && st == FL_OK; e++) {
        double n = 0.0;
        int repaired;
        st = read_expert(s, e, x, &n, &repaired, err);
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

static fl_status get_expert(const sums_of *s, int expert, double prior_rows, float *diag,
                            fl_importance_found *found, fl_err *err)
{
    double all = 0.0;
    float *p = malloc((size_t)s->cols * sizeof *p);
    if (!p) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", s->im->path);
    fl_status st = read_mean(s, p, diag, &all, err);
    if (st == FL_OK) st = read_expert(s, expert, diag, &found->rows, &found->repaired, err);
    if (st == FL_OK && all > 0.0) {
        fl_importance_mix(diag, found->rows, p, prior_rows, s->cols, sum_of(diag, s->cols),
                          sum_of(p, s->cols));
        found->prior = found->rows < prior_rows;
        found->diag = true;
    }
    free(p);
    return st;
}

/* s->cols 0: the file does not know the tensor. */
static fl_status find_sums(const fl_importance *im, const char *name, int64_t cols, int expert,
                           sums_of *s, fl_err *err)
{
    *s = (sums_of){.im = im};
    if (im->src) {
        s->sums = find(im, name, "in_sum2");
        s->counts = find(im, name, "counts");
        if (!s->sums || !s->counts) return FL_OK;
        s->cols = s->sums->ne[0];
        s->n_experts = s->sums->ne[1];
        if (s->counts->bytes != (uint64_t)s->n_experts * sizeof(float)) s->cols = -1;
    } else {
        s->entry = find_entry(im, name);
        if (!s->entry) return FL_OK;
        s->cols = s->entry->n % cols == 0 ? cols : -1;
        s->n_experts = s->entry->n / cols;
    }
    if (s->cols == cols && expert < s->n_experts) return FL_OK;
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: %s has values for another number of inputs or experts than %lld inputs of "
                   "expert %d: measured on another model",
                   im->path, name, (long long)cols, expert);
}

fl_status fl_importance_get_imatrix(const fl_importance *im, const char *name, int64_t cols,
                                    int expert, double prior_rows, float *diag,
                                    fl_importance_found *found, fl_err *err)
{
    sums_of s;
    FL_TRY(find_sums(im, name, cols, expert, &s, err));
    if (s.cols == 0) return FL_OK;
    if (s.n_experts > 1) return get_expert(&s, expert, prior_rows, diag, found, err);
    FL_TRY(read_expert(&s, 0, diag, &found->rows, &found->repaired, err));
    found->diag = found->rows > 0.0;
    return FL_OK;
}
