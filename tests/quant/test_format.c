/* Formats: the table, half conversions, each dequantizer against a second, per-element statement
 * of the block layouts, and against ggml's own floats by hash (tests/golden/README.md). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/format.h"
#include "tests/support/test.h"

static uint64_t seed = 88172645463325252ull;
static uint32_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}

static float half(const uint8_t *b)
{
    int h = b[0] | b[1] << 8, e = (h >> 10) & 31, m = h & 1023;
    float v = e ? ldexpf(1.0f + (float)m / 1024.0f, e - 15) : ldexpf((float)m, -24);
    return h >> 15 ? -v : v;
}

static const int8_t k4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t kfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static int nib32(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
static int bit(const uint8_t *q, int i) { return (q[i / 8] >> (i % 8)) & 1; }
static int k_s(const uint8_t *sc, int k)
{
    return k < 4 ? sc[k] & 63 : (sc[k + 4] & 15) | (sc[k - 4] >> 6) << 4;
}
static int k_m(const uint8_t *sc, int k)
{
    return k < 4 ? sc[k + 4] & 63 : (sc[k + 4] >> 4) | (sc[k] >> 6) << 4;
}

static float element_k(uint32_t type, const uint8_t *b, int i)
{
    int n = i / 128, j = (i % 128) / 32, l = i % 32, k = i / 32;
    switch (type) {
    case FL_TYPE_Q2_K: {
        int s = b[i / 16], v = (b[16 + 32 * n + l] >> (2 * j)) & 3;
        return half(b + 80) * (float)(s & 15) * (float)v - half(b + 82) * (float)(s >> 4);
    }
    case FL_TYPE_Q3_K: {
        const uint8_t *sc = b + 96;
        int g = i / 16, lo = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
        int s = (lo | ((sc[8 + g % 4] >> (2 * (g / 4))) & 3) << 4) - 32;
        int v = (b[32 + 32 * n + l] >> (2 * j)) & 3;
        if (!((b[l] >> (4 * n + j)) & 1)) v -= 4;
        return half(b + 108) * (float)s * (float)v;
    }
    case FL_TYPE_Q4_K:
    case FL_TYPE_Q5_K: {
        const uint8_t *q = b + (type == FL_TYPE_Q4_K ? 16 : 48);
        int y = q[32 * (k / 2) + l], v = k & 1 ? y >> 4 : y & 15;
        if (type == FL_TYPE_Q5_K) v += ((b[16 + l] >> k) & 1) << 4;
        return half(b) * (float)k_s(b + 4, k) * (float)v - half(b + 2) * (float)k_m(b + 4, k);
    }
    case FL_TYPE_Q6_K: {
        int y = b[64 * n + (j & 1) * 32 + l], lo = j < 2 ? y & 15 : y >> 4;
        int v = (lo | ((b[128 + 32 * n + l] >> (2 * j)) & 3) << 4) - 32;
        return half(b + 208) * (float)(int8_t)b[192 + i / 16] * (float)v;
    }
    default: { /* IQ4_XS */
        int sh = b[2] | b[3] << 8;
        int s = ((b[4 + k / 2] >> (4 * (k & 1))) & 15) | ((sh >> (2 * k)) & 3) << 4;
        return half(b) * (float)(s - 32) * (float)k4nl[nib32(b + 8 + 16 * k, l)];
    }
    }
}

