#include "runtime/decode/guard.h"

void fl_guard_start(fl_guard *g, int32_t open_id, int32_t close_id)
{
    *g = (fl_guard){.open_id = open_id, .close_id = close_id};
}

/* Counts the matches of every period; true when one of them fills the window. The shortest wins. */
static bool loops(fl_guard *g, int32_t id)
{
    const int most = g->n < FL_LOOP_PERIOD ? (int)g->n : FL_LOOP_PERIOD;
    for (int p = 1; p <= most; p++) {
        const bool match = g->last[(g->n - p) % FL_LOOP_PERIOD] == id;
        g->same[p - 1] = match ? g->same[p - 1] + 1 : 0;
        if (g->period == 0 && g->same[p - 1] >= FL_LOOP_TOKENS - p) g->period = p;
    }
    g->last[g->n % FL_LOOP_PERIOD] = id;
    g->n++;
    return g->period > 0;
}

fl_guard_event fl_guard_push(fl_guard *g, int32_t id)
{
    const bool tag = id >= 0 && id == g->close_id;
    const bool again = tag && g->closed;
    if (tag) g->closed = true;
    if (id >= 0 && id == g->open_id) g->closed = false;
    if (loops(g, id)) return FL_GUARD_LOOP;
    return again ? FL_GUARD_TAG : FL_GUARD_GO;
}
