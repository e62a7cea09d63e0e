#include "runtime/base/samples.h"

void fl_samples_add(fl_samples *s, uint64_t ns)
{
    if (s->n == 0 || ns < s->least_ns) s->least_ns = ns;
    s->n++;
    s->sum_ns += ns;
}

bool fl_samples_want(const fl_samples *s, int least, uint64_t budget_ns)
{
    if (s->n < least) return s->n == 0 || s->sum_ns < 20 * budget_ns;
    return s->n < FL_SAMPLES_MAX && s->sum_ns < budget_ns;
}

uint64_t fl_rate_per_s(uint64_t bytes, uint64_t ns)
{
    return ns ? (uint64_t)((double)bytes * 1e9 / (double)ns + 0.5) : 0;
}
