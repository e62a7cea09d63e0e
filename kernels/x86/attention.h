#ifndef FL_KERNELS_X86_ATTENTION_H
#define FL_KERNELS_X86_ATTENTION_H

#include <assert.h>

#include "kernels/ref/ref.h"
#include "kernels/x86/v16.h"

/* Attention, for every tier with vectors of floats; empty without them. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* A unit is up to four query heads of one row, which share what is loaded of keys and values.
 * Several units go together through a tile of keys; where that pays, the tile is turned into
 * floats once for all of them. */
enum { HEADS = 4, UNITS = 16, TILE = 16, DIRECT_UNITS = 2 };
/* Floats of a tile, its rows padded off a power of two; long heads have fewer keys in a tile. */
enum { PAD = 16, TILE_FLOATS = TILE * (256 + PAD), OUT_FLOATS = UNITS * HEADS * 256 };

/* Keys x heads whose sums are under way together: what the registers hold. */
#if defined(__AVX512F__)
enum { BLOCK_KEYS = 4, BLOCK_HEADS = 4, BLOCK_DIMS = 4 };
#else
enum { BLOCK_KEYS = 2, BLOCK_HEADS = 2, BLOCK_DIMS = 1 };
#endif

typedef struct attn_unit {
    const float *q[HEADS]; /* heads past the last one repeat it and are not stored */
    float *out[HEADS];     /* the chunk's weighted values */
    int kv, n;
    int keys; /* of the chunk */
    int64_t n_keys;
    float max[HEADS], sum[HEADS]; /* the chunk's */
} attn_unit;

typedef struct attn_work {
    attn_unit unit[UNITS];
    int n_units;
    _Alignas(64) float p[UNITS][HEADS][FL_ATTN_CHUNK];
    _Alignas(64) float tile[TILE_FLOATS];
} attn_work;

/* Some rows of keys or values, from element `at` of `base`, `stride` elements apart. */
typedef struct attn_rows {
    const void *base;
    int64_t at, stride;
} attn_rows;

/* What comes after this tile is asked for on the way, some bytes with each block. */
typedef struct attn_ahead {
    const uint8_t *p;
    int64_t step;
} attn_ahead;

/* Sixteen values of a cache. A product of a half and a byte is exact: the values are those that
 * the block stands for. */
FL_INLINE fl_v16 attn_load(const void *base, uint32_t type, int64_t at)
{
    if (type == FL_TYPE_F32) return fl_v16_once((const float *)base + at);
    if (type == FL_TYPE_F16) return fl_v16_of_half((const uint16_t *)base + at);
    const uint8_t *block = (const uint8_t *)base + (at >> 5) * 34;
    return fl_v16_mul(fl_v16_all(fl_half_at(block)), fl_v16_of_int8(block + 2 + (at & 31)));
}

FL_INLINE void attn_fetch(attn_ahead *f)
{
    fl_prefetch(f->p, f->step);
    f->p += f->step;
}

/* Scores of keys j .. j + BLOCK_KEYS - 1 from their sums, key by key; p: one row per head. */
FL_INLINE void attn_put(const fl_v16 x[BLOCK_KEYS * BLOCK_HEADS], float scale,
                        float (*p)[FL_ATTN_CHUNK], int j)
{
#if defined(__AVX512F__)
    const __m512 s = _mm512_mul_ps(fl_v16_sum16(x), _mm512_set1_ps(scale));
    _mm_storeu_ps(p[0] + j, _mm512_castps512_ps128(s));
    _mm_storeu_ps(p[1] + j, _mm512_extractf32x4_ps(s, 1));
    _mm_storeu_ps(p[2] + j, _mm512_extractf32x4_ps(s, 2));
    _mm_storeu_ps(p[3] + j, _mm512_extractf32x4_ps(s, 3));
#else
    const __m256 a[4] = {x[0].a, x[2].a, x[1].a, x[3].a}, b[4] = {x[0].b, x[2].b, x[1].b, x[3].b};
    const __m128 s = _mm_mul_ps(fl_lanes_sum4(a, b), _mm_set1_ps(scale));
    _mm_storel_pi((__m64 *)(p[0] + j), s);
    _mm_storeh_pi((__m64 *)(p[1] + j), s);
#endif
}

