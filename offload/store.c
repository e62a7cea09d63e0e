#include "offload/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "offload/fetch.h"
#include "runtime/base/clock.h"

typedef enum slot_state { EMPTY, FETCHING, READY } slot_state;

/* An expert's key is layer * n_expert + expert. */
typedef struct slot {
    slot_state state;
    int32_t key; /* -1 when EMPTY */
    int leases;
    bool fresh;  /* prefetched and not acquired yet */
    bool passed; /* its layer has come up since it was prefetched */
    uint64_t used;
} slot;

struct fl_store {
    fl_device *dev;
    const fl_plan *plan;
    const fl_expert_place *place;
    fl_fetch *fetch;
    int n_layer, n_expert, n_keys;
    void *resident_memory, *slot_memory; /* device; NULL when of 0 bytes */
    uint64_t *resident_at;               /* [n_keys]: offset in resident_memory */
    int32_t *slot_of;                    /* [n_keys]: slot, or -1 */
    slot *slots;
    int n_slots;
    uint64_t *asked; /* [n_expert]: number of the acquire that named it last (finds doubles) */
    uint64_t n_acquires;
    uint64_t clock;
    int layer;   /* of the last acquire */
    int n_views; /* leased now, residents too */
    fl_store_stats stats;
};

static uint64_t place_bytes(const fl_expert_place *x)
{
    return x->part[0].bytes + x->part[1].bytes + x->part[2].bytes;
}

static uint64_t padded_bytes(const fl_expert_place *x)
{
    uint64_t n = 0;
    for (int k = 0; k < FL_EXPERT_PARTS; k++) n += fl_fetch_padded(x->part[k].bytes);
    return n;
}

static uint8_t *slot_at(const fl_store *s, int i)
{
    return (uint8_t *)s->slot_memory + (uint64_t)i * s->plan->slot_class[0].bytes;
}

static bool is_resident(const fl_store *s, int32_t key)
{
    return s->plan->tier[key] == FL_TIER_DEVICE;
}

/* ---- creation ---- */

static fl_status check_places(const fl_plan *plan, const fl_expert_place *place, fl_err *err)
{
    for (int i = 0; i < plan->in.n_layer * plan->in.n_expert; i++) {
        for (int k = 0; k < FL_EXPERT_PARTS; k++)
            if (place[i].part[k].bytes > plan->in.expert_bytes[i]) goto bad;
        if (padded_bytes(&place[i]) == plan->in.expert_bytes[i]) continue;
    bad:
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "expert %d of layer %d: its place in the file has %" PRIu64
                       " bytes, the plan counted %" PRIu64,
                       i % plan->in.n_expert, i / plan->in.n_expert, padded_bytes(&place[i]),
                       plan->in.expert_bytes[i]);
    }
    return FL_OK;
}

static fl_status take_memory(fl_store *s, fl_io *io, fl_err *err)
{
    const fl_plan *p = s->plan;
    const size_t n = (size_t)s->n_keys;
    s->resident_at = calloc(n + 1, sizeof *s->resident_at);
    s->slot_of = malloc((n + 1) * sizeof *s->slot_of);
    s->slots = calloc((size_t)s->n_slots + 1, sizeof *s->slots);
    s->asked = calloc((size_t)s->n_expert + 1, sizeof *s->asked);
    if (!s->resident_at || !s->slot_of || !s->slots || !s->asked)
        return FL_FAIL(err, FL_E_NOMEM, errno, "expert store: out of memory for %d experts",
                       s->n_keys);
    memset(s->slot_of, 0xff, n * sizeof *s->slot_of);
    for (int i = 0; i < s->n_slots; i++) s->slots[i].key = -1;
    if (p->n_stages)
        FL_TRY(fl_fetch_create(&s->fetch, s->dev, io, p->n_stages, p->stage_bytes, err));
    if (p->resident_bytes)
        FL_TRY(fl_device_alloc(s->dev, p->resident_bytes, "resident experts", &s->resident_memory,
                               err));
    if (p->n_slots)
        FL_TRY(fl_device_alloc(s->dev, p->slots_bytes, "streaming slots", &s->slot_memory, err));
    return FL_OK;
}

