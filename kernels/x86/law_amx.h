#ifndef FL_KERNELS_X86_LAW_AMX_H
#define FL_KERNELS_X86_LAW_AMX_H

#include "kernels/x86/lanes_drive.h"

/* L2 on tiles: 16 weight rows meet 16 activation rows. A tile product sums 64 bytes, which span two
 * sub-blocks, so scales are folded in before: S q (13 bits) and P x (11 bits) are each
 * 256 hi + lo in signed bytes, and I = 65536 hi hi + 256 (hi lo + lo hi) + lo lo, exact modulo
 * 2^32. Types with a float step per 32 or 16 levels have a product per step and nothing to fold.
 * The tile instructions come from the file that includes this one: tiles.h, or C in a test. */
#if defined(FL_TILES)

enum { FL_TILE_ROWS = 16, FL_TILE_GROUPS = FL_ROW_TILE / FL_TILE_ROWS };

/* One block of 16 activation rows; a tile of b has bytes 4 c .. 4 c + 3 of every row side by side.
 */
typedef struct fl_amx_acts {
    _Alignas(64) int8_t lo[64][FL_TILE_ROWS][4]; /* x itself where nothing is folded */
    int8_t hi[64][FL_TILE_ROWS][4];
    int32_t p[8][FL_TILE_ROWS];
    int16_t pair[4][FL_TILE_ROWS][2]; /* J_2k, J_2k+1 */
    float scale[FL_TILE_ROWS];
} fl_amx_acts;

/* One block of 16 weight rows as tiles a, 64 levels each (a step's levels where there are steps).
 */
typedef struct fl_amx_weights {
    _Alignas(64) int8_t lo[4 * FL_TILE_ROWS * 64];
    int8_t hi[4 * FL_TILE_ROWS * 64];
} fl_amx_weights;

/* What ldtilecfg reads: palette 1, rows and bytes a row of each tile. 0..3 are sums, 4 and 5
 * weights, 6 and 7 activations. */
typedef struct fl_tile_shape {
    uint8_t palette, start_row, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} fl_tile_shape;
_Static_assert(sizeof(fl_tile_shape) == 64, "tile configuration");
#define FL_TILE_SHAPE(PART)                                \
    {                                                      \
        1, 0, {0}, {64, 64, 64, 64, PART, PART, 64, 64},   \
        {                                                  \
            16, 16, 16, 16, 16, 16, (PART) / 4, (PART) / 4 \
        }                                                  \
    }

/* fl_vi_pick: the first two bytes of scale j, eight times, where 16 levels have it. */
#define FL_WORD(J) 4 * (J), 4 * (J) + 1
#define FL_WORDS(J) \
    FL_WORD(J), FL_WORD(J), FL_WORD(J), FL_WORD(J), FL_WORD(J), FL_WORD(J), FL_WORD(J), FL_WORD(J)
static const _Alignas(64) uint8_t fl_amx_pick[2][64] = {
    {FL_WORDS(0), FL_WORDS(0), FL_WORDS(1), FL_WORDS(1)},
    {FL_WORDS(0), FL_WORDS(1), FL_WORDS(2), FL_WORDS(3)}};

typedef int16_t fl_words __attribute__((vector_size(4 * FL_LANES)));

/* 256 levels times their scales (per 32 / halves) as 256 hi + lo; each 64 go `stride` further. Even
 * and odd bytes are multiplied as the 16-bit numbers they lie in. */
FL_INLINE void fl_amx_fold(const void *q, const int32_t *s, int halves, int8_t *lo, int8_t *hi,
                           int64_t stride)
{
    const fl_vi pick = fl_vi_load(fl_amx_pick[halves - 1]);
    for (int at = 0; at < 256; at += 4 * FL_LANES) {
        fl_words v = (fl_words)fl_vi_load((const char *)q + at);
        fl_words scale = (fl_words)fl_vi_pick(s + at * halves / 32, pick);
        fl_words even = ((v << 8) >> 8) * scale, odd = (v >> 8) * scale;
        int64_t to = at / 64 * stride + at % 64;
        fl_vi_store(lo + to, (fl_vi)((even & 255) | (odd << 8)));
        even += 128;
        odd += 128;
        fl_vi_store(hi + to, (fl_vi)(((even >> 8) & 255) | (odd & ~255)));
    }
}

