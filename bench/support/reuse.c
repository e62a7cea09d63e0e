#include "bench/support/reuse.h"

#include <stdlib.h>
#include <string.h>

#include "bench/support/synth.h"
#include "runtime/model/sweep.h"

typedef struct counts {
    const bench_array *trace;
    int rows, passes, n_expert, top_k, n_patterns;
    int64_t distinct, again, since, matched; /* since: distinct ones of all passes but the first */
    double least, most;
    uint8_t *now, *before; /* [n_expert] */
} counts;

static bool in_trace(const counts *c, int layer, int64_t row, int32_t expert)
{
    const int64_t *d = c->trace->dim;
    const uint8_t *at = c->trace->data + (row % c->n_patterns % d[0] * d[1] + layer % d[1]) * d[2];
    for (int64_t i = 0; i < d[2]; i++)
        if (at[i] == expert) return true;
    return false;
}

static void count_layer(counts *c, int layer, const int32_t *expert)
{
    int64_t all = 0;
    for (int p = 0; p < c->passes; p++) {
        int64_t n = 0, again = 0;
        uint8_t *t = c->now;
        c->now = c->before;
        c->before = t;
        memset(c->now, 0, (size_t)c->n_expert);
        for (int64_t i = 0; i < (int64_t)c->rows * c->top_k; i++) {
            const int64_t row = (int64_t)p * c->rows + i / c->top_k;
            const int32_t e = expert[row * c->top_k + i % c->top_k];
            c->now[e] = 1;
            if (c->trace) c->matched += in_trace(c, layer, row, e);
        }
        for (int e = 0; e < c->n_expert; e++) {
            n += c->now[e];
            again += c->now[e] & c->before[e];
        }
        all += n;
        if (p > 0) c->since += n, c->again += again;
    }
    const double mean = (double)all / c->passes;
    if (layer == 0 || mean < c->least) c->least = mean;
    if (layer == 0 || mean > c->most) c->most = mean;
    c->distinct += all;
}

static fl_status sweep(counts *c, const fl_model *model, const fl_sweep_text *text, int threads,
                       fl_err *err)
{
    const fl_clover *sw = &model->index->clover;
    const fl_sweep_params params = {.threads = threads, .kv_type = FL_TYPE_F16};
    fl_sweep *s = NULL;
    fl_status st;
    FL_GO(fl_sweep_open(&s, model, text, sw, &params, err));
    FL_GO(fl_sweep_embed(s, err));
    for (int i = 0; i < model->index->hp.n_layer; i++) {
        FL_GO(fl_sweep_layer(s, i, NULL, err));
        count_layer(c, i, fl_sweep_experts(s));
    }
    st = fl_sweep_head(s, NULL, err);
out:
    fl_sweep_close(&s);
    return st;
}

fl_status bench_reuse_measure(bench_reuse *out, const fl_model *model, int rows, int passes,
                              const bench_array *trace, int threads, fl_err *err)
{
    const fl_hparams *hp = &model->index->hp;
    const int64_t n = (int64_t)rows * passes;
    counts c = {.trace = trace,
                .rows = rows,
                .passes = passes,
                .n_expert = hp->n_expert,
                .top_k = hp->top_k,
                .n_patterns = bench_n_patterns(hp->d_model)};
    uint64_t state = 88172645463325252ull;
    fl_sweep_pass *pass = calloc((size_t)passes, sizeof *pass);
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    c.now = calloc((size_t)hp->n_expert, 1);
    c.before = calloc((size_t)hp->n_expert, 1);
    fl_status st;
    if (!pass || !ids || !c.now || !c.before)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "no memory to measure the routing"));
    for (int p = 0; p < passes; p++)
        pass[p] = (fl_sweep_pass){.at = (int64_t)p * rows, .n_write = rows};
    for (int64_t i = 0; i < n; i++)
        ids[i] =
            (int32_t)((trace ? (uint64_t)i : bench_random(&state) >> 16) % (uint64_t)hp->n_vocab);
    const fl_sweep_text text = {pass, passes, ids, n, 1, n, rows, rows};
    FL_GO(sweep(&c, model, &text, threads, err));
    const double sets = (double)passes * hp->n_layer;
    *out = (bench_reuse){rows,
                         passes,
                         (double)c.distinct / sets,
                         c.least,
                         c.most,
                         c.since ? (double)c.again / (double)c.since : 0.0,
                         trace ? (double)c.matched / (double)(n * hp->n_layer * hp->top_k) : -1.0};
out:
    free(pass);
    free(ids);
    free(c.now);
    free(c.before);
    return st;
}
