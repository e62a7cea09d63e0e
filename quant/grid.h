#ifndef FL_QUANT_GRID_H
#define FL_QUANT_GRID_H

#include <stdbool.h>
#include <stdint.h>

/* Inside of quant/round.c and quant/guide.c: what a block format can hold, and the functions that
 * look for a good block, one copy for each instruction tier with the same bits. */

enum { FL_GRID_MAX = 256, FL_GRID_SUBS = 16 };

/* A block as chosen: everything that its bytes hold. */
typedef struct fl_fit {
    float d, dmin;
    uint16_t d_bits, dmin_bits; /* float16 */
    int s[FL_GRID_SUBS], m[FL_GRID_SUBS];
    float q[FL_GRID_MAX]; /* levels */
    float err;            /* what was minimised */
} fl_fit;

/* y = (d s_k) L - dmin m_k: value of level L in sub-block k. */
typedef struct fl_grid {
    uint32_t type;
    int block, sub; /* values of a block and of a sub-block */
    float lo, hi;   /* levels: integers lo..hi, or fl_grid_levels */
    bool curve;     /* levels are the 16 of IQ4_XS */
    bool has_min;   /* m_k in 0..63 */
    /* s_k is an integer in s_lo..s_hi and d the greatest scale / s_den; s_lo = s_hi: the block has
     * one scale, d itself. */
    int s_lo, s_hi;
    float s_den;
    void (*pack)(const fl_fit *b, uint8_t *o);
} fl_grid;

extern const float fl_grid_levels[16];

/* NULL for a type that is not searched for. */
const fl_grid *fl_grid_get(uint32_t type);

/* Some rows that are rounded, to be made better. */
typedef struct fl_descent {
    int64_t rows, cols;
    const float *h;     /* [cols][cols] moment */
    const float *scale; /* [cols] the moment is scale_i h_ij scale_j; NULL: ones */
    fl_fit *fit;        /* [rows][cols / block] */
    float *g;           /* [rows][cols] sum_i scale_i e_i h_ij, kept up to date */
} fl_descent;

typedef struct fl_fitter {
    /* Least sum w (x - y)^2 over a block; x, w [block]. Never above that of plain rounding. */
    void (*fit)(const fl_grid *f, const float *x, const float *w, fl_fit *out);
    /* The same with error feedback: x the weights, t these plus sum e_j a_jk over the columns j of
     * earlier blocks, e = weights - values; a [block][FL_GRID_MAX] symmetric: the factors between
     * the block's own columns, zeros on the diagonal; d [block] > 0 their energies. Least
     * sum_k d_k (t_k - y_k + sum_{j<k} e_j a_jk)^2. All [block]. */
    void (*fit_feedback)(const fl_grid *f, const float *x, const float *t, const float *a,
                         const float *d, fl_fit *out);
    /* Values of a fit, [block]. */
    void (*values)(const fl_grid *f, const fl_fit *b, float *y);
    /* c[r][i] += sum_{j < k} e[r][j] a[j][i], i < n, j ascending; n a multiple of 16. */
    void (*accumulate)(float *c, int64_t ldc, const float *e, int64_t lde, const float *a,
                       int64_t lda, int64_t rows, int64_t k, int64_t n);
    /* One pass each over a rounded row, all else kept at each step, none of which makes e H e^T
     * greater: single values to other levels; sub-blocks' scales, minima and levels; blocks' d and
     * dmin. Return the number of moves. */
    int64_t (*values_again)(const fl_grid *f, const fl_descent *d);
    int64_t (*subs_again)(const fl_grid *f, const fl_descent *d);
    int64_t (*blocks_again)(const fl_grid *f, const fl_descent *d);
} fl_fitter;

const fl_fitter *fl_fitter_get(void);
const fl_fitter *fl_fitter_reference(void);
const fl_fitter *fl_fitter_avx2(void);

#endif
