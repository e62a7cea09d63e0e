#ifndef FL_QUANT_FORMAT_H
#define FL_QUANT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ggml tensor types by their numbers in GGUF files. */
typedef enum fl_type {
    FL_TYPE_F32 = 0,
    FL_TYPE_F16 = 1,
    FL_TYPE_Q4_0 = 2,
    FL_TYPE_Q4_1 = 3,
    FL_TYPE_Q5_0 = 6,
    FL_TYPE_Q5_1 = 7,
    FL_TYPE_Q8_0 = 8,
    FL_TYPE_Q2_K = 10,
    FL_TYPE_Q3_K = 11,
    FL_TYPE_Q4_K = 12,
    FL_TYPE_Q5_K = 13,
    FL_TYPE_Q6_K = 14,
    FL_TYPE_IQ4_NL = 20,
    FL_TYPE_IQ4_XS = 23,
    FL_TYPE_I8 = 24,
    FL_TYPE_I16 = 25,
    FL_TYPE_I32 = 26,
    FL_TYPE_I64 = 27,
    FL_TYPE_F64 = 28,
    FL_TYPE_BF16 = 30,
    FL_TYPE_MXFP4 = 39,
    FL_TYPE_NVFP4 = 40,
    FL_TYPE_LIMIT = 64 /* ids at or above are unknown */
} fl_type;

/* How the numeric law (FORMAT.md) multiplies a type. */
typedef enum fl_law {
    FL_LAW_NONE = 0, /* not computable (I8.., refused types) */
    FL_LAW_FLOAT,    /* L6: float lanes over dequantized weights */
    FL_LAW_K,        /* L2 with minima: Q4_K, Q5_K */
    FL_LAW_S,        /* L2 without minima, 256-blocks: Q6_K, Q3_K, IQ4_XS */
    FL_LAW_32        /* L2, blocks of 32 (16 for NVFP4): Q8_0, Q4_0, IQ4_NL, MXFP4, NVFP4 */
} fl_law;

/* One row of the table of formats. */
typedef struct fl_type_info {
    const char *name;     /* as ggml prints it, lower case: "q4_k" */
    uint16_t block_elems; /* elements per block */
    uint16_t block_bytes; /* bytes per block */
    uint8_t law;          /* fl_law */
    bool readable;        /* dequantize exists */
    const char *refuse;   /* for known but unreadable types: what to take instead, else NULL */
    /* n elements (a multiple of block_elems) to float32, bit-identical to ggml. */
    void (*dequantize)(const void *src, float *dst, int64_t n);
    /* float32 to blocks (reference rounding); NULL where we do not write the type. */
    void (*quantize)(const float *src, void *dst, int64_t n);
} fl_type_info;

/* NULL for unknown numbers. */
const fl_type_info *fl_type_get(uint32_t type);
/* Type by name ("q4_k", "bf16"), or -1. */
int fl_type_by_name(const char *name);
/* Bytes of a row of `cols` elements; 0 when cols is not a multiple of the block. */
uint64_t fl_type_row_bytes(uint32_t type, uint64_t cols);

float fl_f16_to_f32(uint16_t h);
uint16_t fl_f32_to_f16(float f); /* round to nearest even */
static inline float fl_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)h << 16};
    return x.f;
}
uint16_t fl_f32_to_bf16(float f); /* round to nearest even, NaN stays quiet */

#endif
