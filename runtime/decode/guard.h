#ifndef FL_DECODE_GUARD_H
#define FL_DECODE_GUARD_H

#include <stdbool.h>
#include <stdint.h>

/* Ends a text that runs in circles. Two rules, over generated tokens alone:
 *
 * loop: for some period p in 1 .. 64 each of the last 256 - p tokens equals the one p places before
 * it, so that the last 256 tokens are one phrase of p tokens, again and again. The text ends with
 * the very token that completes the 256.
 *
 * closing tag: a `</think>` while an earlier one stands in the text with no `<think>` behind it.
 *
 * A token costs 64 comparisons, whatever the length of the text. */

enum { FL_LOOP_PERIOD = 64, FL_LOOP_TOKENS = 256 };

typedef struct fl_guard {
    int32_t open_id, close_id;    /* `<think>`, `</think>`; -1 = the vocabulary has none */
    bool closed;                  /* the last tag in the text was a closing one */
    int64_t n;                    /* tokens seen */
    int32_t last[FL_LOOP_PERIOD]; /* token i of the text at i % 64 */
    int same[FL_LOOP_PERIOD];     /* [p - 1]: latest tokens in a row equal to those p before */
    int period;                   /* of the loop that ended the text; 0 = none */
} fl_guard;

typedef enum fl_guard_event { FL_GUARD_GO, FL_GUARD_LOOP, FL_GUARD_TAG } fl_guard_event;

void fl_guard_start(fl_guard *g, int32_t open_id, int32_t close_id);
/* The next token of the text. After anything but GO the text is over. */
fl_guard_event fl_guard_push(fl_guard *g, int32_t id);

#endif
