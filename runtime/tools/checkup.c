#include "runtime/tools/checkup.h"

#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"
#include "runtime/base/sysfile.h"

static void look_at_drive(fl_checkup *c, const char *root)
{
    c->has_drive = fl_drive_under(root, c->path, &c->drive);
    c->controller = (fl_pci){.node = -1};
    if (c->has_drive && c->drive.pci[0] && !fl_pci_read(root, c->drive.pci, &c->controller))
        c->controller = (fl_pci){.node = -1};
}

void fl_checkup_look(fl_checkup *c, const char *root, const char *path)
{
    uint64_t disabled = 0;
    fl_kernels k;
    *c = (fl_checkup){0};
    snprintf(c->path, sizeof c->path, "%s", path);
    if (!fl_sys_text(root, "/proc/cpuinfo", "model name\t:", c->cpu, sizeof c->cpu))
        strcpy(c->cpu, "unknown");
    if (fl_kernels_init(&k, NULL)) snprintf(c->tier, sizeof c->tier, "%s", k.name);
    fl_topology_read(&c->topo, root, NULL);
    fl_limits_read(&c->limits, root);
    if (fl_sys_number(root, "/proc/sys/kernel/io_uring_disabled", "", &disabled))
        c->io_uring_disabled = (int)disabled;
    fl_cards_list(&c->cards, root);
    look_at_drive(c, root);
}

const fl_card *fl_checkup_card(const fl_checkup *c)
{
    for (int i = 0; i < c->cards.n; i++)
        if (c->cards.card[i].pci.vendor == FL_PCI_NVIDIA) return &c->cards.card[i];
    return NULL;
}

int fl_checkup_strong_cores(const fl_checkup *c) { return fl_topology_count(&c->topo, 0, -1); }
