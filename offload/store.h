#ifndef FL_OFFLOAD_STORE_H
#define FL_OFFLOAD_STORE_H

#include "offload/ahead.h"
#include "offload/io.h"
#include "offload/lanes.h"
#include "offload/plan.h"
#include "offload/policy.h"
#include "runtime/base/arena.h"
#include "runtime/device/device.h"

/* The expert store gives leases on experts. A union of wanted experts of one layer is begun; next
 * hands out views as they become ready, in order of arrival, while the others are still on their
 * way. Each view is released exactly once; a leased slot is never overwritten. A union may be
 * larger than the slots: what has been released makes room for the rest. Destroying a store with
 * open leases is a broken promise (assert).
 *
 * A view lies in device memory (a resident expert, or a slot), or in host memory: an expert of the
 * host tier that the CPU is to compute from there (offload/lanes.h).
 *
 * A slot is EMPTY, FETCHING (file to staging, staging to device: offload/fetch.h), COPYING (host
 * tier to device) or READY. Who is evicted: an empty slot first, then whom the policy
 * (offload/policy.h) names among those READY and without lease. Resident experts are loaded at
 * creation and never move; the host tier goes on loading behind it (offload/host.h).
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

enum { FL_VIEW_RESIDENT = -1, FL_VIEW_HOST = -2 };

typedef struct fl_expert_view {
    const void *part[FL_EXPERT_PARTS]; /* NULL for an empty part. In device memory 64-aligned, in
                                          host memory 4-aligned */
    int32_t expert;
    int32_t slot; /* or FL_VIEW_RESIDENT, FL_VIEW_HOST */
} fl_expert_view;

typedef struct fl_store_stats {
    uint64_t acquired;      /* experts asked for: the sum of the next five */
    uint64_t hit_resident;  /* of these: resident */
    uint64_t hit_slot;      /* in a streaming slot already, or on the way to one */
    uint64_t on_cpu;        /* in the host tier, computed from there */
    uint64_t copied;        /* in the host tier, copied to the device */
    uint64_t missed;        /* neither: read from the file */
    uint64_t needed_bytes;  /* of those that are not resident and not computed from host memory */
    uint64_t ready_bytes;   /* of these: READY when asked for */
    uint64_t evicted;       /* experts that made room for another */
    uint64_t prefetched;    /* reads and copies that fl_store_prefetch started */
    uint64_t prefetch_used; /* of these: acquired later, before they were evicted */
    uint64_t misfetched;    /* of these: evicted before they were acquired */
    uint64_t failed;        /* fetches that failed */
    uint64_t bytes_read;    /* from the file to the device, while running (loading not counted) */
    uint64_t bytes_copied;  /* from the host tier to the device */
    uint64_t bytes_loaded;  /* resident experts, from the file, at creation */
    uint64_t load_ns;       /* time creation took to load them */
    uint64_t wait_ns;       /* time next stood waiting */
} fl_store_stats;

typedef struct fl_store_config {
    fl_device *dev;
    fl_io *io;                    /* the store is its only user while it lives */
    fl_io *host_io;               /* likewise, for the host tier; NULL where the plan has none */
    const fl_plan *plan;          /* outlives the store */
    const fl_expert_place *place; /* [n_layer * n_expert], outlives the store */
    fl_lane_choice lanes;
    fl_policy_kind policy;
    const uint32_t *heat; /* [n_layer * n_expert] of a profile, read at creation; or NULL */
    bool no_prefetch;     /* fl_store_prefetch does nothing */
    /* May be NULL; else called with the bytes of resident experts loaded so far, of
     * plan->resident_bytes. */
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *progress_arg;
} fl_store_config;

/* The store allocates exactly plan->resident_bytes + plan->slots_bytes of device memory and
 * plan->host_bytes of host memory.
 * FL_E_FORMAT: an expert's place has not the bytes that the plan counted; FL_E_NOMEM; FL_E_IO and
 * FL_E_FORMAT of the reads. After a failure nothing is held. */
