#ifndef FL_OFFLOAD_IO_FAKE_H
#define FL_OFFLOAD_IO_FAKE_H

#include <stdbool.h>

#include "offload/io.h"

/* Faults of the "fake" backend, for tests. It reads with pread inside fl_io_wait, on the owner's
 * thread, so a run with one seed is repeatable to the last completion. Without faults it is a
 * plain backend. Chances are per 1,024 raw reads. */
typedef struct fl_io_fake_config {
    uint64_t seed;
    int short_chance; /* the kernel gives fewer bytes than asked, any number from 0 */
    int again_chance; /* EAGAIN or EINTR */
    int fail_chance;  /* fail_errno */
    int64_t fail_at;  /* the fail_at-th raw read from now fails with fail_errno; 0 = the next;
                         negative = none */
    int fail_more;    /* that place fails so many times more */
    int fail_errno;
    bool reorder; /* completions in random order */
    int stall_chance;
    int stall_polls;   /* a stalled read completes only after so many waits or polls, */
    uint64_t stall_ns; /* and after so long; UINT64_MAX: when a new config says 0 */
} fl_io_fake_config;

/* `io` was opened with backend "fake" (assert). Takes effect for reads queued from now on. */
void fl_io_fake_set(fl_io *io, const fl_io_fake_config *cfg);
/* Raw reads that failed since then. */
uint64_t fl_io_fake_failed(const fl_io *io);

#endif