/* Scores of n keys; the last ones are repeated up to a whole block. */
FL_INLINE void attn_scores(const fl_attn_args *a, const attn_rows *k, uint32_t type,
                           const attn_unit *u, int n, float (*p)[FL_ATTN_CHUNK], int first,
                           attn_ahead *f)
{
    for (int j = 0; j < n; j += BLOCK_KEYS) {
        int64_t at[BLOCK_KEYS];
        for (int i = 0; i < BLOCK_KEYS; i++)
            at[i] = k->at + (j + i < n ? j + i : n - 1) * k->stride;
        attn_fetch(f);
#pragma GCC unroll 2
        for (int h = 0; h < HEADS; h += BLOCK_HEADS) {
            fl_v16 x[BLOCK_KEYS * BLOCK_HEADS];
            for (int i = 0; i < BLOCK_KEYS * BLOCK_HEADS; i++) x[i] = fl_v16_zero();
            for (int d = 0; d < a->head_dim; d += 16) {
                fl_v16 v[BLOCK_KEYS];
                for (int i = 0; i < BLOCK_KEYS; i++) v[i] = attn_load(k->base, type, at[i] + d);
                for (int g = 0; g < BLOCK_HEADS; g++) {
                    const fl_v16 q = fl_v16_once(u->q[h + g] + d);
                    for (int i = 0; i < BLOCK_KEYS; i++)
                        x[i * BLOCK_HEADS + g] = fl_v16_fma(q, v[i], x[i * BLOCK_HEADS + g]);
                }
            }
            attn_put(x, a->scale, p + h, first + j);
        }
    }
}

/* Weighted sums of n keys for sixteen `dims` dimensions of one unit. */
FL_INLINE void attn_values_dims(const attn_rows *v, uint32_t type, const attn_unit *u, int n,
                                const float (*p)[FL_ATTN_CHUNK], int first, int d, int dims)
{
    fl_v16 o[BLOCK_DIMS][HEADS];
    for (int b = 0; b < dims; b++)
        for (int h = 0; h < HEADS; h++) o[b][h] = fl_v16_zero();
    if (first) {
        for (int b = 0; b < dims; b++)
            for (int h = 0; h < HEADS; h++) o[b][h] = fl_v16_load(u->out[h] + d + 16 * b);
    }
    for (int j = 0; j < n; j++) {
        fl_v16 x[BLOCK_DIMS];
        for (int b = 0; b < dims; b++)
            x[b] = attn_load(v->base, type, v->at + j * v->stride + d + 16 * b);
        for (int h = 0; h < HEADS; h++) {
            const fl_v16 w = fl_v16_all(p[h][first + j]);
            for (int b = 0; b < dims; b++) o[b][h] = fl_v16_fma(w, x[b], o[b][h]);
        }
    }
    for (int h = HEADS - 1; h >= 0; h--) /* repeated heads first: the last one's place is theirs */
        for (int b = 0; b < dims; b++) fl_v16_store(u->out[h] + d + 16 * b, o[b][h]);
}

FL_INLINE void attn_values(const fl_attn_args *a, const attn_rows *v, uint32_t type,
                           const attn_unit *u, int n, const float (*p)[FL_ATTN_CHUNK], int first,
                           attn_ahead *f)
{
    int d = 0;
    for (; d + 16 * BLOCK_DIMS <= a->head_dim; d += 16 * BLOCK_DIMS) {
        attn_fetch(f);
        attn_values_dims(v, type, u, n, p, first, d, BLOCK_DIMS);
    }
    for (; d < a->head_dim; d += 16) attn_values_dims(v, type, u, n, p, first, d, 1);
}

