#include "kernels/x86/law_s.h"
#include "kernels/x86/law_vnni.h"

/* Not IQ4_XS: four products of levels up to 127 do not fit 16 bits. */
FL_LAW_S_OF(avxvnni, vnni, q6_k, 210)
FL_LAW_S_OF(avxvnni, vnni, q3_k, 110)
