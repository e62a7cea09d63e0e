#ifndef FL_DECODE_LOOP_H
#define FL_DECODE_LOOP_H

#include "runtime/base/clock.h"
#include "runtime/decode/emit.h"
#include "runtime/decode/generate.h"
#include "runtime/decode/guard.h"
#include "runtime/decode/ladder.h"

/* What the two decoding loops share. Private to runtime/decode. */

struct fl_generator {
    fl_engine *engine;
    fl_sampler *sampler;
    fl_emitter emitter;
    fl_guard guard;
    int32_t *ids; /* [n_ctx] generated */
    uint64_t start_ns;
    fl_ladder *ladder;
    uint64_t resets;       /* of the state when the ladder's rungs were made */
    fl_state_copy *copies; /* [ladder->n_max] those that one pass fills */
    /* one block, [block_size] each */
    int32_t *block;
    int32_t *done; /* the block before it */
    int *rows;
    int64_t *pos;
    fl_pick *picks;
};

/* Counts a token and hands it to the emitter. True when generation is over; out->finish says
 * why. */
bool fl_loop_push(fl_generator *g, const fl_gen_config *c, fl_gen_result *out, int32_t id);

/* They start with the state behind the first fl_loop_start tokens of the prompt and end with
 * out->finish set. */
FL_CHECKED fl_status fl_loop_ar(fl_generator *g, const fl_gen_config *c, fl_gen_result *out,
                                fl_err *err);
FL_CHECKED fl_status fl_loop_spec(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                                  int64_t n_prompt, fl_gen_result *out, fl_err *err);
FL_CHECKED fl_status fl_loop_block(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                                   int64_t n_prompt, fl_gen_result *out, fl_err *err);

/* Picks for the hidden rows g->rows[0 .. n - 1] (as fl_forward_logits has them) into g->picks;
 * their positions are in g->pos, `ahead` as in fl_sampler_pick_rows. */
FL_CHECKED fl_status fl_loop_pick(fl_generator *g, const int32_t *ahead, int n, fl_err *err);
/* Picks the token that follows the state from its last hidden row. */
FL_CHECKED fl_status fl_loop_next(fl_generator *g, int32_t *token, fl_err *err);

/* Tokens of the prompt that run clean before the first pass of the answer; in block mode the
 * remainder heads the first block. */
int64_t fl_loop_start(const fl_gen_config *c, fl_gen_mode mode, int64_t n_prompt);
/* Back to the last state of this sequence that is at most the first `end` tokens of the prompt: the
 * present one if no pass broke it and a prefill would equal it, a checkpoint's, or the empty one.
 */
void fl_loop_go_back(fl_generator *g, const int32_t *prompt, int64_t end);
/* Brings the state there from wherever it is. *go: not canceled. */
FL_CHECKED fl_status fl_loop_prefill(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                                     int64_t n_prompt, bool *go, fl_gen_result *out, fl_err *err);
/* Asks the caller whether to go on; false: out->finish says canceled. */
bool fl_loop_go(const fl_gen_config *c, fl_gen_result *out, int64_t done, int64_t total);
/* After each pass of the answer: a checkpoint where one is due, then the same question. */
bool fl_loop_between(fl_generator *g, const fl_gen_config *c, fl_gen_result *out);

#endif
