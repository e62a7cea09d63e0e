#include "runtime/model/costs.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/samples.h"
#include "runtime/model/forward.h"
#include "runtime/model/layers.h"

enum {
    MAX_EXPERTS = 64,
    PART = 32,             /* experts of a job for several rows; for one row top_k */
    LEAST = 3,             /* tries */
    BLOCK_BYTES = 1 << 20, /* of host memory, read by one task */
    PAGE = 4096
};
static const uint64_t BUDGET_NS = 60000000;

struct fl_costs {
    fl_engine *e;
    int layer;     /* whose experts these are */
    int n_experts; /* 0 .. n_experts - 1 of it */
    int next;      /* expert of the next job */
    uint8_t *memory;
    fl_expert_view view[MAX_EXPERTS];
};

/* ---- experts in host memory ---- */

static uint64_t padded(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }

static const fl_expert_place *place_of(const fl_costs *c, int expert)
{
    return &c->e->experts.place[c->layer * c->e->model->index->hp.n_expert + expert];
}

static fl_status read_part(fl_io *io, const fl_extent *x, void *stage, void *to, fl_err *err)
{
    fl_io_done d = {0};
    int n = 0;
    FL_TRY(fl_io_submit(io, x, stage, 0, err));
    FL_TRY(fl_io_wait(io, &d, 1, 1, &n, err));
    memcpy(to, d.data, x->bytes);
    return FL_OK;
}

static fl_status read_expert(fl_costs *c, fl_io *io, int expert, void *stage, uint8_t *to,
                             fl_err *err)
{
    const fl_expert_place *place = place_of(c, expert);
    fl_expert_view *v = &c->view[expert];
    *v = (fl_expert_view){.expert = expert, .slot = -1};
    for (int i = 0; i < FL_EXPERT_PARTS; i++) {
        const fl_extent *x = &place->part[i];
        if (x->bytes == 0) continue;
        FL_TRY(read_part(io, x, stage, to, err));
        v->part[i] = to;
        to += padded(x->bytes);
    }
    return FL_OK;
}

static uint64_t key_of(const fl_costs *c, int expert)
{
    return (uint64_t)c->layer * (uint64_t)c->e->model->index->hp.n_expert + (uint64_t)expert;
}

static fl_status read_experts(fl_costs *c, fl_err *err)
{
    const fl_source *src = c->e->model->index->src;
    fl_status st = FL_OK;
    fl_io *io = NULL;
    uint8_t *stage = NULL;
    uint64_t at = 0, largest = 0;
    for (int i = 0; i < c->n_experts; i++) {
        const uint64_t bytes = c->e->experts.bytes[key_of(c, i)];
        at += bytes;
        if (bytes > largest) largest = bytes;
    }
    c->memory = aligned_alloc(PAGE, (at + PAGE) / PAGE * PAGE);
    stage = aligned_alloc(PAGE, (largest + 3 * PAGE) / PAGE * PAGE);
    if (!c->memory || !stage) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "measuring experts: no memory"));
    FL_GO(fl_io_open(&io, c->e->params.io, fl_source_paths(src), fl_source_n_files(src), 1, err));
    at = 0;
    for (int i = 0; i < c->n_experts; i++) {
        FL_GO(read_expert(c, io, i, stage, c->memory + at, err));
        at += c->e->experts.bytes[key_of(c, i)];
    }
out:
    fl_io_close(&io);
    free(stage);
    return st;
}

/* A layer in the middle: the first and the last ones are often of other types. */
static int choose_layer(const fl_engine *e)
{
    const fl_hparams *hp = &e->model->index->hp;
    for (int i = 0; i < hp->n_layer; i++) {
        const int layer = (hp->n_layer / 2 + i) % hp->n_layer;
        if (e->experts.bytes[(int64_t)layer * hp->n_expert] > 0) return layer;
    }
    return 0;
}

/* Any finite rows will do: no time depends on what is in them. */
static void fill_rows(fl_engine *e)
{
    const int64_t n = e->buf.max_rows * e->model->index->hp.d_model;
    uint32_t x = 1;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        e->buf.xn[i] = (float)(x >> 8) * 0x1p-23f - 1.0f;
    }
}

