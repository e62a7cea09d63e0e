#ifndef FL_BASE_CORES_H
#define FL_BASE_CORES_H

#include <sched.h>

/* Processors in the order in which threads should take them. */

enum { FL_MAX_CPUS = 512 };

typedef struct fl_cpu {
    int id;   /* the kernel's number */
    int kind; /* 0: the machine's strongest kind of core, 1: the next one, ... */
} fl_cpu;

typedef struct fl_cores {
    int n_cores; /* physical cores with an allowed processor; at least 1 */
    int n_kinds; /* among the listed processors; 1 where nobody knows */
    int n_cpus;  /* listed; 0 where nobody knows which processors share a core */
    /* One of each core, strongest kind first; then the second ones of all cores, and so on. */
    fl_cpu cpu[FL_MAX_CPUS];
} fl_cores;

/* Of the processors in `allowed` (NULL: all). `xml`: the machine as hwloc wrote it down, for tests;
 * NULL: this one. */
void fl_cores_list(fl_cores *out, const cpu_set_t *allowed, const char *xml);

#endif
