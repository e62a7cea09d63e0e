#include "offload/policy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* By trial over the traces of bench/traces; the figures change little when these do. */
static const double FAST = 0.05, SLOW = 0.001; /* a row's weight in the running means */
static const double SLOW_SHARE = 0.05;
/* Of an expert that is not used, so that its value is finite. */
static const double LEAST_RATE = 1e-5;
static const double LFU_KEEP = 0.98923; /* 64 times itself: 1/2 */

struct fl_policy {
    fl_policy_kind kind;
    int n_layer, n_expert, n_slots;
    int layer, rows;    /* of the present visit */
    uint64_t clock;     /* counts touches and inserts */
    double *fast;       /* [n_keys] lru: clock of the last use; lfu: uses; block: running mean */
    double *slow;       /* [n_keys] block: the long running mean */
    int32_t *slot_of;   /* [n_keys]: -1 = in none */
    int32_t *key;       /* [n_slots]: -1 = empty */
    double *value;      /* [n_slots] of a full one: the larger, the sooner it goes (block: times
                           the distance) */
    int32_t *key_layer; /* [n_slots] of a full one: its expert's */
};

static const char *const names[FL_N_POLICIES] = {"lru", "lfu", "block"};

const char *fl_policy_name(fl_policy_kind kind) { return names[kind]; }

bool fl_policy_find(const char *name, fl_policy_kind *kind)
{
    for (int i = 0; i < FL_N_POLICIES; i++)
        if (strcmp(names[i], name) == 0) {
            *kind = (fl_policy_kind)i;
            return true;
        }
    return false;
}

fl_status fl_policy_create(fl_policy **out, fl_policy_kind kind, int n_layer, int n_expert,
                           int n_slots, fl_err *err)
{
    const size_t keys = (size_t)n_layer * (size_t)n_expert + 1, slots = (size_t)n_slots + 1;
    fl_policy *p = calloc(1, sizeof *p);
    *out = NULL;
    if (p) {
        *p = (fl_policy){
            .kind = kind, .n_layer = n_layer, .n_expert = n_expert, .n_slots = n_slots, .rows = 1};
        p->fast = calloc(keys, sizeof *p->fast);
        p->slow = calloc(keys, sizeof *p->slow);
        p->slot_of = malloc(keys * sizeof *p->slot_of);
        p->key = malloc(slots * sizeof *p->key);
        p->value = calloc(slots, sizeof *p->value);
        p->key_layer = calloc(slots, sizeof *p->key_layer);
    }
    if (!p || !p->fast || !p->slow || !p->slot_of || !p->key || !p->value || !p->key_layer) {
        fl_policy_destroy(&p);
        return FL_FAIL(err, FL_E_NOMEM, 0, "cache policy: no memory for %d slots", n_slots);
    }
    memset(p->slot_of, 0xff, keys * sizeof *p->slot_of);
    memset(p->key, 0xff, slots * sizeof *p->key);
    *out = p;
    return FL_OK;
}

void fl_policy_destroy(fl_policy **policy)
{
    fl_policy *p = *policy;
    if (!p) return;
    free(p->fast);
    free(p->slow);
    free(p->slot_of);
    free(p->key);
    free(p->value);
    free(p->key_layer);
    free(p);
    *policy = NULL;
}

static void set_value(fl_policy *p, int32_t key)
{
    const int slot = p->slot_of[key];
    if (slot < 0) return;
    if (p->kind == FL_POLICY_BLOCK) {
        const double rate = (1.0 - SLOW_SHARE) * p->fast[key] + SLOW_SHARE * p->slow[key];
        p->value[slot] = 1.0 + 1.0 / ((rate + LEAST_RATE) * p->rows);
    } else {
        p->value[slot] = -p->fast[key];
    }
}

void fl_policy_visit(fl_policy *p, int layer, int rows)
{
    const double fast = p->kind == FL_POLICY_LFU ? LFU_KEEP : 1.0 / (1.0 + FAST * rows);
    const double slow = 1.0 / (1.0 + SLOW * rows);
    p->layer = layer;
    p->rows = rows;
    if (p->kind == FL_POLICY_LRU) return;
    for (int32_t k = layer * p->n_expert; k < (layer + 1) * p->n_expert; k++) {
        p->fast[k] *= fast;
        p->slow[k] *= slow;
        set_value(p, k);
    }
}

void fl_policy_touch(fl_policy *p, int32_t key, int rows)
{
    p->clock++;
    if (p->kind == FL_POLICY_LRU) {
        p->fast[key] = (double)p->clock;
    } else if (p->kind == FL_POLICY_LFU) {
        p->fast[key] += 1.0;
    } else { /* visit left the means of a pass in which no row chose it */
        p->fast[key] += rows * FAST / (1.0 + FAST * p->rows);
        p->slow[key] += rows * SLOW / (1.0 + SLOW * p->rows);
    }
    set_value(p, key);
}

void fl_policy_insert(fl_policy *p, int slot, int32_t key)
{
    assert(p->key[slot] < 0 && p->slot_of[key] < 0);
    p->clock++;
    if (p->kind == FL_POLICY_LRU) p->fast[key] = (double)p->clock;
    p->key[slot] = key;
    p->key_layer[slot] = key / p->n_expert;
    p->slot_of[key] = slot;
    set_value(p, key);
}

void fl_policy_remove(fl_policy *p, int slot)
{
    assert(p->key[slot] >= 0);
    p->slot_of[p->key[slot]] = -1;
    p->key[slot] = -1;
}

/* Layers from the present one, which is over or under way, to the next visit of that layer. */
static int distance(const fl_policy *p, int layer)
{
    return layer > p->layer ? layer - p->layer : layer - p->layer + p->n_layer;
}

int fl_policy_victim(const fl_policy *p, bool (*may)(void *arg, int slot), void *arg)
{
    int best = -1;
    double most = 0.0;
    for (int i = 0; i < p->n_slots; i++) {
        if (p->key[i] < 0) continue;
        double v = p->value[i];
        if (p->kind == FL_POLICY_BLOCK) v *= distance(p, p->key_layer[i]);
        if ((best >= 0 && v <= most) || !may(arg, i)) continue;
        most = v;
        best = i;
    }
    return best;
}
