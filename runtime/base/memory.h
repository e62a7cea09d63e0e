#ifndef FL_BASE_MEMORY_H
#define FL_BASE_MEMORY_H

#include <stdint.h>

/* Main memory in bytes, and under a cgroup (v2, v1) at most what its limit says. */
uint64_t fl_memory_total(void);
/* What a new process could take now without pushing others out: the kernel's own estimate, and
 * under a cgroup what its limit leaves. */
uint64_t fl_memory_available(void);

#endif
