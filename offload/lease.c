#include <assert.h>
#include <inttypes.h>

#include "offload/store_parts.h"
#include "runtime/base/clock.h"

/* ---- slots ---- */

/* The link's rate is looked at again after so many bytes. */
static const uint64_t LINK_SAMPLE = UINT64_C(1) << 20;

static void look_at_link(fl_store *s)
{
    const uint64_t bytes = fl_device_bytes_copied(s->dev) - s->link_bytes;
    if (bytes < LINK_SAMPLE) return;
    const uint64_t ns = fl_device_copy_ns(s->dev) - s->link_ns;
    fl_lanes_saw_link(&s->lanes, bytes, ns);
    s->link_bytes += bytes;
    s->link_ns += ns;
}

static void clear(fl_store *s, slot *t)
{
    fl_policy_remove(s->policy, (int)(t - s->slots));
    s->slot_of[t->key] = -1;
    t->state = EMPTY;
    t->key = -1;
    t->fresh = false;
    s->stats.failed++;
}

/* Takes in one finished fetch. False: none is finished, *st says whether the drive hangs. A failure
 * of one that the open union waits for is the union's; others are those of prefetches and of unions
 * that are over. */
static bool settle_fetch(fl_store *s, bool block, fl_status *st, fl_err *err)
{
    uint64_t tag;
    fl_err why = {0};
    if (!fl_fetch_next(s->fetch, block, &tag, st, &why)) {
        if (*st != FL_OK && err && err->code == FL_OK) *err = why;
        return false;
    }
    slot *t = &s->slots[tag];
    assert(t->state == FETCHING);
    if (*st == FL_OK) {
        t->state = READY;
        s->stats.bytes_read += fl_store_place_bytes(&s->place[t->key]);
        return true;
    }
    if (t->leases && s->failed == FL_OK) {
        s->failed = *st;
        s->why = why;
    }
    clear(s, t);
    return true;
}

static void settle_copies(fl_store *s)
{
    for (int i = 0; i < s->n_slots && s->n_copying; i++) {
        slot *t = &s->slots[i];
        if (t->state != COPYING || !fl_device_done(s->dev, t->ticket)) continue;
        t->state = READY;
        s->n_copying--;
        s->stats.bytes_copied += fl_store_place_bytes(&s->place[t->key]);
    }
    look_at_link(s);
}

void fl_store_poll(fl_store *s)
{
    fl_status st;
    if (s->fetch && fl_fetch_free(s->fetch) < s->plan->n_stages)
        while (settle_fetch(s, false, &st, NULL)) {}
    settle_copies(s);
    if (s->host) fl_host_poll(s->host);
}

typedef struct search {
    const fl_store *s;
    uint64_t bytes;     /* of the slot */
    int prefetch_layer; /* -1: for a union */
} search;

static bool evictable(void *arg, int i)
{
    const search *f = arg;
    const slot *t = &f->s->slots[i];
    if (t->leases || t->state != READY || t->bytes != f->bytes) return false;
    if (f->prefetch_layer < 0) return true;
    const int layer = t->key / f->s->n_expert;
    return (!t->fresh || t->passed) && layer != f->s->layer && layer != f->prefetch_layer;
}

/* The slot to overwrite next, or -1: of the smallest class that the expert fits, or else of a
 * larger one. prefetch_layer: -1 for a union. */
static int victim(const fl_store *s, int32_t key, int prefetch_layer)
{
    const fl_plan *p = s->plan;
    for (int i = 0; i < s->n_slots; i++)
        /* Leased still: its fetch failed, and the union does not know yet. */
        if (s->slots[i].state == EMPTY && !s->slots[i].leases &&
            s->slots[i].bytes >= p->in.expert_bytes[key])
            return i;
    for (int c = 0; c < p->n_classes; c++) {
        search f = {s, p->slot_class[c].bytes, prefetch_layer};
        if (f.bytes < p->in.expert_bytes[key]) continue;
        const int i = fl_policy_victim(s->policy, evictable, &f);
        if (i >= 0) return i;
    }
    return -1;
}

/* One more of what was read ahead was of use, or of none: read ahead more, or less. */
static void adapt(fl_store *s, bool used)
{
    s->depth += used ? 1 : -1;
    if (s->depth > s->n_slots) s->depth = s->n_slots;
    if (s->depth < 1) s->depth = 1;
}

