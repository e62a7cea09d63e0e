#ifndef FL_KERNELS_X86_PAIRS_H
#define FL_KERNELS_X86_PAIRS_H

#include "kernels/kernels.h"
#include "kernels/x86/law_vnni.h"

/* L2 by pairs of weight rows: half i of a vector holds 16 levels of weight row i and meets the same
 * 16 values of an activation row, which are packed once a call so that they stand in both halves
 * and are a memory operand. Levels are unpacked and used at once. Four vectors of partial sums are
 * added up together; element e of half i of the result has a float chain of its own. With
 *   1 activation row:   e = pair, of weight rows 2 e + i
 *   2 activation rows:  e = 2 pair + activation row, of weight rows 2 pair + i
 *   3 or 4:             e = activation row, of weight row i.
 * More activation rows go by groups of four. All integer work is exact, so its order is free. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* Chunks of 16 levels that are multiplied and scaled together. */
#if defined(FL_DPBUSD)
enum { FL_VNNI = 1, FL_PAIR_CHUNKS = 4 };
#else
enum { FL_VNNI = 0, FL_PAIR_CHUNKS = 2 };
#endif

enum {
    FL_PAIR_ACTS = 64, /* groups of activation rows times blocks that are packed at once */
    FL_PAIR_TILE = 64, /* weight rows that meet all groups while they are in the L2 cache */
    FL_PAIR_AHEAD = 24 /* weight rows between what is read and what is asked for (FORMAT.md) */
};

/* One block of a group of activation rows, each vector 128 bits twice. */
typedef struct fl_pair_acts {
    __m256i x[4][16];
    __m256i p[4][2];      /* P of sub-blocks, or of halves of sub-blocks, as 16-bit numbers */
    __m256i j[4][2];      /* J likewise */
    int32_t start[4][16]; /* stepwise: a quarter of what undoes the levels' offset, per step */
    float pf[16][4];      /* stepwise: P of the four sums */
    float scale[4];       /* A of the four sums */
} fl_pair_acts;

/* What a block of two weight rows has beside its levels. */
typedef struct fl_pair_head {
    __m256i s[2];   /* scales as 16-bit numbers, per 32 or per 16 */
    __m256i min;    /* minima likewise */
    __m256i halves; /* each half begins with d, dmin */
    __m256i high[2];
} fl_pair_head;

typedef const uint8_t *fl_bytes;

/* How a type is multiplied. Levels are unsigned with `offset` added; or signed, which VNNI's are
 * turned into by offset 128. Scales are per 32 / halves. Wide: scaled products need 32 bits.
 * Stepwise: the float chain takes a step per scale (laws 32 and 16). */
typedef struct fl_pair_kind {
    void (*head)(fl_bytes a, fl_bytes b, fl_pair_head *o); /* not stepwise */
    float (*scale)(fl_bytes a, int k);                     /* stepwise: scale of step k */
    /* Sub-blocks k and k + 1, k even: four chunks of 16 levels of both rows. */
    void (*levels)(fl_bytes a, fl_bytes b, int k, const fl_pair_head *h, __m256i q[4]);
    int bytes, halves, offset;
    bool is_signed, has_min, wide;
} fl_pair_kind;

FL_INLINE int fl_pair_offset(const fl_pair_kind *t)
{
    return t->is_signed ? FL_VNNI * 128 : t->offset;
}

FL_INLINE __m256i fl_two(__m128i v) { return _mm256_broadcastsi128_si256(v); }
FL_INLINE __m256i fl_two_words(long long lo, long long hi)
{
    return _mm256_setr_epi64x(lo, hi, lo, hi);
}
FL_INLINE __m256i fl_two_at(fl_bytes a, fl_bytes b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(fl_load128(a)), fl_load128(b), 1);
}

/* ---- packing ---- */

/* J of the halves of sub-blocks, without P. */
FL_INLINE void fl_pair_sums16(const fl_act *x, int16_t j[16])
{
    for (int c = 0; c < 16; c++) {
        __m128i v = _mm_xor_si128(fl_load128(x->x + 16 * c), _mm_set1_epi8(-128));
        __m128i s = _mm_sad_epu8(v, _mm_setzero_si128());
        s = _mm_add_epi64(s, _mm_unpackhi_epi64(s, s));
        j[c] = (int16_t)(_mm_cvtsi128_si32(s) - 16 * 128);
    }
}

