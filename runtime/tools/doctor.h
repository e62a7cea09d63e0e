#ifndef FL_TOOLS_DOCTOR_H
#define FL_TOOLS_DOCTOR_H

#include "runtime/base/options.h"

/* fourleaf doctor [MODEL]: what this machine has that matters to a model, in plain words or with
 * --json as one object, and warnings with the line that mends each. Warnings are no failure; a
 * MODEL that cannot be read is one. Changes nothing. */
FL_CHECKED fl_status fl_tool_doctor(const fl_options *o, fl_err *err);

#endif
