#ifndef FL_QUANT_LAW_H
#define FL_QUANT_LAW_H

#include <stdbool.h>
#include <stdint.h>

/* The numeric law in C, one statement per rule of FORMAT.md. It is the reference of every kernel
 * and is not meant to be fast. Nothing here depends on the CPU or on libm's choice of code: fma,
 * sqrt, rint, frexp and ldexp are exact by definition, the other functions are our own. */

/* One activation block of 256 values under the numeric law (FORMAT.md, L1):
 *   value[i] = scale * p[i / 32] * x[i]
 * sum[k] = p[k] * (sum of x over sub-block k of 32).
 * Without option H every p[k] is 1. */
typedef struct fl_act {
    float scale;    /* A */
    int32_t unused; /* keeps x 8-byte aligned; 0 */
    int16_t sum[8]; /* J_k, already times p[k] */
    int16_t p[8];   /* P_k: 1, 2, 4 or 8 */
    int8_t x[256];
} fl_act;
_Static_assert(sizeof(fl_act) == 296, "activation block");

/* Option H of the law (a power-of-two exponent per 32 values): the project's one switch, decided
 * by measurement (FORMAT.md). Tests and the decision script set it; nothing else does. */
extern bool fl_law_option_h;

/* L1. cols % 256 == 0. Writes cols/256 blocks. Returns false when a value is not finite (then the
 * output is not to be used). A block whose largest magnitude is below 2^-121 counts as zeros. The
 * reference; kernels have a faster equal one. */
bool fl_law_quantize(const float *v, int64_t cols, fl_act *out);

/* Reference of L2 for one weight row and one activation row: y = sum over blocks in one fma
 * chain. `type` must have law FL_LAW_K, FL_LAW_S or FL_LAW_32 and cols % 256 == 0. */
float fl_law_dot(uint32_t type, const void *w, const fl_act *x, int64_t cols);

/* L3: E(x), the law's exponential of x clamped to [-87, 87]; NaN stays NaN.
 * |relative error| <= 2e-7 inside the clamp (tests/quant/test_law.c). */
float fl_law_exp(float x);
/* log(1 + t) for t in [0, 1]; |relative error| <= 3e-7. */
float fl_law_log1p(float t);
/* log(1 + e^x) = max(x, 0) + log1p(E(-|x|)); |error| <= 3e-7 max(1, |x|) and 5e-7 relative. */
float fl_law_softplus(float x);
/* 1 / (1 + E(-x)). */
float fl_law_sigmoid(float x);
/* x / (1 + E(-x)). */
float fl_law_silu(float x);
/* L3: h = g / (1 + E(-g)) * u. */
float fl_law_silu_mul(float g, float u);

/* L6: 16 virtual lanes. lanes[j % 16] = fma(w[j], x[j], lanes[j % 16]) for j ascending, lanes
 * starting at +0. Longer sums continue with the same lanes: every call but the last has n % 16
 * == 0. The sum adds lane j + 8 to j, then j + 4, j + 2, j + 1. */
void fl_law_lanes_add(float lanes[16], const float *w, const float *x, int64_t n);
float fl_law_lanes_sum(const float lanes[16]);
/* L6: float dot product of w and x. */
float fl_law_float_dot(const float *w, const float *x, int64_t n);
/* L6 sum of squares, same order. */
float fl_law_sumsq(const float *x, int64_t n);

/* L7, in quant/law_math.c: double precision in plain IEEE operations, the same bits everywhere.
 * Accuracy against libm in units of the last place of a double, held by tests/quant/test_law.c. */
/* log x, x >= 0 and finite; within 4. log 0 is -infinity. */
double fl_law_log64(double x);
/* e^x, within 4; infinity or 0 outside the range, NaN stays NaN. */
double fl_law_exp64(double x);
/* sin x and cos x for |x| <= 2^20; error at most 4e-16. */
void fl_law_sincos64(double x, double *sine, double *cosine);
/* freq[j] = base^(-j / n) for j in [0, n), base >= 1; within 1. */
void fl_law_rope_freq(double base, int n, double *freq);

#endif
