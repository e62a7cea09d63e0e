#ifndef FL_TOOLS_QUANTIZE_H
#define FL_TOOLS_QUANTIZE_H

#include "runtime/base/options.h"

/* fourleaf quantize IN OUT.gguf [--type T] [--arch A] [--threads N]
 *
 * IN is a safetensors folder or a GGUF with F32, F16 or BF16 weights; OUT a GGUF v3 file in
 * llama.cpp's form (conversion.h). Tensor by tensor in pieces of about a million values, so memory
 * does not grow with the model. `--arch qwen35moe` leaves the bidirectional tensors and the
 * block-diffusion keys out, which makes a file that stock llama.cpp loads. One line a tensor goes
 * to stderr (rewritten in place on a terminal) with its relative RMS rounding error.
 *
 * OUT is replaced only by the rename of a complete, re-read file. A run that fails or is
 * interrupted (SIGINT, SIGTERM, SIGHUP unless ignored) removes its temporary; a killed one leaves
 * OUT.tmp.PID, which the next run to the same OUT removes. */
FL_CHECKED fl_status fl_tool_quantize(const fl_options *o, fl_err *err);

#endif
