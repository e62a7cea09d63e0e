#include "runtime/decode/noise.h"

#include "quant/law.h"

double fl_noise_gumbel(uint64_t bits)
{
    return -fl_law_log64(-fl_law_log64(fl_noise_uniform(bits)));
}
