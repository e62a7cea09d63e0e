#include "offload/slots.h"

#include <assert.h>

/* Class i joins the next larger one. */
static int join(fl_slot_class *size, int n, int i)
{
    size[i].bytes = size[i + 1].bytes;
    size[i].count += size[i + 1].count;
    for (int k = i + 1; k + 1 < n; k++) size[k] = size[k + 1];
    return n - 1;
}

/* The slots of each class. */
static void share(const fl_slot_class *size, int n, uint64_t budget, fl_slot_class *out)
{
    double all = 0.0;
    uint64_t used = 0;
    for (int i = 0; i < n; i++) all += (double)size[i].bytes * size[i].count;
    for (int i = 0; i < n; i++) {
        const double slots = (double)budget * size[i].count / all;
        out[i] = size[i];
        if (slots < size[i].count) out[i].count = (int)slots;
        used += out[i].bytes * (uint64_t)out[i].count;
    }
    /* What rounding left goes to the largest, which serve all. */
    fl_slot_class *last = &out[n - 1];
    for (; last->count < size[n - 1].count && used + last->bytes <= budget; last->count++)
        used += last->bytes;
    assert(used <= budget || last->count > 0);
    for (; used > budget; last->count--) used -= last->bytes;
}

int fl_slot_classes(fl_slot_class *size, int n, uint64_t budget, int least,
                    fl_slot_class out[FL_PLAN_MAX_CLASSES])
{
    assert(n >= 1 && budget >= size[n - 1].bytes);
    /* Too many: first those that lose least by it. */
    while (n > FL_PLAN_MAX_CLASSES) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++)
            if ((double)(size[i + 1].bytes - size[i].bytes) * size[i].count <
                (double)(size[best + 1].bytes - size[best].bytes) * size[best].count)
                best = i;
        n = join(size, n, best);
    }
    for (;;) {
        int few = 0;
        share(size, n, budget, out);
        while (few < n && (out[few].count >= least || out[few].count == size[few].count)) few++;
        if (few == n || n == 1) return n;
        n = join(size, n, few + 1 < n ? few : few - 1);
    }
}
