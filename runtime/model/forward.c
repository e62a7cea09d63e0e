#include "runtime/model/forward.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/model/layers.h"

fl_status fl_pass_nan(int layer, const char *where, fl_err *err)
{
    return FL_FAIL(err, FL_E_NAN, 0,
                   "NaN or infinity in layer %d, %s: the weights are damaged or a file quirk was "
                   "not recognised (see inspect)",
                   layer, where);
}

/* By its bits: a comparison of floats would keep the loop from being vectorized. */
static bool all_finite(const float *x, int64_t n)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

bool fl_row_add(float *y, const float *delta, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += delta[i];
    return all_finite(y, n);
}

typedef struct add_run {
    float *y;
    const float *delta;
    int64_t n;
    atomic_bool broken;
} add_run;

static void add_task(void *arg, int t, int worker)
{
    add_run *r = arg;
    (void)worker;
    if (!fl_row_add(r->y + t * r->n, r->delta + t * r->n, r->n))
        atomic_store_explicit(&r->broken, true, memory_order_relaxed);
}

bool fl_rows_add(const fl_pass *p, float *y, const float *delta)
{
    add_run r = {.y = y, .delta = delta, .n = p->hp->d_model};
    fl_pool_run(p->exec->pool, add_task, &r, p->n_rows);
    return !r.broken;
}

typedef struct norm_run {
    const fl_pass *p;
    const float *w;
} norm_run;

static void norm_task(void *arg, int t, int worker)
{
    const norm_run *r = arg;
    const int64_t d = r->p->hp->d_model;
    (void)worker;
    r->p->exec->k.rmsnorm(r->p->buf->x + t * d, r->w, d, r->p->hp->eps, r->p->buf->xn + t * d);
}

void fl_rows_norm(const fl_pass *p, const float *w)
{
    norm_run r = {p, w};
    fl_pool_run(p->exec->pool, norm_task, &r, p->n_rows);
}

void fl_embed_row(const fl_mat *m, int32_t id, float *out)
{
    const uint64_t row_bytes = fl_type_row_bytes(m->type, (uint64_t)m->cols);
    fl_type_get(m->type)->dequantize((const uint8_t *)m->data + (uint64_t)id * row_bytes, out,
                                     m->cols);
    if (m->scale != 1.0f)
        for (int64_t j = 0; j < m->cols; j++) out[j] *= m->scale;
}

static fl_status check_id(const fl_engine *e, int32_t id, fl_err *err)
{
    const int64_t n = e->weights.embed.rows;
    if (id >= 0 && id < n) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0, "token id %d is outside the vocabulary of %lld", id,
                   (long long)n);
}

/* Embeddings into buf.x from row `row` on. */
static fl_status embed_rows(const fl_engine *e, const int32_t *ids, int n, int row, fl_err *err)
{
    const fl_mat *m = &e->weights.embed;
    for (int i = 0; i < n; i++) {
        float *x = e->buf.x + (row + i) * m->cols;
        FL_TRY(check_id(e, ids[i], err));
        fl_embed_row(m, ids[i], x);
        if (!all_finite(x, m->cols))
            return FL_FAIL(err, FL_E_NAN, 0,
                           "NaN or infinity in the token embedding, token %d: the weights are "
                           "damaged",
                           ids[i]);
    }
    return FL_OK;
}

/* n_write clean rows, then n_block rows of a block. */
static fl_pass make_pass(fl_engine *e, int n_write, int n_block, const fl_clover *sw)
{
    return (fl_pass){.exec = &e->exec,
                     .hp = &e->model->index->hp,
                     .weights = &e->weights,
                     .experts = &e->experts,
                     .store = e->store,
                     .buf = &e->buf,
                     .state = &e->state,
                     .at = e->state.n,
                     .n_write = n_write,
                     .n_rows = n_write + n_block,
                     .sw = sw,
                     .routing = &e->routing};
}

fl_status fl_layer_forward(const fl_pass *p, int layer, fl_err *err)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    fl_rows_norm(p, w->attn_norm);
    if (w->full_attention)
        FL_TRY(fl_attention_forward(p, layer, err));
    else
        FL_TRY(fl_gdn_forward(p, layer, err));
    if (layer + 1 < p->hp->n_layer) fl_moe_hint(p, layer + 1);
    fl_rows_norm(p, w->ffn_norm);
    return fl_moe_forward(p, layer, err);
}