/* The same by type. Tiles and caches of floats are F32; a tile always holds what was Q8_0. */
static void attn_tile_scores(const fl_attn_args *a, const attn_rows *k, uint32_t type,
                             const attn_unit *u, int n, float (*p)[FL_ATTN_CHUNK], int first,
                             attn_ahead *f)
{
    if (type == FL_TYPE_F16)
        attn_scores(a, k, FL_TYPE_F16, u, n, p, first, f);
    else
        attn_scores(a, k, FL_TYPE_F32, u, n, p, first, f);
}
static void attn_tile_values(const fl_attn_args *a, const attn_rows *v, uint32_t type,
                             const attn_unit *u, int n, float (*p)[FL_ATTN_CHUNK], int first,
                             attn_ahead *f)
{
    if (type == FL_TYPE_F16)
        attn_values(a, v, FL_TYPE_F16, u, n, p, first, f);
    else
        attn_values(a, v, FL_TYPE_F32, u, n, p, first, f);
}

FL_INLINE void attn_to_floats(const attn_rows *r, uint32_t type, int n, int head_dim, float *tile)
{
    for (int j = 0; j < n; j++) {
        for (int d = 0; d < head_dim; d += 16)
            fl_v16_store(tile + j * (head_dim + PAD) + d,
                         attn_load(r->base, type, r->at + j * r->stride + d));
    }
}

/* F16 is turned into floats in the loops of few units, which saves them a tile's stores. */
static bool attn_direct(const fl_attn_args *a, const attn_work *w)
{
    return a->kv_type == FL_TYPE_F32 ||
           (a->kv_type == FL_TYPE_F16 && w->n_units <= DIRECT_UNITS * a->n_kv);
}

/* The units of kv head `kv`: n keys (values: of values) from the chunk's `first` on. */
static void attn_tile_head(const fl_attn_args *a, attn_work *w, attn_rows r, int kv, int first,
                           int n, bool values, attn_ahead *f)
{
    uint32_t type = a->kv_type;
    bool ready = attn_direct(a, w);
    r.at += first * r.stride + kv * a->head_dim;
    for (int i = 0; i < w->n_units; i++) {
        const attn_unit *u = &w->unit[i];
        const int left = u->keys - first, m = left < n ? left : n;
        if (u->kv != kv || m <= 0) continue;
        if (!ready) {
            if (type == FL_TYPE_F16)
                attn_to_floats(&r, FL_TYPE_F16, n, a->head_dim, w->tile);
            else
                attn_to_floats(&r, FL_TYPE_Q8_0, n, a->head_dim, w->tile);
            r = (attn_rows){.base = w->tile, .stride = a->head_dim + PAD};
            type = FL_TYPE_F32;
            ready = true;
        }
        if (values)
            attn_tile_values(a, &r, type, u, m, w->p[i], first, f);
        else
            attn_tile_scores(a, &r, type, u, m, w->p[i], first, f);
    }
}

/* Row `row` of keys or values. */
static const uint8_t *attn_row(const fl_attn_args *a, const void *base, int64_t row)
{
    return (const uint8_t *)base +
           fl_type_row_bytes(a->kv_type, (uint64_t)row * (uint64_t)a->kv_stride);
}

/* Keys (values: values) first .. n - 1 of a chunk, tile by tile; `then` is what comes after. */
static void attn_tiles(const fl_attn_args *a, attn_work *w, int64_t chunk, int n, bool values,
                       const uint8_t *then)
{
    const int fit = TILE_FLOATS / (a->head_dim + PAD), tile = fit < TILE ? fit / 4 * 4 : TILE;
    const void *base = values ? a->v : a->k;
    const attn_rows r = {base, chunk * a->kv_stride, a->kv_stride};
    const int blocks = values ? (a->head_dim / 16 + BLOCK_DIMS - 1) / BLOCK_DIMS
                              : (tile + BLOCK_KEYS - 1) / BLOCK_KEYS;
    const int64_t bytes = attn_row(a, base, tile) - (const uint8_t *)base;
    attn_ahead f = {.step = (bytes / (blocks * w->n_units) + 63) / 64 * 64};
    for (int j = 0; j < n; j += tile) {
        f.p = j + tile < n ? attn_row(a, base, chunk + j + tile) : then;
        for (int kv = 0; kv < a->n_kv; kv++)
            attn_tile_head(a, w, r, kv, j, n - j < tile ? n - j : tile, values, &f);
    }
}

