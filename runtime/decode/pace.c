#include "runtime/decode/pace.h"

static void average(fl_pace_mean *m, double value)
{
    if (m->n < FL_PACE_WINDOW) m->n++;
    m->value += (value - m->value) / m->n;
}

void fl_pace_init(fl_pace *p) { *p = (fl_pace){.turn = FL_PACE_STEPS, .next_turn = FL_PACE_TURN}; }

bool fl_pace_wants_step(fl_pace *p)
{
    if (p->turn == 0) return false;
    p->turn--;
    return true;
}

void fl_pace_step(fl_pace *p, uint64_t ns) { average(&p->step_ns, (double)ns); }

void fl_pace_round(fl_pace *p, uint64_t ns, int64_t tokens)
{
    average(&p->round_ns, (double)ns);
    average(&p->round_tokens, (double)tokens);
    /* Means of times and of tokens apart: a mean of quotients would call one round of 1 token and
     * one of 31 dear. */
    const bool dear = p->round_ns.value > p->step_ns.value * p->round_tokens.value;
    p->dear = dear ? p->dear + 1 : 0;
    p->rounds++;
    if (p->dear < FL_PACE_ROUNDS) {
        if (p->rounds < FL_PACE_REFRESH) return;
        p->turn = 1;
        p->next_turn = FL_PACE_TURN;
        p->rounds = 0;
        return;
    }
    p->turn = p->next_turn;
    p->next_turn = 2 * p->next_turn < FL_PACE_LONGEST ? 2 * p->next_turn : FL_PACE_LONGEST;
    p->dear = p->rounds = 0;
    p->round_ns = p->round_tokens = (fl_pace_mean){0};
}
