#ifndef FL_TOOLS_CALIBRATE_H
#define FL_TOOLS_CALIBRATE_H

#include "runtime/base/options.h"

/* fourleaf calibrate MODEL: measures passes and ways of decoding under the options in force and
 * stores their rates in the user's cache, where --mode auto finds them. Prints a table, or with
 * --json what was stored; also when storing fails. */
FL_CHECKED fl_status fl_tool_calibrate(const fl_options *o, fl_err *err);

#endif
