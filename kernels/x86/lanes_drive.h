#ifndef FL_KERNELS_X86_LANES_DRIVE_H
#define FL_KERNELS_X86_LANES_DRIVE_H

#include "kernels/x86/lanes_types.h"
#include "kernels/x86/lanes_vec.h"

/* L2 for many activation rows: the order in which blocks of weights meet packed activations. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

enum {
    FL_LANE_BLOCKS = 8,   /* blocks packed at once; longer rows go on from y */
    FL_LANE_WEIGHTS = 16, /* weight rows that meet packed activations while these are in cache */
};

/* What packs activations and multiplies: VNNI (law_lanes.h) or tiles (law_amx.h). */
typedef struct fl_lane_engine {
    int lanes;     /* activation rows packed together, their group */
    int64_t bytes; /* of one block of a group */
    /* One block of `lanes` rows. */
    void (*pack)(const fl_act *const *x, const fl_lane_kind *t, void *acts);
    /* One block of 4 * quads weight rows against that of `groups` groups; chains go on
     * in acc[4 * quads][FL_ROW_TILE]. */
    void (*meet)(const fl_lane_block *w, int quads, const fl_lane_kind *t, const void *acts,
                 int groups, float *acc);
    void *acts; /* room for FL_LANE_BLOCKS blocks of FL_ROW_TILE rows */
} fl_lane_engine;

/* Four rows of 256 bytes, xor `flip`, into lanes: the four rows' bytes 4 c .. 4 c + 3 go side by
 * side to `to + c * stride`. Blocks of 4 x 4 words are transposed. */
FL_INLINE void fl_lane_transpose(const int8_t *const row[4], int flip, void *to, int64_t stride)
{
    for (int c = 0; c < 64; c += 4) {
        __m128i v[4];
        for (int i = 0; i < 4; i++)
            v[i] = _mm_xor_si128(_mm_set1_epi8((char)flip), fl_load128(row[i] + 4 * c));
        __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpackhi_epi32(v[0], v[1]);
        __m128i d = _mm_unpacklo_epi32(v[2], v[3]), e = _mm_unpackhi_epi32(v[2], v[3]);
        const __m128i t[4] = {_mm_unpacklo_epi64(a, d), _mm_unpackhi_epi64(a, d),
                              _mm_unpacklo_epi64(b, e), _mm_unpackhi_epi64(b, e)};
        for (int i = 0; i < 4; i++)
            _mm_storeu_si128((__m128i *)((char *)to + (c + i) * stride), t[i]);
    }
}

/* The float step of a block whose integer sums are `sum` and, with minima, `min`. */
FL_INLINE void fl_lane_chain(const fl_lane_block *w, bool has_min, fl_vf a, fl_vi sum, fl_vi min,
                             float *acc)
{
    fl_vf d = fl_vf_all(w->d), r = fl_vf_of(sum);
    if (has_min)
        r = fl_vf_fms(d, r, fl_vf_mul(fl_vf_all(w->dmin), fl_vf_of(min)));
    else
        r = fl_vf_mul(d, r);
    fl_vf_store(acc, fl_vf_fma(a, r, fl_vf_load(acc)));
}

/* Blocks [b0, b0 + n_blocks) of a row against packed activations. */
typedef struct fl_lane_span {
    const uint8_t *data; /* the matrix's block b0 of row 0 */
    int64_t row_bytes;
    int n_blocks, groups;
} fl_lane_span;

/* Weight rows n .. n + valid - 1; chains go on in acc. */
FL_INLINE void fl_lane_rows(const fl_lane_span *s, const fl_lane_kind *t, const fl_lane_engine *e,
                            int64_t n, int valid, float acc[FL_LANE_WEIGHTS][FL_ROW_TILE])
{
    fl_lane_block w[FL_LANE_WEIGHTS];
    const int quads = (valid + 3) / 4;
    const uint8_t *ahead = s->data + (n + FL_LANE_WEIGHTS) * s->row_bytes;
    for (int b = 0; b < s->n_blocks; b++, ahead += FL_LANE_WEIGHTS * t->bytes) {
        fl_prefetch_far(ahead, FL_LANE_WEIGHTS * t->bytes);
        for (int i = 0; i < 4 * quads; i++) {
            int64_t row = n + (i < valid ? i : valid - 1);
            t->unpack(s->data + row * s->row_bytes + (int64_t)b * t->bytes, &w[i]);
        }
        e->meet(w, quads, t, (const char *)e->acts + b * (FL_ROW_TILE / e->lanes) * e->bytes,
                s->groups, acc[0]);
    }
}

/* Packs blocks b0 .. b0 + n_blocks - 1 of n_rows rows. */
FL_INLINE void fl_lane_pack_span(const fl_lane_kind *t, const fl_lane_engine *e, const fl_act *x,
                                 int64_t nb, int n_rows, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++) {
        for (int r = 0; r < n_rows; r += e->lanes) {
            const fl_act *at[16];
            for (int i = 0; i < e->lanes; i++)
                at[i] = x + (r + i < n_rows ? r + i : n_rows - 1) * nb + b;
            int64_t group = b * (FL_ROW_TILE / e->lanes) + r / e->lanes;
            e->pack(at, t, (char *)e->acts + group * e->bytes);
        }
    }
}

