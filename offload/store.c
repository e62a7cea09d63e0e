#include "offload/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store_parts.h"
#include "runtime/base/clock.h"

static uint64_t padded_bytes(const fl_expert_place *x)
{
    uint64_t n = 0;
    for (int k = 0; k < FL_EXPERT_PARTS; k++) n += fl_fetch_padded(x->part[k].bytes);
    return n;
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

static fl_status take_tables(fl_store *s, fl_err *err)
{
    const size_t n = (size_t)s->n_keys, n_expert = (size_t)s->n_expert;
    s->resident_at = calloc(n + 1, sizeof *s->resident_at);
    s->slot_of = malloc((n + 1) * sizeof *s->slot_of);
    s->slots = calloc((size_t)s->n_slots + 1, sizeof *s->slots);
    s->asked = calloc(n_expert + 1, sizeof *s->asked);
    s->want = calloc(n_expert + 1, sizeof *s->want);
    s->item = calloc(n_expert + 1, sizeof *s->item);
    s->order = calloc(n_expert + 1, sizeof *s->order);
    if (!s->resident_at || !s->slot_of || !s->slots || !s->asked || !s->want || !s->item ||
        !s->order)
        return FL_FAIL(err, FL_E_NOMEM, errno, "expert store: out of memory for %d experts",
                       s->n_keys);
    memset(s->slot_of, 0xff, n * sizeof *s->slot_of);
    uint64_t at = 0;
    for (int c = 0, i = 0; c < s->plan->n_classes; c++)
        for (int k = 0; k < s->plan->slot_class[c].count; k++, i++) {
            const uint64_t bytes = s->plan->slot_class[c].bytes;
            s->slots[i] = (slot){.at = at, .bytes = bytes, .key = -1};
            at += bytes;
        }
    assert(at == s->plan->slots_bytes);
    return FL_OK;
}

static fl_status take_helpers(fl_store *s, const fl_store_config *c, fl_err *err)
{
    FL_TRY(fl_policy_create(&s->policy, c->policy, s->n_layer, s->n_expert, s->n_slots, err));
    s->depth = s->n_slots;
    if (c->no_prefetch || !s->n_slots) return FL_OK;
    return fl_ahead_create(&s->ahead, s->n_layer, s->n_expert, c->heat, 2 * s->plan->in.top_k, err);
}

static fl_status take_memory(fl_store *s, const fl_store_config *c, fl_err *err)
{
    const fl_plan *p = s->plan;
    if (p->n_stages) {
        FL_TRY(fl_fetch_create(&s->fetch, s->dev, c->io, p->n_stages, p->stage_bytes, err));
        FL_TRY(fl_budget_take(&s->host_memory, fl_fetch_bytes(s->fetch), "staging", err));
    }
    if (p->resident_bytes)
        FL_TRY(fl_device_alloc(s->dev, p->resident_bytes, "resident experts", &s->resident_memory,
                               err));
    if (p->n_slots)
        FL_TRY(fl_device_alloc(s->dev, p->slots_bytes, "streaming slots", &s->slot_memory, err));
    if (!p->n_host) return FL_OK;
    FL_TRY(fl_host_create(&s->host, s->dev, c->host_io, p, s->place, err));
    return fl_budget_take(&s->host_memory, fl_host_get_stats(s->host).bytes, "host tier", err);
}

static fl_status load_residents(fl_store *s, const fl_store_config *c, fl_err *err)
{
    const uint64_t start = fl_clock_ns();
    uint64_t at = 0, done = 0;
    for (int k = 0; k < s->n_keys; k++) {
        if (!fl_store_keeps(s, k, FL_TIER_DEVICE)) continue;
        s->resident_at[k] = at;
        at += s->plan->in.expert_bytes[k];
    }
    assert(at == s->plan->resident_bytes);
    int next = 0, under_way = 0;
    for (;;) {
        for (; next < s->n_keys; next++) {
            if (!fl_store_keeps(s, next, FL_TIER_DEVICE) || !s->plan->in.expert_bytes[next])
                continue;
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
        s->stats.bytes_loaded += fl_store_place_bytes(&s->place[key]);
        if (c->progress) c->progress(c->progress_arg, done, s->plan->resident_bytes);
    }
    s->stats.load_ns = fl_clock_ns() - start;
    return FL_OK;
}

fl_status fl_store_create(fl_store **out, const fl_store_config *c, fl_err *err)
{
    fl_status st;
    *out = NULL;
    FL_TRY(check_places(c->plan, c->place, err));
    fl_store *s = calloc(1, sizeof *s);
    if (!s) return FL_FAIL(err, FL_E_NOMEM, errno, "expert store: out of memory");
    s->dev = c->dev;
    s->plan = c->plan;
    s->place = c->place;
    s->n_layer = c->plan->in.n_layer;
    s->n_expert = c->plan->in.n_expert;
    s->n_keys = s->n_layer * s->n_expert;
    s->n_slots = c->plan->n_slots;
    s->layer = -1;
    s->lanes =
        (fl_lanes){.choice = c->lanes, .one_pool = strcmp(fl_device_kind(c->dev), "host") == 0};
    s->host_memory = (fl_budget){.name = "host", .cap = UINT64_MAX};
    FL_GO(take_tables(s, err));
    FL_GO(take_helpers(s, c, err));
    FL_GO(take_memory(s, c, err));
    FL_GO(load_residents(s, c, err));
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
    fl_device_free(s->dev, &s->slot_memory); /* waits for copies from the host tier, too */
    fl_host_destroy(&s->host);
    fl_device_free(s->dev, &s->resident_memory);
    fl_ahead_destroy(&s->ahead);
    fl_policy_destroy(&s->policy);
    free(s->order);
    free(s->item);
    free(s->want);
    free(s->asked);
    free(s->slots);
    free(s->slot_of);
    free(s->resident_at);
    free(s);
    *sp = NULL;
}

/* ---- questions ---- */

fl_status fl_store_finish_loading(fl_store *s, fl_err *err)
{
    while (s->host && !fl_host_is_loaded(s->host)) FL_TRY(fl_host_wait(s->host, err));
    return FL_OK;
}

int fl_store_n_slots(const fl_store *s) { return s->n_slots; }

uint64_t fl_store_expert_bytes(const fl_store *s, int layer, int expert)
{
    return s->plan->in.expert_bytes[layer * s->n_expert + expert];
}

bool fl_store_is_present(const fl_store *s, int layer, int expert)
{
    const int32_t key = layer * s->n_expert + expert;
    return fl_store_keeps(s, key, FL_TIER_DEVICE) ||
           (s->slot_of[key] >= 0 && s->slots[s->slot_of[key]].state == READY);
}

fl_store_stats fl_store_get_stats(const fl_store *s) { return s->stats; }

fl_signal_stats fl_store_signal(const fl_store *s, fl_signal signal)
{
    return s->ahead ? fl_ahead_stats(s->ahead, signal) : (fl_signal_stats){0};
}

const fl_budget *fl_store_host_memory(const fl_store *s) { return &s->host_memory; }

void fl_store_pinned(const fl_store *s, uint64_t *bytes, uint64_t *pinned)
{
    const fl_host_stats h = s->host ? fl_host_get_stats(s->host) : (fl_host_stats){0};
    *bytes = h.bytes;
    *pinned = h.pinned;
}

static bool is_sane_slot(const fl_store *s, int i)
{
    const slot *t = &s->slots[i];
    if ((t->state == EMPTY) != (t->key < 0) || t->leases < 0) return false;
    if (t->state == EMPTY && (t->leases || t->fresh)) return false;
    /* Only the open union waits. */
    if (t->state != READY && t->leases && !s->n_wants) return false;
    if (t->key < 0) return true;
    return s->slot_of[t->key] == i && !fl_store_keeps(s, t->key, FL_TIER_DEVICE) &&
           s->plan->in.expert_bytes[t->key] <= t->bytes;
}

void fl_store_describe(const fl_store *s, fl_text *out)
{
    fl_text_printf(out, "%d experts are leased\n", s->n_views);
    for (int i = 0; i < s->n_slots; i++) {
        const slot *t = &s->slots[i];
        if (t->state != FETCHING && t->state != COPYING) continue;
        fl_text_printf(out, "expert %d of layer %d, for slot %d: ", t->key % s->n_expert,
                       t->key / s->n_expert, i);
        if (t->state == FETCHING)
            fl_fetch_describe(s->fetch, (uint64_t)i, out);
        else
            fl_text_puts(out, "being copied");
        fl_text_puts(out, "\n");
    }
}

int fl_store_n_leased(const fl_store *s) { return s->n_views; }

bool fl_store_is_sane(const fl_store *s)
{
    int in_slots = 0, named = 0, fetching = 0, copying = 0, leases = 0;
    for (int i = 0; i < s->n_slots; i++) {
        const slot *t = &s->slots[i];
        if (!is_sane_slot(s, i)) return false;
        in_slots += t->key >= 0;
        fetching += t->state == FETCHING;
        copying += t->state == COPYING;
        leases += t->leases;
    }
    for (int k = 0; k < s->n_keys; k++) named += s->slot_of[k] >= 0;
    if (s->fetch && fetching != s->plan->n_stages - fl_fetch_free(s->fetch)) return false;
    const fl_store_stats *t = &s->stats;
    return named == in_slots && copying == s->n_copying &&
           leases <= s->n_views + s->n_wants - s->n_given && s->n_given <= s->n_wants &&
           t->acquired == t->hit_resident + t->hit_slot + t->on_cpu + t->copied + t->missed &&
           t->ready_bytes <= t->needed_bytes && t->prefetch_used + t->misfetched <= t->prefetched;
}
