#include "runtime/base/pages.h"

#include <stddef.h>
#include <sys/mman.h>

static const uint64_t LARGE = UINT64_C(2) << 20;

void *fl_pages_take(uint64_t bytes)
{
    if (bytes > UINT64_MAX / 2) bytes = UINT64_MAX / 2; /* the kernel will say no */
    const uint64_t room = bytes + LARGE;
    uint8_t *m = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return NULL;
    const uint64_t head = (LARGE - (uintptr_t)m % LARGE) % LARGE;
    const uint64_t used = (head + bytes + 4095) & ~UINT64_C(4095);
    if (head) munmap(m, head);
    if (room > used) munmap(m + used, room - used);
    /* Where the kernel has no large ones it says so, and nothing but time is lost. */
    (void)madvise(m + head, bytes, MADV_HUGEPAGE);
    return m + head;
}

void fl_pages_give(void *p, uint64_t bytes)
{
    if (p) munmap(p, bytes);
}