FL_CHECKED fl_status fl_store_create(fl_store **out, const fl_store_config *config, fl_err *err);
void fl_store_destroy(fl_store **store);

/* Waits until the host tier is loaded. A store works before that as well. FL_E_STALLED. */
FL_CHECKED fl_status fl_store_finish_loading(fl_store *store, fl_err *err);

/* Begins a union: ids are n different experts of one layer (assert), rows[i] the rows that expert
 * ids[i] is to compute, of the n_rows of the pass; NULL = 1 each. ids stays until the union has
 * ended. No other union is open (assert); leases of earlier ones may be. */
void fl_store_begin(fl_store *store, int layer, int n_rows, const int32_t *ids, const int32_t *rows,
                    int n);
/* Gives the views of the open union that are ready and were not given yet, at least one: waits
 * where none is. Not all have been given before (assert).
 * A failure ends the union; what was given before remains leased. FL_E_BUSY: every slot is
 * leased, release views first. FL_E_IO, FL_E_FORMAT, FL_E_DEVICE: a fetch failed; the same union
 * may be begun again. FL_E_STALLED, when an io has a limit: the reads go on as if they were read
 * ahead. */
FL_CHECKED fl_status fl_store_next(fl_store *store, fl_expert_view *views, int *n, fl_err *err);
/* Ends the open union, if there is one: what was not given is given up. */
void fl_store_end(fl_store *store);
/* views of one layer. */
void fl_store_release(fl_store *store, int layer, const fl_expert_view *views, int n);
/* Moves reads and copies on, without waiting: for the owner while it computes. */
void fl_store_poll(fl_store *store);
/* Tells the choice of lanes what the CPU took: for `work` (fl_lane_work of all its experts). */
void fl_store_computed(fl_store *store, uint64_t work, uint64_t ns);
/* Bytes of an expert, as the plan counts them. */
uint64_t fl_store_expert_bytes(const fl_store *store, int layer, int expert);

/* The layer's router, asked early: replaces what it said before (offload/ahead.h). */
void fl_store_guess(fl_store *store, int layer, const int32_t *ids, int n);
/* A block of tokens has ended. */
void fl_store_block_done(fl_store *store);
/* Starts bringing to the device what the layer will want, by all signals, if there is room: as many
 * as are of use lately. Takes empty slots and READY ones without lease, but none of the layer
 * acquired last, of `layer`, or prefetched and not used yet; and at most half of the staging, so
 * that a union finds room. Experts that would be computed from host memory are left there. A failed
 * prefetch is forgotten. */
void fl_store_prefetch(fl_store *store, int layer);
/* False when there is nothing that fl_store_prefetch could bring. */
bool fl_store_reads_ahead(const fl_store *store);
/* Streaming slots: the most experts that are not resident and are in device memory at once. */
int fl_store_n_slots(const fl_store *store);
/* True when the expert is resident or in a READY slot now. */
bool fl_store_is_present(const fl_store *store, int layer, int expert);

fl_store_stats fl_store_get_stats(const fl_store *store);
/* How right a signal was; all 0 where nothing is read ahead. */
fl_signal_stats fl_store_signal(const fl_store *store, fl_signal signal);
/* A line for the leases and one for each expert on its way to a slot. */
void fl_store_describe(const fl_store *store, fl_text *out);
int fl_store_n_leased(const fl_store *store); /* views that are not released yet */
/* Host memory of the store; `used` is plan->host_bytes. */
const fl_budget *fl_store_host_memory(const fl_store *store);
/* Bytes of the host tier, and how many of them are pinned. */
void fl_store_pinned(const fl_store *store, uint64_t *bytes, uint64_t *pinned);
/* True when the tables agree with each other; for tests, after each step. */
bool fl_store_is_sane(const fl_store *store);

#endif
