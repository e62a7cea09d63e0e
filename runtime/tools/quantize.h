#ifndef FL_TOOLS_QUANTIZE_H
#define FL_TOOLS_QUANTIZE_H

#include "runtime/base/options.h"

/* fourleaf quantize IN OUT.gguf [options]
 *
 * IN is a safetensors folder or a GGUF file; OUT a GGUF v3 file in llama.cpp's form (conversion.h),
 * or several (--split-size). The tensors stream through (stream.h), so memory does not grow with
 * the model. `--arch qwen35moe` leaves the bidirectional tensors and the block-diffusion keys out,
 * which makes a file that stock llama.cpp loads. One line a tensor goes to stderr with its relative
 * RMS rounding error, and every ten seconds how far it is; on a terminal one line that rewrites
 * itself.
 *
 * OUT is replaced only by the rename of a complete, re-read file. What a failed, an interrupted and
 * a killed run leave, and --resume: output.h. SIGINT, SIGTERM and SIGHUP interrupt unless ignored.
 */
FL_CHECKED fl_status fl_tool_quantize(const fl_options *o, fl_err *err);

#endif
