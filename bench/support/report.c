#include "bench/support/report.h"

#include <stdio.h>

static void print_array(const char *name, const int64_t *v, int n)
{
    printf("\"%s\":[", name);
    for (int i = 0; i < n; i++) printf("%s%lld", i ? "," : "", (long long)v[i]);
    putchar(']');
}

void bench_print_list(const char *name, const int64_t *v, int n)
{
    print_array(name, v, n);
    putchar(',');
}

void bench_print_samples(const int64_t *ns, int n)
{
    print_array("ns", ns, n);
    printf("}\n");
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
