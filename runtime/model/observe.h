#ifndef FL_MODEL_OBSERVE_H
#define FL_MODEL_OBSERVE_H

#include "runtime/model/linear.h"

/* Where rows can be looked at on their way into the matrices that share them: float values, as they
 * are before a product under the law quantizes them. */
typedef enum fl_site {
    FL_SITE_MIXER_IN,   /* normed rows: q, k, v | qkv, z, alpha, beta */
    FL_SITE_BLOCK_IN,   /* those of a block: alpha and beta of the backward branch */
    FL_SITE_MIXER_OUT,  /* gated heads: o | out */
    FL_SITE_FFN_IN,     /* normed rows: router, shared gate and up */
    FL_SITE_EXPERT_IN,  /* those of one expert: its gate and up */
    FL_SITE_SHARED_MID, /* silu(gate) up: shared down */
    FL_SITE_EXPERT_MID, /* the same of one expert: its down */
    FL_SITE_HEAD_IN,    /* final-norm rows: output */
    FL_N_SITES
} fl_site;

/* Called on the thread that runs the pass; `expert` is -1 but at the sites of one. The rows are
 * valid during the call. */
typedef struct fl_observer {
    void (*rows)(void *arg, fl_site site, int expert, const fl_rows *in);
    void *arg;
} fl_observer;

static inline void fl_observe(const fl_observer *o, fl_site site, int expert, const fl_rows *in)
{
    if (o && in->n > 0) o->rows(o->arg, site, expert, in);
}

#endif