/* P and J of a block's sub-blocks, or of halves of sub-blocks; not stepwise. */
FL_INLINE void fl_pair_numbers(const fl_act *x, const fl_pair_kind *t, int16_t p[16], int16_t j[16])
{
    if (t->halves == 1) {
        memcpy(p, x->p, sizeof x->p);
        memcpy(j, x->sum, sizeof x->sum);
        return;
    }
    fl_pair_sums16(x, j);
    for (int c = 0; c < 16; c++) {
        p[c] = x->p[c / 2];
        j[c] = (int16_t)(j[c] * p[c]);
    }
}

FL_INLINE void fl_pair_pack_row(const fl_act *x, const fl_pair_kind *t, int e, fl_pair_acts *o)
{
    int16_t j[16], p[16];
    for (int c = 0; c < 16; c++) o->x[e][c] = fl_two(fl_load128(x->x + 16 * c));
    if (t->scale) {
        fl_pair_sums16(x, j);
        for (int c = 0; c < 16; c += 2 / t->halves)
            o->start[e][c * t->halves / 2] =
                -(fl_pair_offset(t) / 4) * (t->halves == 2 ? j[c] : j[c] + j[c + 1]);
        return;
    }
    fl_pair_numbers(x, t, p, j);
    for (int h = 0; h < t->halves; h++) {
        o->p[e][h] = fl_two(fl_load128(p + 8 * h));
        o->j[e][h] = fl_two(fl_load128(j + 8 * h));
    }
}

/* One block of n rows that are nb blocks apart, n <= 4. */
FL_INLINE void fl_pair_pack(const fl_act *x, int64_t nb, int n, const fl_pair_kind *t,
                            fl_pair_acts *o)
{
    for (int e = 0; e < 4; e++) {
        const fl_act *row = x + (n < 3 ? e % n : e < n ? e : 0) * nb;
        if (e < n) fl_pair_pack_row(row, t, e, o);
        o->scale[e] = row->scale;
        if (t->scale)
            for (int k = 0; k < 8 * t->halves; k++) o->pf[k][e] = (float)row->p[k / t->halves];
    }
}

/* ---- integers ---- */

/* Each half of s: its 16-bit number a in the lower four places, b in the upper. */
FL_INLINE __m256i fl_pair_spread(__m256i s, int a, int b)
{
    const long long first = 0x0100010001000100, next = 0x0202020202020202;
    return _mm256_shuffle_epi8(s, fl_two_words(first + a * next, first + b * next));
}

/* Each half of s: its 32-bit number a everywhere. */
FL_INLINE __m256i fl_pair_wide(__m256i s, int a)
{
    return _mm256_shuffle_epi8(s, _mm256_set1_epi32(0x03020100 + 0x04040404 * a));
}

/* fl_pair_add: sum + products of chunks c .. c + FL_PAIR_CHUNKS - 1, each times its scale.
 * fl_pair_dot: start + products of the chunks of one step, not scaled. */
#if defined(FL_DPBUSD)
/* Products of n chunks. */
FL_INLINE __m256i fl_pair_sum(__m256i sum, const __m256i *q, const __m256i *x, int n)
{
    for (int i = 0; i < n; i++) sum = FL_DPBUSD(sum, q[i], x[i]);
    return sum;
}
FL_INLINE __m256i fl_pair_add(__m256i sum, const __m256i s[2], int c, const __m256i *q,
                              const __m256i *x, const fl_pair_kind *t)
{
    const __m256i zero = _mm256_setzero_si256();
    const int n = 2 / t->halves;
    for (int h = 0; h < 4; h += 2 * n) {
        const int k = (c + h) / n;
        __m256i u = fl_pair_sum(zero, q + h, x + h, n);
        __m256i v = fl_pair_sum(zero, q + h + n, x + h + n, n);
        if (t->wide) {
            u = _mm256_mullo_epi32(u, fl_pair_wide(s[k / 4], k % 4));
            v = _mm256_mullo_epi32(v, fl_pair_wide(s[k / 4], k % 4 + 1));
            sum = _mm256_add_epi32(sum, _mm256_add_epi32(u, v));
        } else { /* sums of 4 / halves products fit 16 bits */
            const __m256i f = fl_pair_spread(s[k / 8], k % 8, k % 8 + 1);
            sum = FL_DPWSSD(sum, _mm256_packs_epi32(u, v), f);
        }
    }
    return sum;
}
FL_INLINE __m256i fl_pair_dot(int32_t start, const __m256i *q, const __m256i *x,
                              const fl_pair_kind *t)
{
    return fl_pair_sum(_mm256_set1_epi32(start), q, x, 2 / t->halves);
}
#else
FL_INLINE __m256i fl_pair_sum(__m256i q, __m256i x, const fl_pair_kind *t)
{
    if (!t->is_signed) return _mm256_maddubs_epi16(q, x);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
}
FL_INLINE __m256i fl_pair_add(__m256i sum, const __m256i s[2], int c, const __m256i *q,
                              const __m256i *x, const fl_pair_kind *t)
{
    __m256i u = fl_pair_sum(q[0], x[0], t), v = fl_pair_sum(q[1], x[1], t);
    const int k = c / (2 / t->halves);
    const __m256i f = fl_pair_spread(s[k / 8], k % 8, k % 8);
    if (t->halves == 1 && !t->wide)
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(u, v), f));
    const __m256i g = t->halves == 1 ? f : fl_pair_spread(s[k / 8], k % 8 + 1, k % 8 + 1);
    u = _mm256_add_epi32(_mm256_madd_epi16(u, f), _mm256_madd_epi16(v, g));
    return _mm256_add_epi32(sum, u);
}
FL_INLINE __m256i fl_pair_dot(int32_t start, const __m256i *q, const __m256i *x,
                              const fl_pair_kind *t)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i u = _mm256_madd_epi16(fl_pair_sum(q[0], x[0], t), one);
    if (t->halves == 1) u = _mm256_add_epi32(u, _mm256_madd_epi16(fl_pair_sum(q[1], x[1], t), one));
    return t->is_signed ? u : _mm256_add_epi32(u, _mm256_set1_epi32(start));
}
#endif

