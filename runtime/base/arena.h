#ifndef FL_BASE_ARENA_H
#define FL_BASE_ARENA_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* A budget counts the bytes of one tier (device memory, host memory) against a hard cap.
 * Not locked: one thread owns a budget. Reads zero when everything was given back. */
typedef struct fl_budget {
    const char *name; /* "device", "host": shown in errors */
    uint64_t cap;     /* bytes; UINT64_MAX = no cap */
    uint64_t used;
    uint64_t peak;
} fl_budget;

/* Takes bytes from the budget; FL_E_NOMEM names `what`, the need, the cap and what is used. */
FL_CHECKED fl_status fl_budget_take(fl_budget *b, uint64_t bytes, const char *what, fl_err *err);
void fl_budget_give(fl_budget *b, uint64_t bytes);

/* A bump allocator over memory that somebody else owns. With base == NULL it only counts: the
 * same allocation code, run once in counting mode, gives the exact size to reserve and to show
 * in a plan (plan = load by construction). */
typedef struct fl_arena {
    uint8_t *base; /* NULL: counting mode */
    uint64_t size; /* ignored in counting mode */
    uint64_t used;
} fl_arena;

/* Bytes aligned to `align` (a power of two), zeroed only if the memory was. In counting mode
 * returns NULL and only counts. Taking more than `size` is a broken promise: assert. */
void *fl_arena_take(fl_arena *a, uint64_t bytes, uint64_t align);
static inline bool fl_arena_counting(const fl_arena *a) { return a->base == NULL; }
/* Typed shorthand, 64-byte aligned. */
#define FL_TAKE(arena, type, count) \
    ((type *)fl_arena_take((arena), (uint64_t)sizeof(type) * (uint64_t)(count), 64))

#endif
