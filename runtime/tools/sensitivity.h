#ifndef FL_TOOLS_SENSITIVITY_H
#define FL_TOOLS_SENSITIVITY_H

#include "runtime/base/options.h"

/* fourleaf sensitivity MODEL TEXT... -o FILE [--threads N] [--vram SIZE]
 *
 * How far the model's distributions move when a part of it is rounded to Q4_K: a copy in BF16
 * beside FILE is changed in place, part by part, and run over the text each time (float
 * activations). A part is a kind of matrix in one layer or, with more than eight layers, in an
 * eighth of them; gates of the recurrent state, small as they are, go together. What a part costs
 * is shared evenly by its tensors. Rows: those of `fourleaf eval --all` in windows of 512 tokens
 * (eval_plan.h; prompts too, since a model is surest of the answers it was taught, and sure rows
 * hardly move), up to 4,096 of them or 1 GiB of their logits, windows spread over the text; on the
 * causal path and, where all experts fit into device memory, in block passes too, which count as
 * much.
 *
 * FILE (sensitivity_file.h) is written anew after each part, and a run that finds one with the same
 * head goes on with it. The copy is removed in the end. */
FL_CHECKED fl_status fl_tool_sensitivity(const fl_options *o, fl_err *err);

#endif