static void take_slot(fl_store *s, int i, int32_t key, slot_state state)
{
    slot *t = &s->slots[i];
    if (t->state == READY) {
        fl_policy_remove(s->policy, i);
        s->slot_of[t->key] = -1;
        s->stats.evicted++;
        s->stats.misfetched += t->fresh;
        if (t->fresh) adapt(s, false);
    }
    *t = (slot){.at = t->at, .bytes = t->bytes, .state = state, .key = key};
    fl_policy_insert(s->policy, i, key);
    s->slot_of[key] = i;
}

static void start_fetch(fl_store *s, int i, int32_t key)
{
    take_slot(s, i, key, FETCHING);
    fl_fetch_start(s->fetch, &s->place[key], fl_store_slot_at(s, i), (uint64_t)i);
}

static fl_status start_copy(fl_store *s, int i, int32_t key, fl_err *err)
{
    uint8_t *dst = fl_store_slot_at(s, i);
    fl_status st = FL_OK;
    take_slot(s, i, key, COPYING);
    for (int k = 0; k < FL_EXPERT_PARTS; k++) {
        const uint64_t bytes = s->place[key].part[k].bytes;
        if (!bytes) continue;
        FL_GO(fl_device_copy_async(s->dev, dst, fl_host_part(s->host, key, k), bytes,
                                   &s->slots[i].ticket, err));
        dst += fl_fetch_padded(bytes);
    }
    s->n_copying++;
    return FL_OK;
out: /* what was queued before still writes there */
    if (fl_device_wait(s->dev, s->slots[i].ticket, NULL) != FL_OK) s->slots[i].ticket = 0;
    clear(s, &s->slots[i]);
    return st;
}

/* ---- the union: what is wanted ---- */

bool fl_store_may_view(const fl_store *s, int32_t key)
{
    uint64_t low = 0;
    for (int k = 0; k < FL_EXPERT_PARTS; k++) low |= s->place[key].part[k].offset;
    return low % 4 == 0;
}

static bool in_host_tier(const fl_store *s, int32_t key)
{
    return s->host && fl_store_keeps(s, key, FL_TIER_HOST) &&
           fl_host_state_of(s->host, key) != FL_HOST_FAILED;
}

/* Leases what is in device memory or on its way there, before anything is evicted. */
static void lease_present(fl_store *s)
{
    for (int i = 0; i < s->n_wants; i++) {
        want *w = &s->want[i];
        const int at = s->slot_of[w->key];
        if (fl_store_keeps(s, w->key, FL_TIER_DEVICE)) {
            w->slot = FL_VIEW_RESIDENT;
            s->stats.hit_resident++;
        } else if (at >= 0) {
            slot *t = &s->slots[at];
            const uint64_t bytes = s->plan->in.expert_bytes[w->key];
            w->slot = at;
            t->leases++;
            s->stats.hit_slot++;
            s->stats.prefetch_used += t->fresh;
            if (t->fresh) adapt(s, true);
            s->stats.needed_bytes += bytes;
            s->stats.ready_bytes += t->state == READY ? bytes : 0;
            t->fresh = false;
        }
    }
}

/* Gives each absent expert of the host tier its lane. */
static void choose_lanes(fl_store *s, const int32_t *rows)
{
    uint64_t queued = 0;
    int n = 0;
    for (int i = 0; i < s->n_slots && s->n_copying; i++)
        if (s->slots[i].state == COPYING) queued += s->plan->in.expert_bytes[s->slots[i].key];
    for (int i = 0; i < s->n_wants; i++) {
        const int32_t key = s->want[i].key;
        if (s->want[i].slot != NO_SLOT_YET || !in_host_tier(s, key)) continue;
        s->item[n++] =
            (fl_lane_item){.rows = rows ? rows[i] : 1, .bytes = s->plan->in.expert_bytes[key]};
    }
    fl_lanes_split(&s->lanes, s->item, n, queued, s->order);
    n = 0;
    for (int i = 0; i < s->n_wants; i++) {
        want *w = &s->want[i];
        if (w->slot != NO_SLOT_YET) continue;
        const bool host = in_host_tier(s, w->key);
        const bool on_cpu = host && s->item[n++].lane == FL_ON_CPU && fl_store_may_view(s, w->key);
        if (on_cpu) w->slot = FL_VIEW_HOST;
        s->stats.on_cpu += on_cpu;
        s->stats.copied += host && !on_cpu;
        s->stats.missed += !host;
        s->stats.needed_bytes += on_cpu ? 0 : s->plan->in.expert_bytes[w->key];
    }
}

