#include "offload/replay.h"

#include <stdlib.h>
#include <string.h>

typedef struct cache {
    const fl_trace *t;
    int n_layer, n_expert, n_slots;
    int n_full;       /* slots below are full */
    int layer;        /* asks now */
    int32_t *key;     /* [n_slots] */
    int32_t *slot_of; /* [n_layer * n_expert]: -1 = not here */
    int32_t *ids;     /* [n_expert]: what the layer asks for, rising */
    int32_t *rows;    /* [n_expert]: rows that chose it, by expert */
    uint64_t *next;   /* [n_slots]: the visit that uses it next; for Belady's optimum */
} cache;

static void free_cache(cache *c)
{
    free(c->key);
    free(c->slot_of);
    free(c->ids);
    free(c->rows);
    free(c->next);
}

static fl_status make_cache(cache *c, const fl_trace *t, int n_slots, fl_err *err)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    const size_t n_keys = (size_t)s->n_layer * (size_t)s->n_expert, slots = (size_t)n_slots + 1;
    *c = (cache){.t = t, .n_layer = s->n_layer, .n_expert = s->n_expert, .n_slots = n_slots};
    c->key = malloc(slots * sizeof *c->key);
    c->slot_of = malloc(n_keys * sizeof *c->slot_of);
    c->ids = malloc((size_t)s->n_expert * sizeof *c->ids);
    c->rows = calloc((size_t)s->n_expert, sizeof *c->rows);
    c->next = calloc(slots, sizeof *c->next);
    if (!c->key || !c->slot_of || !c->ids || !c->rows || !c->next) {
        free_cache(c);
        return FL_FAIL(err, FL_E_NOMEM, 0, "replay of a trace: no memory for %d slots", n_slots);
    }
    memset(c->slot_of, 0xff, n_keys * sizeof *c->slot_of);
    return FL_OK;
}

/* What the layer asks for in that pass; how many experts. */
static int ask(cache *c, int pass, int layer)
{
    const int rows = fl_trace_get_pass(c->t, pass)->rows, k = fl_trace_get_shape(c->t)->top_k;
    int n = 0;
    c->layer = layer;
    memset(c->rows, 0, (size_t)c->n_expert * sizeof *c->rows);
    for (int r = 0; r < rows; r++) {
        fl_trace_row(c->t, pass, layer, r, c->ids);
        for (int i = 0; i < k; i++) c->rows[c->ids[i]]++;
    }
    for (int32_t e = 0; e < c->n_expert; e++)
        if (c->rows[e]) c->ids[n++] = e;
    return n;
}

static int32_t key_of(const cache *c, int i) { return c->layer * c->n_expert + c->ids[i]; }

static bool may_go(void *arg, int slot)
{
    const cache *c = arg;
    return c->key[slot] / c->n_expert != c->layer || !c->rows[c->key[slot] % c->n_expert];
}

static void put(cache *c, int slot, int32_t key)
{
    c->key[slot] = key;
    c->slot_of[key] = slot;
}

static void visit(cache *c, fl_policy *p, int pass, int n, fl_replay_result *out)
{
    out->asked += (uint64_t)n;
    fl_policy_visit(p, c->layer, fl_trace_get_pass(c->t, pass)->rows);
    for (int i = 0; i < n; i++) {
        const int32_t key = key_of(c, i);
        fl_policy_touch(p, key, c->rows[c->ids[i]]);
        out->hits += c->slot_of[key] >= 0;
    }
    for (int i = 0; i < n; i++) {
        const int32_t key = key_of(c, i);
        if (c->slot_of[key] >= 0) continue;
        int slot = c->n_full;
        if (slot < c->n_slots) {
            c->n_full++;
        } else {
            slot = fl_policy_victim(p, may_go, c);
            if (slot < 0) return;
            c->slot_of[c->key[slot]] = -1;
            fl_policy_remove(p, slot);
        }
        put(c, slot, key);
        fl_policy_insert(p, slot, key);
    }
}

fl_status fl_replay_policy(fl_replay_result *out, const fl_trace *t, fl_policy_kind kind,
                           int n_slots, fl_err *err)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    fl_policy *p = NULL;
    cache c;
    *out = (fl_replay_result){0};
    FL_TRY(fl_policy_create(&p, kind, s->n_layer, s->n_expert, n_slots, err));
    const fl_status st = make_cache(&c, t, n_slots, err);
    if (st == FL_OK) {
        for (int i = 0; i < fl_trace_n_passes(t); i++)
            for (int l = 0; l < s->n_layer; l++) visit(&c, p, i, ask(&c, i, l), out);
        free_cache(&c);
    }
    fl_policy_destroy(&p);
    return st;
}

