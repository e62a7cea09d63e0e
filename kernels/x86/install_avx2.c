#include "kernels/x86/x86.h"

void fl_kernels_avx2(fl_kernels *k) { k->name = "avx2"; }
