#include "runtime/model/sweep.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/fetch.h"
#include "offload/plan.h"
#include "runtime/model/engine.h"
#include "runtime/model/layers.h"

enum { BATCH = 256 /* rows of one product */, N_SLOTS = 3 /* experts at hand */, IO_DEPTH = 32 };

struct fl_sweep {
    const fl_model *model;
    const fl_sweep_text *text;
    const fl_clover *sw;
    fl_exec exec;
    fl_device *dev;
    fl_io *io, *expert_io; /* dense weights; experts, which the fetch has to itself */
    fl_experts experts;
    fl_weights weights;
    fl_state state;
    fl_buffers buf;
    void *mem_weights, *mem_kv, *mem_gdn, *mem_buf, *mem_slots;
    uint64_t slot_bytes;
    fl_fetch *fetch;
    float *x, *y; /* [n_rows][d_model] */
    /* The layer's routing. */
    int32_t *expert; /* [n_rows][top_k] */
    float *weight;
    int64_t *first;  /* [n_expert + 1] where an expert's pairs begin in `pair` */
    int32_t *pair;   /* [n_rows * top_k] row * top_k + k, by expert, then by row */
    int32_t *seq_of; /* [n_rows] */
    bool *lost;      /* [n_seqs] */
    int32_t *list;   /* [batch] rows of the batch at hand */
    int n_lost;
    uint64_t other_bytes; /* read beside the two fl_io */
    int64_t done, total;  /* work of the layer */
};

/* ---- memory ---- */

static fl_buffers_shape buffers_shape(const fl_sweep_text *t, int threads)
{
    return (fl_buffers_shape){.max_rows = t->max_rows > BATCH ? t->max_rows : BATCH,
                              .max_block = t->max_block > 0 ? t->max_block : 1,
                              .n_threads = threads};
}

static fl_state_shape state_shape(const fl_sweep_text *t, uint32_t kv_type)
{
    return (fl_state_shape){.n_ctx = t->n_ctx, .kv_type = kv_type};
}

static uint64_t largest_layer(const fl_index *ix)
{
    uint64_t most = 0;
    for (int i = 0; i <= ix->hp.n_layer; i++) {
        const uint64_t n = fl_weights_layer_bytes(ix, i);
        most = n > most ? n : most;
    }
    return most;
}

static uint64_t largest_expert(const fl_index *ix)
{
    uint64_t most = 0;
    for (int l = 0; l < ix->hp.n_layer; l++)
        for (int e = 0; e < ix->hp.n_expert; e++) {
            uint64_t n = 0;
            for (int part = 0; part < 3; part++) {
                fl_expert_mat m;
                fl_index_expert(ix, l, e, part, &m);
                n += fl_fetch_padded(m.bytes);
            }
            most = n > most ? n : most;
        }
    return most;
}

static uint64_t stage_bytes(uint64_t slot)
{
    return (slot + FL_PLAN_STAGE_SLACK + 4095) & ~(uint64_t)4095;
}

uint64_t fl_sweep_bytes(const fl_model *model, const fl_sweep_text *t, int threads)
{
    const fl_index *ix = model->index;
    const fl_hparams *hp = &ix->hp;
    const fl_buffers_shape b = buffers_shape(t, threads);
    const fl_state_shape shape = state_shape(t, FL_TYPE_F32);
    const fl_state_sizes st = fl_state_measure(ix, &shape);
    const uint64_t slot = largest_expert(ix), rows = (uint64_t)t->n_rows;
    const uint64_t row = 2 * (uint64_t)hp->d_model * sizeof(float) + 12 * (uint64_t)hp->top_k + 8;
    return rows * row + largest_layer(ix) + fl_buffers_bytes(ix, &b) + st.kv + st.gdn +
           N_SLOTS * (slot + stage_bytes(slot));
}

/* ---- opening ---- */

