#ifndef FL_TOOLS_CHECKUP_TEXT_H
#define FL_TOOLS_CHECKUP_TEXT_H

#include "offload/rates.h"
#include "runtime/tools/checkup.h"

/* A checkup on standard output. `r`: the stored rates, all 0 where there are none. */
void fl_checkup_print(const fl_checkup *c, const fl_rates *r);
FL_CHECKED fl_status fl_checkup_print_json(const fl_checkup *c, const fl_rates *r, fl_err *err);

#endif
