#ifndef FL_OFFLOAD_PLAN_H
#define FL_OFFLOAD_PLAN_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* What goes where, in bytes, decided before anything is loaded. A pure function of its input.
 * Held by tests/offload/test_plan.c. */

enum {
    FL_PLAN_MAX_ITEMS = 16,
    FL_PLAN_MAX_CLASSES = 4,
    FL_PLAN_MAX_STAGES = 16,       /* experts on their way from the file at once */
    FL_PLAN_STAGE_SLACK = 3 * 8192 /* per staging buffer: page-aligned cover of three extents */
};

/* Fixed parts of device memory, sized by the very code that allocates them, in counting mode. */
typedef struct fl_plan_item {
    const char *name; /* "dense weights", "KV cache", "GDN state", "pass buffers", ...; borrowed */
    uint64_t bytes;
} fl_plan_item;

/* Where an expert is kept. Each is in one place; the file holds all of them anyway. */
typedef enum fl_tier {
    FL_TIER_FILE,  /* read when it is wanted */
    FL_TIER_HOST,  /* in host memory, copied to the device or computed from there when wanted */
    FL_TIER_DEVICE /* in device memory for good: resident */
} fl_tier;

/* Streaming slots of one size. */
typedef struct fl_slot_class {
    uint64_t bytes; /* of one slot */
    int count;
} fl_slot_class;

typedef struct fl_plan_input {
    uint64_t device_cap; /* bytes; UINT64_MAX = all that is wanted */
    bool cap_asked;      /* by the user, who can ask for another one */
    uint64_t host_cap;   /* bytes of host memory for experts: staging buffers and the host tier;
                            0 = no host tier, the staging is what it must be */
    bool host_asked;     /* by the user */
    bool host_is_device; /* both are the same memory: unless host_cap was asked for, what the
                            device takes comes off it, and too little of it means no host tier */
    const char *less;    /* how else to make it fit, behind the cap that would do; NULL: no way */
    fl_plan_item item[FL_PLAN_MAX_ITEMS];
    int n_items;
    int n_layer, n_expert, top_k;
    int pin_layers;   /* all experts of the first so many layers stay on the device; more than there
                         are means all */
    int pin_experts;  /* so many experts of each layer do, its hottest; likewise */
    bool last_is_mtp; /* the last layer is the MTP block's, for the table */
    const uint64_t *expert_bytes;  /* [n_layer * n_expert]: bytes of one expert (all its parts,
                                      each rounded up to 64); 0 in a layer that has no experts */
    const uint64_t *host_bytes;    /* [n_layer * n_expert]: what one takes in the host tier
                                      (fl_host_place_bytes), a multiple of 4,096; 0 where
                                      expert_bytes is 0. NULL: there is no host tier */
    const uint32_t *heat;          /* [n_layer * n_expert]: how often it is used, of any unit;
                                      NULL = all alike */
    uint64_t file_bytes;           /* of the whole model, for the table */
    uint64_t copy_bytes, n_copies; /* checkpoints of the state in host memory, for the table */
} fl_plan_input;

/* Policy. With K = max(top_k, 2), B the largest expert and E = device_cap - fixed_bytes:
 *   all experts fit in E        -> all resident, no slots
 *   else n_slots = clamp(E / B / 8, K, max(2 K, n_expert / 2)), but never more than E / B: one
 * token's experts fit at once where that is possible; where it costs at most an eighth of the
 *        memory, there is room for what a block lacks of one layer and of the next, which is read
 *        ahead; at least one slot.
 *   Where experts that stream have several sizes, the bytes of these slots are shared among slots
 *   of several sizes (offload/slots.h).
 *   What is left holds experts for good, taken in falling heat, and where that is equal in the
 *   order expert 0 of every layer, expert 1 of every layer, ...: as many of that order as fit, then
 *   colder ones further on that still fit. So with flat heat no layer's share differs by more than
 *   one expert where all experts have one size.
 *   Pinned experts come first of all, before slots too, but for one of these.
 *   The host tier takes from the rest in the same way, as host_cap - staging_bytes allows. */
typedef struct fl_plan {
    fl_plan_input in; /* copy; expert_bytes points to the plan's own copy, host_bytes, heat: NULL */
    uint8_t *tier;    /* [n_layer * n_expert]: fl_tier */
    int n_resident;   /* experts of tier DEVICE, without those of 0 bytes (which have that tier) */
    int n_host;       /* of tier HOST */
    int n_total;      /* experts of the model, without those of 0 bytes */
    int n_pinned;     /* of the resident ones: by pin_layers and pin_experts */
    uint64_t pinned_bytes;
    uint64_t largest_bytes; /* of an expert */
    uint64_t resident_bytes;
    uint64_t expert_bytes; /* of all experts */
    int n_slots;           /* streaming slots in device memory, 0 when all are resident */
    uint64_t slots_bytes;  /* of all of them */
    int n_classes;         /* of slots, by rising size; each expert that streams fits the last */
    fl_slot_class slot_class[FL_PLAN_MAX_CLASSES];
    int n_stages;             /* host buffers for experts on their way, for loading and streaming */
    uint64_t stage_bytes;     /* of one of them, a multiple of 4,096 */
    uint64_t staging_bytes;   /* n_stages * stage_bytes */
    uint64_t arena_bytes;     /* of the host tier: sum of its experts' host_bytes */
    uint64_t host_bytes;      /* staging + arena: what the load will take, exactly */
    uint64_t fixed_bytes;     /* sum of the items */
    uint64_t device_bytes;    /* fixed + resident + slots: what the load will take, exactly */
    uint64_t min_device_cap;  /* least device_cap that works for this input */
    uint64_t full_device_cap; /* least device_cap that holds every expert */
    uint64_t full_host_cap;   /* least host_cap with which no expert has to stay in the file */
} fl_plan;

/* Layer and expert of an index into tier, expert_bytes, ...: key = layer * n_expert + expert. */
static inline fl_tier fl_plan_tier(const fl_plan *p, int layer, int expert)
{
    return (fl_tier)p->tier[(size_t)layer * (size_t)p->in.n_expert + (size_t)expert];
}

/* FL_E_NOMEM, or FL_E_ARG where the cap was asked for, when even the minimum does not fit: the
 * message names the need, the cap and the --vram value that would do, and of pins that are too many
 * the number that would do. FL_E_ARG: a host_cap that was
 * asked for, is not 0 and does not hold the staging buffers (the --ram value that would do is
 * named); sizes that no model has (overflow, an expert size that is no multiple of 64, top_k >
 * n_expert). On failure *out is empty, except that min_device_cap and full_device_cap are set when
 * the cap is what failed. */
FL_CHECKED fl_status fl_plan_make(const fl_plan_input *in, fl_plan *out, fl_err *err);
void fl_plan_free(fl_plan *p);

#endif
