#include "kernels/x86/x86.h"

void fl_kernels_amx(fl_kernels *k)
{
    k->name = "amx";
    k->mul_law = fl_amx_mul_law;
}
