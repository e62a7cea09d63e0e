#ifndef FL_OFFLOAD_PLAN_H
#define FL_OFFLOAD_PLAN_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* What goes where, in bytes, decided before anything is loaded. A pure function of its input.
 * Held by tests/offload/test_plan.c. */

enum {
    FL_PLAN_MAX_ITEMS = 16,
    FL_PLAN_MAX_STAGES = 16,       /* experts on their way from the file at once */
    FL_PLAN_STAGE_SLACK = 3 * 8192 /* per staging buffer: page-aligned cover of three extents */
};

/* Fixed parts of device memory, sized by the very code that allocates them, in counting mode. */
typedef struct fl_plan_item {
    const char *name; /* "dense weights", "KV cache", "GDN state", "pass buffers", ...; borrowed */
    uint64_t bytes;
} fl_plan_item;

typedef struct fl_plan_input {
    uint64_t device_cap; /* bytes; UINT64_MAX = all that is wanted */
    bool cap_asked;      /* by the user, who can ask for another one */
    const char *less;    /* how else to make it fit, behind the cap that would do; NULL: no way */
    fl_plan_item item[FL_PLAN_MAX_ITEMS];
    int n_items;
    int n_layer, n_expert, top_k;
    bool last_is_mtp;              /* the last layer is the MTP block's, for the table */
    const uint64_t *expert_bytes;  /* [n_layer * n_expert]: bytes of one expert (all its parts,
                                      each rounded up to 64); 0 in a layer that has no experts */
    uint64_t file_bytes;           /* of the whole model, for the table */
    uint64_t copy_bytes, n_copies; /* checkpoints of the state in host memory, for the table */
} fl_plan_input;

/* Policy. With K = max(top_k, 2), B the largest expert and E = device_cap - fixed_bytes:
 *   all experts fit in E        -> all resident, no slots
 *   else n_slots = clamp(E / B / 8, K, 2 K), but never more than E / B: one token's experts fit in
 *        one lease where that is possible; room for two tokens' (or for reading ahead) where it
 *        costs at most an eighth of the memory; at least one slot.
 *   What is left holds experts for good, taken in the order expert 0 of every layer, expert 1 of
 *   every layer, ...: as many of that order as fit, then smaller ones further on that still fit.
 * So no layer's share differs by more than one expert where all experts have one size. */
typedef struct fl_plan {
    fl_plan_input in;  /* copy; expert_bytes points to the plan's own copy */
    uint8_t *resident; /* [n_layer * n_expert]: 1 = stays in device memory */
    int n_resident;    /* sum of it, without the experts of 0 bytes */
    int n_total;       /* experts of the model, without those of 0 bytes */
    uint64_t resident_bytes;
    uint64_t expert_bytes;    /* of all experts */
    int n_slots;              /* streaming slots in device memory, 0 when all are resident */
    uint64_t slot_bytes;      /* bytes of one slot: the largest expert that streams */
    int n_stages;             /* host buffers for experts on their way, for loading and streaming */
    uint64_t stage_bytes;     /* of one of them, a multiple of 4,096 */
    uint64_t staging_bytes;   /* n_stages * stage_bytes */
    uint64_t fixed_bytes;     /* sum of the items */
    uint64_t device_bytes;    /* fixed + resident + slots: what the load will take, exactly */
    uint64_t min_device_cap;  /* least device_cap that works for this input */
    uint64_t full_device_cap; /* least device_cap that holds every expert */
} fl_plan;

/* FL_E_NOMEM, or FL_E_ARG where the cap was asked for, when even the minimum does not fit: the
 * message names the need, the cap and the --vram value that would do. FL_E_ARG: sizes that no model
 * has (overflow, an expert size that is no multiple of 64, top_k > n_expert). On failure *out is
 * empty, except that min_device_cap and full_device_cap are set when the cap is what failed. */
FL_CHECKED fl_status fl_plan_make(const fl_plan_input *in, fl_plan *out, fl_err *err);
void fl_plan_free(fl_plan *p);

#endif
