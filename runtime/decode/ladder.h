#ifndef FL_DECODE_LADDER_H
#define FL_DECODE_LADDER_H

#include "runtime/model/state.h"

/* Copies of the sequence's state at rising positions ("rungs"), so that another prompt that begins
 * alike is not read again: it goes back to the highest rung at or below the place where the two
 * part. All memory is one reservation of whole copies within a budget, made once; a page of it is
 * taken when a copy first reaches it, and nothing else allocates.
 *
 * When every copy is in use, a new rung takes the memory of the one that is missed least: the one
 * whose neighbours lie closest together, where a fill counts half. Never that of the newest rung,
 * of the head, of the last answer's start, or of the last few messages' starts (a quarter of the
 * copies, at most FL_LADDER_RECENT). With k copies that may go and n tokens, no gap below n exceeds
 * the larger of FL_LADDER_STEP (the longest gap between rungs as they are offered) and 4 n / k:
 * the gaps on both sides of those k, each counted at most twice, sum to at most 4 n. */

/* What stands at a rung; they add up. */
enum {
    FL_RUNG_FILL = 0,    /* nothing */
    FL_RUNG_MESSAGE = 1, /* the start of a message */
    FL_RUNG_ANSWER = 2,  /* where the last answer starts: one at most */
    FL_RUNG_HEAD = 4,    /* the end of system text and tools: one at most */
    FL_RUNG_KINDS = 7    /* all of them */
};

typedef struct fl_rung {
    fl_state_copy copy; /* copy.n is the rung's position, above 0 */
    unsigned kind;
} fl_rung;

typedef struct fl_ladder {
    fl_rung *rung; /* [n_max], rising positions; rungs from n on hold the copies not in use */
    int n, n_max;
    uint8_t *memory;
    uint64_t copy_bytes, bytes; /* of one copy, padded to whole pages; of the reservation */
} fl_ladder;

enum { FL_LADDER_STEP = 512, FL_LADDER_RECENT = 4 };

/* As many rungs as fl_state_fit_copies says, which may be none; fails as it does, FL_E_NOMEM when
 * the machine refuses the memory. */
FL_CHECKED fl_status fl_ladder_create(fl_ladder **out, uint64_t copy_bytes, uint64_t budget,
                                      int64_t max_rungs, fl_err *err);
void fl_ladder_destroy(fl_ladder **l);

/* A rung at position n, not below any other. Its copy is to be filled by the caller; NULL: there is
 * nothing to fill, since the ladder has no memory or a rung stands there already (the kinds
 * add up). Earlier pointers into the ladder are void. */
fl_state_copy *fl_ladder_put(fl_ladder *l, int64_t n, unsigned kind);
/* The highest rung at or below n, or NULL. */
const fl_rung *fl_ladder_find(const fl_ladder *l, int64_t n);
/* Takes away all rungs above n. */
void fl_ladder_drop(fl_ladder *l, int64_t n);
/* Position of the highest rung; 0 = none. */
int64_t fl_ladder_top(const fl_ladder *l);

#endif
