#ifndef FL_DEVICE_HEADROOM_H
#define FL_DEVICE_HEADROOM_H

#include <stdbool.h>
#include <stdint.h>

/* How much memory is taken where none was asked for: what is free now less a headroom. */
typedef enum fl_memory_kind {
    FL_MEMORY_MAIN,       /* the host device's, and the host tier's */
    FL_MEMORY_CARD,       /* a card that only computes */
    FL_MEMORY_CARD_SCREEN /* a card with a screen */
} fl_memory_kind;

/* Of `free` bytes those that may be taken. The headroom is
 *   main memory         an eighth: other programs grow, and the kernel's estimate of what is free
 *                       cannot know all
 *   a card              the larger of 256 MiB and 1/32: code that is loaded late, buffers of
 *                       libraries; near the end copies and products become several times slower
 *   a card with screen  the larger of 512 MiB and 1/16: a desktop takes and returns memory all the
 *                       time, and what is short then is paged out over the link
 *   under WSL2 (`wsl`)  never less than a tenth of a card: the driver refuses before the end
 * 0 where less than that is free. Held by tests/device/test_headroom.c. */
uint64_t fl_memory_to_take(uint64_t free, fl_memory_kind kind, bool wsl);

#endif