/* One block of 16 rows. */
FL_INLINE void fl_amx_pack(const fl_act *const *x, const fl_lane_kind *t, void *acts)
{
    fl_amx_acts *o = acts;
    for (int r = 0; r < FL_TILE_ROWS; r++) {
        for (int k = 0; k < 8; k++) {
            o->p[k][r] = x[r]->p[k];
            o->pair[k / 2][r][k % 2] = x[r]->sum[k];
        }
        o->scale[r] = x[r]->scale;
    }
    for (int r = 0; r < FL_TILE_ROWS; r += 4) {
        int8_t lo[4][256], hi[4][256];
        const int8_t *low[4], *high[4];
        for (int i = 0; i < 4; i++) {
            int32_t p[16] = {0};
            for (int k = 0; k < 8; k++) p[k] = x[r + i]->p[k];
            if (!t->stepwise) fl_amx_fold(x[r + i]->x, p, 1, lo[i], hi[i], 64);
            low[i] = t->stepwise ? x[r + i]->x : lo[i];
            high[i] = hi[i];
        }
        fl_lane_transpose(low, 0, o->lo[0][r], sizeof o->lo[0]);
        if (!t->stepwise) fl_lane_transpose(high, 0, o->hi[0][r], sizeof o->hi[0]);
    }
}

/* The four products of folded bytes: lo lo, lo hi, hi lo, hi hi. */
FL_INLINE void fl_amx_planes(const fl_amx_weights *w, const fl_amx_acts *x,
                             int32_t sum[4][FL_TILE_ROWS][FL_TILE_ROWS])
{
    fl_tile_zero(0);
    fl_tile_zero(1);
    fl_tile_zero(2);
    fl_tile_zero(3);
    for (int k = 0; k < 4; k++) {
        fl_tile_load(4, w->lo + 1024 * k, 64);
        fl_tile_load(6, x->lo[16 * k], 64);
        fl_tile_dot(0, 4, 6);
        fl_tile_load(7, x->hi[16 * k], 64);
        fl_tile_dot(1, 4, 7);
        fl_tile_load(5, w->hi + 1024 * k, 64);
        fl_tile_dot(2, 5, 6);
        fl_tile_dot(3, 5, 7);
    }
    fl_tile_store(0, sum[0], 64);
    fl_tile_store(1, sum[1], 64);
    fl_tile_store(2, sum[2], 64);
    fl_tile_store(3, sum[3], 64);
}

/* One block against 16 activation rows with one float step. */
FL_INLINE void fl_amx_step(const fl_lane_block *w, const fl_amx_weights *planes, int n,
                           const fl_lane_kind *t, const fl_amx_acts *x, float *acc)
{
    _Alignas(64) int32_t sum[4][FL_TILE_ROWS][FL_TILE_ROWS];
    fl_amx_planes(planes, x, sum);
    for (int j = 0; j < FL_TILE_ROWS; j += FL_LANES) {
        fl_vf a = fl_vf_load(x->scale + j);
        for (int i = 0; i < n; i++) {
            fl_vi mid = fl_vi_add(fl_vi_load(sum[1][i] + j), fl_vi_load(sum[2][i] + j));
            fl_vi all = fl_vi_add(fl_vi_sll(fl_vi_load(sum[3][i] + j), 8), mid), min = fl_vi_zero();
            all = fl_vi_add(fl_vi_sll(all, 8), fl_vi_load(sum[0][i] + j));
            for (int k = 0; t->has_min && k < 4; k++)
                min = fl_vi_dot16(min, fl_vi_load(x->pair[k][j]), fl_vi_all(w[i].min[k]));
            fl_lane_chain(&w[i], t->has_min, a, all, min, acc + i * FL_ROW_TILE + j);
        }
    }
}

