#ifndef FL_OFFLOAD_MEASURE_READS_H
#define FL_OFFLOAD_MEASURE_READS_H

#include <stdbool.h>

#include "offload/io.h"

/* How fast the real extents of the real files come from the drive: with O_DIRECT and through a
 * cold page cache, at depths 1, 2, 4 ... 64. Never from a warm cache: it would say how fast memory
 * is. A few seconds at most. Held by tests/offload/test_measure.c. */

enum { FL_READ_DEPTHS = 7 };

typedef struct fl_read_sample {
    int depth;
    uint64_t direct_bytes_s, buffered_bytes_s; /* 0: not measured */
} fl_read_sample;

typedef struct fl_read_rates {
    fl_read_sample sample[FL_READ_DEPTHS];
    char backend[16];   /* that `direct` went through: "uring", "pread" */
    char note[512];     /* a fallback that was taken, or why `buffered` is missing; "": neither */
    int depth;          /* the least that gives the best rate, or 97 % of it */
    uint64_t bytes_s;   /* direct, at that depth */
    int buffered_depth; /* the same; 0: not measured */
    uint64_t buffered_bytes_s;
    bool buffered_wins; /* by more than 3 % */
} fl_read_rates;

typedef struct fl_read_job {
    const char *const *paths;
    int n_paths;
    const char *backend;     /* as fl_io_open takes it */
    const fl_extent *extent; /* in the order in which to read; each at most once in a sample */
    int n_extents;           /* at least 1 */
    int sample_ms;           /* no further read is begun in a sample after so long */
    void (*progress)(void *arg, const char *part); /* before each depth; or NULL */
    void *arg;
} fl_read_job;

/* Fails as opening and reading do, and with FL_E_NOMEM. */
FL_CHECKED fl_status fl_reads_measure(const fl_read_job *job, fl_read_rates *out, fl_err *err);

/* What follows from the samples: depths, their rates, the winner. */
void fl_reads_choose(fl_read_rates *r);

#endif
