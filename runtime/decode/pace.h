#ifndef FL_DECODE_PACE_H
#define FL_DECODE_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Which of AR and speculation goes on, by what their tokens have cost of late. Their text is the
 * same, so the clock may decide. Each round of speculation is set against the time of as many AR
 * tokens; once it has lost the time of FL_PACE_DEBT AR tokens, on balance, AR gets a turn. Turns
 * double until speculation has held out for FL_PACE_REFRESH rounds: drafts that lose cost little,
 * and a text that becomes easier to draft is found out. Private to runtime/decode. */

enum {
    FL_PACE_DEBT = 16,
    FL_PACE_TURN = 32,      /* AR tokens of the first turn; twice as many each time ... */
    FL_PACE_LONGEST = 1024, /* ... up to this */
    FL_PACE_STEPS = 2,      /* AR steps at the start: what a token costs there */
    FL_PACE_REFRESH = 64,   /* rounds without a turn after which one AR step looks again */
    FL_PACE_WINDOW = 10     /* AR tokens that its price is the mean of; then a moving one */
};

typedef struct fl_pace {
    double step_ns; /* of one AR token */
    int n_steps;
    double debt_ns; /* what speculation has lost since AR's last turn; gains count as much */
    int turn;       /* AR tokens still to come */
    int next_turn;  /* of the next one */
    int rounds;     /* since AR's last turn */
} fl_pace;

void fl_pace_init(fl_pace *p);
/* True: the next token is AR's. Call once per decision. */
bool fl_pace_wants_step(fl_pace *p);
void fl_pace_step(fl_pace *p, uint64_t ns);
void fl_pace_round(fl_pace *p, uint64_t ns, int64_t tokens);

#endif
