#include "quant/descent.h"

const fl_fitter *fl_fitter_reference(void) { return &fit_functions; }
