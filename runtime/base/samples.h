#ifndef FL_BASE_SAMPLES_H
#define FL_BASE_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

/* Times of one thing, measured a few times over. The least one is taken: what else the machine does
 * makes them longer, never shorter. */

enum { FL_SAMPLES_MAX = 64 };

typedef struct fl_samples {
    int n;
    uint64_t least_ns, sum_ns;
} fl_samples;

void fl_samples_add(fl_samples *s, uint64_t ns);
/* Whether to take another one: up to `least` unless they have taken twenty budgets by then, more
 * until they have taken one, at most FL_SAMPLES_MAX. */
bool fl_samples_want(const fl_samples *s, int least, uint64_t budget_ns);
/* bytes / ns as bytes per second; 0 when no time passed. */
uint64_t fl_rate_per_s(uint64_t bytes, uint64_t ns);

#endif
