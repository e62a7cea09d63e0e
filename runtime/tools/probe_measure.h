#ifndef FL_TOOLS_PROBE_MEASURE_H
#define FL_TOOLS_PROBE_MEASURE_H

#include "runtime/tools/masked.h"
#include "runtime/tools/probe_text.h"

/* Likelihoods of the probe's answers, in nats per token. */

/* What is measured of the text. FIRST: the first block of each answer, as blocks at multiples of
 * their size cut it, with prompts of FL_PROBE_REMAINDERS lengths modulo the size; what lies behind
 * that block is masked, so that under every alignment a row sees the same text. QUICK: the first
 * two conversations at the last level. */
typedef enum fl_probe_part { FL_PROBE_ALL, FL_PROBE_QUICK, FL_PROBE_FIRST } fl_probe_part;
enum { FL_PROBE_REMAINDERS = 7 };

/* NLL of every answer row at every level: nll[level * n_answer + row of all answers], with
 * n_levels * n_answer entries; negative where the row was not masked. Of part FIRST each remainder
 * has its own levels behind those of the one before. A wiring that gives no finite value counts
 * FL_PROBE_WORST. */
typedef struct fl_probe_rows {
    float *nll;
    int n_answer, n_levels;
} fl_probe_rows;
#define FL_PROBE_WORST 99.0f

FL_CHECKED fl_status fl_probe_rows_init(fl_probe_rows *r, const fl_probe_text *t,
                                        fl_probe_part part, fl_err *err);
void fl_probe_rows_free(fl_probe_rows *r);

/* Mean over the masked rows of a level (of FL_MASK_LEVELS); of all levels' rows with level < 0. */
double fl_probe_mean(const fl_probe_rows *r, int level);

/* Mean of a - b over the rows of all levels, and its standard error; the levels of one position
 * are no independent rows, so they count as one sum. */
typedef struct fl_probe_diff {
    double mean, se;
} fl_probe_diff;
fl_probe_diff fl_probe_compare(const fl_probe_rows *a, const fl_probe_rows *b);

/* Masked NLL under the switches: for each block of each answer the text before it is run clean
 * (finished blocks of the answer as sw->commit_mode says), then one denoise pass per level. `out`
 * was initialised for the same part. */
FL_CHECKED fl_status fl_probe_masked(fl_engine *e, const fl_probe_text *t, const fl_clover *sw,
                                     fl_probe_part part, fl_probe_rows *out, fl_err *err);

/* Mean NLL of the answers token by token; FL_PROBE_WORST when not finite. */
FL_CHECKED fl_status fl_probe_causal(fl_engine *e, const fl_probe_text *t, double *nll,
                                     fl_err *err);
/* Sum over ids[from .. n) of one text, from an empty state. */
FL_CHECKED fl_status fl_probe_causal_sum(fl_engine *e, const int32_t *ids, int from, int n,
                                         double *sum, fl_err *err);

#endif
