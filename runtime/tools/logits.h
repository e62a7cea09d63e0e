#ifndef FL_TOOLS_LOGITS_H
#define FL_TOOLS_LOGITS_H

#include "runtime/base/options.h"

/* fourleaf logits MODEL --ids 1,2,3 | --text TEXT [--all] [--denoise MASKS] -o FILE.npy
 * Writes float32 [rows][n_vocab], npy 1.0. Without --denoise the tokens run clean: the last row,
 * with --all every row. --denoise MASKS ("64-95" or "70,72-75": positions, rising) puts the mask
 * id at these positions; positions behind the last id extend the sequence. The block starts at
 * the largest multiple of the block size not above the first masked position; what lies before
 * it runs clean, the rest (at most one block) is one block pass, and all its rows are written. */
FL_CHECKED fl_status fl_tool_logits(const fl_options *o, fl_err *err);

#endif
