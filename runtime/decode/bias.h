#ifndef FL_DECODE_BIAS_H
#define FL_DECODE_BIAS_H

#include <stdint.h>

#include "runtime/base/status.h"

/* What is added to logits by choice and not by what was said. */

/* ---- by token ---- */

enum { FL_MAX_BIASES = 256, FL_BIAS_LIMIT = 100 };

typedef struct fl_logit_bias {
    int32_t id;
    float value; /* -100 to 100, or -INFINITY: never picked, as if the model had no such token */
} fl_logit_bias;

/* "ID:VALUE[,ID:VALUE...]", VALUE from -100 to 100 or -inf, each id once. FL_E_ARG quotes the item
 * that is wrong and says what is expected. */
FL_CHECKED fl_status fl_logit_bias_parse(const char *text, fl_logit_bias out[FL_MAX_BIASES], int *n,
                                         fl_err *err);

/* ---- by length: the end of a long thought or answer becomes likelier ---- */

/* Behind `think` tokens of thinking `</think>` gets slope * (tokens beyond) on its logit, behind
 * `answer` tokens of the answer the end token does. Thinking is counted from the first generated
 * token, the answer from the first one behind the first generated `</think>`, or from the first
 * generated token where nothing was thought. The token at distance think + 1 is the first with a
 * bias. */
typedef struct fl_soft_config {
    int64_t think, answer; /* tokens; 0 = no bias for this part */
    double slope;          /* logit per token, 0 to 10; 0 = off */
} fl_soft_config;

typedef struct fl_soft_ids {
    int32_t open, close; /* `<think>`, `</think>`; -1 = none */
    int32_t end;         /* -1 = none, or it is not to end the text */
} fl_soft_ids;

/* Where the text stands. All positions are absolute; tokens may become final in any order. */
typedef struct fl_soft {
    fl_soft_config c;
    fl_soft_ids ids;
    int64_t start;    /* position of the first generated token */
    int64_t open_at;  /* lowest position of a `<think>`: start - 1 when the prompt leaves it open */
    int64_t close_at; /* lowest position of a generated `</think>`; INT64_MAX = none yet */
} fl_soft;

void fl_soft_begin(fl_soft *s, const fl_soft_config *c, fl_soft_ids ids, const int32_t *prompt,
                   int64_t n_prompt);
/* The token at `pos` is final. */
void fl_soft_take(fl_soft *s, int32_t id, int64_t pos);
/* The bias of one position, given the final tokens before it; value 0 = none. */
fl_logit_bias fl_soft_at(const fl_soft *s, int64_t pos);

#endif
