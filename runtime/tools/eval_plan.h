#ifndef FL_TOOLS_EVAL_PLAN_H
#define FL_TOOLS_EVAL_PLAN_H

#include "runtime/tools/corpus.h"
#include "runtime/tools/masked.h"

/* Which rows of a text eval measures, and the passes that give them.
 *
 * A plain text file is cut into windows of `ctx` tokens, what is behind the last whole one is left
 * out; the tokens behind the first ctx / 2 + 1 of a window are scored, as llama.cpp's
 * llama-perplexity does it (so each has at least half a window before it). A line of a .jsonl file
 * is one window, cut at `ctx` tokens; what is behind its prompt is scored (`prompts`: all but the
 * first token). A window starts from an empty sequence; the models' tokenizers have no token that
 * begins a text, none is put there.
 *
 * Causal path: each scored token from all before it in the window. Block passes: the blocks that
 * hold scored tokens, each once per level with those of the level masked (masked.h), what is before
 * it clean; a last block that reaches past the window is left out. */
typedef struct fl_eval_window {
    int doc;            /* number of its document */
    int64_t start;      /* in the document */
    int n, from;        /* tokens; the first scored one */
    int block_to;       /* block passes score those before it */
    const int32_t *ids; /* [n] */
} fl_eval_window;

typedef struct fl_eval_plan {
    const fl_corpus *text; /* borrowed */
    int ctx;
    fl_eval_window *window; /* malloc'ed */
    int64_t n_windows;      /* at most those of the text */
    bool causal;            /* rows of the causal path are wanted */
    int block_size;         /* 0: no block passes */
    bool prompts;           /* of JSON lines are scored too */
    int32_t fill;           /* what follows a window to the end of its last block */
} fl_eval_plan;

/* Finds the windows; the other fields are set already. align: where the model's blocks begin. */
FL_CHECKED fl_status fl_eval_plan_windows(fl_eval_plan *p, fl_block_align align, fl_err *err);

/* Rows of a window: of the causal path, of block passes. 0 where they are not wanted. */
int64_t fl_eval_causal_rows(const fl_eval_plan *p, int64_t w);
int64_t fl_eval_block_rows(const fl_eval_plan *p, int64_t w);
int64_t fl_eval_all_rows(const fl_eval_plan *p);

/* Up to FL_MAX_BLOCK rows of one pass, in the order of the file of logits. */
enum { FL_EVAL_CAUSAL = -1 };
typedef struct fl_eval_rows {
    int level; /* of a block pass, or FL_EVAL_CAUSAL */
    int64_t window;
    int n;
    const int *pos; /* of the tokens that the rows predict, in the window; rising */
    int32_t id[FL_MAX_BLOCK];
    const float *logits; /* [n][n_vocab] */
} fl_eval_rows;
typedef fl_status (*fl_eval_sink)(void *arg, const fl_eval_rows *rows, fl_err *err);

/* All rows of a window: the causal ones, then block by block and level by level. */
FL_CHECKED fl_status fl_eval_run_window(fl_engine *e, const fl_clover *sw, const fl_eval_plan *p,
                                        int64_t w, fl_eval_sink sink, void *arg, fl_err *err);

#endif
