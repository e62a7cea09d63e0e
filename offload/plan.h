#ifndef FL_OFFLOAD_PLAN_H
#define FL_OFFLOAD_PLAN_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* What goes where, in bytes, decided before anything is loaded. A pure function of its input. */

enum { FL_PLAN_MAX_ITEMS = 16 };

/* Fixed parts of device memory, sized by the very code that allocates them, in counting mode. */
typedef struct fl_plan_item {
    const char *name; /* "dense weights", "KV cache", "GDN state", "pass buffers", ... */
    uint64_t bytes;
} fl_plan_item;

typedef struct fl_plan_input {
    uint64_t device_cap; /* bytes; UINT64_MAX = all that is wanted */
    fl_plan_item item[FL_PLAN_MAX_ITEMS];
    int n_items;
    int n_layer, n_expert, top_k;
    const uint64_t *expert_bytes; /* [n_layer * n_expert]: bytes of one expert (all its parts,
                                     each rounded up to 64) */
    uint64_t file_bytes;          /* of the whole model, for the table */
} fl_plan_input;

typedef struct fl_plan {
    fl_plan_input in;  /* copy; expert_bytes points to the plan's own copy */
    uint8_t *resident; /* [n_layer * n_expert]: 1 = stays in device memory */
    int n_resident;    /* sum of it */
    int n_total;       /* experts of the model */
    uint64_t resident_bytes;
    int n_slots;              /* streaming slots in device memory, 0 when all are resident */
    uint64_t slot_bytes;      /* bytes of one slot: the largest expert that streams */
    uint64_t staging_bytes;   /* host memory for reads in flight */
    uint64_t fixed_bytes;     /* sum of the items */
    uint64_t device_bytes;    /* fixed + resident + slots: what the load will take, exactly */
    uint64_t min_device_cap;  /* least --vram that works for this input */
    uint64_t full_device_cap; /* least --vram that holds every expert */
} fl_plan;

/* FL_E_NOMEM when even the minimum does not fit; the message names the need, the cap and the
 * --vram value that would do. */
FL_CHECKED fl_status fl_plan_make(const fl_plan_input *in, fl_plan *out, fl_err *err);
void fl_plan_free(fl_plan *p);

#endif
