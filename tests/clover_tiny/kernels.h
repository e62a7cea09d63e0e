/* What the training kernels share: the activation type and two small functions. */
#ifndef CLOVER_TINY_KERNELS_H
#define CLOVER_TINY_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 128, CHUNK = 32 }; /* GDN head dimension; rows per chunk = rows per block */

#ifdef ACT_F32
typedef float act;
static inline float get(act x) { return x; }
static inline act put(float x) { return x; }
#else
typedef uint16_t act;
static inline float get(act x)
{
    union {
        uint32_t u;
        float f;
    } bits = {(uint32_t)x << 16};
    return bits.f;
}
static inline act put(float x)
{
    union {
        float f;
        uint32_t u;
    } bits = {x};
    return (act)((bits.u + 0x7fff + ((bits.u >> 16) & 1)) >> 16);
}
#endif

/* The clamp keeps the fast-math reciprocal away from infinity. */
static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(fminf(-x, 80.0f))); }

static inline float dot(const float *x, const float *y, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

#endif
