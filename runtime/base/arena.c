#include "runtime/base/arena.h"

#include <assert.h>

fl_status fl_budget_take(fl_budget *b, uint64_t bytes, const char *what, fl_err *err)
{
    if (bytes > b->cap - b->used)
        return FL_FAIL(err, FL_E_NOMEM, 0,
                       "%s memory: %s needs %llu bytes, %llu of %llu are in use; raise the budget "
                       "or lower --ctx",
                       b->name, what, (unsigned long long)bytes, (unsigned long long)b->used,
                       (unsigned long long)b->cap);
    b->used += bytes;
    if (b->used > b->peak) b->peak = b->used;
    return FL_OK;
}

void fl_budget_give(fl_budget *b, uint64_t bytes)
{
    assert(bytes <= b->used);
    b->used -= bytes;
}

void *fl_arena_take(fl_arena *a, uint64_t bytes, uint64_t align)
{
    assert(align && (align & (align - 1)) == 0);
    const uint64_t at = (a->used + align - 1) & ~(align - 1);
    a->used = at + bytes;
    if (!a->base) return NULL;
    assert(a->used <= a->size);
    return a->base + at;
}
