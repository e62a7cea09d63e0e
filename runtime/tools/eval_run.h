#ifndef FL_TOOLS_EVAL_RUN_H
#define FL_TOOLS_EVAL_RUN_H

#include "runtime/tools/eval_plan.h"
#include "runtime/tools/eval_stats.h"
#include "runtime/tools/logit_file.h"

/* One model over all rows of a plan: its figures, beside a reference's rows where there are some,
 * and its own rows into a file where that is wanted. One pass of rows is in memory at a time. */
typedef struct fl_eval_job {
    fl_engine *engine; /* loaded */
    const fl_clover *sw;
    const fl_eval_plan *plan;
    /* The rows to compare with, and what they are of: the same text, ctx and windows at least. Of
     * the plan's rows all that are there are compared; NULL: nothing is. */
    fl_logit_reader *reference;
    fl_eval_plan reference_plan;
    fl_logit_writer *writer; /* or NULL */
    const char *what;        /* for the progress line: the model's name */
} fl_eval_job;

/* stats: zero-initialised; the caller frees it, on failure too. */
FL_CHECKED fl_status fl_eval_run(const fl_eval_job *job, fl_eval_stats *stats, fl_err *err);

#endif
