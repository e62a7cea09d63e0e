#include <assert.h>

#include "kernels/ref/ref.h"
#include "kernels/x86/law_vnni.h"
#include "kernels/x86/x86.h"

/* mul_law of the tiers with VNNI: which code a type and a number of rows take. */

typedef void (*lanes_fn)(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                         float *y, int64_t ldy);

#define LAW_OF(TIER, TYPE)                               \
    switch (TYPE) {                                      \
    case FL_TYPE_Q4_K: return &fl_law_##TIER##_q4_k;     \
    case FL_TYPE_Q5_K: return &fl_law_##TIER##_q5_k;     \
    case FL_TYPE_Q6_K: return &fl_law_##TIER##_q6_k;     \
    case FL_TYPE_Q3_K: return &fl_law_##TIER##_q3_k;     \
    case FL_TYPE_Q8_0: return &fl_law_##TIER##_q8_0;     \
    case FL_TYPE_Q4_0: return &fl_law_##TIER##_q4_0;     \
    case FL_TYPE_IQ4_NL: return &fl_law_##TIER##_iq4_nl; \
    default: return NULL; /* AVX2 is as fast */          \
    }

static const fl_law_x86 *law_of_avxvnni(uint32_t type) { LAW_OF(avxvnni, type) }
static const fl_law_x86 *law_of_avx512vnni(uint32_t type) { LAW_OF(avx512vnni, type) }

/* Below these numbers of rows the lanes of a vector, or a tile, are too empty. */
enum { LEAST_FOR_LANES = 5, LEAST_FOR_TILES = 16 };

static void mul_vnni(const fl_law_x86 *law, lanes_fn lanes, const fl_mat *w, int64_t n0, int64_t n1,
                     const fl_act *x, int n_rows, float *y, int64_t ldy)
{
    assert(fl_mat_fits(w, n0, n1, true));
    if (n_rows >= LEAST_FOR_LANES)
        lanes(w, n0, n1, x, n_rows, y, ldy);
    else if (law)
        fl_law_mul(law, w, n0, n1, x, n_rows, y, ldy);
    else
        fl_avx2_mul_law(w, n0, n1, x, n_rows, y, ldy);
}

void fl_avxvnni_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                        float *y, int64_t ldy)
{
    mul_vnni(law_of_avxvnni(w->type), fl_avxvnni_mul_lanes, w, n0, n1, x, n_rows, y, ldy);
}

void fl_avx512vnni_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                           float *y, int64_t ldy)
{
    lanes_fn lanes = n_rows <= 8 ? fl_avx512vnni_mul_lanes8 : fl_avx512vnni_mul_lanes;
    mul_vnni(law_of_avx512vnni(w->type), lanes, w, n0, n1, x, n_rows, y, ldy);
}

void fl_amx_mul_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows, float *y,
                    int64_t ldy)
{
    assert(fl_mat_fits(w, n0, n1, true));
    if (n_rows >= LEAST_FOR_TILES)
        fl_amx_mul_tiles(w, n0, n1, x, n_rows, y, ldy);
    else
        fl_avx512vnni_mul_law(w, n0, n1, x, n_rows, y, ldy);
}