/* p becomes exp(p - max); gives the sum. */
static float attn_soften(float *p, int n, float *max)
{
    fl_v16 m = fl_v16_all(-INFINITY), sum = fl_v16_zero();
    float lanes[16];
    int j = 0;
    for (; j + 16 <= n; j += 16) m = fl_v16_max(fl_v16_load(p + j), m);
    fl_v16_store(lanes, m);
    float top = -INFINITY;
    for (int i = 0; i < 16; i++) top = lanes[i] > top ? lanes[i] : top;
    for (; j < n; j++) top = p[j] > top ? p[j] : top;
    *max = top;
    for (j = 0; j + 16 <= n; j += 16) {
        const fl_v16 e = fl_v16_exp(fl_v16_sub(fl_v16_load(p + j), fl_v16_all(top)));
        fl_v16_store(p + j, e);
        sum = fl_v16_add(sum, e);
    }
    fl_v16_store(lanes, sum);
    for (int i = 0; j < n; j++, i++) {
        p[j] = fl_law_exp(p[j] - top);
        lanes[i] += p[j];
    }
    return fl_v16_sum(fl_v16_load(lanes));
}

/* The chunk that begins at key `first`, for all units. */
static void attn_chunk(const fl_attn_args *a, attn_work *w, int64_t first)
{
    int n = 0;
    for (int i = 0; i < w->n_units; i++) {
        const int64_t left = w->unit[i].n_keys - first;
        w->unit[i].keys = left < 0 ? 0 : left < FL_ATTN_CHUNK ? (int)left : FL_ATTN_CHUNK;
        n = w->unit[i].keys > n ? w->unit[i].keys : n;
    }
    attn_tiles(a, w, first, n, false, attn_row(a, a->v, first));
    for (int i = 0; i < w->n_units; i++) {
        attn_unit *u = &w->unit[i];
        for (int h = 0; u->keys > 0 && h < u->n; h++)
            u->sum[h] = attn_soften(w->p[i][h], u->keys, &u->max[h]);
    }
    attn_tiles(a, w, first, n, true, attn_row(a, a->k, first + FL_ATTN_CHUNK));
}

/* Head h of `run` and what `part` has behind it. */
static void attn_join(attn_unit *run, const attn_unit *part, int h, int head_dim)
{
    const float max = run->max[h], m = part->max[h], top = m > max ? m : max;
    const float keep = fl_law_exp(max - top), add = fl_law_exp(m - top);
    for (int d = 0; d < head_dim; d += 16) {
        float *out = run->out[h] + d;
        const fl_v16 old = fl_v16_mul(fl_v16_all(keep), fl_v16_load(out));
        fl_v16_store(out, fl_v16_fma(fl_v16_all(add), fl_v16_load(part->out[h] + d), old));
    }
    run->sum[h] = fmaf(add, part->sum[h], keep * run->sum[h]);
    run->max[h] = top;
}

/* Units are counted row by row; `head` becomes the first head of a row that is unit `number`. */
static int64_t attn_place(const fl_attn_args *a, int64_t number, attn_unit *u, int64_t *head)
{
    const int64_t per_kv = (a->n_q + HEADS - 1) / HEADS, per_row = per_kv * a->n_kv;
    const int64_t r = number / per_row, h = number % per_kv * HEADS;
    u->kv = (int)(number % per_row / per_kv);
    u->n = a->n_q - h < HEADS ? (int)(a->n_q - h) : HEADS;
    u->n_keys = a->n_keys[r];
    *head = (int64_t)u->kv * a->n_q + h;
    for (int i = 0; i < HEADS; i++)
        u->q[i] = a->q + r * a->q_stride + (*head + (i < u->n ? i : u->n - 1)) * a->head_dim;
    return r;
}
static void attn_place_out(attn_unit *u, float *out, int head_dim)
{
    for (int i = 0; i < HEADS; i++) u->out[i] = out + (int64_t)(i < u->n ? i : u->n - 1) * head_dim;
}
static int attn_units(const fl_attn_args *a)
{
    return a->n_rows * a->n_kv * ((a->n_q + HEADS - 1) / HEADS);
}

