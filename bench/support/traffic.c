#include "bench/support/traffic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/random.h"

enum { MAX_TOP_K = 256 };
const char *const bench_domain_name[BENCH_N_DOMAINS] = {"code", "chat"};

/* Found by trial: together they give the measured figures. */
static const double FALL = 5.5;    /* log of the commonest expert's popularity over the rarest's */
static const double TOPIC = 1.4;   /* standard deviation of the topic */
static const double STAYS = 0.3;   /* correlation of the topics of two neighbouring blocks */
static const double ROW = 1.6;     /* standard deviation of what a row wants throughout its block */
static const double PASS = 0.9;    /* and of what it wants in one pass */
static const double SHARED = 0.06; /* of the hot quarter: hot in both domains */
static const double PER_PASS = 2.55, PER_VERIFY = 4.5;

bench_traffic bench_traffic_defaults(void)
{
    return (bench_traffic){.n_layer = 40,
                           .n_expert = 256,
                           .top_k = 8,
                           .block = 32,
                           .passes = 200,
                           .kind = FL_PASS_BLOCK,
                           .domain = BENCH_CODE,
                           .seed = 1};
}

typedef struct maker {
    const bench_traffic *t;
    uint64_t random;
    int rows;        /* of the present pass */
    float *popular;  /* [n_layer][n_expert], log */
    float *topic;    /* [n_layer][n_expert] */
    float *own;      /* [n_layer][rows][n_expert] */
    int32_t *expert; /* [n_layer][rows][top_k] */
} maker;

/* Standard deviation 1, nearly normal: the sum of four uniform numbers. */
static float deviate(uint64_t *s)
{
    const uint64_t v = bench_random(s);
    const uint64_t sum = (v & 0xffff) + (v >> 16 & 0xffff) + (v >> 32 & 0xffff) + (v >> 48);
    return ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
}

static void shuffle(int32_t *x, int n, uint64_t *s)
{
    for (int i = n - 1; i > 0; i--) {
        const int j = (int)(bench_random(s) >> 33) % (i + 1);
        const int32_t v = x[i];
        x[i] = x[j];
        x[j] = v;
    }
}

/* The experts of a layer by falling popularity: a random order for code; for chat the same one
 * backwards, but for a few that are hot in both. */
static void order_experts(maker *m, int32_t *order)
{
    const int n = m->t->n_expert, shared = (int)(SHARED * n / 4);
    for (int e = 0; e < n; e++) order[e] = e;
    shuffle(order, n, &m->random);
    if (m->t->domain == BENCH_CODE) return;
    for (int i = shared, j = n - 1; i < j; i++, j--) {
        const int32_t e = order[i];
        order[i] = order[j];
        order[j] = e;
    }
}

static void set_popularity(maker *m)
{
    const int n = m->t->n_expert;
    int32_t *order = malloc(sizeof *order * (size_t)n);
    if (!order) abort();
    for (int l = 0; l < m->t->n_layer; l++) {
        order_experts(m, order);
        for (int i = 0; i < n; i++) m->popular[l * n + order[i]] = (float)(-FALL * (i + 0.5) / n);
    }
    free(order);
}

static void set_topic(maker *m, double keep)
{
    const double fresh = sqrt(1.0 - keep * keep) * TOPIC;
    for (int i = 0; i < m->t->n_layer * m->t->n_expert; i++)
        m->topic[i] = (float)(keep * m->topic[i] + fresh * deviate(&m->random));
}

/* What rows want: all of them anew, or the first n are done and leave, and as many follow. */
static void move_rows(maker *m, int n)
{
    const int64_t e = m->t->n_expert, stay = m->rows - n;
    for (int64_t l = 0; l < m->t->n_layer; l++) {
        float *own = m->own + l * m->rows * e;
        memmove(own, own + n * e, (size_t)(stay * e) * sizeof *own);
        for (int64_t i = stay * e; i < m->rows * e; i++) own[i] = (float)ROW * deviate(&m->random);
    }
}

/* The top_k largest. */
static void draw_row(maker *m, int layer, int row)
{
    const int n = m->t->n_expert, k = m->t->top_k;
    const float *popular = m->popular + layer * n, *topic = m->topic + layer * n;
    const float *own = m->own + ((int64_t)layer * m->rows + row) * n;
    int32_t *out = m->expert + ((int64_t)layer * m->rows + row) * k;
    float key[MAX_TOP_K];
    int got = 0;
    for (int e = 0; e < n; e++) {
        const float v = popular[e] + topic[e] + own[e] + (float)PASS * deviate(&m->random);
        if (got == k && v <= key[k - 1]) continue;
        int at = got < k ? got++ : k - 1;
        for (; at > 0 && key[at - 1] < v; at--) key[at] = key[at - 1], out[at] = out[at - 1];
        key[at] = v;
        out[at] = e;
    }
}

