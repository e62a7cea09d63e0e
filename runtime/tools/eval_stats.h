#ifndef FL_TOOLS_EVAL_STATS_H
#define FL_TOOLS_EVAL_STATS_H

#include <stdbool.h>

#include "runtime/tools/masked.h"

/* Figures over rows that come one by one, in order: the same bits for any number of threads. */

/* A mean over n rows that come in clusters, and its standard error: rows of one cluster are not
 * independent, clusters are taken to be. Zero-initialise. */
typedef struct fl_mean {
    int64_t clusters, n;
    double x, xx, xn, nn; /* sums over clusters of X, X^2, X N, N^2: X its sum, N its rows */
} fl_mean;
void fl_mean_add(fl_mean *m, double sum, int64_t n);
double fl_mean_value(const fl_mean *m); /* 0 without rows */
double fl_mean_error(const fl_mean *m); /* 0 with fewer than two clusters */

/* What one row gave. */
typedef struct fl_eval_row {
    double nll;
    double kl, rounding, delta; /* against a reference: KL, the most it is off, NLL difference */
    bool same;                  /* the same best token */
} fl_eval_row;

typedef struct fl_eval_figures {
    fl_mean nll, kl, delta, same, rounding;
    double *kls; /* every row's */
    int64_t n_kls, room;
    double worst; /* the largest KL, of the first such row */
    int64_t worst_window;
    int worst_pos; /* in the window */
} fl_eval_figures;

/* Row kinds: the causal path, each level of block passes, all block passes together. */
enum {
    FL_EVAL_OF_CAUSAL,
    FL_EVAL_OF_LEVEL, /* + level */
    FL_EVAL_OF_BLOCKS = FL_EVAL_OF_LEVEL + FL_MASK_LEVELS,
    FL_EVAL_KINDS
};
typedef struct fl_eval_stats {
    int block_size; /* set before the first row of a block pass */
    fl_eval_figures kind[FL_EVAL_KINDS];
    /* Of the block at hand: the levels of one position are one cluster. */
    int64_t window;
    int block;
    fl_eval_row sum[FL_MAX_BLOCK];
    int same[FL_MAX_BLOCK], n[FL_MAX_BLOCK];
} fl_eval_stats;

/* Rows of a pass: pos[i] is the place of its token in the window. level < 0: causal. compared: the
 * figures against a reference count. */
FL_CHECKED fl_status fl_eval_stats_add(fl_eval_stats *s, int level, int64_t window, const int *pos,
                                       const fl_eval_row *row, int n, bool compared, fl_err *err);
/* Once, behind the last row: closes the last block and sorts what quantiles are taken of. */
void fl_eval_stats_finish(fl_eval_stats *s);
void fl_eval_stats_free(fl_eval_stats *s);
/* Of the finished rows' KL, between two rows by their distance; 0 without rows. 0 <= q <= 1. */
double fl_eval_quantile(const fl_eval_figures *f, double q);

#endif
