#ifndef FL_TOOLS_EVAL_REPORT_H
#define FL_TOOLS_EVAL_REPORT_H

#include "runtime/tools/eval_plan.h"
#include "runtime/tools/eval_stats.h"
#include "runtime/tools/logit_file.h"

/* What eval found, on standard output: a table, or one JSON object. */
typedef struct fl_eval_report {
    const char *model;
    const fl_eval_plan *plan;
    const fl_eval_stats *stats;
    const fl_logit_setup *reference; /* NULL: there was none */
} fl_eval_report;

void fl_eval_print(const fl_eval_report *r);
FL_CHECKED fl_status fl_eval_print_json(const fl_eval_report *r, fl_err *err);

#endif
