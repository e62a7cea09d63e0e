#ifndef FL_OFFLOAD_STORE_PARTS_H
#define FL_OFFLOAD_STORE_PARTS_H

#include "offload/ahead.h"
#include "offload/fetch.h"
#include "offload/host.h"
#include "offload/store.h"

/* Between store.c (creation, questions) and lease.c (slots, unions, reading ahead). */

typedef enum slot_state { EMPTY, FETCHING, COPYING, READY } slot_state;

/* An expert's key is layer * n_expert + expert. */
typedef struct slot {
    uint64_t at, bytes; /* in slot_memory; by rising bytes */
    slot_state state;
    int32_t key; /* -1 when EMPTY */
    int leases;
    bool fresh;       /* prefetched and not acquired yet */
    bool passed;      /* its layer has come up since it was prefetched */
    fl_ticket ticket; /* COPYING: reached when it is done */
} slot;

/* One expert of the open union. */
enum { NO_SLOT_YET = -3 };
typedef struct want {
    int32_t key;
    int32_t slot; /* of its view; or NO_SLOT_YET */
    bool given;
} want;

struct fl_store {
    fl_device *dev;
    const fl_plan *plan;
    const fl_expert_place *place;
    fl_fetch *fetch;
    fl_host *host; /* NULL: no host tier */
    fl_policy *policy;
    fl_ahead *ahead; /* NULL: nothing is read ahead */
    int depth;       /* experts of a layer that are read ahead at most */
    int n_layer, n_expert, n_keys;
    void *resident_memory, *slot_memory; /* device; NULL when of 0 bytes */
    uint64_t *resident_at;               /* [n_keys]: offset in resident_memory */
    int32_t *slot_of;                    /* [n_keys]: slot, or -1 */
    slot *slots;
    int n_slots;
    int n_copying;
    uint64_t *asked; /* [n_expert]: number of the union that named it last (finds doubles) */
    uint64_t n_unions;
    int layer;   /* of the last union */
    int n_views; /* leased now, residents too */
    /* the open union; n_wants 0 and n_given 0 when there is none */
    want *want; /* [n_expert] */
    int n_wants, n_given;
    fl_status failed; /* of one of its fetches */
    fl_err why;
    fl_lanes lanes;
    fl_lane_item *item;           /* [n_expert] scratch */
    int32_t *order;               /* [n_expert] scratch */
    uint64_t link_bytes, link_ns; /* of the device, when the link's rate was last looked at */
    fl_budget host_memory;
    fl_store_stats stats;
};

static inline bool fl_store_keeps(const fl_store *s, int32_t key, fl_tier tier)
{
    return s->plan->tier[key] == tier;
}

static inline uint8_t *fl_store_slot_at(const fl_store *s, int i)
{
    return (uint8_t *)s->slot_memory + s->slots[i].at;
}

static inline uint64_t fl_store_place_bytes(const fl_expert_place *x)
{
    return x->part[0].bytes + x->part[1].bytes + x->part[2].bytes;
}

/* Can the expert be computed from the host tier: is each part aligned there for any type? */
bool fl_store_may_view(const fl_store *s, int32_t key);

#endif
