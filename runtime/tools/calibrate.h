#ifndef FL_TOOLS_CALIBRATE_H
#define FL_TOOLS_CALIBRATE_H

#include "runtime/base/options.h"

/* fourleaf calibrate MODEL: measures the machine with this model (survey.h), then passes and ways
 * of decoding under the options in force, and stores it all in the user's cache, where plans and
 * --mode auto find it. Prints a table, or with
 * --json what was stored; also when storing fails. */
FL_CHECKED fl_status fl_tool_calibrate(const fl_options *o, fl_err *err);

#endif