/* All chunks of w's units, whose outputs and first partials are in `run`. */
static void attn_group(const fl_attn_args *a, attn_work *w, attn_unit *run, float *part)
{
    int64_t most = 0;
    for (int i = 0; i < w->n_units; i++) most = run[i].n_keys > most ? run[i].n_keys : most;
    memcpy(w->unit, run, (size_t)w->n_units * sizeof *run);
    attn_chunk(a, w, 0);
    memcpy(run, w->unit, (size_t)w->n_units * sizeof *run);
    for (int i = 0; i < w->n_units; i++)
        attn_place_out(&w->unit[i], part + (int64_t)i * HEADS * a->head_dim, a->head_dim);
    for (int64_t first = FL_ATTN_CHUNK; first < most; first += FL_ATTN_CHUNK) {
        attn_chunk(a, w, first);
        for (int i = 0; i < w->n_units; i++)
            for (int h = 0; w->unit[i].keys > 0 && h < run[i].n; h++)
                attn_join(&run[i], &w->unit[i], h, a->head_dim);
    }
    for (int i = 0; i < w->n_units; i++) {
        for (int h = 0; h < run[i].n; h++) {
            for (int d = 0; d < a->head_dim; d += 16) {
                float *out = run[i].out[h] + d;
                fl_v16_store(out, fl_v16_div(fl_v16_load(out), fl_v16_all(run[i].sum[h])));
            }
        }
    }
}

FL_INLINE void fl_attn_rows(const fl_attn_args *a, float *out, int64_t out_stride)
{
    assert(fl_attn_fits(a));
    const int n = attn_units(a), room = OUT_FLOATS / (HEADS * a->head_dim);
    float part[OUT_FLOATS];
    attn_work w;
    for (int first = 0; first < n; first += w.n_units) {
        attn_unit run[UNITS];
        w.n_units = room < UNITS ? room : UNITS;
        if (w.n_units > n - first) w.n_units = n - first;
        for (int i = 0; i < w.n_units; i++) {
            int64_t head, r = attn_place(a, first + i, &run[i], &head);
            attn_place_out(&run[i], out + r * out_stride + head * a->head_dim, a->head_dim);
        }
        attn_group(a, &w, run, part);
    }
}

FL_INLINE void fl_attn_one_chunk(const fl_attn_args *a, int64_t chunk, const fl_attn_part *to)
{
    assert(fl_attn_fits(a));
    const int n = attn_units(a);
    attn_work w;
    for (int first = 0; first < n; first += w.n_units) {
        int64_t at[UNITS];
        w.n_units = n - first < UNITS ? n - first : UNITS;
        for (int i = 0; i < w.n_units; i++) {
            int64_t head, r = attn_place(a, first + i, &w.unit[i], &head);
            at[i] = r * to->ld + head;
            attn_place_out(&w.unit[i], to->out + at[i] * a->head_dim, a->head_dim);
        }
        attn_chunk(a, &w, chunk * FL_ATTN_CHUNK);
        for (int i = 0; i < w.n_units; i++) {
            const attn_unit *u = &w.unit[i];
            for (int h = 0; h < u->n; h++) {
                to->sum[at[i] + h] = u->keys > 0 ? u->sum[h] : 0.0f;
                to->max[at[i] + h] = u->keys > 0 ? u->max[h] : 0.0f;
            }
        }
    }
}

FL_INLINE void fl_attn_join_heads(const fl_attn_part *run, const fl_attn_part *part, int n_heads,
                                  int head_dim)
{
    for (int h = 0; h < n_heads; h++) {
        const int64_t at = (int64_t)h * head_dim;
        attn_unit r = {.out = {run->out + at}, .max = {run->max[h]}, .sum = {run->sum[h]}};
        const attn_unit p = {.out = {part->out + at}, .max = {part->max[h]}, .sum = {part->sum[h]}};
        if (p.sum[0] == 0.0f) continue;
        if (r.sum[0] == 0.0f) {
            r.max[0] = p.max[0];
            r.sum[0] = p.sum[0];
            memcpy(r.out[0], p.out[0], (size_t)head_dim * sizeof(float));
        } else {
            attn_join(&r, &p, 0, head_dim);
        }
        run->max[h] = r.max[0];
        run->sum[h] = r.sum[0];
    }
}

#endif
#endif
