#ifndef FL_TOOLS_STREAM_H
#define FL_TOOLS_STREAM_H

#include <signal.h>

#include "quant/guide.h"
#include "runtime/model/gguf_write.h"
#include "runtime/tools/conversion.h"

/* Converts the tensors of a model into a GGUF writer as a stream: one thread reads slices of the
 * source through the I/O backend (offload/io.h), several of them in flight; workers make their
 * values and round them; one thread writes them in order. A slice is a run of whole rows of at
 * most about a million values that never crosses two experts, so memory does not depend on the
 * size of the model. Every byte of the source is read once. The bytes written depend on the source,
 * the types and the guides alone, not on threads or backend. Held by tests/tools/test_stream.c. */

/* Where the guides of the rounding come from. `get` gives the guide of one expert's matrix (expert
 * 0 for a tensor that has none), or NULL for plain rounding; it is called once for each pair,
 * on the thread of a worker, for several experts at once, and may take its time. `put` takes it
 * back when no row of that pair is left to round. */
typedef struct fl_stream_guides {
    void *ctx;
    fl_status (*get)(void *ctx, const fl_conv_tensor *t, int expert, const fl_guide **g,
                     fl_err *err);
    void (*put)(void *ctx, const fl_conv_tensor *t, int expert, const fl_guide *g);
} fl_stream_guides;

#endif
