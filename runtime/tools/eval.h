#ifndef FL_TOOLS_EVAL_H
#define FL_TOOLS_EVAL_H

#include "runtime/base/options.h"

/* fourleaf eval MODEL TEXT... [--against REFERENCE] [--save-logits FILE] [--json]
 * Perplexity on the causal path and, where the model has masks, the NLL of masked tokens on block
 * passes; against a reference, how far the distributions are apart. REFERENCE is a model, which
 * runs first and leaves its rows in a temporary file ($TMPDIR, else /var/tmp), or a file that
 * --save-logits wrote. What is measured on which rows: eval_plan.h, logit_row.h. */
FL_CHECKED fl_status fl_tool_eval(const fl_options *o, fl_err *err);

#endif
