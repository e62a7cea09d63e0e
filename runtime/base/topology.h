#ifndef FL_BASE_TOPOLOGY_H
#define FL_BASE_TOPOLOGY_H

#include <stdint.h>

/* Cores and memory of a machine, as hwloc tells them (without it: nothing). hwloc's own variables
 * work: HWLOC_XMLFILE and HWLOC_SYNTHETIC stand for another machine. Held by
 * tests/base/test_topology.c. */

enum { FL_MAX_CORES = 512, FL_CORE_CPUS = 8, FL_MAX_NODES = 64 };

typedef struct fl_core {
    int kind;              /* 0: the machine's strongest kind of core, 1: the next one, ... */
    int node;              /* NUMA node, the kernel's number; -1: several, or unknown */
    int n_cpus;            /* processors, at most FL_CORE_CPUS */
    int cpu[FL_CORE_CPUS]; /* the kernel's numbers, rising */
} fl_core;

typedef struct fl_node {
    int id;              /* the kernel's number */
    uint64_t bytes;      /* of memory */
    uint64_t free_bytes; /* unused, or used for pages of files; 0: unknown */
    int n_cores;
} fl_node;

typedef struct fl_topology {
    int n_cores; /* physical ones; 0: unknown */
    int n_kinds; /* 1 where nobody can rank them */
    int n_nodes;
    fl_core core[FL_MAX_CORES];
    fl_node node[FL_MAX_NODES];
} fl_topology;

/* `xml`: a machine as hwloc wrote it down, NULL: this one. `root`: where /sys says how much memory
 * is free (sysfile.h). */
void fl_topology_read(fl_topology *t, const char *root, const char *xml);

/* The node of that number; NULL when there is none. */
const fl_node *fl_topology_node(const fl_topology *t, int id);
/* Cores of a kind; node -1: on all nodes. */
int fl_topology_count(const fl_topology *t, int kind, int node);

/* "hwloc 2.9.0", "" where there is none. Returns buf. */
const char *fl_topology_library(char buf[32]);

#endif
