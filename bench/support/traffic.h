#ifndef FL_BENCH_SUPPORT_TRAFFIC_H
#define FL_BENCH_SUPPORT_TRAFFIC_H

#include "offload/trace.h"

/* Made-up routing that matches what has been measured of real routers (bench_traffic_stats), with
 * commits and acceptance.
 *
 * A row draws its experts by log popularity + what the text is about now + noise, the largest
 * top_k of them. Popularity falls exponentially over a layer's experts; two domains order them so
 * that their hot quarters share a few. The topic is a normal deviate per expert that wanders from
 * block to block. Part of a row's noise stays while it is in the block (or, in drafts,
 * until it is accepted), part is new in each pass. */
typedef enum bench_domain { BENCH_CODE, BENCH_CHAT, BENCH_N_DOMAINS } bench_domain;
extern const char *const bench_domain_name[BENCH_N_DOMAINS]; /* "code", "chat" */

typedef struct bench_traffic {
    int n_layer, n_expert, top_k, block;
    int passes;        /* after the prompt */
    int prompt;        /* rows of one prefill pass in front; 0 = none */
    fl_pass_kind kind; /* of the others: FL_PASS_AR, _BLOCK or _VERIFY */
    bench_domain domain;
    uint64_t seed;
} bench_traffic;

/* Shape of the 35B model, one domain's blocks. */
bench_traffic bench_traffic_defaults(void);

/* Writes the trace. */
FL_CHECKED fl_status bench_traffic_write(const bench_traffic *t, const char *path, fl_err *err);
/* What tests/clover_tiny/traces.py recorded in that folder. How many positions its block passes
 * committed is not known. FL_E_FORMAT. */
FL_CHECKED fl_status bench_traffic_import(const char *folder, const char *path, fl_err *err);

/* Means over layers and passes, of the passes that are no prefill. Shares in 0 to 1. */
typedef struct bench_traffic_stats {
    int passes, blocks;
    double distinct;   /* experts of a layer in a pass */
    double reuse;      /* of them, those that the pass before of the same block had */
    double union_mean; /* distinct experts of a whole block over those of its mean pass */
    double hot;        /* of all choices, those of the layer's most used quarter of experts */
    double first;      /* of a block's later passes' experts, those its first pass had */
    double next_union; /* of a block's first pass, those that any pass of the block before had */
    double next_last;  /* and those that its last pass had */
    double done;       /* positions committed or accepted in a pass */
} bench_traffic_stats;
FL_CHECKED fl_status bench_traffic_measure(bench_traffic_stats *out, const fl_trace *t,
                                           fl_err *err);
/* The first figure of a block trace that is outside what was measured, in words with both; NULL:
 * all are inside. Lives until the next call. */
const char *bench_traffic_missed(const bench_traffic_stats *s);

/* Shared part of the most used quarters of two traces of one shape: intersection over union, mean
 * over layers. Of two domains it is below BENCH_MAX_JACCARD. */
#define BENCH_MAX_JACCARD 0.1
FL_CHECKED fl_status bench_traffic_jaccard(double *out, const fl_trace *a, const fl_trace *b,
                                           fl_err *err);

#endif
