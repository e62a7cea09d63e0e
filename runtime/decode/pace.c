#include "runtime/decode/pace.h"

void fl_pace_init(fl_pace *p) { *p = (fl_pace){.turn = FL_PACE_STEPS, .next_turn = FL_PACE_TURN}; }

bool fl_pace_wants_step(fl_pace *p)
{
    if (p->turn == 0) return false;
    p->turn--;
    return true;
}

void fl_pace_step(fl_pace *p, uint64_t ns)
{
    if (p->n_steps < FL_PACE_WINDOW) p->n_steps++;
    p->step_ns += ((double)ns - p->step_ns) / p->n_steps;
}

/* AR gets a turn of so many tokens; speculation starts afresh after it. */
static void give_turn(fl_pace *p, int tokens, int next_turn)
{
    p->turn = tokens;
    p->next_turn = next_turn;
    p->debt_ns = 0.0;
    p->rounds = 0;
}

void fl_pace_round(fl_pace *p, uint64_t ns, int64_t tokens)
{
    const double limit = FL_PACE_DEBT * p->step_ns;
    p->rounds++;
    p->debt_ns += (double)ns - (double)tokens * p->step_ns;
    /* Old gains must not pay for a text that has become hard. */
    if (p->debt_ns < -limit) p->debt_ns = -limit;
    if (p->debt_ns > limit)
        give_turn(p, p->next_turn,
                  2 * p->next_turn < FL_PACE_LONGEST ? 2 * p->next_turn : FL_PACE_LONGEST);
    else if (p->rounds >= FL_PACE_REFRESH)
        give_turn(p, 1, FL_PACE_TURN);
}
