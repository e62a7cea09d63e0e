#ifndef FL_TOOLS_INSPECT_H
#define FL_TOOLS_INSPECT_H

#include "runtime/base/options.h"

/* fourleaf inspect MODEL [--all] [--json]
 * Prints what a model's files hold: architecture, settings, bytes by component and by type,
 * tokenizer, block diffusion, and every quirk, gap and stranger that the index found. --all adds
 * one line a tensor. --json prints one object with bytes exact and "ok".
 *
 * Files that open but do not make a model that runs (unknown architecture, types that are not
 * read, missing tensors) are described as far as they go, then the reason is returned. Reads
 * headers, norms and decay vectors only. Held by tests/model/test_inspect.c. */
FL_CHECKED fl_status fl_tool_inspect(const fl_options *o, fl_err *err);

#endif
