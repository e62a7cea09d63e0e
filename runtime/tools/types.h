#ifndef FL_TOOLS_TYPES_H
#define FL_TOOLS_TYPES_H

#include "runtime/base/options.h"
#include "runtime/tools/recipe.h"

/* The types of the tensors that quantize writes, as its options ask for them: --type, --recipe,
 * --requantize, --size with --sensitivity and --importance. What no rule of a recipe's file names
 * is written as --type says, or as --size wants it; FL_E_ARG when the size is below the least that
 * is possible, which the message names. `arch`: the architecture to write. `c` is planned and is
 * settled afterwards. *notes: lines for the user, malloc'ed; NULL on failure. */
FL_CHECKED fl_status fl_types_choose(fl_conv *c, const fl_index *ix, const fl_options *o,
                                     const char *arch, char **notes, fl_err *err);

/* What a run would write, on standard output: bytes and bits per weight by class and type, as a
 * table or (--json) as an object that also lists the tensors. `bytes`: of the whole output. */
FL_CHECKED fl_status fl_types_report(const fl_conv *c, uint64_t bytes, bool json, fl_err *err);

#endif
