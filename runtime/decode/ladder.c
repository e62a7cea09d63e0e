#include "runtime/decode/ladder.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime/base/options.h"

static fl_status reserve(fl_ladder *l, int n, fl_err *err)
{
    char size[32];
    l->rung = calloc((size_t)n, sizeof(*l->rung));
    if (!l->rung) return FL_FAIL(err, FL_E_NOMEM, 0, "checkpoints: out of memory");
    l->bytes = (uint64_t)n * l->copy_bytes;
    void *p = mmap(NULL, l->bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return FL_FAIL(err, FL_E_NOMEM, 0,
                       "checkpoints: the machine refused %s; lower --state-budget",
                       fl_size_format(size, l->bytes));
    l->memory = p;
    l->n_max = n;
    for (int i = 0; i < n; i++) l->rung[i].copy.memory = l->memory + (uint64_t)i * l->copy_bytes;
    return FL_OK;
}

fl_status fl_ladder_create(fl_ladder **out, uint64_t copy_bytes, uint64_t budget, int64_t max_rungs,
                           fl_err *err)
{
    uint64_t bytes = 0;
    int n = 0;
    FL_TRY(fl_state_fit_copies(copy_bytes, budget, max_rungs, &bytes, &n, err));
    fl_ladder *l = calloc(1, sizeof(*l));
    if (!l) return FL_FAIL(err, FL_E_NOMEM, 0, "checkpoints: out of memory");
    l->copy_bytes = bytes;
    const fl_status st = n > 0 ? reserve(l, n, err) : FL_OK;
    if (st != FL_OK) fl_ladder_destroy(&l);
    *out = l;
    return st;
}

void fl_ladder_destroy(fl_ladder **ladder)
{
    fl_ladder *l = *ladder;
    if (!l) return;
    if (l->memory) munmap(l->memory, l->bytes);
    free(l->rung);
    free(l);
    *ladder = NULL;
}

int64_t fl_ladder_top(const fl_ladder *l) { return l->n ? l->rung[l->n - 1].copy.n : 0; }

/* Rung i must not go when a new one needs its memory; `messages` start above it. */
static bool is_kept(const fl_ladder *l, int i, int messages)
{
    const int quarter = l->n_max / 4;
    const int recent = quarter < FL_LADDER_RECENT ? quarter : FL_LADDER_RECENT;
    return (l->rung[i].kind & (FL_RUNG_ANSWER | FL_RUNG_HEAD)) ||
           ((l->rung[i].kind & FL_RUNG_MESSAGE) && messages < recent);
}

/* The rung that is missed least when one at position n is to come on top; the oldest on ties. */
static int least(const fl_ladder *l, int64_t n)
{
    int64_t best_cost = 0;
    int best = -1, messages = 0;
    int64_t above = n;
    for (int i = l->n - 1; i >= 0; i--) {
        const int64_t below = i ? l->rung[i - 1].copy.n : 0;
        const int64_t cost = (above - below) * (l->rung[i].kind == FL_RUNG_FILL ? 1 : 2);
        if (!is_kept(l, i, messages) && (best < 0 || cost <= best_cost)) {
            best = i;
            best_cost = cost;
        }
        messages += (l->rung[i].kind & FL_RUNG_MESSAGE) != 0;
        above = l->rung[i].copy.n;
    }
    return best < 0 ? l->n - 1 : best;
}

/* Takes rung i away; its memory goes behind the rungs in use. */
static void take_away(fl_ladder *l, int i)
{
    const fl_rung gone = l->rung[i];
    for (; i + 1 < l->n; i++) l->rung[i] = l->rung[i + 1];
    l->rung[--l->n] = gone;
}

fl_state_copy *fl_ladder_put(fl_ladder *l, int64_t n, unsigned kind)
{
    assert(n > 0 && n >= fl_ladder_top(l));
    if (l->n_max == 0) return NULL;
    const unsigned single = kind & (FL_RUNG_ANSWER | FL_RUNG_HEAD);
    for (int i = 0; i < l->n; i++) l->rung[i].kind &= ~single;
    if (fl_ladder_top(l) == n) {
        l->rung[l->n - 1].kind |= kind;
        return NULL;
    }
    if (l->n == l->n_max) take_away(l, least(l, n));
    fl_rung *r = &l->rung[l->n++];
    r->kind = kind;
    r->copy.n = n;
    return &r->copy;
}

const fl_rung *fl_ladder_find(const fl_ladder *l, int64_t n)
{
    for (int i = l->n - 1; i >= 0; i--)
        if (l->rung[i].copy.n <= n) return &l->rung[i];
    return NULL;
}

void fl_ladder_drop(fl_ladder *l, int64_t n)
{
    while (fl_ladder_top(l) > n) l->n--;
}
