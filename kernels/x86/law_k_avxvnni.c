#include "kernels/x86/law_avxvnni.h"
#include "kernels/x86/law_k.h"

FL_LAW_K_OF(avxvnni, q4_k, false)
FL_LAW_K_OF(avxvnni, q5_k, true)
