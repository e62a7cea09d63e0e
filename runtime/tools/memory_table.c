#include "runtime/tools/memory_table.h"

#include <string.h>

#include "runtime/base/sysfile.h"

fl_memory_use fl_memory_measure(const fl_engine *e, uint64_t checkpoint_bytes)
{
    const bool shared = strcmp(fl_device_kind(e->dev), "host") == 0;
    const uint64_t device = e->plan.device_bytes, host = e->plan.host_bytes;
    uint64_t resident = 0;
    fl_sys_number(NULL, "/proc/self/status", "VmRSS:", &resident);
    return (fl_memory_use){
        .device = {device, fl_device_budget(e->dev)->used},
        .host = {host, fl_store_host_memory(e->store)->used},
        .process = {host + checkpoint_bytes + (shared ? device : 0), resident * 1024}};
}

static void print_line(FILE *f, const char *name, const fl_memory_line *l)
{
    const double planned = (double)l->planned / (1 << 20), used = (double)l->used / (1 << 20);
    fprintf(f, "  %-8s %10.1f MiB %10.1f MiB %+10.1f MiB\n", name, planned, used, used - planned);
}

void fl_memory_print(FILE *f, const fl_memory_use *m)
{
    fprintf(f, "%-10s %14s %14s %14s\n", "memory", "planned", "in use", "unaccounted");
    print_line(f, "device", &m->device);
    print_line(f, "host", &m->host);
    print_line(f, "process", &m->process);
}

static void set_line(fl_json *j, const char *name, const fl_memory_line *l)
{
    fl_json *o = fl_json_new_object();
    fl_json_set_int(o, "planned", (int64_t)l->planned);
    fl_json_set_int(o, "used", (int64_t)l->used);
    fl_json_set(j, name, o);
}

fl_json *fl_memory_json(const fl_memory_use *m)
{
    fl_json *j = fl_json_new_object();
    set_line(j, "device", &m->device);
    set_line(j, "host", &m->host);
    set_line(j, "process", &m->process);
    return j;
}
