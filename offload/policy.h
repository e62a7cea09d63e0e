#ifndef FL_OFFLOAD_POLICY_H
#define FL_OFFLOAD_POLICY_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* Which expert makes room for another. A policy watches which experts are used and orders the slots
 * that hold one; it moves nothing itself. Deterministic, nothing is allocated after creation, one
 * thread. Held by tests/offload/test_policy.c, compared by offload/replay.h.
 *
 *   lru    the one that was not used for the longest time
 *   lfu    the one that was used in the fewest passes; a use counts half after 64 passes
 *   block  the one whose slot is the least likely to be of use soon. Layers are visited in turn, so
 *          its next use is `distance` layers away at least, and comes then with probability p:
 *          the largest distance / p goes. With r the share of a pass's rows that chose the expert,
 *          p = n r / (1 + n r) in a pass of n rows. r is a mean of two running means, over about
 *          the last 20 rows (what this block used and, fading, the one before it) and over about
 *          the last 1,000 (what the traffic uses); the weights are 19 and 1. */
typedef enum fl_policy_kind {
    FL_POLICY_LRU,
    FL_POLICY_LFU,
    FL_POLICY_BLOCK,
    FL_N_POLICIES,
    FL_POLICY_DEFAULT = FL_POLICY_BLOCK
} fl_policy_kind;

const char *fl_policy_name(fl_policy_kind kind); /* "lru", "lfu", "block" */
/* False: no policy has that name. */
bool fl_policy_find(const char *name, fl_policy_kind *kind);

typedef struct fl_policy fl_policy;

/* An expert's key is layer * n_expert + expert. All slots are empty. FL_E_NOMEM. */
FL_CHECKED fl_status fl_policy_create(fl_policy **out, fl_policy_kind kind, int n_layer,
                                      int n_expert, int n_slots, fl_err *err);
void fl_policy_destroy(fl_policy **p);

/* A layer's experts come up, in a pass of that many rows: what is touched next is of this layer. */
void fl_policy_visit(fl_policy *p, int layer, int rows);
/* So many rows of the pass chose this expert, whether a slot holds it or not. Once in a visit. */
void fl_policy_touch(fl_policy *p, int32_t key, int rows);
/* An empty slot now holds this expert, which no other slot does (asserts). */
void fl_policy_insert(fl_policy *p, int slot, int32_t key);
/* A full slot is empty now. */
void fl_policy_remove(fl_policy *p, int slot);
/* The full slot whose expert shall go first, of those for which may() is true; -1: there is none.
 * Of equal ones the lowest. */
int fl_policy_victim(const fl_policy *p, bool (*may)(void *arg, int slot), void *arg);

#endif
