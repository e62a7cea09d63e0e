#include "runtime/tools/checkup_text.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/hash.h"
#include "runtime/base/options.h"
#include "runtime/model/nfc.h"
#include "runtime/model/pretokenizer.h"

static double gb(uint64_t bytes_s) { return (double)bytes_s * 1e-9; }

/* ---- text ---- */

static void print_cpu(const fl_checkup *c)
{
    const fl_topology *t = &c->topo;
    printf("processor  %s, %d cores", c->cpu, t->n_cores);
    for (int k = 0; t->n_kinds > 1 && k < t->n_kinds; k++)
        printf("%s%d %s", k ? ", " : " (", fl_topology_count(t, k, -1), k ? "weaker" : "strong");
    printf("%s; kernels %s\n", t->n_kinds > 1 ? ")" : "", c->tier);
    if (c->limits.group_cpus > 0)
        printf("           control groups leave %d processors' time\n", c->limits.group_cpus);
}

static void print_memory(const fl_checkup *c)
{
    char all[32], avail[32], pins[32], left[32];
    const fl_limits *l = &c->limits;
    printf("memory     %s, %s available; limits let %s of it be pinned\n",
           fl_size_format(all, l->memory), fl_size_format(avail, l->available),
           fl_size_format(pins, fl_limits_pinnable(l)));
    for (int i = 0; i < c->topo.n_nodes; i++) {
        const fl_node *n = &c->topo.node[i];
        printf("  node %-2d  %s, %s of it free, %d cores\n", n->id, fl_size_format(all, n->bytes),
               n->free_bytes ? fl_size_format(left, n->free_bytes) : "an unknown part", n->n_cores);
    }
}

static void print_place(const fl_pci *p)
{
    char now[32], can[32];
    printf(" at PCI %s", p->address);
    if (p->now.lanes > 0)
        printf(", %s (the most here: %s)", fl_link_format(now, p->now),
               fl_link_format(can, fl_link_least(p->device, p->slot)));
    if (p->node >= 0) printf(", near node %d", p->node);
}

static void print_cards(const fl_checkup *c)
{
    for (int i = 0; i < c->cards.n; i++) {
        const fl_card *card = &c->cards.card[i];
        printf("card       %s", card->name[0]                       ? card->name
                                : card->pci.vendor == FL_PCI_NVIDIA ? "NVIDIA card"
                                                                    : "not NVIDIA's");
        print_place(&card->pci);
        printf("%s\n", card->display ? ", drives a screen" : "");
    }
    if (c->cards.n == 0) puts("card       none");
    if (c->cards.driver[0]) printf("driver     NVIDIA %s\n", c->cards.driver);
}

static void print_drive(const fl_checkup *c)
{
    const fl_drive *d = &c->drive;
    if (!c->has_drive) {
        printf("drive      unknown, of %s\n", c->path);
        return;
    }
    printf("drive      %s on %s%s%s%s", d->file_system, d->name[0] ? d->name : "no drive",
           d->model[0] ? " " : "", d->model, d->nvme ? ", NVMe" : "");
    if (c->controller.address[0]) print_place(&c->controller);
    printf("\n           holds %s, mounted at %s\n", c->has_model ? c->path : "this folder",
           d->mount);
}

static void print_libraries(void)
{
    char a[32], b[32], d[32], e[32], f[32];
    printf("versions   fourleaf %s; glibc %s, %s, %s, %s, %s, %s\n", fl_version,
           gnu_get_libc_version(), fl_topology_library(a), fl_json_library(b), fl_pretok_library(d),
           fl_nfc_library(e), fl_hash_library(f));
}