static fl_status take_rows(fl_sweep *s, fl_err *err)
{
    const fl_hparams *hp = &s->model->index->hp;
    const size_t n = (size_t)s->text->n_rows, d = (size_t)hp->d_model, k = (size_t)hp->top_k;
    s->x = malloc(n * d * sizeof *s->x);
    s->y = malloc(n * d * sizeof *s->y);
    s->expert = malloc(n * k * sizeof *s->expert);
    s->weight = malloc(n * k * sizeof *s->weight);
    s->pair = malloc(n * k * sizeof *s->pair);
    s->first = malloc(((size_t)hp->n_expert + 1) * sizeof *s->first);
    s->seq_of = malloc(n * sizeof *s->seq_of);
    s->lost = calloc((size_t)s->text->n_seqs, sizeof *s->lost);
    s->list = malloc(BATCH * sizeof *s->list);
    if (!s->x || !s->y || !s->expert || !s->weight || !s->pair || !s->first || !s->seq_of ||
        !s->lost || !s->list)
        return FL_FAIL(err, FL_E_NOMEM, 0,
                       "no memory for %lld rows of text; take less text at once",
                       (long long)s->text->n_rows);
    int64_t row = 0;
    for (int64_t i = 0; i < s->text->n_passes; i++)
        for (int j = 0; j < s->text->pass[i].n_write + s->text->pass[i].n_block; j++)
            s->seq_of[row++] = s->text->pass[i].seq;
    assert(row == s->text->n_rows);
    return FL_OK;
}

static fl_status take_device(fl_sweep *s, uint32_t kv_type, fl_err *err)
{
    const fl_index *ix = s->model->index;
    const fl_buffers_shape b = buffers_shape(s->text, fl_pool_threads(s->exec.pool));
    const fl_state_shape shape = state_shape(s->text, kv_type);
    const fl_state_sizes size = fl_state_measure(ix, &shape);
    s->slot_bytes = largest_expert(ix);
    FL_TRY(fl_device_alloc(s->dev, largest_layer(ix), "a layer's weights", &s->mem_weights, err));
    FL_TRY(fl_device_alloc(s->dev, size.kv + 64, "KV cache", &s->mem_kv, err));
    FL_TRY(fl_device_alloc(s->dev, size.gdn, "GDN state", &s->mem_gdn, err));
    FL_TRY(fl_device_alloc(s->dev, fl_buffers_bytes(ix, &b), "pass buffers", &s->mem_buf, err));
    FL_TRY(fl_device_alloc(s->dev, N_SLOTS * s->slot_bytes, "experts", &s->mem_slots, err));
    FL_TRY(fl_state_init(&s->state, ix, &shape, s->mem_kv, s->mem_gdn, NULL, err));
    fl_buffers_init(&s->buf, ix, &b, s->mem_buf);
    return fl_fetch_create(&s->fetch, s->dev, s->expert_io, N_SLOTS, stage_bytes(s->slot_bytes),
                           err);
}

static fl_status check_text(const fl_sweep *s, fl_err *err)
{
    const fl_hparams *hp = &s->model->index->hp;
    if (s->text->n_ctx > fl_engine_max_context(hp))
        return FL_FAIL(err, FL_E_ARG, 0, "sequences of %lld positions: this model takes %lld",
                       (long long)s->text->n_ctx, (long long)fl_engine_max_context(hp));
    if (s->text->max_block > 0 && s->sw->gdn_block_mode == FL_GDN_BIDIR &&
        !s->model->index->clover.has_bwd)
        return FL_FAIL(err, FL_E_ARG, 0, "block mode bidir needs tensors that this model lacks");
    for (int64_t i = 0; i < s->text->n_rows; i++)
        if (s->text->ids[i] < 0 || s->text->ids[i] >= hp->n_vocab)
            return FL_FAIL(err, FL_E_ARG, 0, "token id %d is outside the vocabulary of %lld",
                           s->text->ids[i], (long long)hp->n_vocab);
    return FL_OK;
}

