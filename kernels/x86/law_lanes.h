#ifndef FL_KERNELS_X86_LAW_LANES_H
#define FL_KERNELS_X86_LAW_LANES_H

#include "kernels/x86/lanes_vec.h"

/* L2 for many activation rows, which lie in the lanes of a vector: activations are packed once per
 * call so that a vector has four neighbouring bytes of each row, and meet four bytes of a weight
 * row in all lanes. Nothing is summed across lanes, so chains need no shuffling. */
#if defined(FL_DPBUSD)

enum {
    FL_LANE_BLOCKS = 8,   /* blocks packed at once; longer rows go on from y */
    FL_LANE_WEIGHTS = 16, /* weight rows that meet packed activations while these are in cache */
    FL_LANE_GROUPS = FL_ROW_TILE / FL_LANES
};

/* One block of FL_LANES activation rows. */
typedef struct fl_lane_acts {
    _Alignas(64) int8_t x[64][FL_LANES][4]; /* xor 0x80, that is + 128, for signed levels */
    int32_t p[8][FL_LANES];                 /* P_k */
    int16_t pair[4][FL_LANES][2];           /* J_2k, J_2k+1 */
    float scale[FL_LANES];
} fl_lane_acts;

/* One block of a weight row. */
typedef struct fl_lane_block {
    uint8_t q[256];    /* levels; signed ones are int8 */
    int32_t start[64]; /* signed levels: -128 times the sum of a part, at [the part's first / 4] */
    int32_t s[16];     /* scales, per 32 or per 16 */
    float step[16];    /* stepwise: scales, per part */
    int32_t min[4];    /* pairs of minima */
    float d, dmin;
} fl_lane_block;

/* How a type is multiplied. Products of `part` levels are summed before the scale is applied; these
 * sums fit 16 bits, but for wide ones. Scales are per 32 / halves. Stepwise: the float chain takes
 * a step per part (the types of law 32 and 16). */
typedef struct fl_lane_kind {
    void (*unpack)(const uint8_t *p, fl_lane_block *o);
    int bytes, part, halves;
    bool is_signed, has_min, wide, stepwise;
} fl_lane_kind;

FL_INLINE void fl_lane_unsigned(__m256i q, int k, fl_lane_block *o)
{
    _mm256_storeu_si256((__m256i *)(o->q + 32 * k), q);
}

/* Parts of 8, 16 or 32 levels. */
FL_INLINE void fl_lane_signed(__m256i q, int k, int part, fl_lane_block *o)
{
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(-128));
    s = _mm256_add_epi32(s, _mm256_srli_epi64(s, 32));
    if (part >= 16) s = _mm256_add_epi32(s, _mm256_unpackhi_epi64(s, s));
    if (part == 32) s = _mm256_add_epi32(s, _mm256_permute2x128_si256(s, s, 1));
    _mm256_storeu_si256((__m256i *)(o->q + 32 * k), q);
    _mm256_storeu_si256((__m256i *)(o->start + 8 * k), s);
}

FL_INLINE void fl_lane_pack_row(const fl_act *x, int lane, fl_lane_acts *o)
{
    for (int k = 0; k < 8; k++) {
        o->p[k][lane] = x->p[k];
        o->pair[k / 2][lane][k % 2] = x->sum[k];
    }
    o->scale[lane] = x->scale;
}

/* Four rows into lanes lane .. lane + 3: blocks of 4 x 4 words are transposed. */
FL_INLINE void fl_lane_pack4(const fl_act *const x[4], int lane, bool is_signed, fl_lane_acts *o)
{
    const __m128i flip = _mm_set1_epi8(is_signed ? -128 : 0);
    for (int i = 0; i < 4; i++) fl_lane_pack_row(x[i], lane + i, o);
    for (int c = 0; c < 64; c += 4) {
        __m128i v[4];
        for (int i = 0; i < 4; i++) v[i] = _mm_xor_si128(flip, fl_load128(x[i]->x + 4 * c));
        __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpackhi_epi32(v[0], v[1]);
        __m128i d = _mm_unpacklo_epi32(v[2], v[3]), e = _mm_unpackhi_epi32(v[2], v[3]);
        const __m128i t[4] = {_mm_unpacklo_epi64(a, d), _mm_unpackhi_epi64(a, d),
                              _mm_unpacklo_epi64(b, e), _mm_unpackhi_epi64(b, e)};
        for (int i = 0; i < 4; i++) _mm_storeu_si128((__m128i *)o->x[c + i][lane], t[i]);
    }
}

