#include "runtime/model/weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/host.h"
#include "quant/law.h"
#include "runtime/model/upload.h"

/* What a vector's stored values need on the way to float32. */
typedef enum vec_kind { VEC_PLAIN, VEC_NORM, VEC_DECAY } vec_kind;

/* One walk over all dense tensors in a fixed order, run twice: counting (arena.base NULL, nothing
 * is read) and loading. */
typedef struct walk {
    const fl_index *ix;
    fl_arena arena;
    fl_upload *up; /* NULL when counting */
    fl_status st;
    fl_err *err;
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* or NULL */
    void *progress_arg;
    uint64_t moved, total;
} walk;

static void report(void *arg, uint64_t bytes)
{
    walk *w = arg;
    w->moved += bytes;
    if (w->progress) w->progress(w->progress_arg, w->moved, w->total);
}

static int64_t tensor_elems(const fl_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

/* A whole tensor as float32 in malloc'ed memory. */
static fl_status read_floats(const fl_source *src, const fl_tensor *t, float **out, fl_err *err)
{
    const int64_t n = tensor_elems(t);
    const fl_type_info *info = fl_type_get(t->type);
    if (!info || !info->dequantize || n % info->block_elems != 0)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0, "tensor %s: type %u cannot be read", t->name,
                       t->type);
    void *raw = malloc(t->bytes ? t->bytes : 1);
    float *f = malloc((size_t)n * sizeof(float) + 1);
    fl_status st = FL_OK;
    if (!raw || !f)
        st = FL_FAIL(err, FL_E_NOMEM, 0, "tensor %s: out of memory for %lld values", t->name,
                     (long long)n);
    if (st == FL_OK) st = fl_source_read(src, t, 0, raw, t->bytes, err);
    if (st == FL_OK) info->dequantize(raw, f, n);
    free(raw);
    if (st != FL_OK) {
        free(f);
        return st;
    }
    *out = f;
    return FL_OK;
}

static void convert_vec(const fl_hparams *hp, vec_kind kind, float *f, int64_t n)
{
    if (kind == VEC_NORM && hp->norm_add_one)
        for (int64_t i = 0; i < n; i++) f[i] += 1.0f;
    if (kind == VEC_DECAY && hp->a_is_log)
        for (int64_t i = 0; i < n; i++) f[i] = (float)-fl_law_exp64((double)f[i]);
}

/* A vector is in every row's path: what is not finite there is named at load. */
static fl_status check_vec(const fl_tensor *t, const float *f, int64_t n, fl_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(f[i]))
            return FL_FAIL(err, FL_E_NAN, 0,
                           "tensor %s holds a value that is not finite (element %lld): the file is "
                           "damaged, download it again",
                           t->name, (long long)i);
    return FL_OK;
}

static const float *place_vec(walk *w, const fl_tref *ref, vec_kind kind)
{
    if (!ref->tensor || w->st != FL_OK) return NULL;
    const int64_t n = tensor_elems(ref->tensor);
    float *dst = FL_TAKE(&w->arena, float, n);
    if (!w->up) return NULL;
    float *f = NULL;
    w->st = read_floats(w->ix->src, ref->tensor, &f, w->err);
    if (w->st != FL_OK) return NULL;
    convert_vec(&w->ix->hp, kind, f, n);
    w->st = check_vec(ref->tensor, f, n, w->err);
    if (w->st == FL_OK) w->st = fl_upload_bytes(w->up, f, (uint64_t)n * sizeof(float), dst, w->err);
    free(f);
    return dst;
}

/* The one value of a matrix's ".scale" companion. */
static fl_status read_scale(const fl_source *src, const fl_tensor *t, float *out, fl_err *err)
{
    float *f = NULL;
    *out = 1.0f;
    if (!t) return FL_OK;
    FL_TRY(read_floats(src, t, &f, err));
    *out = f[0];
    free(f);
    return FL_OK;
}

static void place_mat(walk *w, const fl_tref *ref, fl_mat *m)
{
    const fl_tensor *t = ref->tensor;
    if (!t || w->st != FL_OK) return;
    void *dst = fl_arena_take(&w->arena, t->bytes, 64);
    if (!w->up) return;
    *m = (fl_mat){.data = dst,
                  .type = t->type,
                  .rows = t->ne[1] * t->ne[2] * t->ne[3],
                  .cols = t->ne[0],
                  .scale = 1.0f};
    w->st = read_scale(w->ix->src, ref->scale, &m->scale, w->err);
    if (w->st != FL_OK) return;
    const fl_extent x = {t->file, t->offset, t->bytes};
    w->st = fl_upload_extent(w->up, &x, dst, w->err);
}

static void walk_attention(walk *w, const fl_layer_refs *r, fl_layer_weights *l)
{
    place_mat(w, &r->q, &l->q);
    place_mat(w, &r->k, &l->k);
    place_mat(w, &r->v, &l->v);
    place_mat(w, &r->o, &l->o);
    l->q_norm = place_vec(w, &r->q_norm, VEC_NORM);
    l->k_norm = place_vec(w, &r->k_norm, VEC_NORM);
}