fl_status fl_sweep_open(fl_sweep **out, const fl_model *model, const fl_sweep_text *text,
                        const fl_clover *sw, const fl_sweep_params *params, fl_err *err)
{
    fl_status st = FL_OK;
    const fl_source *src = model->src;
    *out = NULL;
    fl_sweep *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(err, FL_E_NOMEM, 0, "out of memory");
    s->model = model;
    s->text = text;
    s->sw = sw;
    FL_GO(check_text(s, err));
    if (!fl_kernels_init(&s->exec.k, params->cpu_tier))
        FL_GO(FL_FAIL(err, FL_E_ARG, 0, "--cpu %s: no such tier in this build or machine",
                      params->cpu_tier));
    s->exec.act_f32 = params->act_f32;
    FL_GO(fl_pool_create(&s->exec.pool, params->threads, err));
    const fl_device_config cfg = {.kind = "host"};
    FL_GO(fl_device_open(&s->dev, &cfg, err));
    FL_GO(fl_io_open(&s->io, params->io, fl_source_paths(src), fl_source_n_files(src), IO_DEPTH,
                     err));
    FL_GO(fl_io_open(&s->expert_io, params->io, fl_source_paths(src), fl_source_n_files(src),
                     IO_DEPTH, err));
    FL_GO(fl_experts_describe(&s->experts, model->index, model->index->hp.n_layer, err));
    FL_GO(take_rows(s, err));
    FL_GO(take_device(s, params->kv_type, err));
    *out = s;
    s = NULL;
out:
    fl_sweep_close(&s);
    return st;
}

void fl_sweep_close(fl_sweep **sp)
{
    fl_sweep *s = *sp;
    if (!s) return;
    fl_fetch_destroy(&s->fetch);
    fl_state_fini(&s->state);
    fl_weights_free(&s->weights);
    void **const mem[] = {&s->mem_slots, &s->mem_buf, &s->mem_gdn, &s->mem_kv, &s->mem_weights};
    for (size_t i = 0; i < sizeof mem / sizeof *mem; i++)
        if (*mem[i]) fl_device_free(s->dev, mem[i]);
    fl_io_close(&s->expert_io);
    fl_io_close(&s->io);
    fl_experts_free(&s->experts);
    fl_device_close(&s->dev);
    fl_pool_destroy(&s->exec.pool);
    void *const host[] = {s->x,     s->y,      s->expert, s->weight, s->pair,
                          s->first, s->seq_of, s->lost,   s->list};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    free(s);
    *sp = NULL;
}

const int32_t *fl_sweep_experts(const fl_sweep *s) { return s->expert; }
float *fl_sweep_rows(fl_sweep *s) { return s->x; }
const fl_exec *fl_sweep_exec(const fl_sweep *s) { return &s->exec; }
bool fl_sweep_is_lost(const fl_sweep *s, int seq) { return s->lost[seq]; }
int fl_sweep_n_lost(const fl_sweep *s) { return s->n_lost; }

uint64_t fl_sweep_bytes_read(const fl_sweep *s)
{
    return s->other_bytes + fl_io_get_stats(s->io).bytes + fl_io_get_stats(s->expert_io).bytes;
}

/* ---- what the phases share ---- */

static fl_pass make_pass(fl_sweep *s, int64_t at, int n_write, int n_block,
                         const fl_sweep_watch *watch)
{
    return (fl_pass){.exec = &s->exec,
                     .hp = &s->model->index->hp,
                     .weights = &s->weights,
                     .experts = &s->experts,
                     .buf = &s->buf,
                     .state = &s->state,
                     .at = at,
                     .n_write = n_write,
                     .n_rows = n_write + n_block,
                     .sw = s->sw,
                     .see = watch && watch->see.rows ? &watch->see : NULL};
}

/* Work is counted in rows: each goes through the mixer, its experts and the shared expert. */
static fl_status count(fl_sweep *s, int64_t rows, const fl_sweep_watch *watch, fl_err *err)
{
    s->done += rows;
    if (!watch || !watch->go_on || watch->go_on(watch->arg, s->done, s->total)) return FL_OK;
    return FL_FAIL(err, FL_E_CANCELED, 0, "interrupted");
}

void fl_sweep_lose(fl_sweep *s, int seq)
{
    s->n_lost += !s->lost[seq];
    s->lost[seq] = true;
}

static fl_status check_left(const fl_sweep *s, int layer, fl_err *err)
{
    return s->n_lost < s->text->n_seqs ? FL_OK : fl_pass_nan(layer, "every sequence", err);
}

static fl_status load(fl_sweep *s, int layer, fl_err *err)
{
    return fl_weights_load_layer(&s->weights, s->model->index, s->dev, s->io, layer, s->mem_weights,
                                 err);
}

/* ---- embedding ---- */

typedef struct id_row {
    int32_t id;
    int32_t row;
} id_row;

