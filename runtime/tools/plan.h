#ifndef FL_TOOLS_PLAN_H
#define FL_TOOLS_PLAN_H

#include "runtime/base/options.h"

/* fourleaf plan MODEL --vram SIZE [--ctx N] [--json]: what a load would take and where each part
 * would lie. Reads headers only. */
FL_CHECKED fl_status fl_tool_plan(const fl_options *o, fl_err *err);

#endif
