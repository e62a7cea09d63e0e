#include "kernels/x86/law_32.h"

FL_LAW_32_OF(avx2, avx2, q8_0, 8 * 34, false)
FL_LAW_32_OF(avx2, avx2, q4_0, 8 * 18, false)
FL_LAW_32_OF(avx2, avx2, iq4_nl, 8 * 18, false)
FL_LAW_32_OF(avx2, avx2, mxfp4, 8 * 17, false)
FL_LAW_32_OF(avx2, avx2, nvfp4, 4 * 36, true)
