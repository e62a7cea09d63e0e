#ifndef FL_BENCH_SUPPORT_CASES_H
#define FL_BENCH_SUPPORT_CASES_H

#include <stddef.h>

#include "bench/support/peak.h"
#include "kernels/kernels.h"

/* Calls of kernels, measured in all tiers against each other: samples alternate, each beside one
 * of a plain read of the same bytes and one of the tier's arithmetic on registers, so that ratios
 * hold on a machine that is not quiet. */

enum { BENCH_MAX_TIERS = 8, BENCH_MAX_SAMPLES = 1000 };

typedef struct bench_tiers {
    fl_kernels k[BENCH_MAX_TIERS];
    int n;
    int samples;
    const char *only; /* measure the cases whose entry contains it; NULL: all */
} bench_tiers;

typedef struct bench_case {
    const char *entry, *type, *memory; /* memory: "cache", "fresh" */
    int rows;
    int64_t bytes, ops; /* of one call: weights, keys or state read; multiply-adds */
    size_t member;      /* offset in fl_kernels: tiers that share it are measured once */
    bool on_bytes;      /* the limit is the product of bytes, else that of floats */
    bool not_reference; /* it would take seconds */
    /* `sample` counts up over reads and calls, so that fresh memory can be walked. */
    void (*call)(const fl_kernels *k, void *arg, int sample);
    /* Reads what call reads and does nothing else. */
    void (*read)(void *arg, int sample);
    void *arg;
} bench_case;

/* Prints a JSON line for each tier on standard output and one for people on standard error. */
void bench_measure(const bench_tiers *t, const bench_case *c);
/* True when `only` leaves the entry in. */
bool bench_wanted(const bench_tiers *t, const char *entry);

/* Page-aligned memory; none left ends the program. */
void *bench_take(size_t bytes);
/* n values in (-scale, scale). */
float *bench_floats(int64_t n, float scale, uint64_t *state);

/* Entry by entry; the second is products, the third one row of whole experts, all of them in
 * memory that no cache holds. */
void bench_vectors(const bench_tiers *t);
void bench_products(const bench_tiers *t);
void bench_experts(const bench_tiers *t);

#endif