static void print_model(const fl_checkup *c, const fl_rates *r)
{
    char size[32], want[32];
    if (!c->has_model) return;
    printf("model      %s, %s\n", c->path, fl_size_format(size, c->model_bytes));
    if (c->plan[0]) printf("  plan     %s\n", c->plan);
    if (c->calibrated)
        printf("  measured link %.2f GB/s, file %.2f GB/s, host memory %.2f GB/s, device memory "
               "%.2f GB/s, one expert %.0f us for one row\n",
               gb(r->link_bytes_s), gb(r->file_bytes_s), gb(r->host_bytes_s), gb(r->device_bytes_s),
               (double)r->cpu_expert_ns[0] * 1e-3);
    if (c->pin_wanted > 0)
        printf("  pinned   %s of the %s that calibrate tried\n",
               fl_size_format(size, c->pinned_bytes), fl_size_format(want, c->pin_wanted));
}

void fl_checkup_print(const fl_checkup *c, const fl_rates *r)
{
    print_cpu(c);
    print_memory(c);
    print_cards(c);
    print_drive(c);
    printf("reads      %s\n", c->io[0] ? c->io : "not possible");
    printf("kernel     %s%s\n", c->limits.kernel, c->limits.wsl ? ", run by Windows" : "");
    print_libraries();
    print_model(c, r);
    if (c->n_warnings == 0) puts("\nNothing to warn of.");
    for (int i = 0; i < c->n_warnings; i++) {
        const fl_warning *w = &c->warning[i];
        printf("%s%2d. [%s] %s\n", i ? "" : "\n", i + 1, w->code, w->what);
        if (w->mend[0]) printf("    -> %s\n", w->mend);
    }
}

/* ---- JSON ---- */

static fl_json *cpu_json(const fl_checkup *c)
{
    fl_json *j = fl_json_new_object(), *kinds = fl_json_new_array();
    fl_json_set_str(j, "name", c->cpu);
    fl_json_set_int(j, "cores", c->topo.n_cores);
    for (int k = 0; k < c->topo.n_kinds; k++)
        fl_json_append(kinds, fl_json_new_int(fl_topology_count(&c->topo, k, -1)));
    fl_json_set(j, "cores_by_kind", kinds);
    fl_json_set_str(j, "kernels", c->tier);
    fl_json_set_int(j, "group_cpus", c->limits.group_cpus);
    return j;
}

/* null: no limit. */
static fl_json *limit_json(uint64_t bytes)
{
    return bytes > INT64_MAX ? fl_json_new_null() : fl_json_new_int((int64_t)bytes);
}

static fl_json *memory_json(const fl_checkup *c)
{
    const fl_limits *l = &c->limits;
    fl_json *j = fl_json_new_object(), *nodes = fl_json_new_array();
    fl_json_set_int(j, "bytes", (int64_t)l->memory);
    fl_json_set_int(j, "available_bytes", (int64_t)l->available);
    fl_json_set(j, "lock_limit_bytes", limit_json(l->memlock));
    fl_json_set(j, "group_limit_bytes", limit_json(l->group_memory ? l->group_memory : UINT64_MAX));
    for (int i = 0; i < c->topo.n_nodes; i++) {
        const fl_node *n = &c->topo.node[i];
        fl_json *x = fl_json_new_object();
        fl_json_set_int(x, "node", n->id);
        fl_json_set_int(x, "bytes", (int64_t)n->bytes);
        fl_json_set_int(x, "free_bytes", (int64_t)n->free_bytes);
        fl_json_set_int(x, "cores", n->n_cores);
        fl_json_append(nodes, x);
    }
    fl_json_set(j, "nodes", nodes);
    return j;
}

static fl_json *link_json(fl_link l)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "mt_s", l.mt_s);
    fl_json_set_int(j, "lanes", l.lanes);
    return j;
}

static void set_place(fl_json *j, const fl_pci *p)
{
    fl_json_set_str(j, "pci", p->address);
    fl_json_set_int(j, "node", p->node);
    fl_json_set(j, "link", link_json(p->now));
    fl_json_set(j, "link_device", link_json(p->device));
    fl_json_set(j, "link_slot", link_json(p->slot));
}