fl_status fl_costs_open(fl_costs **out, fl_engine *e, fl_err *err)
{
    const fl_hparams *hp = &e->model->index->hp;
    fl_costs *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return FL_FAIL(err, FL_E_NOMEM, 0, "measuring experts: no memory");
    c->e = e;
    c->layer = choose_layer(e);
    c->n_experts = hp->n_expert < MAX_EXPERTS ? hp->n_expert : MAX_EXPERTS;
    const fl_status st = read_experts(c, err);
    if (st != FL_OK) fl_costs_close(&c);
    *out = c;
    return st;
}

void fl_costs_close(fl_costs **c)
{
    if (!*c) return;
    fl_state_reset(&(*c)->e->state);
    free((*c)->memory);
    free(*c);
    *c = NULL;
}

int fl_costs_max_rows(const fl_costs *c)
{
    const fl_engine *e = c->e;
    return (int)(e->params.chunk < e->params.n_ctx ? e->params.chunk : e->params.n_ctx);
}

/* ---- experts ---- */

static fl_pass make_pass(const fl_costs *c, const fl_exec *exec, int rows)
{
    fl_engine *e = c->e;
    return (fl_pass){.exec = exec,
                     .hp = &e->model->index->hp,
                     .weights = &e->weights,
                     .experts = &e->experts,
                     .store = e->store,
                     .buf = &e->buf,
                     .state = &e->state,
                     .n_write = rows,
                     .n_rows = rows};
}

/* A union of n experts, each with `rows` of the pass's rows, spread as the router spreads them. */
static void lay_out_union(fl_costs *c, int n, int rows)
{
    fl_route_buffers *r = &c->e->buf.route;
    const int all = (int)c->e->buf.max_rows, step = all / rows;
    r->first[0] = 0;
    for (int u = 0; u < n; u++) {
        const int expert = c->next;
        c->next = (c->next + 1) % c->n_experts;
        r->order[u] = expert;
        r->view[u] = c->view[expert];
        r->entry[u] = u;
        for (int i = 0; i < rows; i++) r->pair_row[r->first[u] + i] = i * step + u % step;
        r->first[u + 1] = r->first[u] + rows;
    }
}

/* How many experts run side by side: the buffers hold the pairs of a whole pass. */
static int part_size(const fl_costs *c, int rows)
{
    const fl_hparams *hp = &c->e->model->index->hp;
    const int64_t pairs = c->e->buf.max_rows * hp->top_k / rows;
    int n = rows == 1 ? hp->top_k : PART;
    if (n > pairs) n = (int)pairs;
    if (n > c->n_experts - 1) n = c->n_experts - 1;
    return n;
}

fl_status fl_costs_expert(fl_costs *c, fl_pool *pool, int rows, uint64_t *ns, fl_err *err)
{
    fl_engine *e = c->e;
    const fl_exec exec = {.k = e->exec.k, .pool = pool, .act_f32 = e->exec.act_f32};
    const fl_pass p = make_pass(c, &exec, (int)e->buf.max_rows);
    const int64_t d = p.hp->d_model;
    const int n = part_size(c, rows);
    fl_samples s = {0};
    assert(rows >= 1 && rows <= fl_costs_max_rows(c));
    *ns = 0;
    if (n < 1) return FL_OK;
    fill_rows(e);
    fl_rows in = {.x = e->buf.xn, .ld = d, .cols = d, .n = p.n_rows};
    if (!exec.act_f32 && d % 256 == 0 && !fl_rows_quantize(&exec, &in, e->buf.act))
        return fl_pass_nan(c->layer, "measured experts", err);
    while (fl_samples_want(&s, LEAST, BUDGET_NS)) {
        lay_out_union(c, n, rows);
        const uint64_t start = fl_clock_ns();
        if (fl_moe_run_part(&p, c->layer, n, false))
            return fl_pass_nan(c->layer, "measured experts", err);
        fl_samples_add(&s, fl_clock_ns() - start);
    }
    *ns = s.least_ns / (uint64_t)n;
    return FL_OK;
}

/* ---- passes without routed experts ---- */

static void embed(const fl_costs *c, int rows)
{
    const fl_mat *m = &c->e->weights.embed;
    for (int i = 0; i < rows; i++)
        fl_embed_row(m, (int32_t)((i * INT64_C(7919) + 17) % m->rows), c->e->buf.x + i * m->cols);
}

