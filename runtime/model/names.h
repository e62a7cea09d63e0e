#ifndef FL_MODEL_NAMES_H
#define FL_MODEL_NAMES_H

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* A table from byte strings to numbers, of a capacity fixed at creation: tensor names and
 * metadata keys. Keys are borrowed and must outlive the table. */
typedef struct fl_names {
    struct fl_names_slot *slot; /* mask + 1 of them */
    size_t mask;
    size_t room; /* keys that may still be put */
} fl_names;

enum { FL_NAMES_NONE = -1 };

/* Room for `capacity` keys. FL_E_NOMEM. */
FL_CHECKED fl_status fl_names_init(fl_names *t, size_t capacity, fl_err *err);
void fl_names_fini(fl_names *t);

/* Enters key -> value (>= 0) and returns FL_NAMES_NONE; when the key is there already nothing
 * changes and its value is returned. Putting more than `capacity` keys is a broken promise. */
int64_t fl_names_put(fl_names *t, fl_str key, int64_t value);
/* The key's value, or FL_NAMES_NONE. */
int64_t fl_names_get(const fl_names *t, fl_str key);

#endif
