#ifndef FL_TESTS_SUPPORT_HEAP_H
#define FL_TESTS_SUPPORT_HEAP_H

#include <stdint.h>

/* What the process allocates: every malloc, calloc, realloc, posix_memalign and aligned_alloc of
 * any thread, those inside libraries too. In plain builds by definitions that take the place of
 * the C library's, under a sanitizer by its hooks; the thread sanitizer's see no posix_memalign and
 * no aligned_alloc. */

/* Call first in main: installs the hooks. Bytes allocated before count as 0. */
void fl_heap_watch(void);
int64_t fl_heap_now(void);
/* Most bytes since the last fl_heap_mark. */
int64_t fl_heap_peak(void);
void fl_heap_mark(void);
/* Calls that gave memory. */
uint64_t fl_heap_calls(void);

/* Bytes the process holds, to compare over time: resident memory; under a sanitizer, whose own
 * tables grow, the heap. */
int64_t fl_memory_held(void);

#endif
