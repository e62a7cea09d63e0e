#ifndef FL_OFFLOAD_PLAN_TEXT_H
#define FL_OFFLOAD_PLAN_TEXT_H

#include "offload/plan.h"
#include "runtime/base/json.h"

/* A plan for people: a table of what lies where in MiB, the layers with their shares, and last a
 * line that says why and which --vram and --ram would hold everything. Malloc'ed, the caller frees;
 * NULL when out of memory. Held by tests/offload/test_plan_text.c. */
char *fl_plan_text(const fl_plan *p);

/* The same for programs, every size in bytes:
 *   {"device": {"cap" (null: none), "bytes", "free" (null), "fixed_bytes",
 *               "items": [{"name", "bytes"}],
 *               "resident_bytes", "slots": [{"count", "bytes" (of one)}]},
 *    "experts": {"total", "resident", "host", "file", "bytes", "streaming_bytes",
 *                "pinned", "pinned_bytes",
 *                "layers": [{"first", "last", "experts", "resident", "host", "expert_bytes"}]},
 *    "host": {"bytes", "staging_bytes", "arena_bytes", "checkpoint_bytes", "n_checkpoints"},
 *    "file_bytes", "min_device_cap", "full_device_cap", "full_host_cap", "reason"} */
fl_json *fl_plan_json(const fl_plan *p);

/* Runs of layers that keep the same numbers of experts of the same size: from *layer on, the run's
 * last layer; *layer is moved behind it. expert_bytes is that of the run's largest expert. */
typedef struct fl_plan_run {
    int first, last;
    int experts, resident, host; /* of each layer */
    uint64_t expert_bytes;
} fl_plan_run;
bool fl_plan_next_run(const fl_plan *p, int *layer, fl_plan_run *run);

#endif
