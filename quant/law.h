#ifndef FL_QUANT_LAW_H
#define FL_QUANT_LAW_H

#include <stdbool.h>
#include <stdint.h>

/* One activation block of 256 values under the numeric law (FORMAT.md, L1):
 *   value[i] = scale * p[i / 32] * x[i]
 * sum[k] = p[k] * (sum of x over sub-block k of 32).
 * Without option H every p[k] is 1. */
typedef struct fl_act {
    float scale;    /* A */
    int32_t unused; /* keeps x 8-byte aligned */
    int16_t sum[8]; /* J_k, already times p[k] */
    int16_t p[8];   /* P_k: 1, 2, 4 or 8 */
    int8_t x[256];
} fl_act;
_Static_assert(sizeof(fl_act) == 296, "activation block");

/* Option H of the law (a power-of-two exponent per 32 values): the project's one switch, decided
 * by measurement (FORMAT.md). Tests and the decision script set it; nothing else does. */
extern bool fl_law_option_h;

/* cols % 256 == 0. Writes cols/256 blocks. Returns false when a value is not finite (then the
 * output is not to be used). The reference; kernels have a faster equal one. */
bool fl_law_quantize(const float *v, int64_t cols, fl_act *out);

/* Reference of L2 for one weight row and one activation row: y = sum over blocks in one fma
 * chain. `type` must have law FL_LAW_K, FL_LAW_S or FL_LAW_32 and cols % 256 == 0. */
float fl_law_dot(uint32_t type, const void *w, const fl_act *x, int64_t cols);

/* L3: E(x), the law's exponential; |relative error| <= 2e-7 for |x| <= 87. */
float fl_law_exp(float x);
/* L3: h = g / (1 + E(-g)) * u. */
float fl_law_silu_mul(float g, float u);

/* L6: float dot product of w and x with 16 virtual lanes and the fixed 8-4-2-1 tree. */
float fl_law_float_dot(const float *w, const float *x, int64_t n);
/* L6 sum of squares, same order. */
float fl_law_sumsq(const float *x, int64_t n);

#endif
