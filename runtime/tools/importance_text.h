#ifndef FL_TOOLS_IMPORTANCE_TEXT_H
#define FL_TOOLS_IMPORTANCE_TEXT_H

#include "runtime/model/sweep.h"

/* The passes that a text is measured by. Each document (corpus.h) is cut into windows of `ctx`
 * tokens, each a sequence of its own. In a model with blocks each block of a window is run twice,
 * as the decoder does: clean, and before that as a block behind the clean rows, with some rows
 * masked: 15, 50, 85 and 100 % in turn (masked.h), which is what a block looks like from its last
 * pass back to its first. Blocks begin where the model's do; a chat's prompt is never masked, so
 * its blocks are those of the answer, and what follows an answer to the end of its block is filled
 * up; else the first block of a window is clean alone. So there are about as many block rows as
 * clean ones. */
typedef struct fl_importance_text {
    fl_sweep_text sweep;
    fl_sweep_pass *pass;
    int32_t *ids;
    int64_t tokens, block_rows; /* clean rows, rows of block passes */
    uint64_t hash;              /* of all that determines the rows */
} fl_importance_text;

/* `limit`: that many tokens from the beginning; 0 = all. FL_E_UNSUPPORTED: the model has no
 * tokenizer; failures of fl_corpus_open. */
FL_CHECKED fl_status fl_importance_text_open(fl_importance_text *t, const fl_model *model,
                                             const fl_clover *sw, const char *const *paths,
                                             int n_paths, int64_t ctx, int64_t limit, fl_err *err);
void fl_importance_text_close(fl_importance_text *t);

#endif
