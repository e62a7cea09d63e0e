#include "bench/support/peak.h"

#include <string.h>

enum { LOOPS = 2000, SUMS = 12 };

static volatile uint64_t sink;

#if defined(__x86_64__)
#include <immintrin.h>

/* The compiler must not see through an operand, nor drop a sum. */
#define HIDE(x) __asm__ volatile("" : "+x"(x))
#define HIDE512(x) __asm__ volatile("" : "+v"(x))

/* LOOPS times twelve independent steps on values of one vector type. */
#define STEP(OP, HIDDEN, S) \
    S = OP(S, a, b);        \
    HIDDEN(S);
#define PEAK(NAME, TARGET, TYPE, ZERO, ONE, OP, HIDDEN)                                   \
    __attribute__((target(TARGET))) static void NAME(void)                                \
    {                                                                                     \
        TYPE s0 = ZERO, s1 = ZERO, s2 = ZERO, s3 = ZERO, s4 = ZERO, s5 = ZERO, s6 = ZERO; \
        TYPE s7 = ZERO, s8 = ZERO, s9 = ZERO, s10 = ZERO, s11 = ZERO, a = ONE, b = ONE;   \
        HIDDEN(a);                                                                        \
        HIDDEN(b);                                                                        \
        for (int i = 0; i < LOOPS; i++) {                                                 \
            STEP(OP, HIDDEN, s0)                                                          \
            STEP(OP, HIDDEN, s1)                                                          \
            STEP(OP, HIDDEN, s2)                                                          \
            STEP(OP, HIDDEN, s3)                                                          \
            STEP(OP, HIDDEN, s4)                                                          \
            STEP(OP, HIDDEN, s5)                                                          \
            STEP(OP, HIDDEN, s6)                                                          \
            STEP(OP, HIDDEN, s7)                                                          \
            STEP(OP, HIDDEN, s8)                                                          \
            STEP(OP, HIDDEN, s9)                                                          \
            STEP(OP, HIDDEN, s10)                                                         \
            STEP(OP, HIDDEN, s11)                                                         \
        }                                                                                 \
    }

#define MADDUBS_SSE(S, A, B) _mm_maddubs_epi16(A, S)
#define MADDUBS_AVX2(S, A, B) _mm256_maddubs_epi16(A, S)
#define MULADD_SSE(S, A, B) _mm_add_ps(S, _mm_mul_ps(S, B))
#define FMADD_AVX2(S, A, B) _mm256_fmadd_ps(A, B, S)
#define FMADD_AVX512(S, A, B) _mm512_fmadd_ps(A, B, S)

PEAK(bytes_sse, "ssse3", __m128i, _mm_setzero_si128(), _mm_set1_epi8(1), MADDUBS_SSE, HIDE)
PEAK(bytes_avx2, "avx2", __m256i, _mm256_setzero_si256(), _mm256_set1_epi8(1), MADDUBS_AVX2, HIDE)
PEAK(bytes_avxvnni, "avx2,avxvnni", __m256i, _mm256_setzero_si256(), _mm256_set1_epi8(1),
     _mm256_dpbusd_avx_epi32, HIDE)
PEAK(bytes_avx512vnni, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(),
     _mm512_set1_epi32(0x01010101), _mm512_dpbusd_epi32, HIDE512)
PEAK(floats_sse, "sse2", __m128, _mm_setzero_ps(), _mm_set1_ps(1.0f), MULADD_SSE, HIDE)
PEAK(floats_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_set1_ps(1.0f), FMADD_AVX2, HIDE)
PEAK(floats_avx512, "avx512f", __m512, _mm512_setzero_ps(), _mm512_set1_ps(1.0f), FMADD_AVX512,
     HIDE512)

/* Four sums of 16 x 16, two tiles of each operand, as a product uses them. */
__attribute__((target("amx-tile,amx-int8"))) static void bytes_amx(void)
{
    /* Palette 1, eight tiles of 16 rows of 64 bytes. */
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int i = 0; i < LOOPS / 4; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}

bench_peak bench_peak_bytes(const char *tier)
{
    const int64_t n = (int64_t)LOOPS * SUMS;
    if (strcmp(tier, "amx") == 0) return (bench_peak){bytes_amx, LOOPS / 4 * 4 * INT64_C(16384)};
    if (strcmp(tier, "avx512vnni") == 0) return (bench_peak){bytes_avx512vnni, n * 64};
    if (strcmp(tier, "avxvnni") == 0) return (bench_peak){bytes_avxvnni, n * 32};
    if (strcmp(tier, "avx2") == 0) return (bench_peak){bytes_avx2, n * 32};
    return (bench_peak){bytes_sse, n * 16};
}

/* Loads of one vector type alone, four sums. */
#define READ(NAME, TARGET, TYPE, LOAD, OR, ZERO)                                  \
    __attribute__((target(TARGET))) static void NAME(const uint8_t *p, int64_t n) \
    {                                                                             \
        TYPE s0 = ZERO, s1 = ZERO, s2 = ZERO, s3 = ZERO;                          \
        const int64_t w = sizeof(TYPE);                                           \
        uint64_t out[sizeof(TYPE) / 8];                                           \
        for (int64_t i = 0; i + 4 * w <= n; i += 4 * w) {                         \
            s0 = OR(s0, LOAD((const void *)(p + i)));                             \
            s1 = OR(s1, LOAD((const void *)(p + i + w)));                         \
            s2 = OR(s2, LOAD((const void *)(p + i + 2 * w)));                     \
            s3 = OR(s3, LOAD((const void *)(p + i + 3 * w)));                     \
        }                                                                         \
        s0 = OR(OR(s0, s1), OR(s2, s3));                                          \
        memcpy(out, &s0, sizeof out);                                             \
        sink += out[0];                                                           \
    }
READ(read_sse, "sse2", __m128i, _mm_loadu_si128, _mm_or_si128, _mm_setzero_si128())
READ(read_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_or_si256, _mm256_setzero_si256())
READ(read_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_or_si512, _mm512_setzero_si512())

void bench_read(const void *p, int64_t n)
{
    if (__builtin_cpu_supports("avx512f"))
        read_avx512(p, n);
    else if (__builtin_cpu_supports("avx2"))
        read_avx2(p, n);
    else
        read_sse(p, n);
}

bench_peak bench_peak_floats(const char *tier)
{
    const int64_t n = (int64_t)LOOPS * SUMS;
    if (strcmp(tier, "amx") == 0 || strcmp(tier, "avx512vnni") == 0)
        return (bench_peak){floats_avx512, n * 16};
    if (strcmp(tier, "reference") == 0) return (bench_peak){floats_sse, n * 4};
    return (bench_peak){floats_avx2, n * 8};
}

#else

static void scalar(void)
{
    uint64_t s[SUMS] = {0};
    for (int i = 0; i < LOOPS; i++)
        for (int j = 0; j < SUMS; j++) s[j] = s[j] * 3 + 1;
    for (int j = 0; j < SUMS; j++) sink += s[j];
}
void bench_read(const void *p, int64_t n)
{
    uint64_t s = 0, v;
    for (int64_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&v, (const uint8_t *)p + i, 8);
        s |= v;
    }
    sink += s;
}
bench_peak bench_peak_bytes(const char *tier)
{
    (void)tier;
    return (bench_peak){scalar, (int64_t)LOOPS * SUMS};
}
bench_peak bench_peak_floats(const char *tier) { return bench_peak_bytes(tier); }

#endif
