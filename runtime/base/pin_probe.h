#ifndef FL_BASE_PIN_PROBE_H
#define FL_BASE_PIN_PROBE_H

#include "runtime/base/status.h"

/* How much memory can really be pinned. Limits do not tell: under WSL2 and in containers a driver
 * may refuse after 1 GiB, and a refused call can leave an error behind that a later, unrelated one
 * reports. So a child process takes memory chunk by chunk until it is refused, stalls or ends; the
 * caller's own state is untouched, and nothing is left of the child. The child volunteers for the
 * kernel's out-of-memory killer.
 *
 * Call it before threads are started or a device is opened: the child is a plain fork, in which
 * `pin` may open a device of its own. Held by tests/base/test_pin_probe.c. */

typedef struct fl_pin_probe {
    uint64_t want;        /* bytes; no more is tried */
    uint64_t chunk_bytes; /* a multiple of the page size; 0: 256 MiB */
    int timeout_ms;       /* of the whole probe; 0: 5 s */
    /* Pins one chunk, in the child; 0 or an errno. NULL: mlock. */
    int (*pin)(void *arg, void *base, uint64_t bytes);
    void *arg;
} fl_pin_probe;

typedef enum fl_pin_end {
    FL_PIN_ALL,     /* as much as was wanted */
    FL_PIN_REFUSED, /* a chunk was refused */
    FL_PIN_STALLED, /* the time limit ended it */
    FL_PIN_KILLED   /* the kernel did, out of memory */
} fl_pin_end;

typedef struct fl_pinnable {
    uint64_t bytes; /* pinned at once */
    fl_pin_end end;
    int sys; /* FL_PIN_REFUSED: the errno */
} fl_pinnable;

/* FL_E_IO: no child could be started. */
FL_CHECKED fl_status fl_pin_probe_run(const fl_pin_probe *p, fl_pinnable *out, fl_err *err);

#endif