static void walk_gdn(walk *w, const fl_layer_refs *r, fl_layer_weights *l)
{
    place_mat(w, &r->qkv, &l->qkv);
    place_mat(w, &r->z, &l->z);
    place_mat(w, &r->alpha, &l->alpha);
    place_mat(w, &r->beta, &l->beta);
    place_mat(w, &r->out, &l->out);
    l->conv = place_vec(w, &r->conv, VEC_PLAIN);
    l->a = place_vec(w, &r->a, VEC_DECAY);
    l->dt = place_vec(w, &r->dt, VEC_PLAIN);
    l->gdn_norm = place_vec(w, &r->gdn_norm, VEC_PLAIN);
    l->has_bwd = r->bwd_mix.tensor != NULL;
    if (!l->has_bwd) return;
    place_mat(w, &r->bwd_alpha, &l->bwd_alpha);
    place_mat(w, &r->bwd_beta, &l->bwd_beta);
    l->bwd_conv = place_vec(w, &r->bwd_conv, VEC_PLAIN);
    l->bwd_a = place_vec(w, &r->bwd_a, VEC_DECAY);
    l->bwd_dt = place_vec(w, &r->bwd_dt, VEC_PLAIN);
    l->bwd_mix = place_vec(w, &r->bwd_mix, VEC_PLAIN);
}

static void walk_layer(walk *w, const fl_layer_refs *r, fl_layer_weights *l)
{
    l->full_attention = r->full_attention;
    l->attn_norm = place_vec(w, &r->attn_norm, VEC_NORM);
    l->ffn_norm = place_vec(w, &r->ffn_norm, VEC_NORM);
    if (r->full_attention)
        walk_attention(w, r, l);
    else
        walk_gdn(w, r, l);
    place_mat(w, &r->router, &l->router);
    place_mat(w, &r->shared_gate_inp, &l->shared_gate_inp);
    place_mat(w, &r->shared_gate, &l->shared_gate);
    place_mat(w, &r->shared_up, &l->shared_up);
    place_mat(w, &r->shared_down, &l->shared_down);
    /* GGUF files may store the shared gate as a plain vector: one row. */
    l->shared_gate_inp.rows = 1;
    l->shared_gate_inp.cols = w->ix->hp.d_model;
}

static void walk_mtp(walk *w, fl_weights *out)
{
    const fl_layer_refs *r = &w->ix->mtp[0];
    fl_layer_weights none;
    place_mat(w, &r->nextn_proj, &out->mtp.fc);
    out->mtp.enorm = place_vec(w, &r->nextn_enorm, VEC_NORM);
    out->mtp.hnorm = place_vec(w, &r->nextn_hnorm, VEC_NORM);
    out->mtp.norm =
        r->nextn_norm.tensor ? place_vec(w, &r->nextn_norm, VEC_NORM) : out->output_norm;
    walk_layer(w, r, out->layer ? &out->layer[w->ix->hp.n_layer] : &none);
}

static void walk_all(walk *w, fl_weights *out)
{
    const fl_index *ix = w->ix;
    fl_layer_weights none;
    place_mat(w, &ix->embed, &out->embed);
    if (ix->output.tensor == ix->embed.tensor)
        out->output = out->embed;
    else
        place_mat(w, &ix->output, &out->output);
    out->output_norm = place_vec(w, &ix->output_norm, VEC_NORM);
    for (int i = 0; i < ix->hp.n_layer && w->st == FL_OK; i++) {
        fl_layer_weights *l = out->layer ? &out->layer[i] : &none;
        walk_layer(w, &ix->layer[i], l);
    }
}

uint64_t fl_weights_bytes(const fl_index *ix)
{
    walk w = {.ix = ix};
    fl_weights none = {0};
    walk_all(&w, &none);
    return w.arena.used;
}

uint64_t fl_weights_mtp_bytes(const fl_index *ix)
{
    walk w = {.ix = ix};
    fl_weights none = {0};
    walk_mtp(&w, &none);
    return w.arena.used;
}

