#ifndef FL_TOOLS_PLAN_H
#define FL_TOOLS_PLAN_H

#include "runtime/base/options.h"

/* fourleaf plan MODEL: what run with the same options would take and where each part would lie, by
 * the same code. Reads headers only. tests/cli/test_tools.c holds the two to each other. */
FL_CHECKED fl_status fl_tool_plan(const fl_options *o, fl_err *err);

#endif
