#include "runtime/base/topology.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifndef FL_MINIMAL
#include <hwloc.h>
#endif

#include "runtime/base/sysfile.h"

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

static int count_kinds(hwloc_topology_t topo)
{
    int efficiency = -1;
    const int n = hwloc_cpukinds_get_nr(topo, 0);
    if (n < 2 || hwloc_cpukinds_get_info(topo, 0, NULL, &efficiency, NULL, NULL, 0) != 0) return 1;
    return efficiency >= 0 ? n : 1;
}

/* hwloc numbers kinds by rising efficiency where it can rank them. */
static int kind_of(hwloc_topology_t topo, hwloc_obj_t core, int n_kinds)
{
    const int k = hwloc_cpukinds_get_by_cpuset(topo, core->cpuset, 0);
    return n_kinds > 1 && k >= 0 ? n_kinds - 1 - k : 0;
}

static void add_core(fl_topology *t, hwloc_topology_t topo, hwloc_obj_t obj)
{
    fl_core *c = &t->core[t->n_cores++];
    const bool one_node = hwloc_bitmap_weight(obj->nodeset) == 1;
    *c = (fl_core){.kind = kind_of(topo, obj, t->n_kinds),
                   .node = one_node ? hwloc_bitmap_first(obj->nodeset) : -1};
    for (int id = hwloc_bitmap_first(obj->cpuset); id >= 0 && c->n_cpus < FL_CORE_CPUS;
         id = hwloc_bitmap_next(obj->cpuset, id))
        c->cpu[c->n_cpus++] = id;
}

static void list_all(fl_topology *t, hwloc_topology_t topo)
{
    hwloc_obj_t obj = NULL;
    t->n_kinds = count_kinds(topo);
    while (t->n_nodes < FL_MAX_NODES &&
           (obj = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_NUMANODE, obj)))
        t->node[t->n_nodes++] =
            (fl_node){.id = (int)obj->os_index, .bytes = obj->attr->numanode.local_memory};
    obj = NULL;
    while (t->n_cores < FL_MAX_CORES &&
           (obj = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, obj)))
        add_core(t, topo, obj);
}

const char *fl_topology_library(char buf[32])
{
    const unsigned v = hwloc_get_api_version();
    snprintf(buf, 32, "hwloc %u.%u.%u", v >> 16, v >> 8 & 0xff, v & 0xff);
    return buf;
}

static void ask_hwloc(fl_topology *t, const char *xml)
{
    hwloc_topology_t topo;
    if (!open_topology(&topo, xml)) return;
    list_all(t, topo);
    hwloc_topology_destroy(topo);
}

#else

const char *fl_topology_library(char buf[32])
{
    buf[0] = '\0';
    return buf;
}

static void ask_hwloc(fl_topology *t, const char *xml)
{
    (void)t;
    (void)xml;
}

#endif

/* What the kernel could give without pushing programs out, but for pages that are in use. */
static uint64_t free_bytes(const char *root, int node)
{
    static const char *const parts[] = {"MemFree:", "Inactive(file):"};
    char path[FL_SYS_PATH], key[64];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    for (int i = 0; i < 2; i++) {
        uint64_t kib = 0;
        snprintf(key, sizeof key, "Node %d %s", node, parts[i]);
        if (fl_sys_number(root, path, key, &kib)) sum += kib * 1024;
    }
    return sum;
}

void fl_topology_read(fl_topology *t, const char *root, const char *xml)
{
    *t = (fl_topology){.n_kinds = 1};
    ask_hwloc(t, xml);
    for (int i = 0; i < t->n_nodes; i++) {
        fl_node *n = &t->node[i];
        n->free_bytes = free_bytes(root, n->id);
        for (int c = 0; c < t->n_cores; c++) n->n_cores += t->core[c].node == n->id;
    }
}

const fl_node *fl_topology_node(const fl_topology *t, int id)
{
    for (int i = 0; i < t->n_nodes; i++)
        if (t->node[i].id == id) return &t->node[i];
    return NULL;
}

int fl_topology_count(const fl_topology *t, int kind, int node)
{
    int n = 0;
    for (int i = 0; i < t->n_cores; i++)
        n += t->core[i].kind == kind && (node < 0 || t->core[i].node == node);
    return n;
}