static float element(uint32_t type, const uint8_t *b, int i)
{
    switch (type) {
    case FL_TYPE_F16: return half(b);
    case FL_TYPE_BF16: {
        uint32_t u = (uint32_t)(b[0] | b[1] << 8) << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
    case FL_TYPE_Q8_0: return half(b) * (float)(int8_t)b[2 + i];
    case FL_TYPE_Q4_0: return (float)(nib32(b + 2, i) - 8) * half(b);
    case FL_TYPE_Q4_1: return (float)nib32(b + 4, i) * half(b) + half(b + 2);
    case FL_TYPE_Q5_0: return (float)((nib32(b + 6, i) | bit(b + 2, i) << 4) - 16) * half(b);
    case FL_TYPE_Q5_1: return (float)(nib32(b + 8, i) | bit(b + 4, i) << 4) * half(b) + half(b + 2);
    case FL_TYPE_IQ4_NL: return half(b) * (float)k4nl[nib32(b + 2, i)];
    case FL_TYPE_MXFP4: return (float)kfp4[nib32(b + 1, i)] * ldexpf(1.0f, b[0] - 128);
    case FL_TYPE_NVFP4: {
        int s = i / 16, j = i % 16, x = b[s], e = (x >> 3) & 15, m = x & 7;
        const uint8_t *q = b + 4 + 8 * s;
        int n = j < 8 ? q[j] & 15 : q[j - 8] >> 4;
        float u = e ? ldexpf(1.0f + (float)m / 8.0f, e - 7) : ldexpf((float)m, -9);
        return (float)kfp4[n] * (x == 0 || x == 0x7f ? 0.0f : 0.5f * u);
    }
    default: return element_k(type, b, i);
    }
}

/* Clears the top exponent bit of each half in a block, so that values stay finite. */
static void tame(uint32_t type, uint8_t *b)
{
    static const struct {
        uint8_t type;
        int8_t at[2];
    } halves[] = {
        {FL_TYPE_F16, {0, -1}},    {FL_TYPE_BF16, {0, -1}},  {FL_TYPE_Q4_0, {0, -1}},
        {FL_TYPE_Q4_1, {0, 2}},    {FL_TYPE_Q5_0, {0, -1}},  {FL_TYPE_Q5_1, {0, 2}},
        {FL_TYPE_Q8_0, {0, -1}},   {FL_TYPE_Q2_K, {80, 82}}, {FL_TYPE_Q3_K, {108, -1}},
        {FL_TYPE_Q4_K, {0, 2}},    {FL_TYPE_Q5_K, {0, 2}},   {FL_TYPE_IQ4_NL, {0, -1}},
        {FL_TYPE_IQ4_XS, {0, -1}},
    };
    for (size_t t = 0; t < sizeof halves / sizeof *halves; t++) {
        if (halves[t].type != type) continue;
        for (int k = 0; k < 2; k++) {
            if (halves[t].at[k] >= 0) b[halves[t].at[k] + 1] &= 0xbf;
        }
    }
    if (type == FL_TYPE_Q6_K) b[209] &= 0xbf;
    if (type == FL_TYPE_NVFP4) {
        for (int s = 0; s < 4; s++) b[s] &= 0x7f;
    }
}

static void test_elements(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < FL_TYPE_LIMIT; t++) {
        const fl_type_info *info = fl_type_get(t);
        if (!info || !info->readable || t == FL_TYPE_F32) continue;
        uint8_t block[256];
        float out[256];
        for (int rep = 0; rep < 200; rep++) {
            for (int i = 0; i < info->block_bytes; i++) block[i] = (uint8_t)rnd();
            tame(t, block);
            info->dequantize(block, out, info->block_elems);
            for (int i = 0; i < info->block_elems; i++) {
                float want = element(t, block, i);
                if (memcmp(&want, &out[i], 4) != 0)
                    fail_msg("%s element %d: %a, expected %a", info->name, i, out[i], want);
            }
        }
    }
}

static uint64_t hash_words(uint64_t h, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    assert_int_equal(bytes % 4, 0);
    for (uint64_t i = 0; i < bytes; i += 4) {
        uint32_t u;
        memcpy(&u, p + i, 4);
        h = (h ^ u) * 0x100000001b3ull;
    }
    return h;
}

