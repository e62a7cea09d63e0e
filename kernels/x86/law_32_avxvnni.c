#include "kernels/x86/law_32.h"
#include "kernels/x86/law_vnni.h"

FL_LAW_32_OF(avxvnni, vnni, q8_0, 8 * 34, false)
FL_LAW_32_OF(avxvnni, vnni, q4_0, 8 * 18, false)
FL_LAW_32_OF(avxvnni, vnni, iq4_nl, 8 * 18, false)
