#ifndef FL_TOOLS_IMPORTANCE_REPORT_H
#define FL_TOOLS_IMPORTANCE_REPORT_H

#include <stdbool.h>

#include "runtime/tools/importance_run.h"

/* What a file of ours holds, how it was made (`result`, or NULL for a merge) and what in it is
 * thin: experts that saw few rows, rows of zeros, rows and windows that were left out. Lines on
 * standard error, or with `json` one object on standard output. */
FL_CHECKED fl_status fl_importance_report(const char *path, const fl_importance_result *result,
                                          bool json, fl_err *err);

#endif
