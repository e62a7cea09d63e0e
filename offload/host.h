#ifndef FL_OFFLOAD_HOST_H
#define FL_OFFLOAD_HOST_H

#include "offload/io.h"
#include "offload/plan.h"
#include "offload/store.h"
#include "runtime/device/device.h"

/* The host tier: one arena of anonymous memory with the experts that the plan keeps there. Each
 * part of an expert has a page-aligned place for the aligned cover that a direct read brings, so it
 * is read straight into its final place, and its bytes lie there as the file has them: at any
 * address that is a multiple of 2 at least where the file's offsets are.
 *
 * Loading goes on beside everything else, many reads at once: fl_host_poll moves it, from the
 * thread that owns the io. What is not there yet can be hurried. An expert that could not be read
 * is simply not there: who needs it reads the file and meets the error.
 * Held by tests/offload/test_host.c. */
typedef struct fl_host fl_host;

/* Bytes that an expert takes in the arena, a multiple of 4,096: for fl_plan_input.host_bytes. */
uint64_t fl_host_place_bytes(const fl_expert_place *x);

/* Maps plan->arena_bytes (more than 0), registers them with `io` (its depth is FL_EXPERT_PARTS at
 * least) and pins what can be pinned. `plan` and `place` outlive it; it is the only user of `io`.
 * FL_E_NOMEM. */
FL_CHECKED fl_status fl_host_create(fl_host **out, fl_device *dev, fl_io *io, const fl_plan *plan,
                                    const fl_expert_place *place, fl_err *err);
/* Waits for reads under way; on a drive that hangs everything is left as it is. No copy from the
 * arena may be under way. */
void fl_host_destroy(fl_host **h);

/* Takes in what has been read and starts more reads. */
void fl_host_poll(fl_host *h);
/* The same, but waits for a read where any is under way. FL_E_STALLED as fl_io_wait has it. */
FL_CHECKED fl_status fl_host_wait(fl_host *h, fl_err *err);
/* True when no more is to come: all experts are there or failed. */
bool fl_host_is_loaded(const fl_host *h);
/* The state of an expert of tier HOST. HURRIED: being read. */
typedef enum fl_host_state {
    FL_HOST_WAITS,
    FL_HOST_READS,
    FL_HOST_THERE,
    FL_HOST_FAILED
} fl_host_state;
fl_host_state fl_host_state_of(const fl_host *h, int32_t key);
/* Starts reading it now if it is to be read and the io has room. */
void fl_host_hurry(fl_host *h, int32_t key);
/* First byte of a part of an expert that is there; NULL for an empty part. */
const uint8_t *fl_host_part(const fl_host *h, int32_t key, int part);

typedef struct fl_host_stats {
    uint64_t bytes;        /* mapped: plan->arena_bytes */
    uint64_t pinned;       /* of these; the rest is pageable */
    uint64_t bytes_loaded; /* of experts, from the file */
    uint64_t load_ns;      /* from creation until all was there, or until now */
    int failed;            /* experts that could not be read */
} fl_host_stats;
fl_host_stats fl_host_get_stats(const fl_host *h);

#endif
