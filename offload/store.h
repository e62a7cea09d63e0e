#ifndef FL_OFFLOAD_STORE_H
#define FL_OFFLOAD_STORE_H

#include "offload/io.h"
#include "offload/plan.h"
#include "runtime/device/device.h"

/* The expert store gives leases on experts. acquire makes each wanted expert present in device
 * memory and returns a view; each view is released exactly once; a leased slot is never
 * overwritten. On failure no view is held. Destroying a store with open leases is a broken
 * promise (assert).
 *
 * A slot is EMPTY, FETCHING (file to staging, staging to device: offload/fetch.h) or READY. Who is
 * evicted: an empty slot first, then the least recently used among those READY and without lease.
 * Resident experts are loaded at creation and never move.
 *
 * The thread that owns the device owns the store; it makes progress only inside its functions
 * (reads and copies that were started go on by themselves). No allocation after creation.
 * Held by tests/offload/test_store.c. */
typedef struct fl_store fl_store;

enum { FL_EXPERT_PARTS = 3 };

/* Where an expert lies: gate, up, down; or gate_up, down (part 1 empty: bytes = 0, then part 0
 * holds gate rows followed by up rows). */
typedef struct fl_expert_place {
    fl_extent part[FL_EXPERT_PARTS];
} fl_expert_place;

typedef struct fl_expert_view {
    const void *part[FL_EXPERT_PARTS]; /* device memory, 64-aligned; NULL for an empty part */
    int32_t expert;
    int32_t slot; /* -1: resident */
} fl_expert_view;

typedef struct fl_store_stats {
    uint64_t acquired;      /* experts asked for: hit_resident + hit_slot + missed */
    uint64_t hit_resident;  /* of these: resident */
    uint64_t hit_slot;      /* in a streaming slot already, or on the way to one */
    uint64_t missed;        /* not present and not on the way */
    uint64_t evicted;       /* experts that made room for another */
    uint64_t prefetched;    /* reads that fl_store_prefetch started */
    uint64_t prefetch_used; /* of these: acquired later, before they were evicted */
    uint64_t failed;        /* fetches that failed */
    uint64_t bytes_read;    /* from the file, while running (loading not counted) */
    uint64_t bytes_loaded;  /* from the file, at creation */
    uint64_t load_ns;       /* time creation took to load them */
    uint64_t wait_ns;       /* time acquire stood waiting */
} fl_store_stats;

/* `plan` and `place` ([n_layer * n_expert]) must outlive the store; the store allocates exactly
 * plan->resident_bytes + plan->slots_bytes of device memory and
 * plan->staging_bytes of host memory, and is the only user of `io` while it lives. `progress`
 * may be NULL; else it is called with the bytes of resident experts loaded so far, of
 * plan->resident_bytes.
 * FL_E_FORMAT: an expert's place has not the bytes that the plan counted; FL_E_NOMEM; FL_E_IO and
 * FL_E_FORMAT of the reads. After a failure nothing is held. */
FL_CHECKED fl_status fl_store_create(fl_store **out, fl_device *dev, fl_io *io, const fl_plan *plan,
                                     const fl_expert_place *place,
                                     void (*progress)(void *arg, uint64_t done, uint64_t total),
                                     void *progress_arg, fl_err *err);
void fl_store_destroy(fl_store **store);

/* The most non-resident experts one lease can hold at once (n_slots). */
int fl_store_lease_max(const fl_store *store);
bool fl_store_is_resident(const fl_store *store, int layer, int expert);
/* True when the expert is resident or in a READY slot now: callers order their parts so that
 * what is present is used before it is evicted. */
bool fl_store_is_present(const fl_store *store, int layer, int expert);

/* ids: n different experts of one layer (assert), of which at most fl_store_lease_max are not
 * resident (assert). Blocks until all are READY. views[i] belongs to ids[i]. Leases may be
 * nested; FL_E_BUSY when other leases leave too few slots. FL_E_IO, FL_E_FORMAT, FL_E_DEVICE: a
 * fetch failed; the same call may be tried again. FL_E_STALLED, when the io has a limit: the reads
 * go on as if they were read ahead. */
FL_CHECKED fl_status fl_store_acquire(fl_store *store, int layer, const int32_t *ids, int n,
                                      fl_expert_view *views, fl_err *err);
void fl_store_release(fl_store *store, int layer, const fl_expert_view *views, int n);
/* Advice: start reading these, in this order, if there is room. Takes empty slots and READY ones
 * without lease, but none of the layer acquired last, of `layer`, or prefetched and not used yet;
 * and at most half of the staging, so that acquire finds room. A failed prefetch is forgotten. */
void fl_store_prefetch(fl_store *store, int layer, const int32_t *ids, int n);

fl_store_stats fl_store_get_stats(const fl_store *store);
/* A line for the leases and one for each expert on its way to a slot. */
void fl_store_describe(const fl_store *store, fl_text *out);
int fl_store_n_leased(const fl_store *store); /* views that are not released yet */
/* True when the tables agree with each other; for tests, after each step. */
bool fl_store_is_sane(const fl_store *store);

#endif