/* The golden generator: xorshift64*, then finite scales. BF16 has its own exponent. */
static void golden_blocks(uint32_t type, uint64_t x, uint8_t *raw, uint64_t n, uint64_t block)
{
    for (uint64_t i = 0; i < n * block; i += 8) {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        uint64_t v = x * 0x2545F4914F6CDD1Dull, left = n * block - i;
        memcpy(raw + i, &v, left < 8 ? left : 8);
    }
    static const int16_t at[FL_TYPE_LIMIT][2] = {
        [FL_TYPE_Q4_1] = {0, 2},     [FL_TYPE_Q5_1] = {0, 2},   [FL_TYPE_Q4_K] = {0, 2},
        [FL_TYPE_Q5_K] = {0, 2},     [FL_TYPE_Q2_K] = {80, 82}, [FL_TYPE_Q3_K] = {108, 108},
        [FL_TYPE_Q6_K] = {208, 208},
    };
    uint64_t step = type == FL_TYPE_F16 || type == FL_TYPE_BF16 ? 2 : block;
    uint8_t inf = type == FL_TYPE_BF16 ? 0x7f : 0x7c;
    for (uint8_t *b = raw; b < raw + n * block; b += step) {
        if (type == FL_TYPE_MXFP4) {
            if (b[0] >= 0xf8) b[0] -= 8;
        } else if (type == FL_TYPE_NVFP4) {
            for (int s = 0; s < 4; s++) b[s] &= 0x7f;
        } else {
            for (int k = 0; k < 2; k++) {
                uint8_t *h = b + at[type][k] + 1;
                bool full = (*h & inf) == inf && (inf == 0x7c || h[-1] & 0x80);
                if (full) *h &= 0xbf;
            }
        }
    }
}

static void test_golden(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/blocks/blocks.txt", "r");
    assert_non_null(f);
    char line[256], name[16];
    int n_types = 0;
    while (fgets(line, sizeof line, f)) {
        uint32_t type;
        uint64_t values, bytes, start, n, raw_hash, float_hash;
        if (sscanf(line,
                   "%15s %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNx64 " %" SCNu64 " %" SCNx64
                   " %" SCNx64,
                   name, &type, &values, &bytes, &start, &n, &raw_hash, &float_hash) != 8)
            continue;
        const fl_type_info *info = fl_type_get(type);
        assert_true(info && info->readable);
        assert_int_equal(fl_type_row_bytes(type, values), bytes);
        uint8_t *raw = malloc(n * bytes + 8);
        float *out = malloc(n * values * sizeof *out);
        assert_true(raw && out);
        golden_blocks(type, start, raw, n, bytes);
        uint64_t start_hash = 0xcbf29ce484222325ull;
        assert_int_equal(hash_words(start_hash, raw, n * bytes), raw_hash);
        info->dequantize(raw, out, (int64_t)(n * values));
        if (hash_words(start_hash, out, n * values * 4) != float_hash)
            fail_msg("%s differs from ggml", info->name);
        free(raw);
        free(out);
        n_types++;
    }
    fclose(f);
    assert_int_equal(n_types, 16);
}

static void test_table(void **state)
{
    (void)state;
    int n = 0;
    for (uint32_t t = 0; t < FL_TYPE_LIMIT; t++) {
        const fl_type_info *info = fl_type_get(t);
        if (!info) continue;
        n++;
        assert_int_equal(fl_type_by_name(info->name), t);
        assert_true(info->block_elems > 0 && info->block_bytes > 0);
        assert_true(info->readable == (info->dequantize != NULL));
        assert_true(info->readable == (info->law != FL_LAW_NONE));
        assert_true(info->readable == (info->refuse == NULL));
        assert_true(info->readable || !info->quantize);
        assert_int_equal(fl_type_row_bytes(t, info->block_elems * 3ull), info->block_bytes * 3ull);
        if (info->block_elems > 1)
            assert_int_equal(fl_type_row_bytes(t, info->block_elems + 1ull), 0);
    }
    assert_int_equal(n, 35);
    assert_null(fl_type_get(4));
    assert_null(fl_type_get(FL_TYPE_LIMIT));
    assert_null(fl_type_get(UINT32_MAX));
    assert_int_equal(fl_type_by_name("q4_k_m"), -1);
    assert_int_equal(fl_type_row_bytes(4, 256), 0);
    assert_int_equal(fl_type_row_bytes(FL_TYPE_F32, UINT64_MAX), 0);
    assert_int_equal(fl_type_row_bytes(FL_TYPE_Q4_K, 2048), 1152);
}