static fl_status load_residents(fl_store *s, void (*progress)(void *, uint64_t, uint64_t),
                                void *arg, fl_err *err)
{
    const uint64_t start = fl_clock_ns();
    uint64_t at = 0, done = 0;
    for (int k = 0; k < s->n_keys; k++) {
        if (!is_resident(s, k)) continue;
        s->resident_at[k] = at;
        at += s->plan->in.expert_bytes[k];
    }
    assert(at == s->plan->resident_bytes);
    int next = 0, under_way = 0;
    for (;;) {
        for (; next < s->n_keys; next++) {
            if (!is_resident(s, next) || !s->plan->in.expert_bytes[next]) continue;
            if (!fl_fetch_free(s->fetch)) break;
            fl_fetch_start(s->fetch, &s->place[next],
                           (uint8_t *)s->resident_memory + s->resident_at[next], (uint64_t)next);
            under_way++;
        }
        if (!under_way) break;
        uint64_t key;
        fl_status st;
        fl_fetch_next(s->fetch, true, &key, &st, err);
        FL_TRY(st);
        under_way--;
        done += s->plan->in.expert_bytes[key];
        s->stats.bytes_loaded += place_bytes(&s->place[key]);
        if (progress) progress(arg, done, s->plan->resident_bytes);
    }
    s->stats.load_ns = fl_clock_ns() - start;
    return FL_OK;
}

fl_status fl_store_create(fl_store **out, fl_device *dev, fl_io *io, const fl_plan *plan,
                          const fl_expert_place *place,
                          void (*progress)(void *arg, uint64_t done, uint64_t total),
                          void *progress_arg, fl_err *err)
{
    fl_status st;
    *out = NULL;
    FL_TRY(check_places(plan, place, err));
    fl_store *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(err, FL_E_NOMEM, errno, "expert store: out of memory");
    s->dev = dev;
    s->plan = plan;
    s->place = place;
    s->n_layer = plan->in.n_layer;
    s->n_expert = plan->in.n_expert;
    s->n_keys = s->n_layer * s->n_expert;
    s->n_slots = plan->n_slots;
    s->layer = -1;
    FL_GO(take_memory(s, io, err));
    FL_GO(load_residents(s, progress, progress_arg, err));
    *out = s;
    s = NULL;
out:
    fl_store_destroy(&s);
    return st;
}

void fl_store_destroy(fl_store **sp)
{
    fl_store *s = *sp;
    if (!s) return;
    assert(s->n_views == 0 && "expert store destroyed with open leases");
    fl_fetch_destroy(&s->fetch);
    fl_device_free(s->dev, &s->slot_memory);
    fl_device_free(s->dev, &s->resident_memory);
    free(s->asked);
    free(s->slots);
    free(s->slot_of);
    free(s->resident_at);
    free(s);
    *sp = NULL;
}

/* ---- slots ---- */

/* Takes in one finished fetch; returns its slot, or -1 when none is finished. */
static int settle_one(fl_store *s, bool block, fl_status *st, fl_err *err)
{
    uint64_t tag;
    if (!fl_fetch_next(s->fetch, block, &tag, st, err)) return -1;
    slot *t = &s->slots[tag];
    assert(t->state == FETCHING);
    if (*st == FL_OK) {
        t->state = READY;
        s->stats.bytes_read += place_bytes(&s->place[t->key]);
    } else { /* its lease, if it has one, is dropped by the acquire that failed */
        s->slot_of[t->key] = -1;
        t->state = EMPTY;
        t->key = -1;
        t->fresh = false;
        s->stats.failed++;
    }
    return (int)tag;
}

/* Failures seen here are those of prefetches and of acquires that are over. */
static void settle(fl_store *s)
{
    fl_status st;
    if (s->fetch)
        while (settle_one(s, false, &st, NULL) >= 0) {}
}

static bool evictable(const fl_store *s, const slot *t, int prefetch_layer)
{
    if (t->leases || t->state == FETCHING) return false;
    if (t->state == EMPTY || prefetch_layer < 0) return true;
    const int layer = t->key / s->n_expert;
    return (!t->fresh || t->passed) && layer != s->layer && layer != prefetch_layer;
}

/* The slot to overwrite next, or -1. prefetch_layer: -1 for acquire. */
static int victim(const fl_store *s, int prefetch_layer)
{
    int best = -1;
    for (int i = 0; i < s->n_slots; i++) {
        const slot *t = &s->slots[i];
        if (!evictable(s, t, prefetch_layer)) continue;
        if (t->state == EMPTY) return i;
        if (best < 0 || t->used < s->slots[best].used) best = i;
    }
    return best;
}