static int by_id(const void *a, const void *b)
{
    const id_row *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* Rows of the embedding in rising order, each read once. */
static fl_status embed_sorted(fl_sweep *s, const id_row *at, void *raw, fl_err *err)
{
    const fl_index *ix = s->model->index;
    const fl_tensor *t = ix->embed.tensor;
    const int64_t d = ix->hp.d_model;
    const uint64_t bytes = fl_type_row_bytes(t->type, (uint64_t)d);
    const fl_mat m = {.data = raw, .type = t->type, .rows = 1, .cols = d, .scale = 1.0f};
    for (int64_t i = 0; i < s->text->n_rows; i++) {
        float *x = s->x + at[i].row * d;
        if (i > 0 && at[i].id == at[i - 1].id) {
            memcpy(x, s->x + at[i - 1].row * d, (size_t)d * sizeof *x);
            continue;
        }
        FL_TRY(fl_source_read(s->model->src, t, (uint64_t)at[i].id * bytes, raw, bytes, err));
        s->other_bytes += bytes;
        fl_embed_row(&m, 0, x);
        for (int64_t j = 0; j < d; j++)
            if (!isfinite(x[j]))
                return FL_FAIL(err, FL_E_NAN, 0,
                               "NaN or infinity in the token embedding, token %d: the weights are "
                               "damaged",
                               at[i].id);
    }
    return FL_OK;
}

/* The file's optional companion of the embedding. */
static fl_status scale_rows(fl_sweep *s, fl_err *err)
{
    const fl_index *ix = s->model->index;
    float scale = 1.0f;
    if (!ix->embed.scale) return FL_OK;
    FL_TRY(fl_source_read(s->model->src, ix->embed.scale, 0, &scale, sizeof scale, err));
    for (int64_t i = 0; i < s->text->n_rows * ix->hp.d_model; i++) s->x[i] *= scale;
    return FL_OK;
}

fl_status fl_sweep_embed(fl_sweep *s, fl_err *err)
{
    const fl_index *ix = s->model->index;
    const int64_t n = s->text->n_rows;
    id_row *at = malloc((size_t)n * sizeof *at);
    void *raw = malloc(fl_type_row_bytes(ix->embed.tensor->type, (uint64_t)ix->hp.d_model));
    fl_status st;
    if (!at || !raw) FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "no memory to read the embeddings"));
    for (int64_t i = 0; i < n; i++) at[i] = (id_row){s->text->ids[i], (int32_t)i};
    qsort(at, (size_t)n, sizeof *at, by_id);
    FL_GO(embed_sorted(s, at, raw, err));
    st = scale_rows(s, err);
out:
    free(at);
    free(raw);
    return st;
}

/* ---- mixer and router, pass by pass ---- */

static fl_status mix_pass(const fl_pass *p, int layer, fl_err *err)
{
    const fl_layer_weights *w = &p->weights->layer[layer];
    fl_rope_prepare(p);
    fl_rows_norm(p, w->attn_norm);
    FL_TRY(w->full_attention ? fl_attention_forward(p, layer, err) : fl_gdn_forward(p, layer, err));
    fl_rows_norm(p, w->ffn_norm);
    return fl_moe_route(p, layer, err);
}

static void begin_sequence(fl_sweep *s, int layer)
{
    fl_state *st = &s->state;
    if (!st->s[layer]) return;
    memset(st->s[layer], 0, (size_t)st->s_elems * sizeof(float));
    memset(st->tail[layer], 0, (size_t)(3 * st->n_channels) * sizeof(float));
}

static fl_status run_mixers(fl_sweep *s, int layer, const fl_sweep_watch *watch, fl_err *err)
{
    const int64_t d = s->model->index->hp.d_model, k = s->model->index->hp.top_k;
    int64_t row = 0;
    for (int64_t i = 0; i < s->text->n_passes; i++) {
        const fl_sweep_pass *t = &s->text->pass[i];
        const size_t n = (size_t)(t->n_write + t->n_block);
        fl_pass p = make_pass(s, t->at, t->n_write, t->n_block, watch);
        p.n_lead = fl_leading_rows(s->text->ids + row + t->n_write, t->n_block, s->sw->mask_id);
        if (i == 0 || t->seq != t[-1].seq) begin_sequence(s, layer);
        if (!s->lost[t->seq]) {
            fl_err own = {0};
            memcpy(s->buf.x, s->x + row * d, n * (size_t)d * sizeof(float));
            const fl_status st = mix_pass(&p, layer, &own);
            if (st == FL_E_NAN)
                fl_sweep_lose(s, t->seq);
            else if (st != FL_OK)
                return FL_FAIL(err, st, own.sys, "%s", own.msg);
            memcpy(s->x + row * d, s->buf.x, n * (size_t)d * sizeof(float));
            memcpy(s->expert + row * k, s->buf.route.expert, n * (size_t)k * sizeof(int32_t));
            memcpy(s->weight + row * k, s->buf.route.weight, n * (size_t)k * sizeof(float));
        }
        row += (int64_t)n;
        FL_TRY(count(s, (int64_t)n, watch, err));
    }
    return check_left(s, layer, err);
}

