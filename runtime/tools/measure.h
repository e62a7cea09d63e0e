#ifndef FL_TOOLS_MEASURE_H
#define FL_TOOLS_MEASURE_H

#include "runtime/decode/generate.h"

/* How fast a loaded model is here: what each kind of pass takes, and how many passes of each kind
 * the ways of decoding want for a few bundled requests. A pass takes the least of some tries, so
 * that other work on the machine counts as little as it can; counts are the same each time. */

typedef struct fl_measured_mode {
    int64_t tokens; /* generated; 0: the mode was not measured */
    int64_t rows;   /* of all passes over the model */
    int64_t steps, block_passes, fused_passes, held_passes;
    int64_t draft_steps; /* of the MTP block; no passes over the model */
    int64_t blocks, drafted, accepted;
} fl_measured_mode;

/* With the logits that decoding takes from it. */
typedef struct fl_measured_pass {
    const char *kind; /* "step" (one AR token), "block", "fused", "held", "draft" (a step of the
                         MTP block), "prefill" */
    int rows;         /* fused: clean rows, and masked rows beside them */
    double seconds;
} fl_measured_pass;

enum { FL_MEASURE_PASSES = 16 };
typedef struct fl_measured {
    fl_measured_mode mode[FL_GEN_MODES];
    int n_requests; /* answered in every mode */
    fl_measured_pass pass[FL_MEASURE_PASSES];
    int n_passes;
} fl_measured;

typedef struct fl_measure_config {
    const fl_gen_config *gen; /* mode and max_tokens are the measurement's own */
    bool think;
    bool block;     /* measure block mode too: far from earned it takes a pass for each token */
    double seconds; /* no further request, and no further try of passes, is begun after so long */
    /* Called before each part; may be NULL. */
    void (*progress)(void *arg, const char *part);
    void *arg;
} fl_measure_config;

/* An engine with held rows; the sequence in it is lost. FL_E_ARG: a context of less than
 * FL_MEASURE_CONTEXT tokens (more where blocks are larger than 112). */
enum { FL_MEASURE_CONTEXT = 256 };
FL_CHECKED fl_status fl_measure(fl_engine *e, fl_generator *g, const fl_measure_config *c,
                                fl_measured *out, fl_err *err);

/* As an entry of the stored rates (rates.h). */
fl_json *fl_measured_json(const fl_measured *m);
/* Tokens per second of a mode by its passes and what they take; 0 when it was not measured. */
double fl_measured_rate(const fl_measured *m, fl_gen_mode mode);
int64_t fl_measured_passes(const fl_measured_mode *t);

#endif
