#ifndef FL_BENCH_SUPPORT_REPORT_H
#define FL_BENCH_SUPPORT_REPORT_H

#include <stdint.h>

/* "name":[...], of a JSON object. */
void bench_print_list(const char *name, const int64_t *v, int n);
/* Ends a JSON object with its raw samples, "ns":[...]}, and the line. */
void bench_print_samples(const int64_t *ns, int n);
/* Of n samples; the lower of the middle two. */
int64_t bench_median(const int64_t *ns, int n);

#endif
