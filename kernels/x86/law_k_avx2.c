#include "kernels/x86/law_k.h"

FL_LAW_K_OF(avx2, avx2, q4_k, false)
FL_LAW_K_OF(avx2, avx2, q5_k, true)
