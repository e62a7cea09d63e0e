#ifndef FL_TOOLS_RUN_H
#define FL_TOOLS_RUN_H

#include "runtime/base/options.h"

/* fourleaf run MODEL: one prompt (-p, -f or standard input) in the chat format, or with --raw as
 * it is; the answer streams to standard output, the reasoning before it (thinking on, not --raw)
 * to standard error. --stats prints the start-up line and the counts there too; --json puts one
 * object with "text" (the answer), "reasoning" and counts on standard output instead. */
FL_CHECKED fl_status fl_tool_run(const fl_options *o, fl_err *err);

#endif