void fl_store_begin(fl_store *s, int layer, int n_rows, const int32_t *ids, const int32_t *rows,
                    int n)
{
    assert(layer >= 0 && layer < s->n_layer && n >= 0 && n <= s->n_expert);
    assert(s->n_wants == 0 && "two unions at once");
    fl_store_poll(s);
    s->n_unions++;
    s->n_wants = n;
    s->n_given = 0;
    s->failed = FL_OK;
    s->why = (fl_err){0};
    s->layer = layer;
    s->stats.acquired += (uint64_t)n;
    fl_policy_visit(s->policy, layer, n_rows);
    if (s->ahead) fl_ahead_saw(s->ahead, layer, ids, n);
    for (int i = 0; i < n; i++) {
        assert(ids[i] >= 0 && ids[i] < s->n_expert);
        assert(s->asked[ids[i]] != s->n_unions && "an expert named twice");
        s->asked[ids[i]] = s->n_unions;
        s->want[i] = (want){.key = layer * s->n_expert + ids[i], .slot = NO_SLOT_YET};
        fl_policy_touch(s->policy, s->want[i].key, rows ? rows[i] : 1);
    }
    lease_present(s);
    choose_lanes(s, rows);
    /* This layer's turn has come: what was read ahead for it and is not wanted may go, later. */
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].fresh && s->slots[i].key / s->n_expert == layer) s->slots[i].passed = true;
}

/* ---- the union: bringing it ---- */

/* Starts one that has no slot yet, if it can be started now. */
static fl_status start_want(fl_store *s, want *w, fl_err *err)
{
    const bool host = in_host_tier(s, w->key);
    if (host && fl_host_state_of(s->host, w->key) != FL_HOST_THERE) {
        fl_host_hurry(s->host, w->key);
        return FL_OK;
    }
    if (!host && !fl_fetch_free(s->fetch)) return FL_OK;
    const int i = victim(s, w->key, -1);
    if (i < 0) return FL_OK; /* all leased, or still being prefetched */
    if (host)
        FL_TRY(start_copy(s, i, w->key, err));
    else
        start_fetch(s, i, w->key);
    w->slot = i;
    s->slots[i].leases = 1;
    return FL_OK;
}

static fl_status start_wants(fl_store *s, fl_err *err)
{
    for (int i = 0; i < s->n_wants; i++) {
        want *w = &s->want[i];
        if (w->slot == FL_VIEW_HOST && !w->given) {
            if (in_host_tier(s, w->key))
                fl_host_hurry(s->host, w->key);
            else /* its read failed meanwhile: the file has the last word */
                w->slot = NO_SLOT_YET;
        }
        if (w->slot == NO_SLOT_YET) FL_TRY(start_want(s, w, err));
    }
    return FL_OK;
}

static bool is_ready(const fl_store *s, const want *w)
{
    if (w->given || w->slot == NO_SLOT_YET) return false;
    if (w->slot == FL_VIEW_RESIDENT) return true;
    if (w->slot == FL_VIEW_HOST) return fl_host_state_of(s->host, w->key) == FL_HOST_THERE;
    return s->slots[w->slot].state == READY;
}

static void fill_view(const fl_store *s, const want *w, fl_expert_view *v)
{
    const fl_expert_place *x = &s->place[w->key];
    *v = (fl_expert_view){.expert = w->key % s->n_expert, .slot = w->slot};
    if (w->slot == FL_VIEW_HOST) {
        for (int k = 0; k < FL_EXPERT_PARTS; k++) v->part[k] = fl_host_part(s->host, w->key, k);
        return;
    }
    const uint8_t *base = w->slot >= 0
                              ? fl_store_slot_at(s, w->slot)
                              : (const uint8_t *)s->resident_memory + s->resident_at[w->key];
    for (int k = 0; k < FL_EXPERT_PARTS; k++) {
        v->part[k] = x->part[k].bytes ? base : NULL;
        base += fl_fetch_padded(x->part[k].bytes);
    }
}

/* Waits until something has come: a copy, which is short, then the drive. *waited false: nothing is
 * under way. */
static fl_status wait_any(fl_store *s, bool *waited, fl_err *err)
{
    const slot *first = NULL;
    *waited = true;
    for (int i = 0; i < s->n_slots && s->n_copying; i++) {
        const slot *t = &s->slots[i];
        if (t->state == COPYING && (!first || t->ticket < first->ticket)) first = t;
    }
    if (first) return fl_device_wait(s->dev, first->ticket, err);
    if (s->fetch && fl_fetch_free(s->fetch) < s->plan->n_stages) {
        fl_status st;
        return settle_fetch(s, true, &st, err) ? FL_OK : st;
    }
    if (s->host && !fl_host_is_loaded(s->host)) return fl_host_wait(s->host, err);
    *waited = false;
    return FL_OK;
}

