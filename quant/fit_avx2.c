#include "quant/descent.h"

const fl_fitter *fl_fitter_avx2(void) { return &fit_functions; }
