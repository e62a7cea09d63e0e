#include "runtime/tools/importance_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/importance_parts.h"
#include "runtime/tools/importance_sites.h"

/* How many rows the layer counts for in an expert's mean squares: a mean of squares over so many
 * rows is off by about a quarter. */
enum { DIAG_PRIOR_ROWS = 32 };

/* ---- opening ---- */

static void take_text(const fl_source *s, const char *key, char *buf, size_t room)
{
    const fl_str t = fl_kv_str(fl_gguf_find(fl_source_gguf(s), key));
    snprintf(buf, room, "%.*s", (int)(t.n < room ? t.n : room - 1), t.p ? t.p : "");
}

static fl_status open_ours(fl_importance *im, fl_err *err)
{
    const fl_gguf *g = fl_source_gguf(im->src);
    const int64_t version = fl_kv_int(fl_gguf_find(g, FL_IMPORTANCE_KEY("version")), -1);
    if (version != FL_IMPORTANCE_VERSION)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s: an importance file of version %lld, this program reads %d; measure it "
                       "again",
                       im->path, (long long)version, FL_IMPORTANCE_VERSION);
    take_text(im->src, FL_IMPORTANCE_KEY("model"), im->model, sizeof im->model);
    take_text(im->src, FL_IMPORTANCE_KEY("identity"), im->identity, sizeof im->identity);
    im->tied = fl_kv_bool(fl_gguf_find(g, FL_IMPORTANCE_KEY("tied")), false);
    im->info = (fl_importance_info){
        .kind = "fourleaf",
        .model = im->model,
        .identity = im->identity,
        .tokens = fl_kv_num(fl_gguf_find(g, FL_IMPORTANCE_KEY("tokens")), 0),
        .block_rows = fl_kv_num(fl_gguf_find(g, FL_IMPORTANCE_KEY("block_rows")), 0)};
    return FL_OK;
}

static fl_status open_gguf(fl_importance *im, fl_err *err)
{
    const fl_gguf *g = fl_source_gguf(im->src);
    const fl_str arch = fl_kv_str(fl_gguf_find(g, "general.architecture"));
    for (size_t i = 0; i < fl_source_n_tensors(im->src); i++) {
        const fl_tensor *t = fl_source_tensor(im->src, i);
        if (t->type != FL_TYPE_F32)
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s: %s is not of type f32: no importance file (those of fourleaf "
                           "importance and llama.cpp's imatrix are read)",
                           im->path, t->name);
    }
    if (arch.n == strlen(FL_IMPORTANCE_ARCH) && memcmp(arch.p, FL_IMPORTANCE_ARCH, arch.n) == 0)
        return open_ours(im, err);
    return fl_importance_open_imatrix(im, err);
}

fl_status fl_importance_open(fl_importance **out, const char *path, fl_err *err)
{
    fl_status st;
    *out = NULL;
    fl_importance *im = calloc(1, sizeof *im);
    if (!im || !(im->path = strdup(path))) {
        free(im);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    }
    if (fl_importance_is_dat(path)) {
        FL_GO(fl_importance_open_dat(im, err));
        *out = im;
        return FL_OK;
    }
    FL_GO(fl_source_open(&im->src, path, err));
    if (fl_source_kind_of(im->src) != FL_SOURCE_GGUF)
        FL_GO(FL_FAIL(err, FL_E_FORMAT, 0,
                      "%s: a model in safetensors, an importance file was expected", path));
    FL_GO(open_gguf(im, err));
    *out = im;
    im = NULL;
out:
    fl_importance_close(&im);
    return st;
}

void fl_importance_close(fl_importance **im)
{
    if (!*im) return;
    fl_source_close(&(*im)->src);
    free((*im)->file);
    free((*im)->entry);
    free((*im)->path);
    free(*im);
    *im = NULL;
}

fl_importance_info fl_importance_describe(const fl_importance *im) { return im->info; }

/* ---- reading ---- */

fl_status fl_importance_read(const fl_importance *im, const fl_tensor *t, int64_t skip, int64_t n,
                             float *out, fl_err *err)
{
    if (skip < 0 || n < 1 || (uint64_t)(skip + n) * sizeof(float) > t->bytes)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: %s has %llu bytes, values up to %lld were expected", im->path, t->name,
                       (unsigned long long)t->bytes, (long long)(skip + n));
    return fl_source_read(im->src, t, (uint64_t)skip * sizeof(float), out,
                          (uint64_t)n * sizeof(float), err);
}

