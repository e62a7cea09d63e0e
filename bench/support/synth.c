#include "bench/support/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/gguf_write.h"
#include "tests/support/make_tensors.h"

/* ---- shapes ---- */

static fl_make real_shape(void)
{
    fl_make m = fl_make_default();
    m.n_layer = 8;
    m.d_model = 2048;
    m.n_head = 16;
    m.head_dim = 256;
    m.rot_dim = 64;
    m.gdn_k_heads = 16;
    m.gdn_v_heads = 32;
    m.gdn_dim = 128;
    m.n_expert = 256;
    m.top_k = 8;
    m.d_ff = m.d_ff_shared = 512;
    m.n_vocab = 248320;
    m.n_ctx = 262144;
    return m;
}

static fl_make tiny_shape(void)
{
    fl_make m = fl_make_default();
    m.n_layer = 2;
    m.n_expert = 256;
    m.top_k = 8;
    m.n_ctx = 4096;
    return m;
}

fl_status bench_synth_shape(fl_make *m, const char *name, const char *arch, fl_err *err)
{
    const bool real = strcmp(name, "35b") == 0;
    if (!real && strcmp(name, "tiny") != 0)
        return FL_FAIL(err, FL_E_ARG, 0, "--shape %s: expected 35b or tiny", name);
    if (strcmp(arch, "qwen35moe") != 0 && strcmp(arch, "clover_moe") != 0)
        return FL_FAIL(err, FL_E_ARG, 0, "--arch %s: expected qwen35moe or clover_moe", arch);
    *m = real ? real_shape() : tiny_shape();
    m->arch = arch;
    m->type = FL_TYPE_Q4_K;
    return FL_OK;
}

static fl_status in_range(const char *what, int64_t v, int64_t least, int64_t most, fl_err *err)
{
    if (v >= least && v <= most) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0, "%s is %lld, expected %lld to %lld", what, (long long)v,
                   (long long)least, (long long)most);
}

fl_status bench_synth_check(const bench_synth *s, fl_err *err)
{
    const fl_make *m = &s->shape;
    FL_TRY(in_range("the number of layers", m->n_layer, 1, 1024, err));
    FL_TRY(in_range("the number of experts", m->n_expert, m->top_k, 4096, err));
    FL_TRY(in_range("the vocabulary", m->n_vocab, 320, 1 << 20, err));
    for (uint64_t i = 0; s->trace && i < s->trace->bytes; i++)
        if (s->trace->data[i] >= m->n_expert)
            return FL_FAIL(err, FL_E_ARG, 0, "the trace names expert %d, the model has %d",
                           s->trace->data[i], m->n_expert);
    return FL_OK;
}

/* ---- tensors ---- */

typedef struct writer {
    const bench_synth *s;
    fl_gguf_writer *w;
    fl_make_tensor *list;
    int n;
    int32_t *routes;
    uint8_t *piece;
    uint64_t done, total;
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
} writer;

enum { PIECE_ROWS = 512 };

static int layer_of(const fl_make_tensor *t)
{
    int i = -1;
    return sscanf(t->gguf, "blk.%d.", &i) == 1 ? i : -1;
}