static void start(fl_store *s, int i, int32_t key)
{
    slot *t = &s->slots[i];
    if (t->state == READY) {
        s->slot_of[t->key] = -1;
        s->stats.evicted++;
    }
    *t = (slot){.state = FETCHING, .key = key, .used = ++s->clock};
    s->slot_of[key] = i;
    fl_fetch_start(s->fetch, &s->place[key], slot_at(s, i), (uint64_t)i);
}

/* ---- leases ---- */

static void fill_view(const fl_store *s, int32_t key, fl_expert_view *v)
{
    const fl_expert_place *x = &s->place[key];
    const uint8_t *base = v->slot >= 0 ? slot_at(s, v->slot)
                                       : (const uint8_t *)s->resident_memory + s->resident_at[key];
    v->expert = key % s->n_expert;
    for (int k = 0; k < FL_EXPERT_PARTS; k++) {
        v->part[k] = x->part[k].bytes ? base : NULL;
        base += fl_fetch_padded(x->part[k].bytes);
    }
}

enum { NO_SLOT_YET = -2 };

/* Leases what is there or on its way, before anything is evicted. Returns how many are missing. */
static int lease_present(fl_store *s, int layer, const int32_t *ids, int n, fl_expert_view *views)
{
    int missing = 0;
    s->n_acquires++;
    for (int i = 0; i < n; i++) {
        assert(ids[i] >= 0 && ids[i] < s->n_expert);
        assert(s->asked[ids[i]] != s->n_acquires && "an expert named twice");
        s->asked[ids[i]] = s->n_acquires;
        const int32_t key = layer * s->n_expert + ids[i];
        if (is_resident(s, key)) {
            views[i].slot = -1;
        } else if (s->slot_of[key] >= 0) {
            slot *t = &s->slots[s->slot_of[key]];
            views[i].slot = s->slot_of[key];
            t->leases++;
            t->used = ++s->clock;
        } else {
            views[i].slot = NO_SLOT_YET;
            missing++;
        }
    }
    return missing;
}

static void count(fl_store *s, int n, int missing, const fl_expert_view *views)
{
    s->stats.acquired += (uint64_t)n;
    s->stats.missed += (uint64_t)missing;
    for (int i = 0; i < n; i++) {
        s->stats.hit_resident += views[i].slot == -1;
        s->stats.hit_slot += views[i].slot >= 0;
        if (views[i].slot >= 0 && s->slots[views[i].slot].fresh) {
            s->stats.prefetch_used++;
            s->slots[views[i].slot].fresh = false;
        }
    }
}

static void drop(fl_store *s, const fl_expert_view *views, int n)
{
    for (int i = 0; i < n; i++) {
        if (views[i].slot < 0) continue;
        assert(s->slots[views[i].slot].leases > 0);
        s->slots[views[i].slot].leases--;
    }
}

static int n_unleased(const fl_store *s)
{
    int n = 0;
    for (int i = 0; i < s->n_slots; i++) n += s->slots[i].leases == 0;
    return n;
}

static bool all_ready(const fl_store *s, const fl_expert_view *views, int n)
{
    for (int i = 0; i < n; i++)
        if (views[i].slot >= 0 && s->slots[views[i].slot].state != READY) return false;
    return true;
}

/* Starts the missing ones as slots and stages allow and waits until all are READY. */
static fl_status bring(fl_store *s, int layer, const int32_t *ids, int n, fl_expert_view *views,
                       fl_err *err)
{
    for (int next = 0;;) {
        for (; next < n; next++) {
            if (views[next].slot != NO_SLOT_YET) continue;
            if (!fl_fetch_free(s->fetch)) break;
            const int i = victim(s, -1);
            if (i < 0) break; /* what is free of leases is still being prefetched */
            start(s, i, layer * s->n_expert + ids[next]);
            s->slots[i].leases = 1;
            views[next].slot = i;
        }
        if (next == n && all_ready(s, views, n)) return FL_OK;
        fl_status st;
        fl_err why = {0};
        const uint64_t since = fl_clock_ns();
        const int i = settle_one(s, true, &st, &why);
        s->stats.wait_ns += fl_clock_ns() - since;
        if (st != FL_OK && (i < 0 || s->slots[i].leases)) { /* ours: nobody else waits */
            if (err && err->code == FL_OK) *err = why;
            return st;
        }
    }
}