/* ---- routed experts, one after the other ---- */

/* Sorts the pairs of sequences that are left by expert. */
static void sort_pairs(fl_sweep *s)
{
    const int n_expert = s->model->index->hp.n_expert;
    const int64_t k = s->model->index->hp.top_k;
    memset(s->first, 0, ((size_t)n_expert + 1) * sizeof *s->first);
    for (int64_t row = 0; row < s->text->n_rows; row++)
        for (int64_t i = row * k; i < (row + 1) * k && !s->lost[s->seq_of[row]]; i++)
            s->first[s->expert[i] + 1]++;
    for (int e = 0; e < n_expert; e++) s->first[e + 1] += s->first[e];
    for (int64_t row = 0; row < s->text->n_rows; row++)
        for (int64_t i = row * k; i < (row + 1) * k && !s->lost[s->seq_of[row]]; i++)
            s->pair[s->first[s->expert[i]]++] = (int32_t)i;
    for (int e = n_expert; e > 0; e--) s->first[e] = s->first[e - 1];
    s->first[0] = 0;
}

typedef struct expert_run {
    fl_sweep *s;
    int layer, expert;
    const int32_t *pair; /* of the batch */
    fl_mat part[3];
} expert_run;

/* The expert's matrices as they lie in its slot. */
static void take_mats(expert_run *r, const uint8_t *slot)
{
    const fl_hparams *hp = &r->s->model->index->hp;
    const int at = r->layer * hp->n_expert + r->expert;
    const fl_expert_kind *kind = &r->s->experts.kind[at];
    const fl_expert_place *place = &r->s->experts.place[at];
    for (int i = 0; i < 3; i++) {
        r->part[i] = (fl_mat){.data = slot,
                              .type = kind->type[i],
                              .rows = i == 2 ? hp->d_model : hp->d_ff,
                              .cols = i == 2 ? hp->d_ff : hp->d_model,
                              .scale = kind->scale[i]};
        slot += fl_fetch_padded(place->part[i].bytes);
    }
    if (place->part[1].bytes == 0) /* fused: up rows follow the gate rows */
        r->part[1].data =
            (const uint8_t *)r->part[0].data +
            (uint64_t)hp->d_ff * fl_type_row_bytes(r->part[1].type, (uint64_t)hp->d_model);
}

static void gather_task(void *arg, int i, int worker)
{
    const expert_run *r = arg;
    const fl_hparams *hp = &r->s->model->index->hp;
    const int64_t d = hp->d_model, row = r->pair[i] / hp->top_k;
    (void)worker;
    r->s->exec.k.rmsnorm(r->s->x + row * d, r->s->weights.layer[r->layer].ffn_norm, d, hp->eps,
                         r->s->buf.xn + i * d);
}

static void silu_task(void *arg, int i, int worker)
{
    const expert_run *r = arg;
    const int64_t ff = r->s->model->index->hp.d_ff;
    float *g = r->s->buf.moe.pair_g + i * ff;
    (void)worker;
    r->s->exec.k.silu_mul(g, r->s->buf.moe.pair_u + i * ff, ff, g);
}

static void add_task(void *arg, int i, int worker)
{
    const expert_run *r = arg;
    const int64_t d = r->s->model->index->hp.d_model,
                  row = r->pair[i] / r->s->model->index->hp.top_k;
    (void)worker;
    r->s->exec.k.axpy(r->s->weight[r->pair[i]], r->s->buf.moe.pair_y + i * d, d, r->s->y + row * d);
}

