#ifndef FL_TOOLS_STREAM_H
#define FL_TOOLS_STREAM_H

#include <stdatomic.h>

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

/* How far it is. Values are those of the output. */
typedef struct fl_stream_state {
    int tensor; /* being written */
    uint64_t values, values_total, bytes_read, bytes_written;
} fl_stream_state;

typedef struct fl_stream_job {
    const fl_conv *conv;
    fl_gguf_writer *writer; /* begun, with the tensors of conv; starts at fl_gguf_writer_next */
    const fl_stream_guides *guides; /* or NULL */
    int threads;                    /* workers; 0: physical cores */
    const char *io;                 /* backend, or NULL */
    const atomic_int *stop;         /* or NULL; FL_E_CANCELED soon after it is not 0 */
    /* Called on the writing thread, each may be NULL: a tensor is written (relative RMS error; -1:
     * copied), a slice is written. A failure of `done` ends the run. */
    void *ctx;
    fl_status (*done)(void *ctx, int tensor, double relative, fl_err *err);
    void (*tick)(void *ctx, const fl_stream_state *s);
} fl_stream_job;

/* Runs it. Errors: a read failure or bad values, named with tensor and file, the first in the order
 * of the output whatever the threads did; values beyond the range of their type (FL_E_ARG); of the
 * writer, of guides and of `done`. */
FL_CHECKED fl_status fl_stream_run(const fl_stream_job *job, fl_err *err);

/* Bytes of all buffers of a run with so many threads, without guides (which `get` accounts for) and
 * their scratch: the largest slice's source, values and blocks for each thread and each slice that
 * is on its way. */
uint64_t fl_stream_bytes(const fl_conv *c, int threads);

#endif
