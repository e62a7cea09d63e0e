#include "bench/support/report.h"

#include <stdio.h>

void bench_print_samples(const int64_t *ns, int n)
{
    printf("\"ns\":[");
    for (int i = 0; i < n; i++) printf("%s%lld", i ? "," : "", (long long)ns[i]);
    printf("]}\n");
    fflush(stdout);
}

int64_t bench_median(const int64_t *ns, int n)
{
    for (int i = 0; i < n; i++) {
        int below = 0, equal = 0;
        for (int j = 0; j < n; j++) below += ns[j] < ns[i], equal += ns[j] == ns[i];
        if (below <= (n - 1) / 2 && (n - 1) / 2 < below + equal) return ns[i];
    }
    return 0;
}