/* One expert on the n rows of the batch; its output goes to y. */
static fl_status run_batch(expert_run *r, int n, const fl_sweep_watch *watch, fl_err *err)
{
    fl_sweep *s = r->s;
    const fl_hparams *hp = &s->model->index->hp;
    const fl_observer *see = watch && watch->see.rows ? &watch->see : NULL;
    fl_moe_buffers *b = &s->buf.moe;
    fl_rows in = {.x = s->buf.xn, .ld = hp->d_model, .cols = hp->d_model, .n = n};
    fl_rows mid = {.x = b->pair_g, .ld = hp->d_ff, .cols = hp->d_ff, .n = n};
    const fl_linear_job up[] = {{&r->part[0], b->pair_g, hp->d_ff},
                                {&r->part[1], b->pair_u, hp->d_ff}};
    const fl_linear_job down = {&r->part[2], b->pair_y, hp->d_model};
    fl_pool_run(s->exec.pool, gather_task, r, n);
    fl_observe(see, FL_SITE_EXPERT_IN, r->expert, &in);
    if (!fl_rows_prepare(&s->exec, &in, b->pair_q, up, 2))
        return fl_pass_nan(r->layer, "MoE input", err);
    fl_linear_run(&s->exec, up, 2, &in);
    fl_pool_run(s->exec.pool, silu_task, r, n);
    fl_observe(see, FL_SITE_EXPERT_MID, r->expert, &mid);
    if (!fl_rows_prepare(&s->exec, &mid, b->pair_q, &down, 1))
        return fl_pass_nan(r->layer, "expert activations", err);
    fl_linear_run(&s->exec, &down, 1, &mid);
    fl_pool_run(s->exec.pool, add_task, r, n);
    return FL_OK;
}

/* Experts on their way from the file: used[i] goes to slot i % N_SLOTS. */
typedef struct reader {
    int32_t *used;
    int n_used, started;
    bool ready[N_SLOTS];
} reader;

static uint8_t *slot_at(const fl_sweep *s, int i)
{
    return (uint8_t *)s->mem_slots + (uint64_t)(i % N_SLOTS) * s->slot_bytes;
}

/* Waits for used[i]; keeps those behind it coming. */
static fl_status wait_for(fl_sweep *s, reader *q, int layer, int i, fl_err *err)
{
    const int n_expert = s->model->index->hp.n_expert;
    for (;;) {
        for (; q->started < q->n_used && q->started < i + N_SLOTS && fl_fetch_free(s->fetch) > 0;
             q->started++) {
            q->ready[q->started % N_SLOTS] = false;
            fl_fetch_start(s->fetch, &s->experts.place[layer * n_expert + q->used[q->started]],
                           slot_at(s, q->started), (uint64_t)q->started);
        }
        if (q->ready[i % N_SLOTS]) return FL_OK;
        uint64_t tag;
        fl_status st;
        if (!fl_fetch_next(s->fetch, true, &tag, &st, err)) return st;
        FL_TRY(st);
        q->ready[tag % N_SLOTS] = true;
    }
}

static fl_status run_expert(fl_sweep *s, int layer, int expert, const uint8_t *slot,
                            const fl_sweep_watch *watch, fl_err *err)
{
    expert_run r = {.s = s, .layer = layer, .expert = expert};
    take_mats(&r, slot);
    for (int64_t i = s->first[expert]; i < s->first[expert + 1]; i += BATCH) {
        const int64_t left = s->first[expert + 1] - i;
        r.pair = s->pair + i;
        FL_TRY(run_batch(&r, left < BATCH ? (int)left : BATCH, watch, err));
    }
    return FL_OK;
}

static fl_status run_experts(fl_sweep *s, int layer, const fl_sweep_watch *watch, fl_err *err)
{
    const int n_expert = s->model->index->hp.n_expert, k = s->model->index->hp.top_k;
    reader q = {.used = malloc((size_t)n_expert * sizeof *q.used)};
    fl_status st = FL_OK;
    int64_t pairs = 0;
    if (!q.used) return FL_FAIL(err, FL_E_NOMEM, 0, "out of memory for %d experts", n_expert);
    sort_pairs(s);
    memset(s->y, 0, (size_t)(s->text->n_rows * s->model->index->hp.d_model) * sizeof *s->y);
    for (int e = 0; e < n_expert; e++)
        if (s->first[e + 1] > s->first[e]) q.used[q.n_used++] = e;
    for (int e = 0, i = 0; e < n_expert; e++) {
        const int64_t n = s->first[e + 1] - s->first[e];
        if (n > 0) {
            FL_GO(wait_for(s, &q, layer, i, err));
            FL_GO(run_expert(s, layer, e, slot_at(s, i++), watch, err));
        }
        if (watch && watch->expert) FL_GO(watch->expert(watch->arg, e, err));
        FL_GO(count(s, (pairs + n) / k - pairs / k, watch, err));
        pairs += n;
    }
out:
    free(q.used);
    return st;
}

