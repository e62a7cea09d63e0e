#include "kernels/x86/x86.h"

void fl_kernels_avxvnni(fl_kernels *k)
{
    k->name = "avxvnni";
    k->mul_law = fl_avxvnni_mul_law;
}
