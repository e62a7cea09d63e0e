#include "runtime/base/cores.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifndef FL_MINIMAL
#include <hwloc.h>
#endif

#ifndef FL_MINIMAL

static bool open_topology(hwloc_topology_t *topo, const char *xml)
{
    /* Without sysfs (a bare chroot) hwloc knows no cores and says so on standard error. */
    if (!xml && access("/sys/devices/system/cpu/cpu0/topology", F_OK) != 0) return false;
    if (hwloc_topology_init(topo) != 0) return false;
    if ((!xml || hwloc_topology_set_xmlbuffer(*topo, xml, (int)strlen(xml) + 1) == 0) &&
        hwloc_topology_load(*topo) == 0)
        return true;
    hwloc_topology_destroy(*topo);
    return false;
}

/* hwloc numbers kinds by rising efficiency where it can rank them. */
static int kind_of(hwloc_topology_t topo, hwloc_obj_t core, int n_kinds)
{
    const int k = hwloc_cpukinds_get_by_cpuset(topo, core->cpuset, 0);
    return n_kinds > 1 && k >= 0 ? n_kinds - 1 - k : 0;
}

static int count_kinds(hwloc_topology_t topo)
{
    int efficiency = -1;
    const int n = hwloc_cpukinds_get_nr(topo, 0);
    if (n < 2 || hwloc_cpukinds_get_info(topo, 0, NULL, &efficiency, NULL, NULL, 0) != 0) return 1;
    return efficiency >= 0 ? n : 1;
}

/* The allowed processor number `nth` of a core, or -1. */
static int processor(hwloc_obj_t core, int nth, const cpu_set_t *allowed)
{
    for (int id = hwloc_bitmap_first(core->cpuset); id >= 0;
         id = hwloc_bitmap_next(core->cpuset, id))
        if ((!allowed || (id < CPU_SETSIZE && CPU_ISSET(id, allowed))) && nth-- == 0) return id;
    return -1;
}

/* Appends the processors number `nth` of all cores of a kind; how many. */
static int add_kind(fl_cores *out, hwloc_topology_t topo, int nth, int kind, int n_kinds,
                    const cpu_set_t *allowed)
{
    const int before = out->n_cpus;
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, core))) {
        const int id = processor(core, nth, allowed);
        if (id >= 0 && kind_of(topo, core, n_kinds) == kind && out->n_cpus < FL_MAX_CPUS)
            out->cpu[out->n_cpus++] = (fl_cpu){id, kind};
    }
    return out->n_cpus - before;
}

static void list_topology(fl_cores *out, hwloc_topology_t topo, const cpu_set_t *allowed)
{
    const int n_kinds = count_kinds(topo);
    int kind = 0;
    for (int nth = 0, found = 1; found > 0; nth++) {
        found = 0;
        for (int k = 0; k < n_kinds; k++) {
            const int n = add_kind(out, topo, nth, k, n_kinds, allowed);
            if (nth == 0) kind += n > 0;
            found += n;
        }
        if (nth == 0) out->n_cores = out->n_cpus;
    }
    if (kind > 0) out->n_kinds = kind;
}

#endif

void fl_cores_list(fl_cores *out, const cpu_set_t *allowed, const char *xml)
{
    *out = (fl_cores){.n_kinds = 1};
#ifndef FL_MINIMAL
    hwloc_topology_t topo;
    if (open_topology(&topo, xml)) {
        list_topology(out, topo, allowed);
        hwloc_topology_destroy(topo);
    }
#else
    (void)xml;
#endif
    if (out->n_cores == 0)
        out->n_cores = allowed ? CPU_COUNT(allowed) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (out->n_cores < 1) out->n_cores = 1;
}
