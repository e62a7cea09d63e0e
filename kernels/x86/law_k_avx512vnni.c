#include "kernels/x86/law_k.h"
#include "kernels/x86/law_vnni.h"

FL_LAW_K_OF(avx512vnni, vnni, q4_k, false)
FL_LAW_K_OF(avx512vnni, vnni, q5_k, true)