/* Integer sums of the part that starts at level 4 c. */
FL_INLINE void fl_lane_dot(const fl_lane_block w[4], const fl_lane_acts *x, const fl_lane_kind *t,
                           int c, fl_vi dot[4])
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) dot[i] = t->is_signed ? fl_vi_all(w[i].start[c]) : fl_vi_zero();
#pragma GCC unroll 8
    for (int j = 0; j < t->part / 4; j++) {
        fl_vi v = fl_vi_load(x->x[c + j]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            int32_t q;
            memcpy(&q, w[i].q + 4 * (c + j), 4);
            fl_vi u = fl_vi_all(q);
            dot[i] = t->is_signed ? fl_vi_dot8(dot[i], v, u) : fl_vi_dot8(dot[i], u, v);
        }
    }
}

/* One block with a step per part: four weight rows against FL_LANES activation rows; acc[i] goes
 * on. (float)(P I) = P (float)I. */
FL_INLINE void fl_lane_steps(const fl_lane_block w[4], const fl_lane_acts *x, const fl_lane_kind *t,
                             float *const acc[4])
{
    fl_vf sum[4], a = fl_vf_load(x->scale);
    for (int i = 0; i < 4; i++) sum[i] = fl_vf_load(acc[i]);
    for (int k = 0; k < 8; k++) {
        fl_vf p = fl_vf_of(fl_vi_load(x->p[k]));
        for (int at = 32 * k; at < 32 * k + 32; at += t->part) {
            fl_vi dot[4];
            fl_lane_dot(w, x, t, at / 4, dot);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                fl_vf r =
                    fl_vf_mul(fl_vf_all(w[i].step[at / t->part]), fl_vf_mul(fl_vf_of(dot[i]), p));
                sum[i] = fl_vf_fma(a, r, sum[i]);
            }
        }
    }
    for (int i = 0; i < 4; i++) fl_vf_store(acc[i], sum[i]);
}

/* The same with one step per block. */
FL_INLINE void fl_lane_step(const fl_lane_block w[4], const fl_lane_acts *x, const fl_lane_kind *t,
                            float *const acc[4])
{
    fl_vi sum[4], min[4];
    for (int i = 0; i < 4; i++) sum[i] = min[i] = fl_vi_zero();
    for (int k = 0; k < 8; k++) {
        fl_vi s[4], p = fl_vi_load(x->p[k]);
#pragma GCC unroll 4
        for (int at = 0; at < 32; at += t->part) {
            fl_vi dot[4];
            fl_lane_dot(w, x, t, 8 * k + at / 4, dot);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                if (at % (32 / t->halves) == 0) {
                    fl_vi v = fl_vi_all(w[i].s[(32 * k + at) * t->halves / 32]);
                    s[i] = t->wide ? fl_vi_mul32(p, v) : fl_vi_mul16(p, v);
                }
                sum[i] = t->wide ? fl_vi_add(sum[i], fl_vi_mul32(dot[i], s[i]))
                                 : fl_vi_dot16(sum[i], dot[i], s[i]);
            }
        }
    }
    if (t->has_min) {
        for (int k = 0; k < 4; k++) {
            fl_vi j = fl_vi_load(x->pair[k]);
            for (int i = 0; i < 4; i++) min[i] = fl_vi_dot16(min[i], j, fl_vi_all(w[i].min[k]));
        }
    }
    fl_vf a = fl_vf_load(x->scale);
    for (int i = 0; i < 4; i++) {
        fl_vf d = fl_vf_all(w[i].d), r = fl_vf_of(sum[i]);
        if (t->has_min)
            r = fl_vf_fms(d, r, fl_vf_mul(fl_vf_all(w[i].dmin), fl_vf_of(min[i])));
        else
            r = fl_vf_mul(d, r);
        fl_vf_store(acc[i], fl_vf_fma(a, r, fl_vf_load(acc[i])));
    }
}