static void test_halves(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = fl_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            if (h & 1023) {
                assert_true(isnan(f));
                assert_int_equal(fl_f32_to_f16(f), h | 0x200);
            } else {
                assert_true(isinf(f));
                assert_int_equal(fl_f32_to_f16(f), h);
            }
            continue;
        }
        uint8_t b[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        float want = half(b);
        assert_memory_equal(&f, &want, 4);
        assert_int_equal(fl_f32_to_f16(f), h);
        if ((h & 0x7fff) == 0x7bff) continue;
        /* Half way to the next: the even one; a hair beyond or before: the nearer one. */
        float mid = (f + fl_f16_to_f32((uint16_t)(h + 1))) / 2.0f;
        assert_int_equal(fl_f32_to_f16(mid), h + (h & 1));
        assert_int_equal(fl_f32_to_f16(nextafterf(mid, f)), h);
        assert_int_equal(fl_f32_to_f16(nextafterf(mid, 2.0f * mid)), h + 1);
    }
    assert_int_equal(fl_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(fl_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(fl_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(fl_f32_to_f16(1e-30f), 0);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = fl_bf16_to_f32((uint16_t)h);
        if (isnan(f)) {
            assert_true(isnan(fl_bf16_to_f32(fl_f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(fl_f32_to_bf16(f), h);
    }
    assert_int_equal(fl_f32_to_bf16(1.00390625f), 0x3f80); /* tie, to even */
    assert_int_equal(fl_f32_to_bf16(1.01171875f), 0x3f82);
    assert_int_equal(fl_f32_to_bf16(3.4028235e38f), 0x7f80);
    uint32_t u = 0x7f800001u; /* a NaN whose payload lies below the cut */
    float nan;
    memcpy(&nan, &u, 4);
    assert_true(isnan(fl_bf16_to_f32(fl_f32_to_bf16(nan))));
}

/* Each writer: the error of a value is at most about one step of its block. */
static void test_round_trip(void **state)
{
    (void)state;
    static const struct {
        uint8_t type;
        float bound; /* of the largest magnitude in the row */
    } w[] = {{FL_TYPE_F32, 0.0f},   {FL_TYPE_F16, 5e-4f},  {FL_TYPE_BF16, 4e-3f},
             {FL_TYPE_Q8_0, 5e-3f}, {FL_TYPE_Q4_0, 0.14f}, {FL_TYPE_Q4_K, 0.11f},
             {FL_TYPE_Q5_K, 0.07f}, {FL_TYPE_Q6_K, 0.04f}};
    float x[1024], y[1024];
    uint8_t blocks[4096];
    for (size_t k = 0; k < sizeof w / sizeof *w; k++) {
        const fl_type_info *info = fl_type_get(w[k].type);
        assert_non_null(info->quantize);
        for (int rep = 0; rep < 20; rep++) {
            float top = 0.0f, scale = ldexpf(1.0f, (int)(rnd() % 8) - 4);
            for (int i = 0; i < 1024; i++) {
                x[i] = rep ? scale * ((float)(rnd() & 0xffff) / 32768.0f - 1.0f) : 0.0f;
                top = fmaxf(top, fabsf(x[i]));
            }
            info->quantize(x, blocks, 1024);
            info->dequantize(blocks, y, 1024);
            for (int i = 0; i < 1024; i++) {
                if (fabsf(x[i] - y[i]) > w[k].bound * top)
                    fail_msg("%s: %g became %g", info->name, (double)x[i], (double)y[i]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),  cmocka_unit_test(test_elements),
        cmocka_unit_test(test_golden), cmocka_unit_test(test_halves),
        cmocka_unit_test(test_bf16),   cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
