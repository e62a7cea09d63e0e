#include "runtime/base/cores.h"

#include <unistd.h>

#include "runtime/base/topology.h"

/* The allowed processor number `nth` of a core, or -1. */
static int processor(const fl_core *core, int nth, const cpu_set_t *allowed)
{
    for (int i = 0; i < core->n_cpus; i++) {
        const int id = core->cpu[i];
        if ((!allowed || (id < CPU_SETSIZE && CPU_ISSET(id, allowed))) && nth-- == 0) return id;
    }
    return -1;
}

/* Appends the processors number `nth` of all cores of a kind; how many. */
static int add_kind(fl_cores *out, const fl_topology *t, int nth, int kind,
                    const cpu_set_t *allowed)
{
    const int before = out->n_cpus;
    for (int c = 0; c < t->n_cores; c++) {
        const int id = processor(&t->core[c], nth, allowed);
        if (id >= 0 && t->core[c].kind == kind && out->n_cpus < FL_MAX_CPUS)
            out->cpu[out->n_cpus++] = (fl_cpu){id, kind};
    }
    return out->n_cpus - before;
}

static void list_topology(fl_cores *out, const fl_topology *t, const cpu_set_t *allowed)
{
    int kind = 0;
    for (int nth = 0, found = 1; found > 0; nth++) {
        found = 0;
        for (int k = 0; k < t->n_kinds; k++) {
            const int n = add_kind(out, t, nth, k, allowed);
            if (nth == 0) kind += n > 0;
            found += n;
        }
        if (nth == 0) out->n_cores = out->n_cpus;
    }
    if (kind > 0) out->n_kinds = kind;
}

void fl_cores_list(fl_cores *out, const cpu_set_t *allowed, const char *xml)
{
    fl_topology t;
    *out = (fl_cores){.n_kinds = 1};
    fl_topology_read(&t, NULL, xml);
    list_topology(out, &t, allowed);
    if (out->n_cores == 0)
        out->n_cores = allowed ? CPU_COUNT(allowed) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (out->n_cores < 1) out->n_cores = 1;
}