fl_status fl_weights_load(fl_weights *out, const fl_index *ix, fl_device *dev, fl_io *io,
                          void *memory, void *mtp_memory,
                          void (*progress)(void *arg, uint64_t done, uint64_t total),
                          void *progress_arg, fl_err *err)
{
    walk w = {.ix = ix, .err = err, .progress = progress, .progress_arg = progress_arg};
    *out = (fl_weights){0};
    out->layer = calloc((size_t)ix->hp.n_layer + 1, sizeof(*out->layer));
    if (!out->layer) return FL_FAIL(err, FL_E_NOMEM, 0, "loading: out of memory");
    w.total = fl_weights_bytes(ix) + (mtp_memory ? fl_weights_mtp_bytes(ix) : 0);
    w.st = fl_upload_open(&w.up, dev, io, report, &w, err);
    if (w.st == FL_OK) {
        w.arena = (fl_arena){.base = memory, .size = fl_weights_bytes(ix)};
        walk_all(&w, out);
        assert(w.st != FL_OK || w.arena.used == w.arena.size);
    }
    if (w.st == FL_OK && mtp_memory) {
        w.arena = (fl_arena){.base = mtp_memory, .size = fl_weights_mtp_bytes(ix)};
        walk_mtp(&w, out);
        assert(w.st != FL_OK || w.arena.used == w.arena.size);
    }
    fl_upload_close(&w.up);
    if (w.st != FL_OK) fl_weights_free(out);
    return w.st;
}

/* One layer, or behind the last the final norm. */
static void walk_one(walk *w, int layer, fl_weights *out)
{
    fl_layer_weights none;
    if (layer < w->ix->hp.n_layer)
        walk_layer(w, &w->ix->layer[layer], out->layer ? &out->layer[layer] : &none);
    else
        out->output_norm = place_vec(w, &w->ix->output_norm, VEC_NORM);
}

uint64_t fl_weights_layer_bytes(const fl_index *ix, int layer)
{
    walk w = {.ix = ix};
    fl_weights none = {0};
    walk_one(&w, layer, &none);
    return w.arena.used;
}

fl_status fl_weights_load_layer(fl_weights *out, const fl_index *ix, fl_device *dev, fl_io *io,
                                int layer, void *memory, fl_err *err)
{
    walk w = {
        .ix = ix, .err = err, .arena = {.base = memory, .size = fl_weights_layer_bytes(ix, layer)}};
    if (!out->layer) out->layer = calloc((size_t)ix->hp.n_layer + 1, sizeof(*out->layer));
    if (!out->layer) return FL_FAIL(err, FL_E_NOMEM, 0, "loading: out of memory");
    w.st = fl_upload_open(&w.up, dev, io, report, &w, err);
    if (w.st == FL_OK) walk_one(&w, layer, out);
    fl_upload_close(&w.up);
    return w.st;
}

void fl_weights_free(fl_weights *w)
{
    free(w->layer);
    *w = (fl_weights){0};
}

/* ---- routed experts ---- */

static void describe_place(const fl_expert_mat m[3], bool fused, fl_expert_place *p,
                           uint64_t *bytes)
{
    for (int i = 0; i < 3; i++) p->part[i] = (fl_extent){m[i].file, m[i].offset, m[i].bytes};
    if (fused) {
        p->part[0].bytes += m[1].bytes;
        p->part[1] = (fl_extent){0};
    }
    *bytes = 0;
    for (int i = 0; i < 3; i++) *bytes += (p->part[i].bytes + 63) & ~(uint64_t)63;
}

static fl_status describe_scale(const fl_index *ix, const fl_expert_mat *m, int expert, float *out,
                                fl_err *err)
{
    float *f = NULL;
    *out = 1.0f;
    if (!m->scale) return FL_OK;
    FL_TRY(read_floats(ix->src, m->scale, &f, err));
    *out = tensor_elems(m->scale) > expert ? f[expert] : f[0];
    free(f);
    return FL_OK;
}

fl_status fl_experts_describe(fl_experts *x, const fl_index *ix, int layers, fl_err *err)
{
    const int n_expert = ix->hp.n_expert;
    *x = (fl_experts){.n = layers * n_expert};
    x->place = calloc((size_t)x->n, sizeof(*x->place));
    x->kind = calloc((size_t)x->n, sizeof(*x->kind));
    x->bytes = calloc((size_t)x->n, sizeof(*x->bytes));
    x->host_bytes = calloc((size_t)x->n, sizeof(*x->host_bytes));
    fl_status st = FL_OK;
    if (!x->place || !x->kind || !x->bytes || !x->host_bytes)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "out of memory for %d experts", x->n));
    for (int i = 0; i < x->n; i++) {
        fl_expert_mat m[3];
        for (int part = 0; part < 3; part++) {
            fl_index_expert(ix, i / n_expert, i % n_expert, part, &m[part]);
            x->kind[i].type[part] = m[part].type;
            FL_GO(describe_scale(ix, &m[part], i % n_expert, &x->kind[i].scale[part], err));
        }
        const bool fused = fl_index_layer(ix, i / n_expert)->exp_gate_up.tensor != NULL;
        describe_place(m, fused, &x->place[i], &x->bytes[i]);
        x->host_bytes[i] = fl_host_place_bytes(&x->place[i]);
    }
    return FL_OK;
out:
    fl_experts_free(x);
    return st;
}

void fl_experts_free(fl_experts *x)
{
    free(x->place);
    free(x->kind);
    free(x->bytes);
    free(x->host_bytes);
    *x = (fl_experts){0};
}
