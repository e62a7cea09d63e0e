#ifndef FL_KERNELS_X86_LAW_LANES_H
#define FL_KERNELS_X86_LAW_LANES_H

#include "kernels/x86/lanes_drive.h"

/* L2 for many activation rows, which lie in the lanes of a vector: activations are packed once per
 * call so that a vector has four neighbouring bytes of each row, and meet four bytes of a weight
 * row in all lanes. Nothing is summed across lanes, so chains need no shuffling. */
#if defined(FL_DPBUSD)

/* One block of FL_LANES activation rows. */
typedef struct fl_lane_acts {
    _Alignas(64) int8_t x[64][FL_LANES][4]; /* xor 0x80, that is + 128, for signed levels */
    int32_t p[8][FL_LANES];                 /* P_k */
    int16_t pair[4][FL_LANES][2];           /* J_2k, J_2k+1 */
    float scale[FL_LANES];
} fl_lane_acts;

FL_INLINE void fl_lane_pack_row(const fl_act *x, int lane, fl_lane_acts *o)
{
    for (int k = 0; k < 8; k++) {
        o->p[k][lane] = x->p[k];
        o->pair[k / 2][lane][k % 2] = x->sum[k];
    }
    o->scale[lane] = x->scale;
}

FL_INLINE void fl_lane_pack4(const fl_act *const x[4], int lane, bool is_signed, fl_lane_acts *o)
{
    const int8_t *const row[4] = {x[0]->x, x[1]->x, x[2]->x, x[3]->x};
    for (int i = 0; i < 4; i++) fl_lane_pack_row(x[i], lane + i, o);
    fl_lane_transpose(row, is_signed ? -128 : 0, o->x[0][lane], sizeof o->x[0]);
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
    for (int i = 0; i < 4; i++) fl_lane_chain(&w[i], t->has_min, a, sum[i], min[i], acc[i]);
}

/* One block of activations into lanes, one vector of rows. */
FL_INLINE void fl_lane_pack(const fl_act *const *x, const fl_lane_kind *t, void *acts)
{
    for (int r = 0; r < FL_LANES; r += 4) fl_lane_pack4(x + r, r, t->is_signed, acts);
}

FL_INLINE void fl_lane_meet(const fl_lane_block *w, int quads, const fl_lane_kind *t,
                            const void *acts, int groups, float *acc)
{
    const fl_lane_acts *x = acts;
    for (int g = 0; g < groups; g++) {
        for (int q = 0; q < quads; q++) {
            float *to[4];
            for (int i = 0; i < 4; i++) to[i] = acc + (4 * q + i) * FL_ROW_TILE + g * FL_LANES;
            if (t->stepwise)
                fl_lane_steps(w + 4 * q, x + g, t, to);
            else
                fl_lane_step(w + 4 * q, x + g, t, to);
        }
    }
}

FL_INLINE void fl_lane_with(const fl_lane_kind *t, FL_LANE_ARGS)
{
    enum { GROUPS = FL_ROW_TILE / FL_LANES };
    fl_lane_acts acts[FL_LANE_BLOCKS][GROUPS];
    const fl_lane_engine e = {FL_LANES, sizeof acts[0][0], fl_lane_pack, fl_lane_meet, acts};
    fl_lane_mul(m, t, &e, n0, n1, x, n_rows, y, ldy);
}

FL_LANE_TYPES(fl_lane_with)

#endif
#endif
