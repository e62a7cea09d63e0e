#ifndef FL_DECODE_ROW_H
#define FL_DECODE_ROW_H

#include "kernels/kernels.h"

/* One row of processed logits, or neighbouring ids of one: what is largest, what top-k, top-p and
 * min-p keep, and which candidate the noise picks. Private to the sampler. Nothing allocates behind
 * fl_row_create. */

typedef struct fl_row {
    const fl_kernels *k;
    int64_t n;     /* ids */
    int64_t first; /* the id of l[0]; the others below count from it */
    float *l;      /* [n] processed logits; -INFINITY: not to be picked */
    /* fl_row_rank */
    float *top_of; /* [ceil(n / 64)] the largest of each 64 */
    float max;     /* of all, and its lowest id */
    int32_t top;
    /* fl_row_keep */
    int64_t n_kept; /* -1: all ids, nothing was cut */
    int32_t *kept;  /* [n] ids by falling l, lower id first; valid up to n_kept */
    int32_t *spare; /* [n] for sorting */
    double mass;    /* sum of E(l - max) over what was kept: 16 lanes over all ids, or one by one */
    bool has_e;
    float *e; /* [n] E(l - max), where they were needed for all ids */
} fl_row;

/* False when memory is out; fl_row_destroy takes what is there. */
bool fl_row_create(fl_row *r, const fl_kernels *k, int64_t n);
void fl_row_destroy(fl_row *r);

/* l = l / temp, then within +-3e38. */
void fl_row_scale(fl_row *r, float temp);
/* Finds max and top; false when every l is -INFINITY. */
bool fl_row_rank(fl_row *r);
/* What top_k (0 = off), top_p (1 = off) and min_p (0 = off) leave, in this order. */
void fl_row_keep(fl_row *r, int64_t top_k, double top_p, double min_p);
typedef struct fl_row_best {
    int64_t id; /* of the vocabulary */
    double score;
} fl_row_best;
/* Gumbel-max over what was kept: the largest (double)l + G(seed, pos, id), lower id first. The
 * noise is computed only for ids that can still win: the pick is the one that a look at every id
 * would give. */
fl_row_best fl_row_race(const fl_row *r, uint64_t seed, int64_t pos);
/* l becomes each id's probability among what was kept: E(l - max) / mass, rounded to float; 0 for
 * the others. Needs a new row afterwards. */
void fl_row_probabilities(fl_row *r);

#endif