/* Element e of each half: the sum of that half of v[e]. */
FL_INLINE __m256i fl_pair_sum4(const __m256i v[4])
{
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    a = _mm256_add_epi32(a, b);
    c = _mm256_add_epi32(c, d);
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c));
}

/* One block of a pair with n activation rows, packed from x[at]: its sums, and those of its minima
 * or of what undoes the offset. */
FL_INLINE void fl_pair_mul(fl_bytes a, fl_bytes b, const fl_pair_head *w, const fl_pair_acts *x,
                           int at, int n, const fl_pair_kind *t, __m256i *sum, __m256i *min)
{
    __m256i s[4][2];
    for (int i = 0; i < n; i++) {
        sum[i] = min[i] = _mm256_setzero_si256();
        for (int h = 0; h < t->halves; h++) {
            s[i][h] = _mm256_mullo_epi16(w->s[h], x->p[at + i][h]);
            if (t->has_min || fl_pair_offset(t)) {
                __m256i m = _mm256_madd_epi16(t->has_min ? w->min : w->s[h], x->j[at + i][h]);
                min[i] = h ? _mm256_add_epi32(min[i], m) : m;
            }
        }
        if (t->wide && FL_VNNI) {
            const __m256i v = s[i][0];
            s[i][0] = _mm256_srai_epi32(_mm256_unpacklo_epi16(v, v), 16);
            s[i][1] = _mm256_srai_epi32(_mm256_unpackhi_epi16(v, v), 16);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < 16; c += 4) {
        __m256i q[4];
        t->levels(a, b, c / 2, w, q);
#pragma GCC unroll 2
        for (int h = 0; h < 4; h += FL_PAIR_CHUNKS)
#pragma GCC unroll 4
            for (int i = 0; i < n; i++)
                sum[i] = fl_pair_add(sum[i], s[i], c + h, q + h, x->x[at + i] + c + h, t);
    }
}

/* ---- the float chain ---- */

/* d and dmin of pair g for the elements that are its own: 16-bit numbers e and 4 + e. */
FL_INLINE __m256i fl_pair_halves(__m256i h, int pairs, int g)
{
    const uint64_t d = 0x0100010001000100, m = 0x0302030203020302;
    const int bits = 64 / pairs;
    const uint64_t own = bits == 64 ? UINT64_MAX : ((UINT64_C(1) << bits) - 1) << (bits * g);
    return _mm256_shuffle_epi8(
        h, fl_two_words((long long)((own & d) | ~own), (long long)((own & m) | ~own)));
}

/* What is multiplied by activation scales. */
FL_INLINE __m256 fl_pair_term(__m256i halves, const __m256i sum[4], const __m256i min[4],
                              const fl_pair_kind *t)
{
    __m256i i = fl_pair_sum4(sum);
    halves = _mm256_permute4x64_epi64(halves, _MM_SHUFFLE(3, 1, 2, 0));
    const __m256 d = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    if (t->has_min) {
        const __m256 dmin = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
        const __m256 u = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(fl_pair_sum4(min)));
        return _mm256_fmsub_ps(d, _mm256_cvtepi32_ps(i), u);
    }
    if (fl_pair_offset(t)) {
        const __m256i o = _mm256_set1_epi32(fl_pair_offset(t));
        i = _mm256_sub_epi32(i, _mm256_mullo_epi32(fl_pair_sum4(min), o));
    }
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(i));
}

