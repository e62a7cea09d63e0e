#ifndef FL_BASE_GROUPS_H
#define FL_BASE_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

/* What the control groups of this process leave it, version 2 and 1: the tightest of its own group
 * and those above it. `root` as in sysfile.h. Held by tests/base/test_groups.c. */

/* Processors' worth of time, rounded up; 0: no limit. */
int fl_groups_cpus(const char *root);

/* False: no limit. `left`: what can be taken below it now; pages of files that were not used lately
 * count as free, since the kernel drops them first. */
bool fl_groups_memory(const char *root, uint64_t *limit, uint64_t *left);

#endif