/* The same, of values that must be finite; `squares`: and not below 0. */
static fl_status read_checked(const fl_importance *im, const fl_tensor *t, int64_t skip, int64_t n,
                              bool squares, float *out, fl_err *err)
{
    FL_TRY(fl_importance_read(im, t, skip, n, out, err));
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]) || (squares && out[i] < 0.0f))
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s: %s, value %lld is %g: the file is damaged, measure it again",
                           im->path, t->name, (long long)(skip + i), (double)out[i]);
    return FL_OK;
}

/* A packed triangle, whose diagonal is squares. */
static fl_status read_triangle(const fl_importance *im, const fl_tensor *t, int64_t skip,
                               int64_t cols, float *tri, fl_err *err)
{
    FL_TRY(read_checked(im, t, skip, fl_triangle(cols), false, tri, err));
    for (int64_t i = 0; i < cols; i++)
        if (tri[fl_triangle(i) + i] < 0.0f)
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s: %s has %g on its diagonal: the file is damaged, measure it again",
                           im->path, t->name, (double)tri[fl_triangle(i) + i]);
    return FL_OK;
}

/* One site's tensors, all there or none, of the shape that was asked for. */
typedef struct site_view {
    const fl_tensor *rows, *diag, *full;
    int64_t cols;
    double n; /* rows of this expert */
} site_view;

static const fl_tensor *find_part(const fl_importance *im, fl_site site, int layer,
                                  const char *part)
{
    char name[FL_SITE_NAME];
    return fl_source_find(im->src, fl_site_name(name, site, layer, part));
}

static fl_status wrong(const fl_importance *im, const fl_tensor *t, int64_t cols, int expert,
                       fl_err *err)
{
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: %s is [%lld, %lld], expert %d with %lld inputs was asked for: measured on "
                   "another model",
                   im->path, t->name, (long long)t->ne[0], (long long)t->ne[1], expert,
                   (long long)cols);
}

/* v->diag NULL: the file has no such site. */
static fl_status view_site(const fl_importance *im, fl_site site, int layer, int64_t cols,
                           int expert, site_view *v, fl_err *err)
{
    float n = 0.0f;
    *v = (site_view){.rows = find_part(im, site, layer, "rows"),
                     .diag = find_part(im, site, layer, "diag"),
                     .full = find_part(im, site, layer, "full"),
                     .cols = cols};
    if (!v->rows || !v->diag) {
        v->diag = NULL;
        return FL_OK;
    }
    if (v->diag->ne[0] != cols || v->diag->ne[1] != v->rows->ne[0] || expert >= v->diag->ne[1])
        return wrong(im, v->diag, cols, expert, err);
    if (v->full && (v->full->ne[0] != fl_triangle(cols) || v->full->ne[1] != v->diag->ne[1]))
        return wrong(im, v->full, cols, expert, err);
    FL_TRY(read_checked(im, v->rows, expert, 1, true, &n, err));
    v->n = (double)n;
    return FL_OK;
}

static double sum(const float *x, int64_t n)
{
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i];
    return s;
}

void fl_importance_mix(float *s, double n, const float *p, double k, int64_t count, double trace_s,
                       double trace_p)
{
    const double f = n > 0.0 && trace_p > 0.0 ? trace_s / trace_p : 1.0;
    const double own = n / (n + k), rest = f * k / (n + k);
    for (int64_t i = 0; i < count; i++)
        s[i] = (float)((n > 0.0 ? own * (double)s[i] : 0.0) + rest * (double)p[i]);
}

/* ---- packed triangles ---- */

static double trace_of(const float *tri, int64_t cols)
{
    double s = 0.0;
    for (int64_t i = 0; i < cols; i++) s += (double)tri[fl_triangle(i) + i];
    return s;
}

/* tr^2 / |P|^2: 1 for one direction, `cols` for white noise. */
static double effective_rank(const float *tri, int64_t cols)
{
    double squares = 0.0;
    const double t = trace_of(tri, cols);
    for (int64_t i = 0; i < cols; i++) {
        const float *row = tri + fl_triangle(i);
        for (int64_t j = 0; j < i; j++) squares += 2.0 * (double)row[j] * (double)row[j];
        squares += (double)row[i] * (double)row[i];
    }
    return squares > 0.0 ? fmax(1.0, t * t / squares) : 1.0; /* below 1 is damage */
}

