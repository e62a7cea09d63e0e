#ifndef FL_OFFLOAD_SLOTS_H
#define FL_OFFLOAD_SLOTS_H

#include "offload/plan.h"

/* Slots by size class: files mix types by layer, so experts have several sizes, and a slot of the
 * largest one would waste what a smaller one leaves of it. Pure. Held by tests/offload/test_plan.c.
 *
 * size: the n >= 1 sizes of experts that stream and how many have each, rising; overwritten. The
 * classes share `budget` bytes, at least the largest size, in proportion to the bytes that stream
 * of each. An expert goes into a slot of its class or of a larger one, and the experts that a token
 * wants of one layer mostly have one size: a class that would have fewer than `least` slots, and
 * fewer than its experts, joins the next larger one (the largest takes in the one below). Writes
 * them by rising size and returns how many: at most FL_PLAN_MAX_CLASSES, with `least` slots at
 * least where budget / (largest size) is that much. */
int fl_slot_classes(fl_slot_class *size, int n, uint64_t budget, int least,
                    fl_slot_class out[FL_PLAN_MAX_CLASSES]);

#endif
