#ifndef FL_TOOLS_PATCH_H
#define FL_TOOLS_PATCH_H

#include "runtime/base/options.h"

/* The command patch IN OUT: a copy of a GGUF file in the form that other programs read.
 *   expert_shared_count missing -> 1
 *   zero-centred norms -> 1 + w; A_log -> -exp(A_log): as F32
 *   value heads grouped -> tiled: whole rows and whole blocks move. Where a block of ssm_out holds
 *     values of two heads, that tensor becomes F32: its values are kept, nothing is rounded twice
 *   tensors that --map or the probe gave a role -> the role's own name
 * What needs none of it is copied inside the kernel, byte for byte. A split model becomes one file.
 * FL_E_ARG: nothing to do, OUT is a file of IN, IN is no GGUF. OUT appears whole or not at all. */
FL_CHECKED fl_status fl_tool_patch(const fl_options *o, fl_err *err);

#endif