/* What kind of pass it is, to those who look at its routing. */
static void begin_routing(const fl_pass *p)
{
    const bool clean = p->n_write == p->n_rows || p->commit;
    const fl_trace_pass pass = {.kind = p->held         ? FL_PASS_VERIFY
                                        : !clean        ? FL_PASS_BLOCK
                                        : p->n_rows > 1 ? FL_PASS_PREFILL
                                                        : FL_PASS_AR,
                                .rows = p->n_rows,
                                .clean = clean ? p->n_rows : p->n_write};
    fl_routing_begin(p->routing, &pass, p->at + p->n_write);
}

static fl_status run_layers(fl_engine *e, const fl_pass *p, const int32_t *clean,
                            const int32_t *block, fl_err *err)
{
    e->state.held.n = 0; /* its rows of the KV cache are overwritten */
    FL_TRY(embed_rows(e, clean, p->n_write, 0, err));
    FL_TRY(embed_rows(e, block, p->n_rows - p->n_write, p->n_write, err));
    fl_rope_prepare(p);
    begin_routing(p);
    for (int i = 0; i < p->hp->n_layer; i++) FL_TRY(fl_layer_forward(p, i, err));
    fl_routing_end(p->routing);
    e->n_rows = p->n_rows;
    return FL_OK;
}

static fl_status check_room(const fl_engine *e, int64_t n, fl_err *err)
{
    if (e->state.broken)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "the sequence state is unusable after a failed pass; start a new sequence");
    if (n < 1 || n > e->state.n_ctx - e->state.n)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%lld tokens do not fit: %lld of %lld tokens of context are in use; raise "
                       "--ctx or shorten the prompt",
                       (long long)n, (long long)e->state.n, (long long)e->state.n_ctx);
    return FL_OK;
}

/* Rows that saw what is behind them end the part of the sequence that a prefill would equal. */
static void move_on(fl_state *st, int rows, bool causal)
{
    if (causal && st->n_causal == st->n) st->n_causal += rows;
    st->n += rows;
}

/* A pass with clean rows: the state moves, or is broken. */
static fl_status run_writing(fl_engine *e, const fl_pass *p, const int32_t *clean,
                             const int32_t *block, fl_err *err)
{
    const fl_status st = run_layers(e, p, clean, block, err);
    e->state.broken = st != FL_OK;
    if (st != FL_OK) return st;
    const int rows = p->commit ? p->n_rows : p->n_write;
    for (int i = 0; i < p->n_copies; i++)
        fl_forward_hidden(e, (int)(p->copy[i].n - e->state.n) - 1,
                          fl_state_in_copy(&e->state, &p->copy[i], e->state.h_last));
    memcpy(e->state.ids + e->state.n, p->commit ? block : clean, (size_t)rows * sizeof(*clean));
    if (e->params.mtp) fl_mtp_follow(p, e->state.ids + e->state.n, rows);
    move_on(&e->state, rows, !p->commit);
    if (p->sw) fl_store_block_done(e->store);
    fl_forward_hidden(e, rows - 1, e->state.h_last);
    return FL_OK;
}

fl_status fl_forward_clean(fl_engine *e, const int32_t *ids, int64_t n, fl_err *err)
{
    FL_TRY(check_room(e, n, err));
    for (int64_t done = 0; done < n;) {
        const int64_t rows = n - done < e->params.chunk ? n - done : e->params.chunk;
        const fl_pass p = make_pass(e, (int)rows, 0, NULL);
        FL_TRY(run_writing(e, &p, ids + done, NULL, err));
        done += rows;
    }
    return FL_OK;
}

fl_status fl_forward_copying(fl_engine *e, const int32_t *ids, int64_t n, const fl_state_copy *copy,
                             int n_copies, fl_err *err)
{
    FL_TRY(check_room(e, n, err));
    assert(n <= e->params.chunk);
    fl_pass p = make_pass(e, (int)n, 0, NULL);
    p.copy = copy;
    p.n_copies = n_copies;
    return run_writing(e, &p, ids, NULL, err);
}

static fl_status check_block(const fl_engine *e, int n, const fl_clover *sw, fl_err *err)
{
    if (n < 1 || n > e->params.block_size)
        return FL_FAIL(err, FL_E_ARG, 0, "a block pass takes 1 to %d rows, not %d",
                       e->params.block_size, n);
    if (sw->gdn_block_mode == FL_GDN_BIDIR && !e->model->index->clover.has_bwd)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "block mode bidir needs tensors that this model lacks; use --block-mode "
                       "blockend, mixed or causal");
    return FL_OK;
}

