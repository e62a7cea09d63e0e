#ifndef FL_OFFLOAD_AHEAD_H
#define FL_OFFLOAD_AHEAD_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* Which experts a layer will want, guessed from four signals. What each named is compared with what
 * the layer then wanted: a signal counts for as much as it was right lately, and one that is mostly
 * wrong is not followed until it is right again. Moves nothing itself. Deterministic, nothing is
 * allocated after creation, one thread. Held by tests/offload/test_ahead.c. */
typedef enum fl_signal {
    FL_SIGNAL_ROUTER,  /* the layer's router, on rows as they were before the layer */
    FL_SIGNAL_PASS,    /* what the last pass wanted of the layer */
    FL_SIGNAL_BLOCK,   /* what the passes of the last block wanted */
    FL_SIGNAL_PROFILE, /* the layer's experts that were hottest in earlier runs */
    FL_SIGNALS
} fl_signal;

enum { FL_AHEAD_FLOOR = 250 /* permille: a signal below it is not followed */ };

typedef struct fl_signal_stats {
    uint64_t named; /* experts */
    uint64_t right; /* of these: wanted by the layer */
} fl_signal_stats;

typedef struct fl_ahead fl_ahead;

/* heat: [n_layer * n_expert], read here alone; NULL, or flat in a layer: no profile there. hot: how
 * many experts of a layer the profile names. FL_E_NOMEM. */
FL_CHECKED fl_status fl_ahead_create(fl_ahead **out, int n_layer, int n_expert,
                                     const uint32_t *heat, int hot, fl_err *err);
void fl_ahead_destroy(fl_ahead **a);

/* What the layer's router says; replaces its guess before. */
void fl_ahead_guess(fl_ahead *a, int layer, const int32_t *ids, int n);
/* What the layer wants: judges the signals, and is what they go by from now on. */
void fl_ahead_saw(fl_ahead *a, int layer, const int32_t *ids, int n);
/* A block has ended. */
void fl_ahead_block(fl_ahead *a);
/* The experts that the layer may want, the likeliest first; ties to the lower index. ids has room
 * for n_expert. Returns how many. */
int fl_ahead_list(fl_ahead *a, int layer, int32_t *ids);

fl_signal_stats fl_ahead_stats(const fl_ahead *a, fl_signal signal);
const char *fl_signal_name(fl_signal signal); /* "router", "pass", "block", "profile" */

#endif
