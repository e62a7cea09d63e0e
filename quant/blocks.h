#ifndef FL_QUANT_BLOCKS_H
#define FL_QUANT_BLOCKS_H

#include <stdint.h>

/* Quantized blocks exactly as they lie in a GGUF file, little-endian. `d` and `dmin` are IEEE
 * halves. Which bits belong to which element is in FORMAT.md and, as code, in dequant.c.
 * Every struct is a multiple of its own alignment (2 or 1) and has no padding. */

typedef struct fl_block_q4_0 {
    uint16_t d;
    uint8_t q[16]; /* byte j: element j low, element j + 16 high */
} fl_block_q4_0;
_Static_assert(sizeof(fl_block_q4_0) == 18, "q4_0");

typedef struct fl_block_q4_1 {
    uint16_t d, m;
    uint8_t q[16];
} fl_block_q4_1;
_Static_assert(sizeof(fl_block_q4_1) == 20, "q4_1");

typedef struct fl_block_q5_0 {
    uint16_t d;
    uint8_t qh[4]; /* bit i: fifth bit of element i */
    uint8_t q[16];
} fl_block_q5_0;
_Static_assert(sizeof(fl_block_q5_0) == 22, "q5_0");

typedef struct fl_block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t q[16];
} fl_block_q5_1;
_Static_assert(sizeof(fl_block_q5_1) == 24, "q5_1");

typedef struct fl_block_q8_0 {
    uint16_t d;
    int8_t q[32];
} fl_block_q8_0;
_Static_assert(sizeof(fl_block_q8_0) == 34, "q8_0");

typedef struct fl_block_q2_k {
    uint8_t sc[16]; /* per 16 elements: scale low nibble, minimum high nibble */
    uint8_t q[64];
    uint16_t d, dmin;
} fl_block_q2_k;
_Static_assert(sizeof(fl_block_q2_k) == 84, "q2_k");

typedef struct fl_block_q3_k {
    uint8_t hm[32]; /* third bits, set = no offset of -4 */
    uint8_t q[64];  /* low two bits */
    uint8_t sc[12]; /* sixteen 6-bit scales, offset 32 */
    uint16_t d;
} fl_block_q3_k;
_Static_assert(sizeof(fl_block_q3_k) == 110, "q3_k");

typedef struct fl_block_q4_k {
    uint16_t d, dmin;
    uint8_t sc[12]; /* eight 6-bit scales and minima, fl_k_scales */
    uint8_t q[128]; /* byte 32 j + l: element 64 j + l low, 64 j + 32 + l high */
} fl_block_q4_k;
_Static_assert(sizeof(fl_block_q4_k) == 144, "q4_k");

typedef struct fl_block_q5_k {
    uint16_t d, dmin;
    uint8_t sc[12];
    uint8_t qh[32]; /* bit k of byte l: fifth bit of element 32 k + l */
    uint8_t q[128];
} fl_block_q5_k;
_Static_assert(sizeof(fl_block_q5_k) == 176, "q5_k");

typedef struct fl_block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t sc[16]; /* per 16 elements */
    uint16_t d;
} fl_block_q6_k;
_Static_assert(sizeof(fl_block_q6_k) == 210, "q6_k");

typedef struct fl_block_iq4_nl {
    uint16_t d;
    uint8_t q[16]; /* indices into fl_iq4_values, order of q4_0 */
} fl_block_iq4_nl;
_Static_assert(sizeof(fl_block_iq4_nl) == 18, "iq4_nl");

typedef struct fl_block_iq4_xs {
    uint16_t d;
    uint16_t sc_h; /* two high bits of eight scales */
    uint8_t sc_l[4];
    uint8_t q[128]; /* per 32 elements 16 bytes in the order of q4_0 */
} fl_block_iq4_xs;
_Static_assert(sizeof(fl_block_iq4_xs) == 136, "iq4_xs");

typedef struct fl_block_mxfp4 {
    uint8_t e; /* d = 2^(e - 128) */
    uint8_t q[16];
} fl_block_mxfp4;
_Static_assert(sizeof(fl_block_mxfp4) == 17, "mxfp4");

typedef struct fl_block_nvfp4 {
    uint8_t d[4];  /* unsigned E4M3, one per 16 elements */
    uint8_t q[32]; /* per 16 elements 8 bytes: byte j element j low, j + 8 high */
} fl_block_nvfp4;
_Static_assert(sizeof(fl_block_nvfp4) == 36, "nvfp4");

/* The 16 levels of IQ4_NL and IQ4_XS, and 2 x the E2M1 values of MXFP4 and NVFP4. */
extern const int8_t fl_iq4_values[16];
extern const int8_t fl_fp4_values[16];

/* Half of an E8M0 scale: 2^(e - 128), denormal for e < 2. */
float fl_e8m0_half_to_f32(uint8_t e);
/* Half of an unsigned E4M3 scale; 0 and 0x7f give 0. */
float fl_ue4m3_half_to_f32(uint8_t x);

/* Scale and minimum (0..63) of sub-block k of Q4_K and Q5_K. */
static inline int fl_k_scale(const uint8_t sc[12], int k)
{
    return k < 4 ? sc[k] & 63 : (sc[k + 4] & 15) | ((sc[k - 4] >> 6) << 4);
}
static inline int fl_k_min(const uint8_t sc[12], int k)
{
    return k < 4 ? sc[k + 4] & 63 : (sc[k + 4] >> 4) | ((sc[k] >> 6) << 4);
}
/* Scale (-32..31) of the 16 elements number k (0..15) of Q3_K. */
static inline int fl_q3_scale(const uint8_t sc[12], int k)
{
    int lo = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4;
    return (lo | ((sc[8 + k % 4] >> (2 * (k / 4))) & 3) << 4) - 32;
}
/* Scale (-32..31) of sub-block k (0..7) of IQ4_XS. */
static inline int fl_iq4_xs_scale(const fl_block_iq4_xs *b, int k)
{
    return (((b->sc_l[k / 2] >> (4 * (k & 1))) & 15) | ((b->sc_h >> (2 * k)) & 3) << 4) - 32;
}

#endif