int fl_leading_rows(const int32_t *ids, int n, int32_t mask_id)
{
    int lead = 0;
    while (lead < n && ids[lead] != mask_id) lead++;
    return lead;
}

fl_status fl_forward_denoise(fl_engine *e, const int32_t *ids, int n, const fl_clover *sw,
                             fl_err *err)
{
    FL_TRY(check_room(e, n, err));
    FL_TRY(check_block(e, n, sw, err));
    fl_pass p = make_pass(e, 0, n, sw);
    p.n_lead = fl_leading_rows(ids, n, sw->mask_id);
    return run_layers(e, &p, NULL, ids, err);
}

fl_status fl_forward_fused(fl_engine *e, const int32_t *clean, int n_clean, const int32_t *block,
                           int n, const fl_clover *sw, fl_err *err)
{
    FL_TRY(check_room(e, (int64_t)n_clean + n, err));
    FL_TRY(check_block(e, n, sw, err));
    FL_TRY(check_block(e, n_clean, sw, err));
    fl_pass p = make_pass(e, n_clean, n, sw);
    p.n_lead = fl_leading_rows(block, n, sw->mask_id);
    return run_writing(e, &p, clean, block, err);
}

fl_status fl_forward_commit(fl_engine *e, const int32_t *ids, int n, const fl_clover *sw,
                            fl_err *err)
{
    fl_clover routed = *sw;
    routed.pool = FL_POOL_OFF;
    FL_TRY(check_room(e, n, err));
    FL_TRY(check_block(e, n, sw, err));
    fl_pass p = make_pass(e, 0, n, &routed);
    p.n_lead = fl_leading_rows(ids, n, sw->mask_id);
    p.commit = true;
    return run_writing(e, &p, NULL, ids, err);
}

/* How held rows run: as a block that looks to the left only. */
static const fl_clover held_switches = {.gdn_block_mode = FL_GDN_CAUSAL, .pool = FL_POOL_OFF};

fl_status fl_forward_held(fl_engine *e, const int32_t *ids, int n, fl_err *err)
{
    FL_TRY(check_room(e, n, err));
    if (n > e->params.held_rows)
        return FL_FAIL(err, FL_E_ARG, 0, "a held pass takes at most %d rows, not %d",
                       e->params.held_rows, n);
    fl_pass p = make_pass(e, 0, n, &held_switches);
    p.held = true;
    FL_TRY(run_layers(e, &p, NULL, ids, err));
    memcpy(e->state.ids + e->state.n, ids, (size_t)n * sizeof(*ids));
    e->state.held.n = n;
    return FL_OK;
}

void fl_forward_promote(fl_engine *e, int m)
{
    assert(m >= 1 && m <= e->state.held.n);
    fl_pass p = make_pass(e, 0, m, &held_switches);
    p.held = true;
    for (int i = 0; i < p.hp->n_layer; i++)
        if (!p.weights->layer[i].full_attention) fl_gdn_promote(&p, i);
    if (e->params.mtp) fl_mtp_follow(&p, e->state.ids + e->state.n, m);
    move_on(&e->state, m, true);
    e->state.held.n = 0;
    fl_forward_hidden(e, m - 1, e->state.h_last);
}

/* The n rows of head_x, which `layer` made, as the output matrix reads them. */
static fl_status head_rows(fl_engine *e, int n, int layer, fl_rows *in, fl_err *err)
{
    const int64_t d = e->model->index->hp.d_model;
    const fl_linear_job job = {.w = &e->weights.output};
    *in = (fl_rows){.x = e->buf.head_x, .ld = d, .cols = d, .n = n};
    if (!fl_rows_prepare(&e->exec, in, e->buf.head_q, &job, 1))
        return fl_pass_nan(layer, "final norm", err);
    return FL_OK;
}

static fl_status logits_nan(int64_t token, fl_err *err)
{
    return FL_FAIL(err, FL_E_NAN, 0, "NaN or infinity in the logits (LM head, token %lld)",
                   (long long)token);
}

