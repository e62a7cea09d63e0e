#ifndef FL_TOOLS_CONVERSION_META_H
#define FL_TOOLS_CONVERSION_META_H

#include "runtime/model/gguf_write.h"
#include "runtime/tools/conversion.h"

/* Puts all metadata of a converted model: the hyperparameters under ARCH.*, as the index read them;
 * the block-diffusion keys when `arch` is clover_moe; the tokenizer (copied from a GGUF, or made
 * from tokenizer.json); chat template, sampling defaults, name; licence and base models
 * as far as the source states them, never of its own. Keys of a
 * GGUF source that say nothing about its packing are kept, those under its architecture's name
 * moved under the new one. `main_type` gives general.file_type. */
FL_CHECKED fl_status fl_conv_metadata(fl_gguf_writer *w, const fl_index *ix, const char *arch,
                                      uint32_t main_type, fl_err *err);
/* The same for a conversion whose types are chosen, and then all of its tensors: what stands in the
 * output's header. */
FL_CHECKED fl_status fl_conv_declare(fl_gguf_writer *w, const fl_conv *c, const fl_index *ix,
                                     const char *arch, fl_err *err);

#endif