static void draw_rows(maker *m)
{
    for (int l = 0; l < m->t->n_layer; l++)
        for (int r = 0; r < m->rows; r++) draw_row(m, l, r);
}

static int draw_done(maker *m, double mean, int most)
{
    int n = 1;
    while (n < most && bench_uniform(&m->random) < 1.0 - 1.0 / mean) n++;
    return n;
}

static fl_status put(maker *m, fl_trace_writer *w, const fl_trace_pass *pass, fl_err *err)
{
    for (int l = 0; l < m->t->n_layer; l++)
        fl_trace_writer_layer(w, l, pass->rows, m->expert + (int64_t)l * m->rows * m->t->top_k);
    return fl_trace_writer_pass(w, pass, err);
}

static fl_status make_prompt(maker *m, fl_trace_writer *w, fl_err *err)
{
    const int rows = m->t->prompt;
    const fl_trace_pass p = {FL_PASS_PREFILL, false, rows, rows, rows};
    m->rows = rows;
    move_rows(m, rows);
    draw_rows(m);
    return put(m, w, &p, err);
}

static fl_status make_blocks(maker *m, fl_trace_writer *w, fl_err *err)
{
    const int size = m->t->block;
    m->rows = size;
    for (int i = 0, left = 0; i < m->t->passes; i++) {
        fl_trace_pass p = {.kind = FL_PASS_BLOCK, .rows = size, .first = left == 0};
        if (p.first) {
            set_topic(m, STAYS);
            move_rows(m, size);
            left = size;
        }
        draw_rows(m);
        p.done = draw_done(m, PER_PASS, left);
        left -= p.done;
        FL_TRY(put(m, w, &p, err));
    }
    return FL_OK;
}

/* One row, or those of a draft: what is accepted leaves. The topic moves on with every position, in
 * as many as a block has by as much as from block to block. */
static fl_status make_rows(maker *m, fl_trace_writer *w, fl_err *err)
{
    const bench_traffic *t = m->t;
    m->rows = t->kind == FL_PASS_AR ? 1 : t->block;
    for (int i = 0, done = m->rows; i < t->passes; i++) {
        set_topic(m, pow(STAYS, (double)done / t->block));
        move_rows(m, done);
        draw_rows(m);
        if (t->kind == FL_PASS_VERIFY) done = draw_done(m, PER_VERIFY, m->rows);
        const fl_trace_pass p = {
            .kind = t->kind, .rows = m->rows, .clean = t->kind == FL_PASS_AR, .done = done};
        FL_TRY(put(m, w, &p, err));
    }
    return FL_OK;
}

fl_status bench_traffic_write(const bench_traffic *t, const char *path, fl_err *err)
{
    fl_trace_shape shape = {t->n_layer, t->n_expert, t->top_k, t->block, true, {0}};
    fl_trace_writer *w = NULL;
    fl_status st = FL_OK;
    const size_t n = (size_t)t->n_layer * (size_t)t->n_expert;
    const int rows = t->prompt > t->block ? t->prompt : t->block;
    maker m = {.t = t, .random = (t->seed + 1) * 0x9e3779b97f4a7c15ull};
    m.popular = malloc(n * sizeof *m.popular);
    m.topic = calloc(n, sizeof *m.topic);
    m.own = malloc(n * (size_t)rows * sizeof *m.own);
    m.expert = malloc((size_t)(t->n_layer * rows * t->top_k) * sizeof *m.expert);
    if (!m.popular || !m.topic || !m.own || !m.expert)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to make a trace", path));
    snprintf(shape.name, sizeof shape.name, "%s", bench_domain_name[t->domain]);
    FL_GO(fl_trace_writer_open(&w, path, &shape, rows, err));
    set_popularity(&m);
    set_topic(&m, 0.0);
    if (t->prompt > 0) FL_GO(make_prompt(&m, w, err));
    FL_GO(t->kind == FL_PASS_BLOCK ? make_blocks(&m, w, err) : make_rows(&m, w, err));
    st = fl_trace_writer_commit(&w, err);
out:
    fl_trace_writer_discard(&w);
    free(m.popular);
    free(m.topic);
    free(m.own);
    free(m.expert);
    return st;
}