static void unpack(const float *tri, int64_t cols, float *full)
{
    for (int64_t i = 0; i < cols; i++)
        for (int64_t j = 0; j <= i; j++)
            full[i * cols + j] = full[j * cols + i] = tri[fl_triangle(i) + j];
}

/* ---- what is asked for ---- */

typedef struct request {
    const fl_importance *im;
    int layer, expert;
    int64_t cols;
    float *diag, *full; /* full may be NULL */
    fl_importance_found *found;
    float *tri, *other; /* scratch [fl_triangle(cols)], when full is wanted */
} request;

static fl_status get_plain(const request *r, fl_site site, fl_err *err)
{
    site_view v;
    FL_TRY(view_site(r->im, site, r->layer, r->cols, 0, &v, err));
    r->found->rows = v.n;
    if (!v.diag || v.n == 0.0) return FL_OK;
    FL_TRY(read_checked(r->im, v.diag, 0, r->cols, true, r->diag, err));
    r->found->diag = true;
    if (!r->full || !v.full) return FL_OK;
    FL_TRY(read_triangle(r->im, v.full, 0, r->cols, r->tri, err));
    unpack(r->tri, r->cols, r->full);
    r->found->full = true;
    return FL_OK;
}

/* The layer's matrix with rows and columns scaled so that its diagonal is `diag`. layer_diag is its
 * own, and is overwritten by the factors. False when the two do not belong together. */
static bool rescale(const request *r, float *layer_diag)
{
    bool finite = true;
    for (int64_t i = 0; i < r->cols; i++)
        layer_diag[i] =
            layer_diag[i] > 0.0f ? (float)sqrt((double)r->diag[i] / (double)layer_diag[i]) : 0.0f;
    for (int64_t i = 0; i < r->cols; i++)
        for (int64_t j = 0; j < r->cols; j++) {
            float *x = &r->full[i * r->cols + j];
            *x = i == j ? r->diag[i] : *x * (layer_diag[i] * layer_diag[j]);
            finite &= isfinite(*x) != 0;
        }
    return finite;
}

static fl_status get_expert_in(const request *r, fl_err *err)
{
    site_view v, all;
    FL_TRY(view_site(r->im, FL_SITE_EXPERT_IN, r->layer, r->cols, r->expert, &v, err));
    FL_TRY(view_site(r->im, FL_SITE_FFN_IN, r->layer, r->cols, 0, &all, err));
    r->found->rows = v.n;
    if (!v.diag || !all.diag || all.n == 0.0) return FL_OK;
    float *layer_diag = malloc((size_t)r->cols * sizeof(float));
    if (!layer_diag) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", r->im->path);
    fl_status st;
    FL_GO(read_checked(r->im, all.diag, 0, r->cols, true, layer_diag, err));
    FL_GO(read_checked(r->im, v.diag, r->expert * r->cols, r->cols, true, r->diag, err));
    fl_importance_mix(r->diag, v.n, layer_diag, DIAG_PRIOR_ROWS, r->cols, sum(r->diag, r->cols),
                      sum(layer_diag, r->cols));
    r->found->diag = true;
    r->found->prior = v.n < DIAG_PRIOR_ROWS;
    if (r->full && all.full) {
        FL_GO(read_triangle(r->im, all.full, 0, r->cols, r->tri, err));
        unpack(r->tri, r->cols, r->full);
        r->found->full = true;
        if (!rescale(r, layer_diag))
            FL_GO(FL_FAIL(err, FL_E_FORMAT, 0,
                          "%s: %s does not belong to %s: the file is damaged, measure it again",
                          r->im->path, v.diag->name, all.full->name));
    }
out:
    free(layer_diag);
    return st;
}

/* Mean squares alone: the layer's are the diagonal of its matrix. */
static fl_status get_mid_diag(const request *r, const site_view *v, const fl_tensor *all,
                              fl_err *err)
{
    float *p = malloc((size_t)fl_triangle(r->cols) * sizeof(float));
    if (!p) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", r->im->path);
    fl_status st;
    FL_GO(read_triangle(r->im, all, 0, r->cols, p, err));
    FL_GO(read_checked(r->im, v->diag, r->expert * r->cols, r->cols, true, r->diag, err));
    for (int64_t i = 0; i < r->cols; i++) p[i] = p[fl_triangle(i) + i];
    fl_importance_mix(r->diag, v->n, p, DIAG_PRIOR_ROWS, r->cols, sum(r->diag, r->cols),
                      sum(p, r->cols));
    r->found->prior = v->n < DIAG_PRIOR_ROWS;
out:
    free(p);
    return st;
}

