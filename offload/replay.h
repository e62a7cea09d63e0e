#ifndef FL_OFFLOAD_REPLAY_H
#define FL_OFFLOAD_REPLAY_H

#include "offload/policy.h"
#include "offload/trace.h"

/* What a cache of n_slots experts, empty at first, would have done under a routing trace. In each
 * pass each layer asks for the experts of its rows; those that are there are hits, the others come
 * in, each in place of one that the layer did not ask for (and go nowhere when there is none). */
typedef struct fl_replay_result {
    uint64_t asked, hits;
} fl_replay_result;

/* FL_E_NOMEM. */
FL_CHECKED fl_status fl_replay_policy(fl_replay_result *out, const fl_trace *t, fl_policy_kind kind,
                                      int n_slots, fl_err *err);
/* The most hits that any policy could have had (Belady): the one used the latest makes room, or is
 * not kept. */
FL_CHECKED fl_status fl_replay_best(fl_replay_result *out, const fl_trace *t, int n_slots,
                                    fl_err *err);

/* The most that n_slots experts could have had that stay for good: those used in the most passes.
 */
FL_CHECKED fl_status fl_replay_fixed(fl_replay_result *out, const fl_trace *t, int n_slots,
                                     fl_err *err);

#endif
