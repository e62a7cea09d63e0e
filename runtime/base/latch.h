#ifndef FL_BASE_LATCH_H
#define FL_BASE_LATCH_H

#include <stdatomic.h>

/* Waiting of one thread for others that is short in most cases: it polls for FL_SPIN_NS, then
 * sleeps in the kernel. Spinning longer would take processor time from the very thread that is
 * waited for, where a neighbour has its core; sleeping at once would cost a system call on each
 * side. Waking costs a system call only when somebody sleeps. */
enum { FL_SPIN_NS = 50000 };

/* A word and the number of threads asleep on it. Zeroed memory is a valid one with value 0. */
typedef struct fl_latch {
    atomic_uint value;
    atomic_uint sleepers;
} fl_latch;

/* Returns when the value is no longer `seen`; all that was written before fl_latch_bump is
 * visible then. */
void fl_latch_wait_change(fl_latch *l, unsigned seen);
/* Raises the value by one and wakes everybody. */
void fl_latch_bump(fl_latch *l);

/* A count of what is still to come. Nobody waits or arrives while it is set. */
void fl_latch_set(fl_latch *l, unsigned n);
/* n of it are there; the last one wakes everybody. */
void fl_latch_arrive(fl_latch *l, unsigned n);
/* Returns when all are there; all that was written before the arrivals is visible then. */
void fl_latch_wait(fl_latch *l);

#endif