/* At most FL_ROW_TILE activation rows; between spans the chains' values stay in y. */
FL_INLINE void fl_lane_tile(const fl_mat *m, const fl_lane_kind *t, const fl_lane_engine *e,
                            int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                            int64_t ldy)
{
    const int64_t nb = m->cols / 256;
    for (int64_t b0 = 0; b0 < nb; b0 += FL_LANE_BLOCKS) {
        int n_blocks = nb - b0 < FL_LANE_BLOCKS ? (int)(nb - b0) : FL_LANE_BLOCKS;
        fl_lane_pack_span(t, e, x + b0, nb, n_rows, n_blocks);
        const fl_lane_span span = {(const uint8_t *)m->data + b0 * t->bytes, nb * t->bytes,
                                   n_blocks, (n_rows + e->lanes - 1) / e->lanes};
        const float scale = b0 + FL_LANE_BLOCKS < nb ? 1.0f : m->scale;
        for (int64_t n = n0; n < n1; n += FL_LANE_WEIGHTS) {
            int valid = n1 - n < FL_LANE_WEIGHTS ? (int)(n1 - n) : FL_LANE_WEIGHTS;
            float acc[FL_LANE_WEIGHTS][FL_ROW_TILE] = {{0}};
            for (int r = 0; b0 > 0 && r < n_rows; r++)
                for (int i = 0; i < valid; i++) acc[i][r] = y[r * ldy + n + i];
            fl_lane_rows(&span, t, e, n, valid, acc);
            for (int r = 0; r < n_rows; r++)
                for (int i = 0; i < valid; i++) y[r * ldy + n + i] = acc[i][r] * scale;
        }
    }
}

FL_INLINE void fl_lane_mul(const fl_mat *m, const fl_lane_kind *t, const fl_lane_engine *e,
                           int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                           int64_t ldy)
{
    const int64_t nb = m->cols / 256;
    for (int r = 0; r < n_rows; r += FL_ROW_TILE) {
        int rows = n_rows - r < FL_ROW_TILE ? n_rows - r : FL_ROW_TILE;
        fl_lane_tile(m, t, e, n0, n1, x + r * nb, rows, y + r * ldy, ldy);
    }
}

/* One function per type: WITH(kind, m, n0, n1, x, n_rows, y, ldy) calls fl_lane_mul with an engine.
 * Not inlined, so that a symbol says whose loop it is (bench/instructions.sh). */
#define FL_LANE_ARGS \
    const fl_mat *m, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y, int64_t ldy
#define FL_LANE_TYPE(WITH, NAME, ...)                                \
    static __attribute__((noinline)) void NAME##_lanes(FL_LANE_ARGS) \
    {                                                                \
        static const fl_lane_kind t = {lane_##NAME, __VA_ARGS__};    \
        WITH(&t, m, n0, n1, x, n_rows, y, ldy);                      \
    }
/* bytes, part, halves, is_signed, has_min, wide, stepwise */
#define FL_LANE_TYPES(WITH)                                                     \
    FL_LANE_TYPE(WITH, q4_k, 144, 16, 1, false, true, false, false)             \
    FL_LANE_TYPE(WITH, q5_k, 176, 8, 1, false, true, false, false)              \
    FL_LANE_TYPE(WITH, q6_k, 210, 8, 2, true, false, false, false)              \
    FL_LANE_TYPE(WITH, q3_k, 110, 16, 2, true, false, false, false)             \
    FL_LANE_TYPE(WITH, iq4_xs, 136, 32, 1, true, false, true, false)            \
    FL_LANE_TYPE(WITH, q8_0, 8 * 34, 32, 1, true, false, false, true)           \
    FL_LANE_TYPE(WITH, q4_0, 8 * 18, 32, 1, true, false, false, true)           \
    FL_LANE_TYPE(WITH, iq4_nl, 8 * 18, 32, 1, true, false, false, true)         \
    FL_LANE_TYPE(WITH, mxfp4, 8 * 17, 32, 1, true, false, false, true)          \
    FL_LANE_TYPE(WITH, nvfp4, 4 * 36, 16, 2, true, false, false, true)          \
    FL_INLINE void fl_lane_mul_law(FL_LANE_ARGS)                                \
    {                                                                           \
        switch (m->type) {                                                      \
        case FL_TYPE_Q4_K: q4_k_lanes(m, n0, n1, x, n_rows, y, ldy); break;     \
        case FL_TYPE_Q5_K: q5_k_lanes(m, n0, n1, x, n_rows, y, ldy); break;     \
        case FL_TYPE_Q6_K: q6_k_lanes(m, n0, n1, x, n_rows, y, ldy); break;     \
        case FL_TYPE_Q3_K: q3_k_lanes(m, n0, n1, x, n_rows, y, ldy); break;     \
        case FL_TYPE_IQ4_XS: iq4_xs_lanes(m, n0, n1, x, n_rows, y, ldy); break; \
        case FL_TYPE_Q8_0: q8_0_lanes(m, n0, n1, x, n_rows, y, ldy); break;     \
        case FL_TYPE_Q4_0: q4_0_lanes(m, n0, n1, x, n_rows, y, ldy); break;     \
        case FL_TYPE_IQ4_NL: iq4_nl_lanes(m, n0, n1, x, n_rows, y, ldy); break; \
        case FL_TYPE_MXFP4: mxfp4_lanes(m, n0, n1, x, n_rows, y, ldy); break;   \
        default: nvfp4_lanes(m, n0, n1, x, n_rows, y, ldy); break;              \
        }                                                                       \
    }

#endif
#endif