/* One block with a step per scale: row[g], row[pairs + g] are the rows of pair g. (float)(P I) =
 * P (float)I. */
FL_INLINE __m256 fl_pair_steps(__m256 acc, const fl_bytes *row, const fl_pair_acts *x, int n,
                               int pairs, const fl_pair_kind *t)
{
    const __m256 a = _mm256_broadcast_ps((const __m128 *)x->scale);
    const int chunks = 2 / t->halves, each = 4 / pairs;
    float d[16][8] __attribute__((aligned(32)));
    for (int k = 0; k < 8 * t->halves; k++)
        for (int g = 0; g < 2 * pairs; g++) {
            const float v = t->scale(row[g], k);
            for (int e = 0; e < each; e++) d[k][g * each + e] = v;
        }
    for (int k = 0; k < 8; k += 2) {
        __m256i sum[4][4]; /* [step][e] */
#pragma GCC unroll 4
        for (int g = 0; g < pairs; g++) {
            __m256i q[4];
            t->levels(row[g], row[pairs + g], k, NULL, q);
            for (int i = 0; i < n; i++)
                for (int c = 0; c < 4; c += chunks)
                    sum[c / chunks][g * n + i] = fl_pair_dot(x->start[i][(2 * k + c) / chunks],
                                                             q + c, x->x[i] + 2 * k + c, t);
        }
        for (int h = 0; h < 4 / chunks; h++) {
            const int step = 2 * k / chunks + h;
            for (int e = n * pairs; e < 4; e++) sum[h][e] = _mm256_setzero_si256();
            __m256 i = _mm256_cvtepi32_ps(fl_pair_sum4(sum[h]));
            i = _mm256_mul_ps(i, _mm256_broadcast_ps((const __m128 *)x->pf[step]));
            acc = _mm256_fmadd_ps(a, _mm256_mul_ps(_mm256_load_ps(d[step]), i), acc);
        }
    }
    return acc;
}

/* ---- rows ---- */

/* Blocks of weight rows against one packed group of n activation rows. */
typedef struct fl_pair_span {
    fl_bytes data;           /* first block of row 0 */
    int64_t row_bytes, last; /* last: weight row that stands for those behind it */
    const fl_pair_acts *x;
    int n_blocks, x_stride; /* x_stride: packed groups from block to block */
} fl_pair_span;

/* The chains of weight rows m, m + 1, ... go on in acc. */
FL_INLINE __m256 fl_pair_chain(const fl_pair_span *s, const fl_pair_kind *t, int64_t m, int n,
                               __m256 acc)
{
    const int pairs = n < 3 ? 4 / n : 1;
    fl_bytes row[8], ahead = s->data + (m + FL_PAIR_AHEAD) * s->row_bytes;
    for (int i = 0; i < 2 * pairs; i++) {
        const int64_t at = m + i < s->last ? m + i : s->last;
        row[i % 2 * pairs + i / 2] = s->data + at * s->row_bytes;
    }
    const fl_pair_acts *x = s->x;
    for (int b = 0; b < s->n_blocks; b++, x += s->x_stride) {
        __m256i sum[4], min[4], halves = _mm256_setzero_si256();
        fl_prefetch_far(ahead, 2 * pairs * t->bytes);
        ahead += 2 * pairs * t->bytes;
        if (t->scale) {
            acc = fl_pair_steps(acc, row, x, n, pairs, t);
        } else {
            for (int e = n * pairs; e < 4; e++) sum[e] = min[e] = _mm256_setzero_si256();
#pragma GCC unroll 4
            for (int g = 0; g < pairs; g++) {
                fl_pair_head h;
                t->head(row[g], row[pairs + g], &h);
                fl_pair_mul(row[g], row[pairs + g], &h, x, 0, n, t, sum + g * n, min + g * n);
                halves = _mm256_or_si256(halves, fl_pair_halves(h.halves, pairs, g));
            }
            acc = _mm256_fmadd_ps(_mm256_broadcast_ps((const __m128 *)x->scale),
                                  fl_pair_term(halves, sum, min, t), acc);
        }
        for (int i = 0; i < 2 * pairs; i++) row[i] += t->bytes;
    }
    return acc;
}

/* Moves weight rows m .. of n activation rows between y and the elements of a vector. */
FL_INLINE __m256i fl_pair_order(int n, bool to_y)
{
    /* n = 2 to y: 4 i + 2 pair + row -> 4 row + 2 pair + i; it undoes itself. */
    if (n == 2) return _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    if (to_y) return _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
}

