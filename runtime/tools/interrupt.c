#include "runtime/tools/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_int seen; /* lock-free: set by a signal, read by threads */

static void on_signal(int number)
{
    (void)number;
    seen = 1;
}

static bool is_ignored(void)
{
    struct sigaction now;
    return sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void fl_interrupt_catch(void)
{
    const struct sigaction once = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND | SA_RESTART};
    if (!is_ignored()) (void)sigaction(SIGINT, &once, NULL);
}

bool fl_interrupted(void) { return seen != 0; }

void fl_interrupt_release(void)
{
    const struct sigaction usual = {.sa_handler = SIG_DFL};
    if (!is_ignored()) (void)sigaction(SIGINT, &usual, NULL);
}
