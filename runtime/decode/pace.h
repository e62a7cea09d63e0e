#ifndef FL_DECODE_PACE_H
#define FL_DECODE_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Which of AR and speculation goes on, by what a token has cost in each of late. Their text is the
 * same, so the clock may decide. Speculation that is dearer over FL_PACE_ROUNDS rounds gives AR a
 * turn; turns double until speculation has held out for FL_PACE_REFRESH rounds, so drafts that lose
 * cost little, and a text that becomes easier to draft is found out. Private to runtime/decode. */

enum {
    FL_PACE_ROUNDS = 8,     /* dear rounds in a row before AR takes over ... */
    FL_PACE_TURN = 32,      /* ... for so many tokens, ... */
    FL_PACE_LONGEST = 1024, /* ... twice as many each time, up to this */
    FL_PACE_STEPS = 2,      /* AR steps at the start: what a token costs there */
    FL_PACE_REFRESH = 64,   /* rounds without a turn after which one AR step looks again */
    FL_PACE_WINDOW = 10     /* what the averages reach back over */
};

/* Mean of the first FL_PACE_WINDOW values, then a moving one. */
typedef struct fl_pace_mean {
    double value;
    int n;
} fl_pace_mean;

typedef struct fl_pace {
    fl_pace_mean step_ns;                /* of one AR token */
    fl_pace_mean round_ns, round_tokens; /* of a round; their quotient is its price of a token */
    int dear;                            /* rounds in a row whose price was above AR's */
    int turn;                            /* AR tokens still to come */
    int next_turn;                       /* AR tokens of the next one */
    int rounds;                          /* since AR's price was last looked at */
} fl_pace;

void fl_pace_init(fl_pace *p);
/* True: the next token is AR's. Call once per decision. */
bool fl_pace_wants_step(fl_pace *p);
void fl_pace_step(fl_pace *p, uint64_t ns);
void fl_pace_round(fl_pace *p, uint64_t ns, int64_t tokens);

#endif