static fl_json *cards_json(const fl_checkup *c)
{
    fl_json *a = fl_json_new_array();
    for (int i = 0; i < c->cards.n; i++) {
        const fl_card *card = &c->cards.card[i];
        fl_json *j = fl_json_new_object();
        fl_json_set_str(j, "name", card->name);
        fl_json_set_bool(j, "nvidia", card->pci.vendor == FL_PCI_NVIDIA);
        fl_json_set_str(j, "driver", card->pci.driver);
        fl_json_set_bool(j, "display", card->display);
        set_place(j, &card->pci);
        fl_json_append(a, j);
    }
    return a;
}

static fl_json *drive_json(const fl_checkup *c)
{
    const fl_drive *d = &c->drive;
    fl_json *j = fl_json_new_object();
    fl_json_set_str(j, "path", c->path);
    fl_json_set_str(j, "file_system", d->file_system);
    fl_json_set_str(j, "mount", d->mount);
    fl_json_set_str(j, "name", d->name);
    fl_json_set_str(j, "model", d->model);
    fl_json_set_bool(j, "nvme", d->nvme);
    fl_json_set(j, "rotational",
                d->rotational < 0 ? fl_json_new_null() : fl_json_new_bool(d->rotational == 1));
    if (c->controller.address[0]) set_place(j, &c->controller);
    return j;
}

static fl_json *versions_json(const fl_checkup *c)
{
    char buf[32];
    fl_json *j = fl_json_new_object(), *libraries = fl_json_new_array();
    fl_json_set_str(j, "fourleaf", fl_version);
    fl_json_set_str(j, "kernel", c->limits.kernel);
    fl_json_set_bool(j, "wsl", c->limits.wsl);
    fl_json_set_str(j, "nvidia_driver", c->cards.driver);
    fl_json_set_str(j, "glibc", gnu_get_libc_version());
    fl_json_append(libraries, fl_json_new_str(fl_topology_library(buf)));
    fl_json_append(libraries, fl_json_new_str(fl_json_library(buf)));
    fl_json_append(libraries, fl_json_new_str(fl_pretok_library(buf)));
    fl_json_append(libraries, fl_json_new_str(fl_nfc_library(buf)));
    fl_json_append(libraries, fl_json_new_str(fl_hash_library(buf)));
    fl_json_set(j, "libraries", libraries);
    return j;
}

static fl_json *model_json(const fl_checkup *c, const fl_rates *r)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, "bytes", (int64_t)c->model_bytes);
    fl_json_set(j, "plan", c->plan[0] ? fl_json_new_str(c->plan) : fl_json_new_null());
    fl_json_set(j, "rates", c->calibrated ? fl_rates_to_json(r) : fl_json_new_null());
    fl_json_set(j, "pinned_bytes",
                c->pin_wanted ? fl_json_new_int((int64_t)c->pinned_bytes) : fl_json_new_null());
    return j;
}

static fl_json *warnings_json(const fl_checkup *c)
{
    fl_json *a = fl_json_new_array();
    for (int i = 0; i < c->n_warnings; i++) {
        fl_json *j = fl_json_new_object();
        fl_json_set_str(j, "code", c->warning[i].code);
        fl_json_set_str(j, "what", c->warning[i].what);
        fl_json_set_str(j, "mend", c->warning[i].mend);
        fl_json_append(a, j);
    }
    return a;
}

fl_status fl_checkup_print_json(const fl_checkup *c, const fl_rates *r, fl_err *err)
{
    fl_json *j = fl_json_new_object();
    fl_json_set(j, "versions", versions_json(c));
    fl_json_set(j, "cpu", cpu_json(c));
    fl_json_set(j, "memory", memory_json(c));
    fl_json_set(j, "cards", cards_json(c));
    fl_json_set(j, "drive", c->has_drive ? drive_json(c) : fl_json_new_null());
    fl_json_set_str(j, "reads", c->io);
    if (c->has_model) fl_json_set(j, "model", model_json(c, r));
    fl_json_set(j, "warnings", warnings_json(c));
    char *text = fl_json_dump(j, 1);
    fl_json_free(&j);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "doctor: out of memory");
    printf("%s\n", text);
    free(text);
    return FL_OK;
}
