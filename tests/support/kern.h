#ifndef FL_TESTS_SUPPORT_KERN_H
#define FL_TESTS_SUPPORT_KERN_H

#include "kernels/kernels.h"

/* Random data and guarded buffers for tests of formats and kernels. Same stream on each run. */
uint32_t fl_rnd(void);
int fl_rnd_below(int n);    /* 0 .. n-1 */
float fl_rnd_uniform(void); /* [-1, 1) */
/* One of several characters of data, chosen by `kind` (any number): uniform, with outliers,
 * tiny, huge, zeros, spread over many powers of two. */
enum { FL_DATA_KINDS = 6 };
void fl_rnd_floats(float *x, int64_t n, int kind);

/* Random blocks of a type with finite scales. kind 0: scales near 2^-5; 1: any finite scale down
 * to denormals; 2: all levels and sub-scales at their largest; 3: at their smallest pattern; 4:
 * bytes from the ends of their range, as of signed ones, at random. */
enum { FL_BLOCK_KINDS = 5 };
void fl_rnd_blocks(uint32_t type, void *dst, int64_t elems, int kind);

/* A block that quantization would not often make: all x 127, -127 or 0, every exponent the same one
 * of 1, 2, 4, 8, scale 1 or denormal; chosen by `kind` (60 of them). */
void fl_act_fill(fl_act *a, int kind);

/* The types with a law of their own, UINT32_MAX behind the last. */
extern const uint32_t fl_law_types[];
/* All readable types, likewise ended by UINT32_MAX. */
extern const uint32_t fl_readable_types[];

/* n floats between guard words, filled with a pattern that no kernel writes. */
float *fl_guard_new(int64_t n);
/* Fails the test when a guard word changed. */
void fl_guard_check(const float *p, int64_t n, const char *what);
void fl_guard_free(float *p);
/* True when element i still holds the pattern. */
bool fl_guard_untouched(const float *p, int64_t i);

/* Kernel tables of the tiers above the reference that this CPU has; returns their number. */
enum { FL_MAX_TIERS = 8 };
int fl_tiers_present(fl_kernels k[FL_MAX_TIERS]);

/* Fails the test naming the first differing element. */
void fl_same_bits(const float *got, const float *want, int64_t n, const char *tier,
                  const char *what);

#endif
