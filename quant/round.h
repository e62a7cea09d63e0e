#ifndef FL_QUANT_ROUND_H
#define FL_QUANT_ROUND_H

#include <stdint.h>

/* Float32 to ggml block formats: the scales are searched, the values rounded to nearest.
 *
 * All take n values (a multiple of the format's block) and write whole blocks; src and dst do not
 * overlap. The result depends on nothing but the values of its own block: same bytes on every
 * machine and for any split of the work between threads. Values must be finite (the callers
 * check: fl_round_nonfinite). Scales beyond float16 saturate at 65504.
 *
 * What is minimised, per sub-block b of a format (32 values; 16 in Q6_K):
 *     E_b = sum_i w_i (x_i - y_i)^2,   w_i = rms_b(x) + |x_i|
 * The weights say that large weights meet large products more often than small ones do.
 *
 * Q4_K, Q5_K: for each sub-block 16 steps around (max - min) / qmax, each rounded with and then
 * replaced by its weighted least squares scale and minimum, twice; then the 16 pairs of 6-bit
 * numbers around the best compete with the values re-rounded; d and dmin are re-fitted by least
 * squares and rounded to float16; repeated while E = sum E_b falls. The plain choice (step from
 * min and max, no search) competes, so that no block is worse than plain rounding.
 * Q6_K, IQ4_XS, Q4_0: the same idea with one scale and no minimum. Q8_0: d = max|x| / 127 and
 * values rounded with the float16 d. quant/fit.h has the search.
 * Held by tests/quant/test_round.c: never worse per block than plain rounding, errors within
 * bounds, the decoder of quant/format.c reads what was written. */
void fl_quantize_q4_k(const float *src, void *dst, int64_t n);
void fl_quantize_q5_k(const float *src, void *dst, int64_t n);
void fl_quantize_q6_k(const float *src, void *dst, int64_t n);
void fl_quantize_iq4_xs(const float *src, void *dst, int64_t n);
void fl_quantize_q4_0(const float *src, void *dst, int64_t n);
void fl_quantize_q8_0(const float *src, void *dst, int64_t n);

/* The weights w of a run of n values (one sub-block). */
void fl_round_weights(const float *x, float *w, int n);

/* Index of the first NaN or infinity among n values, or -1. */
int64_t fl_round_nonfinite(const float *x, int64_t n);

#endif
