#ifndef FL_MODEL_FORWARD_H
#define FL_MODEL_FORWARD_H

#include "runtime/model/engine.h"

/* The forward passes over the engine's one sequence. Bits of a row depend on the tokens before
 * it alone: not on threads, chunk size or where experts lie (tests/decode/test_invariance.c).
 * FL_E_ARG: a token id outside the vocabulary, no room in the context, a state broken by an
 * earlier failure. FL_E_NAN: a value that is not finite, the message names the layer. */

/* Token-causal pass over n tokens in chunks of params.chunk rows; the only pass that writes the
 * state. After it the hidden rows of the last chunk are at hand. On failure the state is broken
 * until fl_state_reset or fl_state_restore. */
FL_CHECKED fl_status fl_forward_clean(fl_engine *e, const int32_t *ids, int64_t n, fl_err *err);

/* The same over n <= params.chunk tokens in one pass, which also fills copies of the state behind
 * some of them: copy[i].n rising, from state.n + 1 to state.n + n. On failure the copies hold
 * nothing. */
FL_CHECKED fl_status fl_forward_copying(fl_engine *e, const int32_t *ids, int64_t n,
                                        const fl_state_copy *copy, int n_copies, fl_err *err);

/* Block pass over n <= block_size rows at positions state.n ..: every row sees all clean tokens
 * and all rows of the block. Writes nothing but scratch. Of `sw` it reads the GDN block mode, the
 * expert pool and the mask id (FL_GDN_MIXED: rows before the first mask read their own state).
 * FL_GDN_BIDIR without the extra tensors is FL_E_ARG. */
FL_CHECKED fl_status fl_forward_denoise(fl_engine *e, const int32_t *ids, int n,
                                        const fl_clover *sw, fl_err *err);

/* fl_forward_clean of n_clean rows, then fl_forward_denoise of n rows, in one pass: the same
 * bits, each weight read once. n_clean <= block_size, n <= block_size. Hidden rows: the clean
 * ones, then the block's (row i of the block is row n_clean + i). */
FL_CHECKED fl_status fl_forward_fused(fl_engine *e, const int32_t *clean, int n_clean,
                                      const int32_t *block, int n, const fl_clover *sw,
                                      fl_err *err);

/* Commits a block whose rows see each other (FL_COMMIT_BLOCK_BIDIR): the pass of
 * fl_forward_denoise without expert pool, but its keys, values, S and raw rows become the state's.
 * Fails and breaks the state as fl_forward_clean does. */
FL_CHECKED fl_status fl_forward_commit(fl_engine *e, const int32_t *ids, int n, const fl_clover *sw,
                                       fl_err *err);

/* A clean pass over n <= params.held_rows rows whose effect on the state waits: hidden rows and
 * logits are those of fl_forward_clean, the state is untouched. */
FL_CHECKED fl_status fl_forward_held(fl_engine *e, const int32_t *ids, int n, fl_err *err);
/* The first m rows of the last pass, which was a held one, count: the state becomes, bit for bit,
 * what fl_forward_clean of them leaves. Its hidden rows stay at hand. m >= 1. */
void fl_forward_promote(fl_engine *e, int m);

/* One step of the MTP block (params.mtp): the token at position state.n + step, after steps 0 ..
 * step - 1 of the tokens before it, gives the logits [n_vocab] of the token behind it, as
 * fl_forward_logits does. Step 0 reads the state's h_last, the others the block's own output.
 * Writes nothing but scratch: rows of the block's cache from state.n on, which later passes write
 * anew. */
FL_CHECKED fl_status fl_forward_draft(fl_engine *e, int32_t token, int step, const float **logits,
                                      fl_err *err);

/* Logits [n][n_vocab] of rows of the last pass (numbered within its last chunk), at most
 * block_size at once; row -1 is the state's h_last. The result lives in the engine until the
 * next call. */
FL_CHECKED fl_status fl_forward_logits(fl_engine *e, const int *rows, int n, const float **logits,
                                       fl_err *err);

/* Final hidden row (after the final norm) of a row of the last pass; out [d_model]. */
void fl_forward_hidden(const fl_engine *e, int row, float *out);

/* The same logits without a place for all of them: while its part of the output matrix is run, each
 * worker shows ids [first, first + n) of every row: `first` a multiple of FL_HEAD_PART, n that or
 * less at the end. The logits are finite and valid during the call. After FL_E_NAN some parts
 * have not been shown. */
typedef struct fl_head_reader {
    void (*part)(void *arg, int row, int64_t first, int64_t n, const float *logits, int worker);
    void *arg;
} fl_head_reader;
FL_CHECKED fl_status fl_forward_head(fl_engine *e, const int *rows, int n,
                                     const fl_head_reader *reader, fl_err *err);

#endif
