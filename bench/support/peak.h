#ifndef FL_BENCH_SUPPORT_PEAK_H
#define FL_BENCH_SUPPORT_PEAK_H

#include <stdint.h>

/* What memory and a tier's arithmetic could do at most: loops over registers alone, on independent
 * sums. run: the instruction again and again; ops: multiply-adds of one call. */
typedef struct bench_peak {
    void (*run)(void);
    int64_t ops;
} bench_peak;

/* The instruction that multiplies bytes: pmaddubsw, vpdpbusd, tdpbssd. `tier` is one of
 * fl_kernels_tiers that this machine has. */
bench_peak bench_peak_bytes(const char *tier);
/* Multiply and add of float32: with fma from avx2 on. */
bench_peak bench_peak_floats(const char *tier);

/* Reads n bytes (a multiple of 256) once, with the widest loads there are. */
void bench_read(const void *p, int64_t n);

#endif