fl_status fl_store_acquire(fl_store *s, int layer, const int32_t *ids, int n, fl_expert_view *views,
                           fl_err *err)
{
    assert(layer >= 0 && layer < s->n_layer && n >= 0);
    settle(s);
    const int missing = lease_present(s, layer, ids, n, views);
    const int n_free = n_unleased(s);
    assert(missing <= s->n_slots);
    fl_status st = FL_OK;
    if (missing > n_free) {
        st = FL_FAIL(err, FL_E_BUSY, 0,
                     "layer %d: %d experts are to be read, %d of %d slots are free of leases",
                     layer, missing, n_free, s->n_slots);
        goto out;
    }
    count(s, n, missing, views);
    s->layer = layer;
    FL_GO(bring(s, layer, ids, n, views, err));
    for (int i = 0; i < n; i++) fill_view(s, layer * s->n_expert + ids[i], &views[i]);
    s->n_views += n;
    /* This layer's turn has come: what was read ahead for it and is not wanted may go, later. */
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].fresh && s->slots[i].key / s->n_expert == layer) s->slots[i].passed = true;
out:
    if (st != FL_OK) drop(s, views, n);
    return st;
}

void fl_store_release(fl_store *s, int layer, const fl_expert_view *views, int n)
{
    for (int i = 0; i < n; i++) {
        if (views[i].slot < 0) continue;
        slot *t = &s->slots[views[i].slot];
        assert(t->state == READY && t->key == layer * s->n_expert + views[i].expert);
        t->used = ++s->clock;
    }
    (void)layer;
    drop(s, views, n);
    assert(s->n_views >= n);
    s->n_views -= n;
    settle(s);
}

void fl_store_prefetch(fl_store *s, int layer, const int32_t *ids, int n)
{
    assert(layer >= 0 && layer < s->n_layer);
    if (!s->n_slots) return;
    settle(s);
    for (int k = 0; k < n; k++) {
        assert(ids[k] >= 0 && ids[k] < s->n_expert);
        const int32_t key = layer * s->n_expert + ids[k];
        if (is_resident(s, key)) continue;
        if (s->slot_of[key] >= 0) {
            s->slots[s->slot_of[key]].used = ++s->clock;
            continue;
        }
        const int i = victim(s, layer);
        if (i < 0 || fl_fetch_free(s->fetch) <= s->plan->n_stages / 2) return;
        start(s, i, key);
        s->slots[i].fresh = true;
        s->stats.prefetched++;
    }
}

/* ---- questions ---- */

int fl_store_lease_max(const fl_store *s) { return s->n_slots; }

bool fl_store_is_resident(const fl_store *s, int layer, int expert)
{
    return is_resident(s, layer * s->n_expert + expert);
}

bool fl_store_is_present(const fl_store *s, int layer, int expert)
{
    const int key = layer * s->n_expert + expert;
    return is_resident(s, key) ||
           (s->slot_of[key] >= 0 && s->slots[s->slot_of[key]].state == READY);
}

fl_store_stats fl_store_get_stats(const fl_store *s) { return s->stats; }

void fl_store_describe(const fl_store *s, fl_text *out)
{
    fl_text_printf(out, "%d experts are leased\n", s->n_views);
    for (int i = 0; i < s->n_slots; i++) {
        const slot *t = &s->slots[i];
        if (t->state != FETCHING) continue;
        fl_text_printf(out, "expert %d of layer %d, for slot %d: ", t->key % s->n_expert,
                       t->key / s->n_expert, i);
        fl_fetch_describe(s->fetch, (uint64_t)i, out);
        fl_text_puts(out, "\n");
    }
}

int fl_store_n_leased(const fl_store *s) { return s->n_views; }

bool fl_store_is_sane(const fl_store *s)
{
    int in_slots = 0, named = 0, fetching = 0, leases = 0;
    for (int i = 0; i < s->n_slots; i++) {
        const slot *t = &s->slots[i];
        if ((t->state == EMPTY) != (t->key < 0) || t->leases < 0) return false;
        if (t->state == EMPTY && (t->leases || t->fresh)) return false;
        if (t->state == FETCHING && t->leases) return false; /* between calls nobody waits */
        if (t->key >= 0 && (s->slot_of[t->key] != i || is_resident(s, t->key))) return false;
        in_slots += t->key >= 0;
        fetching += t->state == FETCHING;
        leases += t->leases;
    }
    for (int k = 0; k < s->n_keys; k++) named += s->slot_of[k] >= 0;
    if (s->fetch && fetching != s->plan->n_stages - fl_fetch_free(s->fetch)) return false;
    const fl_store_stats *t = &s->stats;
    return named == in_slots && leases <= s->n_views &&
           t->acquired == t->hit_resident + t->hit_slot + t->missed &&
           t->prefetch_used <= t->prefetched;
}
