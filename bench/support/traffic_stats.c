#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/traffic.h"

/* Sets are bytes [n_expert]. */
typedef struct sums {
    double distinct, later, again, in_first, mean, unions, first_of, in_union, in_last;
    double hot, choices;
} sums;

typedef struct sets {
    uint8_t *now, *last, *first, *all, *all_before; /* [n_expert] each */
    uint8_t *memory;
    int32_t *ids;
    uint64_t *count;
} sets;

static int both(const uint8_t *a, const uint8_t *b, int n)
{
    int m = 0;
    for (int i = 0; i < n; i++) m += a[i] & b[i];
    return m;
}

static int size_of(const uint8_t *a, int n) { return both(a, a, n); }

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* How often each expert of a layer was chosen, (count << 16 | id), most used first. */
static void count_choices(const fl_trace *t, int layer, int32_t *row, uint64_t *count)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    for (int e = 0; e < s->n_expert; e++) count[e] = (uint64_t)e;
    for (int p = 0; p < fl_trace_n_passes(t); p++) {
        const fl_trace_pass *pass = fl_trace_get_pass(t, p);
        if (pass->kind == FL_PASS_PREFILL) continue;
        for (int r = 0; r < pass->rows; r++) {
            fl_trace_row(t, p, layer, r, row);
            for (int i = 0; i < s->top_k; i++) count[row[i]] += 1 << 16;
        }
    }
    qsort(count, (size_t)s->n_expert, sizeof *count, compare);
}

static void end_block(sums *m, sets *x, int passes, double distinct, int n)
{
    if (passes == 0) return;
    m->unions += size_of(x->all, n);
    m->mean += distinct / passes;
    memcpy(x->all_before, x->all, (size_t)n);
}

/* A block's first pass against the block before, if there is one. */
static void begin_block(sums *m, sets *x, bool follows, int k, int n)
{
    if (follows) {
        m->first_of += k;
        m->in_union += both(x->now, x->all_before, n);
        m->in_last += both(x->now, x->last, n);
    }
    memset(x->all, 0, (size_t)n);
    memcpy(x->first, x->now, (size_t)n);
}

static void later_pass(sums *m, const sets *x, int k, int n)
{
    m->later += k;
    m->again += both(x->now, x->last, n);
    m->in_first += both(x->now, x->first, n);
}

static void measure_layer(const fl_trace *t, int layer, sets *x, sums *m)
{
    const int n = fl_trace_get_shape(t)->n_expert;
    int in_block = 0, blocks = 0;
    double distinct = 0; /* of the passes of this block */
    for (int p = 0; p < fl_trace_n_passes(t); p++) {
        const fl_trace_pass *pass = fl_trace_get_pass(t, p);
        if (pass->kind == FL_PASS_PREFILL) continue;
        const int k = fl_trace_union(t, p, layer, x->ids);
        memset(x->now, 0, (size_t)n);
        for (int i = 0; i < k; i++) x->now[x->ids[i]] = 1;
        m->distinct += k;
        if (pass->first) {
            end_block(m, x, in_block, distinct, n);
            begin_block(m, x, blocks++ > 0, k, n);
            in_block = 0;
            distinct = 0;
        } else if (blocks > 0) {
            later_pass(m, x, k, n);
        }
        for (int e = 0; e < n; e++) x->all[e] |= x->now[e];
        memcpy(x->last, x->now, (size_t)n);
        in_block++;
        distinct += k;
    }
    if (blocks > 0) end_block(m, x, in_block, distinct, n);
    count_choices(t, layer, x->ids, x->count);
    for (int e = 0; e < n; e++) {
        m->choices += (double)(x->count[e] >> 16);
        if (e < n / 4) m->hot += (double)(x->count[e] >> 16);
    }
}

static double share(double part, double of) { return of > 0 ? part / of : 0.0; }

fl_status bench_traffic_measure(bench_traffic_stats *out, const fl_trace *t, fl_err *err)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    const size_t n = (size_t)s->n_expert;
    sums m = {0};
    sets x = {.memory = calloc(5, n),
              .ids = malloc((n > 256 ? n : 256) * sizeof *x.ids),
              .count = malloc(n * sizeof *x.count)};
    fl_status st = FL_OK;
    *out = (bench_traffic_stats){0};
    if (!x.memory || !x.ids || !x.count)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "no memory to measure a trace"));
    uint8_t **const set[] = {&x.now, &x.last, &x.first, &x.all, &x.all_before};
    for (size_t i = 0; i < 5; i++) *set[i] = x.memory + i * n;
    for (int l = 0; l < s->n_layer; l++) measure_layer(t, l, &x, &m);
    double done = 0;
    for (int p = 0; p < fl_trace_n_passes(t); p++) {
        const fl_trace_pass *pass = fl_trace_get_pass(t, p);
        if (pass->kind == FL_PASS_PREFILL) continue;
        out->passes++;
        out->blocks += pass->first;
        done += pass->done;
    }
    out->distinct = share(m.distinct, (double)out->passes * s->n_layer);
    out->reuse = share(m.again, m.later);
    out->union_mean = share(m.unions, m.mean);
    out->hot = share(m.hot, m.choices);
    out->first = share(m.in_first, m.later);
    out->next_union = share(m.in_union, m.first_of);
    out->next_last = share(m.in_last, m.first_of);
    out->done = share(done, out->passes);
out:
    free(x.memory);
    free(x.ids);
    free(x.count);
    return st;
}

const char *bench_traffic_missed(const bench_traffic_stats *s)
{
    static char text[128];
    const struct {
        const char *what;
        double value, least, most;
    } figure[] = {{"distinct experts in a pass", s->distinct, 65, 75},
                  {"part known from the pass before", s->reuse, 0.76, 0.82},
                  {"a block's union over its mean pass", s->union_mean, 1.5, 1.8},
                  {"part of the most used quarter", s->hot, 0.70, 0.80}};
    for (size_t i = 0; i < sizeof figure / sizeof *figure; i++) {
        if (figure[i].value >= figure[i].least && figure[i].value <= figure[i].most) continue;
        snprintf(text, sizeof text, "%s: %.3f, measured: %.2f to %.2f", figure[i].what,
                 figure[i].value, figure[i].least, figure[i].most);
        return text;
    }
    return NULL;
}

fl_status bench_traffic_jaccard(double *out, const fl_trace *a, const fl_trace *b, fl_err *err)
{
    const fl_trace_shape *s = fl_trace_get_shape(a);
    const int n = s->n_expert, hot = n / 4;
    double sum = 0;
    fl_status st = FL_OK;
    uint64_t *count = malloc(2 * (size_t)n * sizeof *count);
    int32_t *row = malloc(256 * sizeof *row);
    if (!count || !row) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "no memory to compare two traces"));
    for (int l = 0; l < s->n_layer; l++) {
        int shared = 0;
        count_choices(a, l, row, count);
        count_choices(b, l, row, count + n);
        for (int i = 0; i < hot; i++)
            for (int j = 0; j < hot; j++) shared += (count[i] & 0xffff) == (count[n + j] & 0xffff);
        sum += (double)shared / (2 * hot - shared);
    }
    *out = sum / s->n_layer;
out:
    free(count);
    free(row);
    return st;
}
