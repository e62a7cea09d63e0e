#ifndef FL_BENCH_SUPPORT_REUSE_H
#define FL_BENCH_SUPPORT_REUSE_H

#include "bench/support/array.h"
#include "runtime/model/model.h"

/* Which experts passes over a text touch, found by running the model. Shares are of a layer's
 * distinct experts, means over layers and passes. */
typedef struct bench_reuse {
    int rows, passes;
    double distinct, least, most; /* distinct experts of a layer in a pass: mean, of all layers */
    double reuse;                 /* share of them that the pass before touched */
    double followed;              /* of the choices, those that the trace has; -1 without */
} bench_reuse;

/* Clean passes of `rows` rows over random tokens, or, with a trace, over tokens 0, 1, 2... Reads
 * one layer at a time. FL_E_NAN: an activation is not finite. */
FL_CHECKED fl_status bench_reuse_measure(bench_reuse *out, const fl_model *model, int rows,
                                         int passes, const bench_array *trace, int threads,
                                         fl_err *err);

#endif
