#include "runtime/model/machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/cards.h"
#include "runtime/base/drive.h"
#include "runtime/base/limits.h"
#include "runtime/base/sysfile.h"
#include "runtime/base/topology.h"

/* ---- names ---- */

__attribute__((format(printf, 2, 3))) static void add(char out[FL_MACHINE_TEXT], const char *fmt,
                                                      ...)
{
    const size_t n = strlen(out);
    va_list a;
    va_start(a, fmt);
    vsnprintf(out + n, FL_MACHINE_TEXT - n, fmt, a);
    va_end(a);
}

static void add_cpu(char out[FL_MACHINE_TEXT], const char *root)
{
    fl_topology t;
    char name[128];
    if (!fl_sys_text(root, "/proc/cpuinfo", "model name\t:", name, sizeof name))
        strcpy(name, "unknown CPU");
    fl_topology_read(&t, root, NULL);
    add(out, "%s, %d cores, %d nodes", name, t.n_cores, t.n_nodes);
}

static void add_cards(char out[FL_MACHINE_TEXT], const char *root)
{
    fl_cards c;
    char link[32];
    fl_cards_list(&c, root);
    for (int i = 0; i < c.n; i++) {
        const fl_pci *p = &c.card[i].pci;
        if (p->vendor != FL_PCI_NVIDIA) continue;
        add(out, "; %s at %s, %s", c.card[i].name[0] ? c.card[i].name : "NVIDIA card", p->address,
            fl_link_format(link, fl_link_least(p->device, p->slot)));
    }
    if (c.driver[0]) add(out, "; driver %s", c.driver);
}

void fl_machine_describe(char out[FL_MACHINE_TEXT], const char *root, const char *path)
{
    fl_limits l;
    fl_drive d;
    out[0] = '\0';
    add_cpu(out, root);
    fl_limits_read(&l, root);
    /* What firmware and kernel keep for themselves moves a little from boot to boot. */
    add(out, "; %llu GiB", (unsigned long long)((l.memory + (UINT64_C(1) << 29)) >> 30));
    if (l.group_memory > 0)
        add(out, ", %llu MiB for the group", (unsigned long long)l.group_memory >> 20);
    if (l.group_cpus > 0) add(out, ", %d processors for the group", l.group_cpus);
    add(out, "; kernel %s", l.kernel[0] ? l.kernel : "unknown");
    add_cards(out, root);
    if (fl_drive_under(root, path, &d))
        add(out, "; %s on %s%s%s", d.file_system, d.name[0] ? d.name : "no drive",
            d.model[0] ? ", " : "", d.model);
}

void fl_machine_setup(char out[FL_MACHINE_SETUP], const fl_engine *e)
{
    snprintf(out, FL_MACHINE_SETUP, "%s, %s, %d threads, act %s", fl_device_kind(e->dev),
             e->exec.k.name, fl_pool_threads(e->exec.pool), e->exec.act_f32 ? "f32" : "law");
}

/* ---- reading ---- */

/* NULL: absent, or another machine's. */
static const fl_json *section_of(const fl_facts *f, const char *machine)
{
    const fl_json *s = fl_facts_section(f, "machine");
    return strcmp(fl_json_str(fl_json_get(s, "machine"), ""), machine) == 0 ? s : NULL;
}

const fl_json *fl_machine_part(const fl_facts *f, const char *machine, const char *part)
{
    return fl_json_get(section_of(f, machine), part);
}

bool fl_machine_rates(const fl_facts *f, const char *machine, const char *setup, fl_rates *out)
{
    const fl_json *setups = fl_machine_part(f, machine, "setups");
    const fl_json *rates = fl_json_get(fl_json_get(setups, setup), "rates");
    *out = (fl_rates){0};
    return rates && fl_rates_from_json(out, rates, "stored rates", NULL) == FL_OK;
}

/* ---- writing ---- */

fl_status fl_machine_store(fl_facts *f, const char *machine, const char *setup, fl_json *parts,
                           fl_json *entry, fl_err *err)
{
    const fl_json *now = section_of(f, machine), *setups = fl_json_get(now, "setups"), *value;
    fl_json *section = now ? fl_json_copy(now) : fl_json_new_object();
    fl_json *all = setups ? fl_json_copy(setups) : fl_json_new_object();
    void *iter = NULL;
    const char *key;
    fl_json_set_str(section, "machine", machine);
    while (fl_json_next(parts, &iter, &key, &value)) fl_json_set(section, key, fl_json_copy(value));
    fl_json_free(&parts);
    fl_json_set(all, setup, entry);
    fl_json_set(section, "setups", all);
    return fl_facts_put(f, "machine", section, err);
}
