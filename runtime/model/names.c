#include "runtime/model/names.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/hash.h"

struct fl_names_slot {
    fl_str key; /* p == NULL: empty */
    int64_t value;
};

fl_status fl_names_init(fl_names *t, size_t capacity, fl_err *err)
{
    size_t n = 16;
    while (n < capacity * 2) n *= 2;
    t->slot = calloc(n, sizeof *t->slot);
    t->mask = n - 1;
    t->room = capacity;
    if (!t->slot)
        return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for a table of %zu names", capacity);
    return FL_OK;
}

void fl_names_fini(fl_names *t)
{
    free(t->slot);
    *t = (fl_names){0};
}

/* The key's slot, or the empty slot where it belongs. */
static struct fl_names_slot *slot_of(const fl_names *t, fl_str key)
{
    size_t i = (size_t)fl_hash64(key.p, key.n) & t->mask;
    for (;; i = (i + 1) & t->mask) {
        struct fl_names_slot *s = &t->slot[i];
        if (!s->key.p || (s->key.n == key.n && memcmp(s->key.p, key.p, key.n) == 0)) return s;
    }
}

int64_t fl_names_put(fl_names *t, fl_str key, int64_t value)
{
    assert(key.p && value >= 0);
    struct fl_names_slot *s = slot_of(t, key);
    if (s->key.p) return s->value;
    assert(t->room > 0);
    t->room--;
    *s = (struct fl_names_slot){key, value};
    return FL_NAMES_NONE;
}

int64_t fl_names_get(const fl_names *t, fl_str key)
{
    if (!t->slot) return FL_NAMES_NONE;
    const struct fl_names_slot *s = slot_of(t, key);
    return s->key.p ? s->value : FL_NAMES_NONE;
}
