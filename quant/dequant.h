#ifndef FL_QUANT_DEQUANT_H
#define FL_QUANT_DEQUANT_H

#include <stdint.h>

/* Blocks to float32, bit-identical to ggml's dequantize_row_* (tests/quant/test_format.c). n is
 * a multiple of the block; src and dst do not overlap. Reached through fl_type_info. */
void fl_dequantize_f32(const void *src, float *dst, int64_t n);
void fl_dequantize_f16(const void *src, float *dst, int64_t n);
void fl_dequantize_bf16(const void *src, float *dst, int64_t n);
void fl_dequantize_q4_0(const void *src, float *dst, int64_t n);
void fl_dequantize_q4_1(const void *src, float *dst, int64_t n);
void fl_dequantize_q5_0(const void *src, float *dst, int64_t n);
void fl_dequantize_q5_1(const void *src, float *dst, int64_t n);
void fl_dequantize_q8_0(const void *src, float *dst, int64_t n);
void fl_dequantize_q2_k(const void *src, float *dst, int64_t n);
void fl_dequantize_q3_k(const void *src, float *dst, int64_t n);
void fl_dequantize_q4_k(const void *src, float *dst, int64_t n);
void fl_dequantize_q5_k(const void *src, float *dst, int64_t n);
void fl_dequantize_q6_k(const void *src, float *dst, int64_t n);
void fl_dequantize_iq4_nl(const void *src, float *dst, int64_t n);
void fl_dequantize_iq4_xs(const void *src, float *dst, int64_t n);
void fl_dequantize_mxfp4(const void *src, float *dst, int64_t n);
void fl_dequantize_nvfp4(const void *src, float *dst, int64_t n);

#endif
