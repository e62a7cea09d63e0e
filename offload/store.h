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
 * A slot is EMPTY, READING (file to staging), COPYING (staging to device) or READY; one writer
 * for each change. Resident experts are loaded at creation and never move. */
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
    uint64_t acquired;     /* experts asked for */
    uint64_t hit_resident; /* of these: resident */
    uint64_t hit_slot;     /* in a streaming slot already */
    uint64_t missed;       /* read from the file */
    uint64_t bytes_read;   /* from the file, while running (loading not counted) */
    uint64_t bytes_loaded; /* from the file, at creation */
    uint64_t wait_ns;      /* time acquire stood waiting */
} fl_store_stats;

/* `plan` and `place` ([n_layer * n_expert]) must outlive the store; the store allocates exactly
 * plan->resident_bytes + plan->n_slots * plan->slot_bytes of device memory and
 * plan->staging_bytes of host memory. `progress` may be NULL. */
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

/* ids: n different experts of one layer, of which at most fl_store_lease_max are not resident.
 * Blocks until all are READY. views[i] belongs to ids[i]. */
FL_CHECKED fl_status fl_store_acquire(fl_store *store, int layer, const int32_t *ids, int n,
                                      fl_expert_view *views, fl_err *err);
void fl_store_release(fl_store *store, int layer, const fl_expert_view *views, int n);
/* Advice: start reading these if free slots allow. Never evicts a leased slot, may do nothing. */
void fl_store_prefetch(fl_store *store, int layer, const int32_t *ids, int n);

fl_store_stats fl_store_get_stats(const fl_store *store);

#endif