static fl_status run_dense(const fl_costs *c, int rows, fl_err *err)
{
    fl_engine *e = c->e;
    const fl_pass p = make_pass(c, &e->exec, rows);
    const int n_logits = rows <= e->params.block_size ? rows : 1;
    int row[FL_MAX_BLOCK];
    const float *logits;
    embed(c, rows);
    fl_rope_prepare(&p);
    for (int i = 0; i < p.hp->n_layer; i++) {
        const fl_layer_weights *w = &e->weights.layer[i];
        fl_rows_norm(&p, w->attn_norm);
        FL_TRY(w->full_attention ? fl_attention_forward(&p, i, err) : fl_gdn_forward(&p, i, err));
        fl_rows_norm(&p, w->ffn_norm);
        FL_TRY(fl_moe_shared(&p, i, err));
    }
    e->n_rows = rows;
    for (int i = 0; i < n_logits; i++) row[i] = rows - n_logits + i;
    return fl_forward_logits(e, row, n_logits, &logits, err);
}

fl_status fl_costs_dense(fl_costs *c, int rows, uint64_t *ns, fl_err *err)
{
    fl_samples s = {0};
    assert(rows >= 1 && rows <= fl_costs_max_rows(c));
    while (fl_samples_want(&s, LEAST, BUDGET_NS)) {
        fl_state_reset(&c->e->state);
        const uint64_t start = fl_clock_ns();
        FL_TRY(run_dense(c, rows, err));
        fl_samples_add(&s, fl_clock_ns() - start);
    }
    *ns = s.least_ns;
    return FL_OK;
}

/* ---- memory ---- */

fl_status fl_costs_device(fl_costs *c, uint64_t *bytes_s, fl_err *err)
{
    fl_engine *e = c->e;
    const fl_mat *w = &e->weights.output;
    const fl_linear_job job = {w, e->buf.logits, w->rows};
    fl_rows in = {.x = e->buf.xn, .ld = w->cols, .cols = w->cols, .n = 1};
    fl_samples s = {0};
    fill_rows(e);
    if (!fl_rows_prepare(&e->exec, &in, e->buf.act, &job, 1))
        return fl_pass_nan(0, "measured product", err);
    while (fl_samples_want(&s, LEAST, BUDGET_NS)) {
        const uint64_t start = fl_clock_ns();
        fl_linear_run(&e->exec, &job, 1, &in);
        fl_samples_add(&s, fl_clock_ns() - start);
    }
    const uint64_t bytes = (uint64_t)w->rows * fl_type_row_bytes(w->type, (uint64_t)w->cols);
    *bytes_s = fl_rate_per_s(bytes, s.least_ns);
    return FL_OK;
}

typedef struct sum_run {
    const uint64_t *memory;
    uint64_t bytes;
    atomic_ullong sum; /* of all words, so that none can be left out */
} sum_run;

static void sum_task(void *arg, int task, int worker)
{
    sum_run *r = arg;
    const uint64_t first = (uint64_t)task * BLOCK_BYTES;
    const uint64_t n = r->bytes - first < BLOCK_BYTES ? r->bytes - first : BLOCK_BYTES;
    const uint64_t *x = r->memory + first / sizeof *x;
    uint64_t sum = 0;
    (void)worker;
    for (uint64_t i = 0; i < n / sizeof *x; i++) sum += x[i];
    atomic_fetch_add_explicit(&r->sum, sum, memory_order_relaxed);
}

fl_status fl_costs_host(fl_pool *pool, uint64_t bytes, uint64_t *bytes_s, fl_err *err)
{
    fl_samples s = {0};
    uint64_t *memory = aligned_alloc(PAGE, (bytes + PAGE) / PAGE * PAGE);
    if (!memory) return FL_FAIL(err, FL_E_NOMEM, 0, "measuring host memory: out of memory");
    memset(memory, 1, bytes);
    sum_run r = {.memory = memory, .bytes = bytes};
    while (fl_samples_want(&s, LEAST, BUDGET_NS)) {
        const uint64_t start = fl_clock_ns();
        fl_pool_run(pool, sum_task, &r, (int)((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES));
        fl_samples_add(&s, fl_clock_ns() - start);
    }
    const uint64_t want = bytes / sizeof *memory * UINT64_C(0x0101010101010101) * (uint64_t)s.n;
    const bool all = atomic_load(&r.sum) == want;
    free(memory);
    assert(all);
    (void)all;
    *bytes_s = fl_rate_per_s(bytes, s.least_ns);
    return FL_OK;
}
