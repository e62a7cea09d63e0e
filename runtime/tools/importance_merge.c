#include "runtime/tools/importance_merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/importance_layer.h"
#include "runtime/tools/importance_parts.h"
#include "runtime/tools/importance_sites.h"

enum { PIECE = 1 << 18 /* values at hand of each file */ };

typedef struct merger {
    fl_importance **file;
    int n;
    fl_gguf_writer *w;
    const fl_tensor **name; /* each tensor once, in order of appearance */
    size_t n_names;
    float *piece, *out; /* [PIECE] */
    double *sum;        /* [PIECE] */
} merger;

static fl_status open_files(merger *m, const char *const *paths, fl_importance_origin *o,
                            fl_err *err)
{
    double tokens = 0, rows = 0;
    for (int i = 0; i < m->n; i++) {
        FL_TRY(fl_importance_open(&m->file[i], paths[i], err));
        const fl_importance *f = m->file[i], *first = m->file[0];
        if (strcmp(f->info.kind, "fourleaf") != 0)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "%s: an imatrix of llama.cpp cannot be merged: it has no second moments",
                           paths[i]);
        if (strcmp(f->identity, first->identity) != 0)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "%s was measured on another model (%s, identity %s) than %s (%s, "
                           "identity %s)",
                           paths[i], f->model, f->identity, paths[0], first->model,
                           first->identity);
        tokens += f->info.tokens;
        rows += f->info.block_rows;
    }
    if (tokens > UINT32_MAX || rows > UINT32_MAX)
        return FL_FAIL(err, FL_E_ARG, 0, "%.0f tokens in all: at most 2^32 can be merged", tokens);
    *o = (fl_importance_origin){
        .tied = m->file[0]->tied, .tokens = (uint32_t)tokens, .block_rows = (uint32_t)rows};
    memcpy(o->model, m->file[0]->model, sizeof o->model);
    memcpy(o->identity, m->file[0]->identity, sizeof o->identity);
    return FL_OK;
}

static bool same_shape(const fl_tensor *a, const fl_tensor *b)
{
    return a->n_dims == b->n_dims && memcmp(a->ne, b->ne, sizeof a->ne) == 0;
}

/* Lists each tensor once, as the first file that has it does, and declares it. */
static fl_status declare(merger *m, fl_err *err)
{
    size_t most = 0;
    for (int i = 0; i < m->n; i++) most += fl_source_n_tensors(m->file[i]->src);
    m->name = malloc((most + 1) * sizeof *m->name);
    if (!m->name) return FL_FAIL(err, FL_E_NOMEM, 0, "merge: out of memory");
    for (int i = 0; i < m->n; i++)
        for (size_t k = 0; k < fl_source_n_tensors(m->file[i]->src); k++) {
            const fl_tensor *t = fl_source_tensor(m->file[i]->src, k), *before = NULL;
            for (int j = 0; j < i && !before; j++)
                before = fl_source_find(m->file[j]->src, t->name);
            if (before && !same_shape(before, t))
                return FL_FAIL(err, FL_E_FORMAT, 0,
                               "%s: %s has another shape than in the files before it",
                               m->file[i]->path, t->name);
            if (before) continue;
            m->name[m->n_names++] = t;
            FL_TRY(fl_gguf_add_tensor(m->w, t->name, FL_TYPE_F32, t->n_dims, t->ne, err));
        }
    return FL_OK;
}

/* How much file i counts for in part `e` of a tensor: 1 where values add up; else the rows that
 * stand behind its means, of all experts for S.all. */
static fl_status weight_of(const merger *m, int i, const char *name, int64_t e, double *weight,
                           fl_err *err)
{
    const char *part = strrchr(name, '.');
    char rows[FL_SITE_NAME];
    *weight = 1.0;
    if (!part || strcmp(part, ".rows") == 0 || strcmp(part, ".odd") == 0) return FL_OK;
    snprintf(rows, sizeof rows, "%.*s.rows", (int)(part - name), name);
    const fl_tensor *t = fl_source_find(m->file[i]->src, rows);
    if (!t)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: %s without %s: the file is damaged",
                       m->file[i]->path, name, rows);
    const bool all = strcmp(part, ".all") == 0;
    *weight = 0.0;
    for (int64_t k = all ? 0 : e; k < (all ? t->ne[0] : e + 1); k++) {
        float n = 0.0f;
        FL_TRY(fl_importance_read(m->file[i], t, k, 1, &n, err));
        *weight += (double)n;
    }
    return FL_OK;
}

/* `n` values from value `at` on, which belong to part e. */
static fl_status merge_piece(merger *m, const char *name, int64_t e, int64_t at, int64_t n,
                             fl_err *err)
{
    const char *part = strrchr(name, '.');
    const bool adds = part && (strcmp(part, ".rows") == 0 || strcmp(part, ".odd") == 0);
    double total = 0.0;
    int holders = 0;
    memset(m->sum, 0, (size_t)n * sizeof *m->sum);
    for (int i = 0; i < m->n; i++) {
        const fl_tensor *t = fl_source_find(m->file[i]->src, name);
        double weight = 0.0;
        if (!t) continue;
        FL_TRY(weight_of(m, i, name, e, &weight, err));
        FL_TRY(fl_importance_read(m->file[i], t, at, n, m->piece, err));
        if (weight > 0.0 && ++holders == 1) memcpy(m->out, m->piece, (size_t)n * sizeof *m->out);
        for (int64_t k = 0; k < n && weight > 0.0; k++) m->sum[k] += weight * (double)m->piece[k];
        total += weight;
    }
    for (int64_t k = 0; k < n && holders != 1; k++)
        m->out[k] = holders == 0 ? 0.0f : (float)(adds ? m->sum[k] : m->sum[k] / total);
    return fl_gguf_writer_write(m->w, m->out, (uint64_t)n * sizeof *m->out, err);
}

static fl_status merge_tensor(merger *m, const fl_tensor *t, fl_err *err)
{
    const int64_t parts = t->n_dims > 1 ? t->ne[1] : 1, each = t->ne[0];
    for (int64_t e = 0; e < parts; e++)
        for (int64_t at = 0; at < each; at += PIECE) {
            const int64_t n = each - at < PIECE ? each - at : PIECE;
            FL_TRY(merge_piece(m, t->name, e, e * each + at, n, err));
        }
    return FL_OK;
}

fl_status fl_importance_merge(const char *out, const char *const *paths, int n, fl_err *err)
{
    merger m = {.n = n};
    fl_importance_origin origin;
    fl_status st = FL_OK;
    m.file = calloc((size_t)n, sizeof *m.file);
    m.piece = malloc(PIECE * sizeof *m.piece);
    m.out = malloc(PIECE * sizeof *m.out);
    m.sum = malloc(PIECE * sizeof *m.sum);
    if (!m.file || !m.piece || !m.out || !m.sum)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "merge: out of memory"));
    FL_GO(open_files(&m, paths, &origin, err));
    FL_GO(fl_gguf_writer_create(&m.w, out, 0, err));
    fl_importance_put_origin(m.w, &origin);
    FL_GO(declare(&m, err));
    FL_GO(fl_gguf_writer_begin(m.w, err));
    for (size_t i = 0; i < m.n_names; i++) FL_GO(merge_tensor(&m, m.name[i], err));
    st = fl_gguf_writer_commit(&m.w, err);
out:
    fl_gguf_writer_discard(&m.w);
    for (int i = 0; i < n && m.file; i++) fl_importance_close(&m.file[i]);
    free(m.file);
    free(m.name);
    free(m.piece);
    free(m.out);
    free(m.sum);
    return st;
}
