#ifndef FL_TOOLS_IMPORTANCE_H
#define FL_TOOLS_IMPORTANCE_H

#include "runtime/base/options.h"

/* fourleaf importance MODEL TEXT... -o FILE [--ctx N] [--tokens N]
 * fourleaf importance --merge FILE... -o FILE
 *
 * Measures the inputs of the model's matrices over text (importance_file.h) or makes one file of
 * several. Progress with rate and time left on standard error. The first Ctrl-C ends a run so that
 * the same command goes on with it; so does a kill. Says at the end which experts saw few rows,
 * which rows were all zeros or not finite, and which windows were left out. */
FL_CHECKED fl_status fl_tool_importance(const fl_options *o, fl_err *err);

#endif
