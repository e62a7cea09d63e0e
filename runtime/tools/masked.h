#ifndef FL_TOOLS_MASKED_H
#define FL_TOOLS_MASKED_H

#include "runtime/model/forward.h"

/* Masked likelihood: blocks of a known text with some rows masked, and the logits of those rows.
 * Which rows are masked comes from a fixed hash of text and position, the same for every model and
 * wiring, so that two of them are compared row by row. */

/* Shares of masked rows: a row masked at one level is masked at every later one. */
enum { FL_MASK_LEVELS = 4 };
extern const double fl_mask_level[FL_MASK_LEVELS]; /* 0.15, 0.5, 0.85, 1 */

/* Whether that position of the text with this number is masked at a level. */
bool fl_mask_at(int text, int64_t pos, int level);

/* What follows a text to the end of its last block: <|endoftext|>, else the model's end token. */
int32_t fl_mask_fill(const fl_model *m);

/* -log softmax(logits)[id] in double; not finite when the logits are not. */
double fl_nll(const float *logits, int64_t n, int32_t id);

/* One block of a text. Rows from `from` on (positions of the text) may be masked, those of them
 * before `to` count. */
typedef struct fl_masked_block {
    const int32_t *ids; /* [sw->block_size] */
    int text;
    int64_t start, from, to;
} fl_masked_block;

typedef struct fl_masked_rows {
    int n;
    int row[FL_MAX_BLOCK]; /* that count, rising; numbered within the block */
    const float *logits;   /* [n][n_vocab] of what stands there; lives in the engine */
} fl_masked_rows;

/* One pass over the block, which begins at the sequence's end, with the rows of a level masked.
 * out->row is filled also on failure; without a row that counts there is no pass. */
FL_CHECKED fl_status fl_masked_pass(fl_engine *e, const fl_clover *sw, const fl_masked_block *b,
                                    int level, fl_masked_rows *out, fl_err *err);

/* The block as it is becomes part of the sequence, as sw->commit_mode says. */
FL_CHECKED fl_status fl_masked_commit(fl_engine *e, const fl_clover *sw, const int32_t *ids,
                                      fl_err *err);

#endif
