#include "tests/support/kern.h"

#include <math.h>
#include <stdlib.h>

#include "tests/support/test.h"

static uint64_t seed = 0x9e3779b97f4a7c15ull;

uint32_t fl_rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}

int fl_rnd_below(int n) { return (int)(fl_rnd() % (uint32_t)n); }

float fl_rnd_uniform(void) { return (float)(fl_rnd() & 0xffffff) * 0x1p-23f - 1.0f; }

void fl_rnd_floats(float *x, int64_t n, int kind)
{
    static const float scale[FL_DATA_KINDS] = {1.0f, 1.0f, 1e-37f, 1e18f, 0.0f, 1.0f};
    for (int64_t i = 0; i < n; i++) {
        x[i] = fl_rnd_uniform() * scale[kind % FL_DATA_KINDS];
        if (kind % FL_DATA_KINDS == 1 && fl_rnd_below(64) == 0) x[i] *= 50.0f;
        if (kind % FL_DATA_KINDS == 5) x[i] = ldexpf(x[i], fl_rnd_below(40) - 30);
    }
}

void fl_act_fill(fl_act *a, int kind)
{
    int q = kind % 3 == 0 ? 127 : kind % 3 == 1 ? -127 : 0, e = 1 << (kind % 4);
    memset(a->x, q, sizeof a->x);
    for (int k = 0; k < 8; k++) {
        a->p[k] = (int16_t)e;
        a->sum[k] = (int16_t)(32 * q * e);
    }
    a->scale = kind % 5 == 0 ? 0x1p-140f : 1.0f;
}

const uint32_t fl_law_types[] = {FL_TYPE_Q4_K,  FL_TYPE_Q8_0,   FL_TYPE_Q6_K,   FL_TYPE_Q5_K,
                                 FL_TYPE_Q4_0,  FL_TYPE_IQ4_XS, FL_TYPE_IQ4_NL, FL_TYPE_Q3_K,
                                 FL_TYPE_MXFP4, FL_TYPE_NVFP4,  UINT32_MAX};
const uint32_t fl_readable_types[] = {
    FL_TYPE_F32,  FL_TYPE_F16,    FL_TYPE_BF16,   FL_TYPE_Q4_0,  FL_TYPE_Q4_1,  FL_TYPE_Q5_0,
    FL_TYPE_Q5_1, FL_TYPE_Q8_0,   FL_TYPE_Q2_K,   FL_TYPE_Q3_K,  FL_TYPE_Q4_K,  FL_TYPE_Q5_K,
    FL_TYPE_Q6_K, FL_TYPE_IQ4_NL, FL_TYPE_IQ4_XS, FL_TYPE_MXFP4, FL_TYPE_NVFP4, UINT32_MAX};

/* A half with exponent and sign drawn for `kind`. */
static uint16_t random_half(int kind)
{
    uint32_t r = fl_rnd();
    if (kind == 1) return (uint16_t)((r & 0x7c00) == 0x7c00 ? r & 0xbfff : r);
    if (kind == 2) return r & 1 ? 0x7bff : 0x3000;
    if (kind == 3) return r & 1 ? 0x0001 : 0x8001;
    return (uint16_t)((r & 0x83ff) | 0x2800);
}

static void put_half(uint8_t *at, uint16_t h)
{
    at[0] = (uint8_t)h;
    at[1] = (uint8_t)(h >> 8);
}

static void random_block(uint32_t type, uint8_t *b, int bytes, int kind)
{
    static const int16_t halves[FL_TYPE_LIMIT][2] = {
        [FL_TYPE_Q4_1] = {0, 2},     [FL_TYPE_Q5_1] = {0, 2},   [FL_TYPE_Q4_K] = {0, 2},
        [FL_TYPE_Q5_K] = {0, 2},     [FL_TYPE_Q2_K] = {80, 82}, [FL_TYPE_Q3_K] = {108, 108},
        [FL_TYPE_Q6_K] = {208, 208},
    };
    static const uint8_t ends[4] = {0x00, 0xff, 0x80, 0x7f};
    for (int i = 0; i < bytes; i++) {
        const uint32_t r = fl_rnd();
        b[i] = (uint8_t)(kind == 2 ? 0xff : kind == 3 ? r & 0x80 : kind == 4 ? ends[r & 3] : r);
    }
    if (type == FL_TYPE_F32) {
        float f = fl_rnd_uniform();
        memcpy(b, &f, 4);
    } else if (type == FL_TYPE_BF16) {
        put_half(b, fl_f32_to_bf16(kind == 1 ? ldexpf(fl_rnd_uniform(), fl_rnd_below(60) - 40)
                                             : fl_rnd_uniform()));
    } else if (type == FL_TYPE_MXFP4) {
        b[0] = (uint8_t)(kind == 1 ? fl_rnd_below(150) : kind == 3 ? 0 : 110 + fl_rnd_below(16));
    } else if (type == FL_TYPE_NVFP4) {
        for (int s = 0; s < 4; s++) b[s] = kind == 2 ? 0x7e : b[s] & 0x7f;
    } else {
        for (int k = 0; k < 2; k++) put_half(b + halves[type][k], random_half(kind));
    }
}

void fl_rnd_blocks(uint32_t type, void *dst, int64_t elems, int kind)
{
    const fl_type_info *t = fl_type_get(type);
    uint8_t *b = dst;
    for (int64_t i = 0; i < elems; i += t->block_elems, b += t->block_bytes)
        random_block(type, b, t->block_bytes, kind % FL_BLOCK_KINDS);
}

enum { GUARD = 64 };
#define PATTERN 0xff7a5a5au /* a NaN that no arithmetic makes */

static void fill(float *p, int64_t n)
{
    const uint32_t u = PATTERN;
    for (int64_t i = 0; i < n; i++) memcpy(p + i, &u, 4);
}

bool fl_guard_untouched(const float *p, int64_t i)
{
    uint32_t u;
    memcpy(&u, p + i, 4);
    return u == PATTERN;
}

float *fl_guard_new(int64_t n)
{
    float *p = malloc((size_t)(n + 2 * GUARD) * sizeof *p);
    assert_non_null(p);
    fill(p, n + 2 * GUARD);
    return p + GUARD;
}

void fl_guard_check(const float *p, int64_t n, const char *what)
{
    for (int i = 1; i <= GUARD; i++) {
        if (!fl_guard_untouched(p, -i) || !fl_guard_untouched(p, n + i - 1))
            fail_msg("%s writes outside its output", what);
    }
}

void fl_guard_free(float *p) { free(p - GUARD); }

int fl_tiers_present(fl_kernels k[FL_MAX_TIERS])
{
    int n = 0;
    for (const char *const *t = fl_kernels_tiers() + 1; *t; t++) {
        if (fl_kernels_init(&k[n], *t) && strcmp(k[n].name, *t) == 0) n++;
    }
    return n;
}

void fl_same_bits(const float *got, const float *want, int64_t n, const char *tier,
                  const char *what)
{
    if (memcmp(got, want, (size_t)n * sizeof *got) == 0) return;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s, %s: element %lld is %a, the reference gives %a", tier, what, (long long)i,
                     (double)got[i], (double)want[i]);
    }
}