/* Blocks [b0, b0 + n_blocks) of a row against packed activations of `groups` vectors. */
typedef struct fl_lane_span {
    const uint8_t *data; /* the matrix's block b0 of row 0 */
    int64_t row_bytes;
    const fl_lane_acts *x; /* [FL_LANE_BLOCKS][FL_LANE_GROUPS] */
    int n_blocks, groups;
} fl_lane_span;

/* Weight rows n .. n + valid - 1; chains go on in acc. */
FL_INLINE void fl_lane_rows(const fl_lane_span *s, const fl_lane_kind *t, int64_t n, int valid,
                            float acc[FL_LANE_WEIGHTS][FL_ROW_TILE])
{
    fl_lane_block w[FL_LANE_WEIGHTS];
    const int quads = (valid + 3) / 4;
    for (int b = 0; b < s->n_blocks; b++) {
        for (int i = 0; i < 4 * quads; i++) {
            int64_t row = n + (i < valid ? i : valid - 1);
            t->unpack(s->data + row * s->row_bytes + (int64_t)b * t->bytes, &w[i]);
        }
        for (int g = 0; g < s->groups; g++) {
            for (int q = 0; q < quads; q++) {
                float *to[4];
                for (int i = 0; i < 4; i++) to[i] = acc[4 * q + i] + g * FL_LANES;
                const fl_lane_acts *x = s->x + b * FL_LANE_GROUPS + g;
                if (t->stepwise)
                    fl_lane_steps(w + 4 * q, x, t, to);
                else
                    fl_lane_step(w + 4 * q, x, t, to);
            }
        }
    }
}

/* At most FL_ROW_TILE activation rows; between spans the chains' values stay in y. */
FL_INLINE void fl_lane_tile(const fl_mat *m, const fl_lane_kind *t, int64_t n0, int64_t n1,
                            const fl_act *x, int n_rows, float *y, int64_t ldy)
{
    const int64_t nb = m->cols / 256;
    fl_lane_acts acts[FL_LANE_BLOCKS][FL_LANE_GROUPS];
    const int groups = (n_rows + FL_LANES - 1) / FL_LANES;
    for (int64_t b0 = 0; b0 < nb; b0 += FL_LANE_BLOCKS) {
        int n_blocks = nb - b0 < FL_LANE_BLOCKS ? (int)(nb - b0) : FL_LANE_BLOCKS;
        for (int b = 0; b < n_blocks; b++) {
            for (int r = 0; r < groups * FL_LANES; r += 4) {
                const fl_act *at[4];
                for (int i = 0; i < 4; i++)
                    at[i] = x + (r + i < n_rows ? r + i : n_rows - 1) * nb + b0 + b;
                fl_lane_pack4(at, r % FL_LANES, t->is_signed, &acts[b][r / FL_LANES]);
            }
        }
        const fl_lane_span span = {(const uint8_t *)m->data + b0 * t->bytes, nb * t->bytes, acts[0],
                                   n_blocks, groups};
        const float scale = b0 + FL_LANE_BLOCKS < nb ? 1.0f : m->scale;
        for (int64_t n = n0; n < n1; n += FL_LANE_WEIGHTS) {
            int valid = n1 - n < FL_LANE_WEIGHTS ? (int)(n1 - n) : FL_LANE_WEIGHTS;
            float acc[FL_LANE_WEIGHTS][FL_ROW_TILE] = {{0}};
            for (int r = 0; b0 > 0 && r < n_rows; r++)
                for (int i = 0; i < valid; i++) acc[i][r] = y[r * ldy + n + i];
            fl_lane_rows(&span, t, n, valid, acc);
            for (int r = 0; r < n_rows; r++)
                for (int i = 0; i < valid; i++) y[r * ldy + n + i] = acc[i][r] * scale;
        }
    }
}

FL_INLINE void fl_lane_mul(const fl_mat *m, const fl_lane_kind *t, int64_t n0, int64_t n1,
                           const fl_act *x, int n_rows, float *y, int64_t ldy)
{
    const int64_t nb = m->cols / 256;
    for (int r = 0; r < n_rows; r += FL_ROW_TILE) {
        int rows = n_rows - r < FL_ROW_TILE ? n_rows - r : FL_ROW_TILE;
        fl_lane_tile(m, t, n0, n1, x + r * nb, rows, y + r * ldy, ldy);
    }
}

#endif
#endif