/* ---- Belady ---- */

static const uint64_t NEVER = UINT64_MAX;

/* For each visit's experts, in the order of fl_trace_union, the visit that uses them next. */
static uint64_t *find_next(cache *c, uint64_t *total)
{
    const int n_passes = fl_trace_n_passes(c->t);
    const size_t n_keys = (size_t)c->n_layer * (size_t)c->n_expert;
    uint64_t n = 0;
    for (int i = 0; i < n_passes; i++)
        for (int l = 0; l < c->n_layer; l++) n += (uint64_t)fl_trace_union(c->t, i, l, c->ids);
    *total = n;
    uint64_t *next = malloc((n + 1) * sizeof *next), *soon = malloc(n_keys * sizeof *soon);
    for (size_t k = 0; soon && k < n_keys; k++) soon[k] = NEVER;
    for (int i = n_passes; next && soon && i-- > 0;)
        for (int l = c->n_layer; l-- > 0;) {
            const int k = fl_trace_union(c->t, i, l, c->ids);
            n -= (uint64_t)k;
            for (int j = 0; j < k; j++) {
                uint64_t *at = &soon[l * c->n_expert + c->ids[j]];
                next[n + (uint64_t)j] = *at;
                *at = (uint64_t)i * (uint64_t)c->n_layer + (uint64_t)l;
            }
        }
    if (!soon) {
        free(next);
        next = NULL;
    }
    free(soon);
    return next;
}

/* The slot used the latest, unless that is before `than`: -1. */
static int latest(const cache *c, uint64_t than)
{
    int best = -1;
    for (int i = 0; i < c->n_slots; i++)
        if (c->next[i] > than) {
            than = c->next[i];
            best = i;
        }
    return best;
}

static void visit_knowing(cache *c, int n, const uint64_t *next, fl_replay_result *out)
{
    out->asked += (uint64_t)n;
    for (int i = 0; i < n; i++) {
        const int slot = c->slot_of[key_of(c, i)];
        if (slot < 0) continue;
        c->next[slot] = next[i];
        out->hits++;
    }
    for (int i = 0; i < n; i++) {
        const int32_t key = key_of(c, i);
        if (c->slot_of[key] >= 0) continue;
        const int slot = c->n_full < c->n_slots ? c->n_full++ : latest(c, next[i]);
        if (slot < 0) continue;
        if (c->next[slot] != 0) c->slot_of[c->key[slot]] = -1;
        put(c, slot, key);
        c->next[slot] = next[i];
    }
}

fl_status fl_replay_best(fl_replay_result *out, const fl_trace *t, int n_slots, fl_err *err)
{
    cache c;
    uint64_t total = 0, at = 0;
    *out = (fl_replay_result){0};
    FL_TRY(make_cache(&c, t, n_slots, err));
    uint64_t *next = find_next(&c, &total);
    fl_status st = FL_OK;
    if (!next)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "replay of a trace: no memory for %llu uses",
                      (unsigned long long)total));
    for (int i = 0; i < fl_trace_n_passes(t); i++)
        for (int l = 0; l < c.n_layer; l++) {
            const int n = ask(&c, i, l);
            visit_knowing(&c, n, next + at, out);
            at += (uint64_t)n;
        }
out:
    free(next);
    free_cache(&c);
    return st;
}

/* ---- a set that stays ---- */

static int by_falling_uses(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

fl_status fl_replay_fixed(fl_replay_result *out, const fl_trace *t, int n_slots, fl_err *err)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    const int n_keys = s->n_layer * s->n_expert;
    uint64_t *uses = calloc((size_t)n_keys, sizeof *uses);
    int32_t *ids = malloc((size_t)s->n_expert * sizeof *ids);
    fl_status st = FL_OK;
    *out = (fl_replay_result){0};
    if (!uses || !ids)
        FL_GO(FL_FAIL(err, FL_E_NOMEM, 0, "replay of a trace: no memory for %d experts", n_keys));
    for (int p = 0; p < fl_trace_n_passes(t); p++)
        for (int l = 0; l < s->n_layer; l++) {
            const int n = fl_trace_union(t, p, l, ids);
            out->asked += (uint64_t)n;
            for (int i = 0; i < n; i++) uses[l * s->n_expert + ids[i]]++;
        }
    qsort(uses, (size_t)n_keys, sizeof *uses, by_falling_uses);
    for (int k = 0; k < n_keys && k < n_slots; k++) out->hits += uses[k];
out:
    free(uses);
    free(ids);
    return st;
}
