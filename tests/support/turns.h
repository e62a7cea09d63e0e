#ifndef FL_TESTS_SUPPORT_TURNS_H
#define FL_TESTS_SUPPORT_TURNS_H

#include "tests/support/decoder.h"

/* Chats as token ids, on the tiny model and on one with room for long ones; and whether what was
 * reused equals what is read afresh. Failures end the test. */
enum { FL_TURNS_CONTEXT = 2048, FL_TURNS_OUT = 40, FL_TURNS_START = 1 };

extern const fl_gen_mode fl_turns_modes[3]; /* AR, block, speculation */

/* Group setup and teardown of cmocka: those of decoder.h, and the file of the long model. */
int fl_turns_setup(void **state);
int fl_turns_teardown(void **state);

/* The long model: context 2,048, one thread. Open one at a time. */
extern fl_tiny_model fl_long;
/* state_budget: 0 = default. */
void fl_long_open(uint32_t kv_type, uint64_t state_budget);
void fl_long_close(void);

/* Messages in a row, each beginning with FL_TURNS_START. */
typedef struct fl_turns {
    int32_t ids[FL_TURNS_CONTEXT];
    int64_t n;
    int64_t start[64];
    int64_t n_starts;
} fl_turns;
/* A chat of one message. */
void fl_turns_begin(fl_turns *c, int n, uint32_t seed);
/* A message of n tokens behind the others. */
void fl_turns_add(fl_turns *c, int n, uint32_t seed);
/* Back to the first `messages` ones. */
void fl_turns_cut(fl_turns *c, int64_t messages);
/* Takes a generated text over, as a client does. */
void fl_turns_append(fl_turns *c, const int32_t *ids, int64_t n);
/* A head and six messages of 2 to 100 tokens, 275 in all. */
void fl_turns_make(fl_turns *c);

/* 40 tokens; sampled or greedy. */
fl_gen_config fl_turns_config(fl_gen_mode mode, bool sampled);
/* Where the answer to a prompt of n tokens begins. */
int64_t fl_turns_answer(fl_gen_mode mode, int64_t n);

/* What a generation gives and leaves behind. */
typedef struct fl_outcome {
    fl_gen_result r;
    int32_t ids[512];
    uint64_t state;     /* hash of n, cache, S and tails */
    float logits[1024]; /* of the state's last hidden row */
} fl_outcome;
void fl_outcome_of(const fl_tiny_model *m, fl_gen_config *c, const fl_turns *chat, fl_outcome *o);
/* The outcome equals, bit for bit, that of a sequence that starts anew; which is then the state. */
void fl_assert_as_fresh(const fl_tiny_model *m, fl_gen_config *c, const fl_turns *chat,
                        const fl_outcome *got);

#endif