/* Which layers llama.cpp gives more bits to: the first and last eighth, and each third between. */
static bool gets_more(int i, int n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

static uint32_t type_of(const fl_make *m, const fl_make_tensor *t)
{
    if (t->f32) return FL_TYPE_F32;
    if (strcmp(t->gguf, "output.weight") == 0) return FL_TYPE_Q6_K;
    if (strstr(t->gguf, ".attn_qkv.")) return FL_TYPE_Q5_K;
    const int nth = layer_of(t) / m->interval;
    if (strstr(t->gguf, ".attn_v.") && gets_more(nth, m->n_layer / m->interval))
        return FL_TYPE_Q6_K;
    return FL_TYPE_Q4_K;
}

/* Matrices that write to the residual stream: 2 n_layer of them together add a fifth to it. */
static double spread_of(const fl_make *m, const fl_make_tensor *t)
{
    const bool adds = strstr(t->gguf, ".ssm_out.") || strstr(t->gguf, ".attn_output.") ||
                      strstr(t->gguf, ".ffn_down_");
    return t->gain / sqrt((double)t->cols) * (adds ? 0.14 / sqrt((double)m->n_layer) : 1.0);
}

static fl_status put(writer *r, const void *data, uint64_t n, fl_err *err)
{
    FL_TRY(fl_gguf_writer_write(r->w, data, n, err));
    r->done += n;
    if (r->progress) r->progress(r->arg, r->done, r->total);
    return FL_OK;
}

static fl_status put_floats(writer *r, const fl_make_tensor *t, fl_err *err)
{
    const fl_make *m = &r->s->shape;
    const uint64_t bytes = (uint64_t)(t->n * t->rows * t->cols) * sizeof(float);
    float *v;
    if (strstr(t->gguf, "ffn_gate_inp.weight")) {
        v = malloc(bytes);
        if (!v) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for a router");
        bench_routes(r->s, layer_of(t), r->routes);
        bench_router(m, r->routes, v);
    } else {
        v = fl_make_tensor_values(m, t);
        fl_make_to_gguf(m, t, v);
    }
    const fl_status st = put(r, v, bytes, err);
    free(v);
    return st;
}

static fl_status put_blocks(writer *r, const fl_make_tensor *t, fl_err *err)
{
    const fl_make *m = &r->s->shape;
    const uint32_t type = type_of(m, t);
    const uint64_t row_bytes = fl_type_row_bytes(type, (uint64_t)t->cols);
    const double spread = spread_of(m, t);
    uint64_t state = 0xcbf29ce484222325ull ^ m->seed * 0x9e3779b97f4a7c15ull;
    for (const char *p = t->gguf; *p; p++) state = (state ^ (uint8_t)*p) * 0x100000001b3ull;
    const int64_t rows = t->n * t->rows;
    for (int64_t at = 0; at < rows; at += PIECE_ROWS) {
        const int64_t n = rows - at < PIECE_ROWS ? rows - at : PIECE_ROWS;
        if (t->kind == FL_MAKE_EMBED)
            for (int64_t i = 0; i < n; i++)
                bench_fill_pattern(r->piece + (uint64_t)i * row_bytes, t->cols,
                                   (int)((at + i) % bench_n_patterns(t->cols)));
        else
            bench_fill_blocks(type, r->piece, n * t->cols, spread, &state);
        FL_TRY(put(r, r->piece, (uint64_t)n * row_bytes, err));
    }
    return FL_OK;
}

/* ---- the file ---- */

static fl_status put_metadata(writer *r, fl_err *err)
{
    fl_bytes meta = {0};
    fl_gguf *g = NULL;
    fl_make_metadata(&r->s->shape, &meta);
    const fl_status st = fl_gguf_parse(&g, meta.p, meta.n, "metadata", err);
    if (st == FL_OK)
        for (size_t i = 0; i < fl_gguf_n_kv(g); i++) {
            char key[128];
            const fl_kv *kv = fl_gguf_kv_at(g, i);
            snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
            if (strcmp(key, "general.name") != 0) fl_gguf_put_copy(r->w, key, kv);
        }
    fl_gguf_put_str(r->w, "general.name", "synthetic", 9);
    fl_gguf_put_u32(r->w, "general.file_type", 15); /* Q4_K_M */
    fl_gguf_put_u32(r->w, "general.quantization_version", 2);
    fl_gguf_close(&g);
    fl_bytes_free(&meta);
    return st;
}

static fl_status declare(writer *r, fl_err *err)
{
    for (int i = 0; i < r->n; i++) {
        const fl_make_tensor *t = &r->list[i];
        const uint32_t type = type_of(&r->s->shape, t);
        const bool one_row = t->f32 && t->rows == 1;
        const int n_dims = t->vector || one_row ? 1 : t->n > 1 ? 3 : 2;
        const int64_t ne[3] = {n_dims == 1 ? t->n * t->rows * t->cols : t->cols, t->rows, t->n};
        FL_TRY(fl_gguf_add_tensor(r->w, t->gguf, type, n_dims, ne, err));
        r->total += fl_type_row_bytes(type, (uint64_t)(t->n * t->rows * t->cols));
    }
    return FL_OK;
}

static fl_status write_all(writer *r, fl_err *err)
{
    const fl_make *m = &r->s->shape;
    const size_t n_routes = (size_t)bench_n_patterns(m->d_model) * (size_t)m->top_k;
    const int64_t widest = (int64_t)m->gdn_v_heads * m->gdn_dim + (int64_t)m->n_head * m->head_dim +
                           m->d_model + m->d_ff;
    r->routes = malloc(n_routes * sizeof *r->routes);
    r->piece = malloc(PIECE_ROWS * (size_t)widest);
    if (!r->routes || !r->piece) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for a tensor");
    FL_TRY(put_metadata(r, err));
    FL_TRY(declare(r, err));
    FL_TRY(fl_gguf_writer_begin(r->w, err));
    for (int i = 0; i < r->n; i++)
        FL_TRY(r->list[i].f32 ? put_floats(r, &r->list[i], err) : put_blocks(r, &r->list[i], err));
    return FL_OK;
}

fl_status bench_synth_write(const bench_synth *s, const char *path,
                            void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                            fl_err *err)
{
    bench_synth own = *s;
    own.shape.interval = s->shape.n_layer < 4 ? s->shape.n_layer : 4;
    if (s->trace) own.shape.top_k = (int)s->trace->dim[2];
    FL_TRY(bench_synth_check(&own, err));
    writer r = {.s = &own, .progress = progress, .arg = arg};
    FL_TRY(fl_gguf_writer_create(&r.w, path, 0, err));
    r.list = fl_make_list(&own.shape, true, &r.n);
    fl_status st = write_all(&r, err);
    if (st == FL_OK)
        st = fl_gguf_writer_commit(&r.w, err);
    else
        fl_gguf_writer_discard(&r.w);
    free(r.list);
    free(r.routes);
    free(r.piece);
    return st;
}