static fl_status run_head(fl_engine *e, int n, int layer, const float **logits, fl_err *err)
{
    const int64_t vocab = e->weights.output.rows;
    const fl_linear_job job = {&e->weights.output, e->buf.logits, vocab};
    fl_rows in;
    FL_TRY(head_rows(e, n, layer, &in, err));
    fl_linear_run(&e->exec, &job, 1, &in);
    if (!all_finite(e->buf.logits, n * vocab)) {
        int64_t i = 0;
        while (isfinite(e->buf.logits[i])) i++;
        return logits_nan(i % vocab, err);
    }
    *logits = e->buf.logits;
    return FL_OK;
}

fl_status fl_forward_draft(fl_engine *e, int32_t token, int step, const float **logits, fl_err *err)
{
    assert(e->params.mtp && e->state.n > 0 && step >= 0);
    FL_TRY(check_room(e, step + 1, err));
    FL_TRY(check_id(e, token, err));
    fl_pass p = make_pass(e, 1, 0, NULL);
    p.at += step;
    e->n_rows = 0; /* buf.x is overwritten */
    e->state.held.n = 0;
    FL_TRY(fl_mtp_step(&p, token, step == 0 ? e->state.h_last : e->buf.mtp_h, err));
    memcpy(e->buf.head_x, e->buf.mtp_h, (size_t)p.hp->d_model * sizeof(float));
    return run_head(e, 1, p.hp->n_layer, logits, err);
}

void fl_forward_hidden(const fl_engine *e, int row, float *out)
{
    const fl_hparams *hp = &e->model->index->hp;
    assert(row >= 0 && row < e->n_rows);
    e->exec.k.rmsnorm(e->buf.x + row * hp->d_model, e->weights.output_norm, hp->d_model, hp->eps,
                      out);
}

/* Final-norm rows into head_x. */
static void take_rows(fl_engine *e, const int *rows, int n)
{
    const int64_t d = e->model->index->hp.d_model;
    assert(n > 0 && n <= e->params.block_size);
    for (int i = 0; i < n; i++) {
        if (rows[i] < 0)
            memcpy(e->buf.head_x + i * d, e->state.h_last, (size_t)d * sizeof(float));
        else
            fl_forward_hidden(e, rows[i], e->buf.head_x + i * d);
    }
}

fl_status fl_forward_logits(fl_engine *e, const int *rows, int n, const float **logits, fl_err *err)
{
    take_rows(e, rows, n);
    return run_head(e, n, e->model->index->hp.n_layer - 1, logits, err);
}

/* ---- logits a part of the vocabulary at a time ---- */

typedef struct head_run {
    fl_engine *e;
    const fl_rows *in;
    const fl_head_reader *reader;
    atomic_llong bad; /* the lowest id whose logit is not finite */
} head_run;

static void note_bad(head_run *r, const float *l, int64_t first)
{
    while (isfinite(*l)) l++, first++;
    long long least = atomic_load(&r->bad);
    while (first < least && !atomic_compare_exchange_weak(&r->bad, &least, first)) {}
}

static void head_task(void *arg, int task, int worker)
{
    head_run *r = arg;
    fl_mat w = r->e->weights.output;
    const int64_t first = (int64_t)task * FL_HEAD_PART;
    const int64_t n = first + FL_HEAD_PART < w.rows ? FL_HEAD_PART : w.rows - first;
    float *l = r->e->buf.head_part + (int64_t)worker * r->e->buf.max_block * FL_HEAD_PART;
    w.data =
        (const uint8_t *)w.data + (uint64_t)first * fl_type_row_bytes(w.type, (uint64_t)w.cols);
    w.rows = n;
    fl_linear_piece(&r->e->exec, &w, 0, n, r->in, l, FL_HEAD_PART);
    for (int i = 0; i < r->in->n; i++, l += FL_HEAD_PART) {
        if (all_finite(l, n))
            r->reader->part(r->reader->arg, i, first, n, l, worker);
        else
            note_bad(r, l, first);
    }
}

fl_status fl_forward_head(fl_engine *e, const int *rows, int n, const fl_head_reader *reader,
                          fl_err *err)
{
    const int64_t vocab = e->weights.output.rows;
    fl_rows in;
    take_rows(e, rows, n);
    FL_TRY(head_rows(e, n, e->model->index->hp.n_layer - 1, &in, err));
    head_run r = {.e = e, .in = &in, .reader = reader};
    atomic_init(&r.bad, vocab);
    fl_pool_run(e->exec.pool, head_task, &r, (int)((vocab + FL_HEAD_PART - 1) / FL_HEAD_PART));
    const int64_t bad = atomic_load(&r.bad);
    return bad < vocab ? logits_nan(bad, err) : FL_OK;
}
