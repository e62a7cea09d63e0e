#include "runtime/base/latch.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/clock.h"

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* What a wait ends with: the value 0, or any but `seen`. */
typedef struct goal {
    bool zero;
    unsigned seen;
} goal;

static bool is_reached(goal g, unsigned value) { return g.zero ? value == 0 : value != g.seen; }

static bool spin(fl_latch *l, goal g)
{
    const uint64_t start = fl_clock_ns();
    do {
        for (int i = 0; i < 16; i++) {
            if (is_reached(g, atomic_load_explicit(&l->value, memory_order_acquire))) return true;
            pause_core();
        }
    } while (fl_clock_ns() - start < FL_SPIN_NS);
    return false;
}

/* The kernel looks at the value once more before the thread sleeps, and wakers look at `sleepers`
 * after they changed the value: one of the two sees the other. */
static void wait_for(fl_latch *l, goal g)
{
    unsigned value;
    if (spin(l, g)) return;
    atomic_fetch_add(&l->sleepers, 1);
    while (!is_reached(g, value = atomic_load(&l->value)))
        syscall(SYS_futex, &l->value, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
    atomic_fetch_sub(&l->sleepers, 1);
}

static void wake(fl_latch *l)
{
    if (atomic_load(&l->sleepers))
        syscall(SYS_futex, &l->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void fl_latch_wait_change(fl_latch *l, unsigned seen) { wait_for(l, (goal){false, seen}); }

void fl_latch_bump(fl_latch *l)
{
    atomic_fetch_add(&l->value, 1);
    wake(l);
}

void fl_latch_set(fl_latch *l, unsigned n)
{
    atomic_store_explicit(&l->value, n, memory_order_relaxed);
}

void fl_latch_arrive(fl_latch *l, unsigned n)
{
    if (atomic_fetch_sub(&l->value, n) == n) wake(l);
}

void fl_latch_wait(fl_latch *l) { wait_for(l, (goal){true, 0}); }