/* ---- shared expert, residual ---- */

/* Lists up to a batch of rows that are left, from *row on. */
static int list_rows(fl_sweep *s, int64_t *row)
{
    int n = 0;
    for (; *row < s->text->n_rows && n < BATCH; (*row)++)
        if (!s->lost[s->seq_of[*row]]) s->list[n++] = (int32_t)*row;
    return n;
}

static void gather(fl_sweep *s, int n)
{
    const int64_t d = s->model->index->hp.d_model;
    for (int i = 0; i < n; i++)
        memcpy(s->buf.x + i * d, s->x + s->list[i] * d, (size_t)d * sizeof(float));
}

static void finish_task(void *arg, int i, int worker)
{
    const fl_pass *p = arg;
    (void)worker;
    fl_moe_add_shared(p, i, p->buf->y + i * p->hp->d_model);
}

static bool row_finite(const float *x, int64_t n)
{
    bool all = true;
    for (int64_t i = 0; i < n; i++) all &= isfinite(x[i]) != 0;
    return all;
}

static fl_status run_shared(fl_sweep *s, int layer, const fl_sweep_watch *watch, fl_err *err)
{
    const int64_t d = s->model->index->hp.d_model;
    for (int64_t row = 0, before = 0; row < s->text->n_rows; before = row) {
        const int n = list_rows(s, &row);
        if (n > 0) {
            fl_pass p = make_pass(s, 0, n, 0, watch);
            gather(s, n);
            fl_rows_norm(&p, s->weights.layer[layer].ffn_norm);
            FL_TRY(fl_moe_shared(&p, layer, err));
            for (int i = 0; i < n; i++)
                memcpy(s->buf.y + i * d, s->y + s->list[i] * d, (size_t)d * sizeof(float));
            fl_pool_run(s->exec.pool, finish_task, &p, n);
            (void)!fl_rows_add(&p, s->buf.x, s->buf.y); /* asked row by row below */
            for (int i = 0; i < n; i++) {
                memcpy(s->x + s->list[i] * d, s->buf.x + i * d, (size_t)d * sizeof(float));
                if (!row_finite(s->buf.x + i * d, d)) fl_sweep_lose(s, s->seq_of[s->list[i]]);
            }
        }
        FL_TRY(count(s, row - before, watch, err));
    }
    return check_left(s, layer, err);
}

fl_status fl_sweep_layer(fl_sweep *s, int layer, const fl_sweep_watch *watch, fl_err *err)
{
    s->done = 0;
    s->total = 3 * s->text->n_rows;
    FL_TRY(load(s, layer, err));
    FL_TRY(run_mixers(s, layer, watch, err));
    FL_TRY(run_experts(s, layer, watch, err));
    return run_shared(s, layer, watch, err);
}

fl_status fl_sweep_head(fl_sweep *s, const fl_sweep_watch *watch, fl_err *err)
{
    const fl_hparams *hp = &s->model->index->hp;
    FL_TRY(load(s, hp->n_layer, err));
    s->done = 0;
    s->total = s->text->n_rows;
    for (int64_t row = 0, before = 0; row < s->text->n_rows; before = row) {
        const int n = list_rows(s, &row);
        const fl_pass p = make_pass(s, 0, n, 0, watch);
        const fl_rows in = {.x = s->buf.xn, .ld = hp->d_model, .cols = hp->d_model, .n = n};
        gather(s, n);
        fl_rows_norm(&p, s->weights.output_norm);
        fl_observe(p.see, FL_SITE_HEAD_IN, -1, &in);
        FL_TRY(count(s, row - before, watch, err));
    }
    return FL_OK;
}
