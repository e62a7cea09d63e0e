#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/array.h"
#include "bench/support/traffic.h"

/* Kinds of traces.py. */
enum { PROMPT, AR_STEP, BLOCK_PASS, COMMIT };

typedef struct forward {
    int32_t prompt, kind, first, rows;
} forward;

typedef struct source {
    bench_array forwards, experts;
    int32_t *ids; /* of one layer of one forward */
    int max_rows, n_experts;
} source;

static forward forward_at(const source *s, int64_t i)
{
    forward f;
    memcpy(&f, s->forwards.data + i * (int64_t)sizeof f, sizeof f);
    return f;
}

static fl_status check(source *s, const char *folder, fl_err *err)
{
    const int64_t *d = s->experts.dim;
    if (s->forwards.dim[1] != 4 || s->forwards.dim[0] < 1 ||
        (uint64_t)s->forwards.dim[0] * sizeof(forward) != s->forwards.bytes)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s/forwards.npy: expected rows of 4 numbers", folder);
    for (int64_t i = 0; i < s->forwards.dim[0]; i++) {
        const forward f = forward_at(s, i);
        if (f.kind < PROMPT || f.kind > COMMIT || f.rows < 1 || f.rows > FL_TRACE_MAX_ROWS ||
            f.first < 0 || f.first > d[0] - f.rows)
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s/forwards.npy: forward %lld: kind %d, rows %d from %d of %lld",
                           folder, (long long)i, f.kind, f.rows, f.first, (long long)d[0]);
        if (f.rows > s->max_rows) s->max_rows = f.rows;
    }
    for (uint64_t i = 0; i < s->experts.bytes; i++)
        if (s->experts.data[i] >= s->n_experts) s->n_experts = s->experts.data[i] + 1;
    return FL_OK;
}

static fl_status put_forward(fl_trace_writer *w, const source *s, const forward *f, bool first,
                             fl_err *err)
{
    static const fl_pass_kind kind[] = {FL_PASS_PREFILL, FL_PASS_AR, FL_PASS_BLOCK,
                                        FL_PASS_PREFILL};
    const int64_t n_layer = s->experts.dim[1], k = s->experts.dim[2];
    const bool block = f->kind == BLOCK_PASS;
    const fl_trace_pass pass = {.kind = kind[f->kind],
                                .first = first && block,
                                .rows = f->rows,
                                .clean = block ? 0 : f->rows,
                                .done = block ? 0 : f->rows};
    for (int64_t l = 0; l < n_layer; l++) {
        for (int64_t r = 0; r < f->rows; r++)
            for (int64_t i = 0; i < k; i++)
                s->ids[r * k + i] = s->experts.data[((f->first + r) * n_layer + l) * k + i];
        fl_trace_writer_layer(w, (int)l, f->rows, s->ids);
    }
    return fl_trace_writer_pass(w, &pass, err);
}

static fl_status convert(source *s, const char *path, fl_err *err)
{
    fl_trace_shape shape = {.n_layer = (int)s->experts.dim[1],
                            .n_expert = s->n_experts,
                            .top_k = (int)s->experts.dim[2],
                            .block = 32,
                            .name = "recorded"};
    fl_trace_writer *w = NULL;
    int32_t last = COMMIT;
    fl_status st;
    s->ids = malloc((size_t)(s->max_rows * shape.top_k) * sizeof *s->ids);
    if (!s->ids) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    FL_GO(fl_trace_writer_open(&w, path, &shape, s->max_rows, err));
    for (int64_t i = 0; i < s->forwards.dim[0]; i++) {
        const forward f = forward_at(s, i);
        FL_GO(put_forward(w, s, &f, last != BLOCK_PASS, err));
        last = f.kind;
    }
    st = fl_trace_writer_commit(&w, err);
out:
    fl_trace_writer_discard(&w);
    free(s->ids);
    return st;
}

fl_status bench_traffic_import(const char *folder, const char *path, fl_err *err)
{
    char name[4096];
    source s = {0};
    fl_status st;
    snprintf(name, sizeof name, "%s/experts.npy", folder);
    FL_GO(bench_trace_load(&s.experts, name, err));
    snprintf(name, sizeof name, "%s/forwards.npy", folder);
    FL_GO(bench_array_load(&s.forwards, name, "'<i4'", err));
    FL_GO(check(&s, folder, err));
    st = convert(&s, path, err);
out:
    bench_array_free(&s.experts);
    bench_array_free(&s.forwards);
    return st;
}
