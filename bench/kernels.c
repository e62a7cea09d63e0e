/* Every entry of the kernel table in every tier of this machine, one thread, all tiers against each
 * other (bench/support/cases.h).
 *   bench/kernels [SAMPLES [ENTRY]]   default 15; only entries whose name contains ENTRY
 * One JSON object a line and measurement on standard output:
 *   {"entry":"mul_law","type":"q4_k","tier":"avx2","rows":1,"memory":"cache","bytes":1179648,
 *    "ops":2097152,"calls":1,"peak_ops":768000,"read_ns":[...],"peak_ns":[...],"ns":[...]}
 * ns: CPU time of `calls` calls, each of which reads `bytes` of weights, keys or state and does
 * `ops` multiply-adds (of vectors: values). memory: "cache", or "fresh", where each sample reads
 * what no cache holds. The limits, measured beside each sample: read_ns, a plain read of the same
 * bytes as often; peak_ns, peak_ops multiply-adds of the tier's product of bytes (or of floats) on
 * registers. entry "experts": one row through more than 512 MiB of distinct experts of 2,048 x 512,
 * gate, up, silu, down; at most 9 samples. The same for people on standard error, from medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/cases.h"

int main(int argc, char **argv)
{
    static bench_tiers t = {.samples = 15};
    if (argc > 1) t.samples = atoi(argv[1]);
    if (argc > 2) t.only = argv[2];
    if (t.samples < 1 || t.samples > BENCH_MAX_SAMPLES || argc > 3) {
        fprintf(stderr, "usage: %s [SAMPLES from 1 to %d [ENTRY]]\n", argv[0], BENCH_MAX_SAMPLES);
        return 2;
    }
    for (const char *const *name = fl_kernels_tiers(); *name; name++) {
        fl_kernels *k = &t.k[t.n];
        if (fl_kernels_init(k, *name) && strcmp(k->name, *name) == 0) t.n++;
    }
    bench_experts(&t);
    bench_products(&t);
    bench_vectors(&t);
    return 0;
}