/* Weight rows [n0, n1); y is that of the group's first activation row. With `go_on` it holds the
 * chains so far. */
FL_INLINE void fl_pair_rows(const fl_pair_span *s, const fl_pair_kind *t, int64_t n0, int64_t n1,
                            int n, bool go_on, float scale, float *y, int64_t ldy)
{
    const int step = n < 3 ? 8 / n : 2;
    for (int64_t m = n0; m < n1; m += step) {
        const bool whole = n1 - m >= step;
        const size_t bytes = (size_t)(n1 - m) * sizeof *y;
        float v[8] __attribute__((aligned(32))) = {0};
        for (int r = 0; go_on && r < n; r++)
            memcpy(v + r * step, y + r * ldy + m, whole ? step * sizeof *y : bytes);
        __m256 acc = _mm256_permutevar8x32_ps(_mm256_load_ps(v), fl_pair_order(n, false));
        acc = fl_pair_chain(s, t, m, n, acc);
        acc = _mm256_permutevar8x32_ps(acc, fl_pair_order(n, true));
        _mm256_store_ps(v, _mm256_mul_ps(acc, _mm256_set1_ps(scale)));
        for (int r = 0; r < n; r++) {
            if (whole)
                memcpy(y + r * ldy + m, v + r * step, (size_t)step * sizeof *y);
            else
                memcpy(y + r * ldy + m, v + r * step, bytes);
        }
    }
}

/* fl_pair_rows of 1 to 4 activation rows. */
typedef void (*fl_pair_rows_fn)(const fl_pair_span *s, int64_t n0, int64_t n1, bool go_on,
                                float scale, float *y, int64_t ldy);
/* pairs_one.h; NULL: stepwise. */
typedef int64_t (*fl_pair_one_fn)(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x,
                                  float *y);
typedef struct fl_pair_type {
    const fl_pair_kind *kind;
    fl_pair_one_fn one;
    fl_pair_rows_fn rows[4];
} fl_pair_type;

/* Up to 4 FL_PAIR_ACTS / 8 activation rows; chains of rows that are longer than what is packed go
 * on from y. */
static inline void fl_pair_tile(const fl_mat *w, const fl_pair_type *type, int64_t n0, int64_t n1,
                                const fl_act *x, int n_rows, float *y, int64_t ldy)
{
    const fl_pair_kind *t = type->kind;
    fl_pair_acts acts[FL_PAIR_ACTS];
    const int64_t nb = w->cols / 256;
    const int groups = (n_rows + 3) / 4, most = FL_PAIR_ACTS / groups;
    for (int64_t b0 = 0; b0 < nb; b0 += most) {
        fl_pair_span s = {
            (fl_bytes)w->data + b0 * t->bytes, nb * t->bytes, n1 - 1, acts, 0, groups};
        s.n_blocks = nb - b0 < most ? (int)(nb - b0) : most;
        for (int b = 0; b < s.n_blocks; b++)
            for (int g = 0; g < groups; g++)
                fl_pair_pack(x + 4 * g * nb + b0 + b, nb, n_rows - 4 * g < 4 ? n_rows - 4 * g : 4,
                             t, &acts[b * groups + g]);
        const float scale = b0 + most < nb ? 1.0f : w->scale;
        for (int64_t m = n0; m < n1; m += FL_PAIR_TILE) {
            const int64_t end = n1 - m < FL_PAIR_TILE ? n1 : m + FL_PAIR_TILE;
            for (int g = 0; g < groups; g++) {
                float *to = y + 4 * g * ldy;
                s.x = acts + g;
                const int n = n_rows - 4 * g < 4 ? n_rows - 4 * g : 4;
                type->rows[n - 1](&s, m, end, b0 > 0, scale, to, ldy);
            }
        }
    }
}

static inline void fl_pair_mul_law(const fl_mat *w, const fl_pair_type *t, int64_t n0, int64_t n1,
                                   const fl_act *x, int n_rows, float *y, int64_t ldy)
{
    enum { ROWS = 4 * FL_PAIR_ACTS / 8 };
    if (n_rows == 1 && t->one) n0 = t->one(w, n0, n1, x, y);
    if (n0 == n1) return;
    for (int r = 0; r < n_rows; r += ROWS)
        fl_pair_tile(w, t, n0, n1, x + r * (w->cols / 256), n_rows - r < ROWS ? n_rows - r : ROWS,
                     y + r * ldy, ldy);
}

#endif
#endif