void fl_store_end(fl_store *s)
{
    for (int i = 0; i < s->n_wants; i++) {
        const want *w = &s->want[i];
        if (w->given || w->slot < 0) continue;
        assert(s->slots[w->slot].leases > 0);
        s->slots[w->slot].leases--;
    }
    s->n_wants = s->n_given = 0;
}

static fl_status wait_for_more(fl_store *s, fl_err *err)
{
    const uint64_t since = fl_clock_ns();
    bool waited;
    const fl_status st = wait_any(s, &waited, err);
    s->stats.wait_ns += fl_clock_ns() - since;
    if (st != FL_OK || waited) return st;
    int n_free = 0;
    for (int i = 0; i < s->n_slots; i++) n_free += s->slots[i].leases == 0;
    return FL_FAIL(
        err, FL_E_BUSY, 0,
        "layer %d: %d of %d experts are still to come, %d of %d slots are free of leases", s->layer,
        s->n_wants - s->n_given, s->n_wants, n_free, s->n_slots);
}

static fl_status bring(fl_store *s, fl_expert_view *views, int *n, fl_err *err)
{
    for (;;) {
        fl_store_poll(s);
        if (s->failed != FL_OK) {
            if (err && err->code == FL_OK) *err = s->why;
            return s->failed;
        }
        FL_TRY(start_wants(s, err));
        for (int i = 0; i < s->n_wants; i++) {
            want *w = &s->want[i];
            if (!is_ready(s, w)) continue;
            fill_view(s, w, &views[(*n)++]);
            w->given = true;
            s->n_given++;
            s->n_views++;
        }
        if (*n > 0) return FL_OK;
        FL_TRY(wait_for_more(s, err));
    }
}

fl_status fl_store_next(fl_store *s, fl_expert_view *views, int *n, fl_err *err)
{
    *n = 0;
    assert(s->n_given < s->n_wants);
    const fl_status st = bring(s, views, n, err);
    if (st != FL_OK) fl_store_end(s);
    return st;
}

void fl_store_release(fl_store *s, int layer, const fl_expert_view *views, int n)
{
    (void)layer;
    for (int i = 0; i < n; i++) {
        if (views[i].slot < 0) continue;
        slot *t = &s->slots[views[i].slot];
        assert(t->state == READY && t->key == layer * s->n_expert + views[i].expert);
        assert(t->leases > 0);
        t->leases--;
    }
    assert(s->n_views >= n);
    s->n_views -= n;
    fl_store_poll(s);
}

void fl_store_computed(fl_store *s, uint64_t work, uint64_t ns)
{
    fl_lanes_saw_cpu(&s->lanes, work, ns);
}

/* ---- reading ahead ---- */

bool fl_store_reads_ahead(const fl_store *s)
{
    const int n_file = s->plan->n_total - s->plan->n_resident - s->plan->n_host;
    return s->ahead && (n_file > 0 || !fl_lanes_cpu_only(&s->lanes));
}

/* False: no more can be started now. */
static bool prefetch_one(fl_store *s, int layer, int32_t key)
{
    const bool host = in_host_tier(s, key);
    if (host && fl_lanes_cpu_only(&s->lanes) && fl_store_may_view(s, key)) return true;
    if (host && fl_host_state_of(s->host, key) != FL_HOST_THERE) {
        fl_host_hurry(s->host, key);
        return true;
    }
    const int i = victim(s, key, layer);
    if (i < 0 || (!host && fl_fetch_free(s->fetch) <= s->plan->n_stages / 2)) return false;
    if (!host)
        start_fetch(s, i, key);
    else if (start_copy(s, i, key, NULL) != FL_OK)
        return false;
    s->slots[i].fresh = true;
    s->stats.prefetched++;
    return true;
}

void fl_store_guess(fl_store *s, int layer, const int32_t *ids, int n)
{
    if (s->ahead) fl_ahead_guess(s->ahead, layer, ids, n);
}

void fl_store_block_done(fl_store *s)
{
    if (s->ahead) fl_ahead_block(s->ahead);
}

void fl_store_prefetch(fl_store *s, int layer)
{
    assert(layer >= 0 && layer < s->n_layer);
    if (!fl_store_reads_ahead(s)) return;
    fl_store_poll(s);
    const int n = fl_ahead_list(s->ahead, layer, s->order);
    for (int k = 0, absent = 0; k < n && absent < s->depth; k++) {
        const int32_t key = layer * s->n_expert + s->order[k];
        if (fl_store_keeps(s, key, FL_TIER_DEVICE) || s->slot_of[key] >= 0) continue;
        if (!prefetch_one(s, layer, key)) return;
        absent++;
    }
}
