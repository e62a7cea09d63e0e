#ifndef FL_QUANT_MOMENT_H
#define FL_QUANT_MOMENT_H

#include "quant/guide.h"

/* Inside of a guide, for quant/guide.c and quant/feedback.c. */
struct fl_guide {
    int64_t cols;
    double unit;  /* mean energy: everything below is in it; 0: the moment says nothing */
    float *diag;  /* [cols] damped energies */
    float *scale; /* [cols]: the moment is scale_i h_ij scale_j; NULL: ones */
    /* With a full moment: h = A D A^T, A unit upper triangular. e h e^T is then
     * sum_k d_k (e_k + sum_{j<k} e_j a_jk)^2: what the error of a column means for later ones. */
    float *h; /* [cols][cols] damped */
    float *a; /* [cols][cols] a_jk at [j][k] and [k][j], zeros on the diagonal */
    float *d; /* [cols] */
    float *own[3];
};

/* What fl_guide_round does with a full moment; bench/rounding.c measures its parts. */
typedef struct fl_effort {
    bool feedback; /* else from weighted rounding */
    int sweeps;    /* at most, over single values */
    int rounds;    /* of blocks, sub-blocks and single values again */
} fl_effort;

/* fl_guide_round, with other efforts than its own. */
void fl_guide_round_with(const fl_guide *g, uint32_t type, const float *x, int64_t rows,
                         int64_t cols, void *dst, void *scratch, fl_effort effort);

#endif
