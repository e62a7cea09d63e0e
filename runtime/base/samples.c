#include "runtime/base/samples.h"

#include <assert.h>
#include <stdlib.h>

void fl_samples_add(fl_samples *s, uint64_t ns)
{
    assert(s->n < FL_SAMPLES_MAX);
    s->ns[s->n++] = ns;
    s->sum_ns += ns;
}

bool fl_samples_want(const fl_samples *s, int least, uint64_t budget_ns)
{
    if (s->n < least) return s->n == 0 || s->sum_ns < 20 * budget_ns;
    return s->n < FL_SAMPLES_MAX && s->sum_ns < budget_ns;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t fl_samples_median(const fl_samples *s)
{
    fl_samples sorted = *s;
    if (s->n == 0) return 0;
    qsort(sorted.ns, (size_t)s->n, sizeof *sorted.ns, compare);
    return sorted.ns[(s->n - 1) / 2];
}

uint64_t fl_rate_per_s(uint64_t bytes, uint64_t ns)
{
    return ns ? (uint64_t)((double)bytes * 1e9 / (double)ns + 0.5) : 0;
}
