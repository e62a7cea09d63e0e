#ifndef FL_TOOLS_IMPORTANCE_MERGE_H
#define FL_TOOLS_IMPORTANCE_MERGE_H

#include "runtime/base/status.h"

/* One importance file from several of the same model: rows and tokens add up, means are weighted by
 * rows (in double, rounded to F32 once). What a single file has is taken as it is. FL_E_ARG: files
 * of different models, or of llama.cpp (sums of another kind). `out` appears whole or not at all,
 * and may be one of the files. */
FL_CHECKED fl_status fl_importance_merge(const char *out, const char *const *paths, int n,
                                         fl_err *err);

#endif