/* Product of step number k of a block into tile T. */
#define FL_AMX_PART(T, A, B, K, PART)                                    \
    do {                                                                 \
        fl_tile_zero(T);                                                 \
        fl_tile_load(A, planes->lo + FL_TILE_ROWS * (PART) * (K), PART); \
        fl_tile_load(B, x->lo[(PART) / 4 * (K)], 64);                    \
        fl_tile_dot(T, A, B);                                            \
        fl_tile_store(T, sum[(K) % 4], 64);                              \
    } while (0)

/* The same with a float step per part: four products, then their steps. (float)(P I) = P (float)I.
 */
FL_INLINE void fl_amx_steps(const fl_lane_block *w, const fl_amx_weights *planes, int n,
                            const fl_lane_kind *t, const fl_amx_acts *x, float *acc)
{
    _Alignas(64) int32_t sum[4][FL_TILE_ROWS][FL_TILE_ROWS];
    const int part = t->part;
    for (int k = 0; k < 256 / part; k += 4) {
        FL_AMX_PART(0, 4, 6, k, part);
        FL_AMX_PART(1, 5, 7, k + 1, part);
        FL_AMX_PART(2, 4, 6, k + 2, part);
        FL_AMX_PART(3, 5, 7, k + 3, part);
        for (int j = 0; j < FL_TILE_ROWS; j += FL_LANES) {
            fl_vf a = fl_vf_load(x->scale + j), p[4];
            for (int s = 0; s < 4; s++) p[s] = fl_vf_of(fl_vi_load(x->p[(k + s) * part / 32] + j));
            for (int i = 0; i < n; i++) {
                fl_vf y = fl_vf_load(acc + i * FL_ROW_TILE + j);
                for (int s = 0; s < 4; s++) {
                    fl_vf v = fl_vf_mul(fl_vf_of(fl_vi_load(sum[s][i] + j)), p[s]);
                    y = fl_vf_fma(a, fl_vf_mul(fl_vf_all(w[i].step[k + s]), v), y);
                }
                fl_vf_store(acc + i * FL_ROW_TILE + j, y);
            }
        }
    }
}

FL_INLINE void fl_amx_meet(const fl_lane_block *w, int quads, const fl_lane_kind *t,
                           const void *acts, int groups, float *acc)
{
    fl_amx_weights planes;
    const fl_amx_acts *x = acts;
    const int n = 4 * quads;
    /* Missing rows of the last tile repeat the last one; their sums are not looked at. */
    for (int i = 0; i < FL_TILE_ROWS; i++) {
        const fl_lane_block *row = &w[i < n ? i : n - 1];
        if (t->stepwise)
            for (int k = 0; k < 256 / t->part; k++)
                memcpy(planes.lo + (FL_TILE_ROWS * k + i) * t->part, row->q + t->part * k,
                       (size_t)t->part);
        else
            fl_amx_fold(row->q, row->s, t->halves, planes.lo + 64 * i, planes.hi + 64 * i, 1024);
    }
    for (int g = 0; g < groups; g++) {
        float *to = acc + g * FL_TILE_ROWS;
        if (t->stepwise)
            fl_amx_steps(w, &planes, n, t, x + g, to);
        else
            fl_amx_step(w, &planes, n, t, x + g, to);
    }
}

FL_INLINE void fl_amx_with(const fl_lane_kind *t, FL_LANE_ARGS)
{
    static const fl_tile_shape whole = FL_TILE_SHAPE(64), by32 = FL_TILE_SHAPE(32),
                               by16 = FL_TILE_SHAPE(16);
    fl_amx_acts acts[FL_LANE_BLOCKS][FL_TILE_GROUPS];
    const fl_lane_engine e = {FL_TILE_ROWS, sizeof acts[0][0], fl_amx_pack, fl_amx_meet, acts};
    fl_tile_config(!t->stepwise ? &whole : t->part == 32 ? &by32 : &by16);
    fl_lane_mul(m, t, &e, n0, n1, x, n_rows, y, ldy);
    fl_tile_release(); /* nothing of ours is left in the thread's state */
}

FL_LANE_TYPES(fl_amx_with)

#endif
#endif