static fl_status get_expert_mid(const request *r, fl_err *err)
{
    site_view v;
    const fl_tensor *all = find_part(r->im, FL_SITE_EXPERT_MID, r->layer, "all");
    const int64_t count = fl_triangle(r->cols);
    FL_TRY(view_site(r->im, FL_SITE_EXPERT_MID, r->layer, r->cols, r->expert, &v, err));
    r->found->rows = v.n;
    if (!v.diag || !v.full || !all) return FL_OK;
    if (all->ne[0] != count) return wrong(r->im, all, r->cols, r->expert, err);
    r->found->diag = true;
    if (!r->full) return get_mid_diag(r, &v, all, err);
    FL_TRY(read_triangle(r->im, all, 0, r->cols, r->other, err));
    FL_TRY(read_triangle(r->im, v.full, r->expert * count, r->cols, r->tri, err));
    const double k = effective_rank(r->other, r->cols);
    fl_importance_mix(r->tri, v.n, r->other, k, count, trace_of(r->tri, r->cols),
                      trace_of(r->other, r->cols));
    unpack(r->tri, r->cols, r->full);
    for (int64_t i = 0; i < r->cols; i++) r->diag[i] = r->full[i * r->cols + i];
    r->found->full = true;
    r->found->prior = v.n < k;
    return FL_OK;
}

static fl_status get_site(const request *r, fl_site site, fl_err *err)
{
    switch (site) {
    case FL_SITE_EXPERT_IN: return get_expert_in(r, err);
    case FL_SITE_EXPERT_MID: return get_expert_mid(r, err);
    default: return get_plain(r, site, err);
    }
}

fl_status fl_importance_get(const fl_importance *im, const char *name, int64_t cols, int expert,
                            float *diag, float *full, fl_importance_found *found, fl_err *err)
{
    fl_site site;
    request r = {
        .im = im, .expert = expert, .cols = cols, .diag = diag, .full = full, .found = found};
    *found = (fl_importance_found){0};
    if (strcmp(im->info.kind, "imatrix") == 0)
        return fl_importance_get_imatrix(im, name, cols, expert, DIAG_PRIOR_ROWS, diag, found, err);
    if (!fl_site_of(name, &site, &r.layer)) return FL_OK;
    if (!im->tied && strcmp(name, "token_embd.weight") == 0) return FL_OK;
    if (!full) return get_site(&r, site, err);
    const size_t bytes = (size_t)fl_triangle(cols) * sizeof(float);
    r.tri = malloc(bytes);
    r.other = malloc(bytes);
    const fl_status st = r.tri && r.other
                             ? get_site(&r, site, err)
                             : FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory for %s: %lld inputs",
                                       im->path, name, (long long)cols);
    free(r.tri);
    free(r.other);
    return st;
}

/* ---- rows of a layer's experts ---- */

fl_status fl_importance_experts(const fl_importance *im, int layer, int64_t *n, float **rows,
                                double *enough, fl_err *err)
{
    *n = 0;
    *rows = NULL;
    if (!im->src) return FL_OK;
    const fl_tensor *t = find_part(im, FL_SITE_EXPERT_MID, layer, "rows");
    const fl_tensor *diag = find_part(im, FL_SITE_EXPERT_MID, layer, "diag");
    const fl_tensor *all = find_part(im, FL_SITE_EXPERT_MID, layer, "all");
    if (!t || !diag || !all) return FL_OK;
    const int64_t cols = diag->ne[0], count = fl_triangle(cols);
    float *p = malloc((size_t)count * sizeof *p);
    float *r = malloc((size_t)t->ne[0] * sizeof *r);
    fl_status st;
    if (!p || !r) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", im->path));
    FL_GO(read_triangle(im, all, 0, cols, p, err));
    FL_GO(read_checked(im, t, 0, t->ne[0], true, r, err));
    *enough = fmax(DIAG_PRIOR_ROWS, effective_rank(p, cols));
    *n = t->ne[0];
    *rows = r;
    r = NULL;
out:
    free(p);
    free(r);
    return st;
}
