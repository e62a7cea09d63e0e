#include "quant/format.h"

#include <string.h>

#include "quant/blocks.h"
#include "quant/dequant.h"
#include "quant/round.h"

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float fl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
    if (e == 31) {
        /* Infinity, or a NaN made quiet as the hardware conversion does. */
        return float_of(sign | 0x7f800000u | (m ? 0x400000u | m << 13 : 0));
    }
    if (e == 0) {
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    return float_of(sign | (e + 112) << 23 | m << 13);
}

uint16_t fl_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x1ff));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to inf */
    if (a < 0x38800000u) {
        /* Below 2^-14: adding 0.5 lets the float unit round to a multiple of 2^-24. */
        return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - 0x3f000000u));
    }
    uint32_t odd = (a >> 13) & 1;
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfff + odd) >> 13));
}

uint16_t fl_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000u) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static void quantize_f32(const float *src, void *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *src);
}

static void quantize_f16(const float *src, void *dst, int64_t n)
{
    uint16_t *d = dst;
    for (int64_t i = 0; i < n; i++) d[i] = fl_f32_to_f16(src[i]);
}

static void quantize_bf16(const float *src, void *dst, int64_t n)
{
    uint16_t *d = dst;
    for (int64_t i = 0; i < n; i++) d[i] = fl_f32_to_bf16(src[i]);
}

#define READ(NAME, ELEMS, BYTES, LAW, FN, WRITE)                       \
    {                                                                  \
        NAME, ELEMS, BYTES, LAW, true, NULL, fl_dequantize_##FN, WRITE \
    }
#define REFUSE(NAME, ELEMS, BYTES, WHY)                         \
    {                                                           \
        NAME, ELEMS, BYTES, FL_LAW_NONE, false, WHY, NULL, NULL \
    }
#define LOW_BIT "needs lookup grids that are not built in; take a Q4_K_M, IQ4_XS or Q8_0 file"
#define TERNARY "a ternary format; take a Q4_K_M, IQ4_XS or Q8_0 file"
#define NO_WEIGHT "holds integers or doubles, not weights; the file is damaged or of another kind"

static const fl_type_info table[FL_TYPE_LIMIT] = {
    [FL_TYPE_F32] = READ("f32", 1, 4, FL_LAW_FLOAT, f32, quantize_f32),
    [FL_TYPE_F16] = READ("f16", 1, 2, FL_LAW_FLOAT, f16, quantize_f16),
    [FL_TYPE_BF16] = READ("bf16", 1, 2, FL_LAW_FLOAT, bf16, quantize_bf16),
    [FL_TYPE_Q4_0] = READ("q4_0", 32, 18, FL_LAW_32, q4_0, fl_quantize_q4_0),
    [FL_TYPE_Q4_1] = READ("q4_1", 32, 20, FL_LAW_FLOAT, q4_1, NULL),
    [FL_TYPE_Q5_0] = READ("q5_0", 32, 22, FL_LAW_FLOAT, q5_0, NULL),
    [FL_TYPE_Q5_1] = READ("q5_1", 32, 24, FL_LAW_FLOAT, q5_1, NULL),
    [FL_TYPE_Q8_0] = READ("q8_0", 32, 34, FL_LAW_32, q8_0, fl_quantize_q8_0),
    [FL_TYPE_Q2_K] = READ("q2_k", 256, 84, FL_LAW_FLOAT, q2_k, NULL),
    [FL_TYPE_Q3_K] = READ("q3_k", 256, 110, FL_LAW_S, q3_k, NULL),
    [FL_TYPE_Q4_K] = READ("q4_k", 256, 144, FL_LAW_K, q4_k, fl_quantize_q4_k),
    [FL_TYPE_Q5_K] = READ("q5_k", 256, 176, FL_LAW_K, q5_k, fl_quantize_q5_k),
    [FL_TYPE_Q6_K] = READ("q6_k", 256, 210, FL_LAW_S, q6_k, fl_quantize_q6_k),
    [FL_TYPE_IQ4_NL] = READ("iq4_nl", 32, 18, FL_LAW_32, iq4_nl, NULL),
    [FL_TYPE_IQ4_XS] = READ("iq4_xs", 256, 136, FL_LAW_S, iq4_xs, fl_quantize_iq4_xs),
    [FL_TYPE_MXFP4] = READ("mxfp4", 32, 17, FL_LAW_32, mxfp4, NULL),
    [FL_TYPE_NVFP4] = READ("nvfp4", 64, 36, FL_LAW_32, nvfp4, NULL),
    [9] = REFUSE("q8_1", 32, 36, "an intermediate of ggml that files do not hold"),
    [15] = REFUSE("q8_k", 256, 292, "an intermediate of ggml that files do not hold"),
    [16] = REFUSE("iq2_xxs", 256, 66, LOW_BIT),
    [17] = REFUSE("iq2_xs", 256, 74, LOW_BIT),
    [18] = REFUSE("iq3_xxs", 256, 98, LOW_BIT),
    [19] = REFUSE("iq1_s", 256, 50, LOW_BIT),
    [21] = REFUSE("iq3_s", 256, 110, LOW_BIT),
    [22] = REFUSE("iq2_s", 256, 82, LOW_BIT),
    [29] = REFUSE("iq1_m", 256, 56, LOW_BIT),
    [34] = REFUSE("tq1_0", 256, 54, TERNARY),
    [35] = REFUSE("tq2_0", 256, 66, TERNARY),
    [41] = REFUSE("q1_0", 128, 18, "a one-bit format; take a Q4_K_M, IQ4_XS or Q8_0 file"),
    [42] = REFUSE("q2_0", 64, 18, "a two-bit format; take a Q4_K_M, IQ4_XS or Q8_0 file"),
    [FL_TYPE_I8] = REFUSE("i8", 1, 1, NO_WEIGHT),
    [FL_TYPE_I16] = REFUSE("i16", 1, 2, NO_WEIGHT),
    [FL_TYPE_I32] = REFUSE("i32", 1, 4, NO_WEIGHT),
    [FL_TYPE_I64] = REFUSE("i64", 1, 8, NO_WEIGHT),
    [FL_TYPE_F64] = REFUSE("f64", 1, 8, NO_WEIGHT),
};

const fl_type_info *fl_type_get(uint32_t type)
{
    return type < FL_TYPE_LIMIT && table[type].name ? &table[type] : NULL;
}

int fl_type_by_name(const char *name)
{
    for (int t = 0; t < FL_TYPE_LIMIT; t++) {
        if (table[t].name && strcmp(table[t].name, name) == 0) return t;
    }
    return -1;
}

uint64_t fl_type_row_bytes(uint32_t type, uint64_t cols)
{
    const fl_type_info *t = fl_type_get(type);
    if (!t || cols % t->block_elems) return 0;
    uint64_t blocks = cols / t->block_elems;
    return blocks > UINT64_MAX / t->block_bytes ? 0 : blocks * t->block_bytes;
}
