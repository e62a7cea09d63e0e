#include "kernels/x86/law_s.h"

FL_LAW_S_OF(avx2, avx2, q6_k, 210)
FL_LAW_S_OF(avx2, avx2, q3_k, 110)
FL_LAW_S_OF(avx2, avx2, iq4_xs, 136)
