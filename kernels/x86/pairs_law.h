#ifndef FL_KERNELS_X86_PAIRS_LAW_H
#define FL_KERNELS_X86_PAIRS_LAW_H

#include "kernels/x86/pairs_one.h"
#include "kernels/x86/pairs_types.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* mul_law by pairs of weight rows. Functions per type and number of activation rows are not
 * inlined, so that a symbol says whose loop it is (bench/results/instructions.txt). */
#define FL_PAIR_ROWS(NAME, N)                                                                  \
    static __attribute__((noinline)) void NAME##_pairs##N(const fl_pair_span *s, int64_t n0,   \
                                                          int64_t n1, bool go_on, float scale, \
                                                          float *y, int64_t ldy)               \
    {                                                                                          \
        fl_pair_rows(s, &NAME##_kind, n0, n1, N, go_on, scale, y, ldy);                        \
    }
#define FL_PAIR_ONE(NAME, ...)                                                             \
    static const fl_pair_kind NAME##_kind = {__VA_ARGS__};                                 \
    static __attribute__((noinline))                                                       \
    int64_t NAME##_one(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, float *y) \
    {                                                                                      \
        return fl_pair_one(w, &NAME##_kind, n0, n1, x, y);                                 \
    }                                                                                      \
    FL_PAIR_TYPE(NAME, NAME##_one)
#define FL_PAIR_STEPS(NAME, ...)                           \
    static const fl_pair_kind NAME##_kind = {__VA_ARGS__}; \
    FL_PAIR_TYPE(NAME, NULL)
#define FL_PAIR_TYPE(NAME, ONE)               \
    FL_PAIR_ROWS(NAME, 1)                     \
    FL_PAIR_ROWS(NAME, 2)                     \
    FL_PAIR_ROWS(NAME, 3)                     \
    FL_PAIR_ROWS(NAME, 4)                     \
    static const fl_pair_type NAME##_type = { \
        &NAME##_kind, ONE, {NAME##_pairs1, NAME##_pairs2, NAME##_pairs3, NAME##_pairs4}};

/* head, scale, levels, bytes, halves, offset, is_signed, has_min, wide */
FL_PAIR_ONE(q4_k, pair_q4_k_head, NULL, pair_q4_k, 144, 1, 0, false, true, false)
FL_PAIR_ONE(q5_k, pair_q5_k_head, NULL, pair_q5_k, 176, 1, 0, false, true, false)
FL_PAIR_ONE(q6_k, pair_q6_k_head, NULL, pair_q6_k, 210, 2, 32, false, false, false)
FL_PAIR_ONE(q3_k, pair_q3_k_head, NULL, pair_q3_k, 110, 2, 4, false, false, false)
FL_PAIR_ONE(iq4_xs, pair_iq4_xs_head, NULL, pair_iq4_xs, 136, 1, 0, true, false, true)
FL_PAIR_STEPS(q8_0, NULL, pair_q8_0_scale, pair_q8_0, 8 * 34, 1, 0, true, false, false)
FL_PAIR_STEPS(q4_0, NULL, pair_q4_0_scale, pair_q4_0, 8 * 18, 1, 8, false, false, false)
FL_PAIR_STEPS(iq4_nl, NULL, pair_q4_0_scale, pair_iq4_nl, 8 * 18, 1, 0, true, false, false)
FL_PAIR_STEPS(mxfp4, NULL, pair_mxfp4_scale, pair_mxfp4, 8 * 17, 1, 12, false, false, false)
FL_PAIR_STEPS(nvfp4, NULL, pair_nvfp4_scale, pair_nvfp4, 4 * 36, 2, 12, false, false, false)

static inline const fl_pair_type *fl_pair_type_of(uint32_t type)
{
    switch (type) {
    case FL_TYPE_Q4_K: return &q4_k_type;
    case FL_TYPE_Q5_K: return &q5_k_type;
    case FL_TYPE_Q6_K: return &q6_k_type;
    case FL_TYPE_Q3_K: return &q3_k_type;
    case FL_TYPE_IQ4_XS: return &iq4_xs_type;
    case FL_TYPE_Q8_0: return &q8_0_type;
    case FL_TYPE_Q4_0: return &q4_0_type;
    case FL_TYPE_IQ4_NL: return &iq4_nl_type;
    case FL_TYPE_MXFP4: return &mxfp4_type;
    default: return &nvfp4_type;
    }
}

static inline void fl_pair_law(const fl_mat *w, int64_t n0, int64_t n1, const fl_act *x, int n_rows,
                               float *y, int64_t ldy)
{
    fl_pair_mul_law(w, fl_pair_type_of(w->type), n0, n1, x, n_rows, y, ldy);
}

#endif
#endif
