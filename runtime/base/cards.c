#include "runtime/base/cards.h"

#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/sysfile.h"

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu Jan ..."; the open module says
 * "NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build". */
static void read_driver(fl_cards *out, const char *root)
{
    char line[256];
    if (!fl_sys_line(root, "/proc/driver/nvidia/version", line, sizeof line)) return;
    for (char *rest = line, *word; (word = strtok_r(rest, " \t", &rest));) {
        const char *dot = strchr(word, '.');
        if (!isdigit((unsigned char)word[0]) || !dot || !isdigit((unsigned char)dot[1])) continue;
        snprintf(out->driver, sizeof out->driver, "%s", word);
        return;
    }
}

static void read_name(fl_card *c, const char *root)
{
    char path[FL_SYS_PATH], text[128];
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%.15s/information", c->pci.address);
    if (!fl_sys_text(root, path, "Model:", text, sizeof text)) return;
    snprintf(c->name, sizeof c->name, "%.*s", (int)sizeof c->name - 1, text);
}

static bool has_display(const fl_pci *p, const char *root)
{
    char path[FL_SYS_PATH], pattern[FL_SYS_PATH], line[32];
    glob_t found;
    bool connected = false;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.15s/drm/card*/card*-*/status", p->address);
    if (!fl_sys_path(pattern, root, path) || glob(pattern, 0, NULL, &found) != 0) return false;
    for (size_t i = 0; i < found.gl_pathc && !connected; i++)
        connected = fl_sys_line(NULL, found.gl_pathv[i], line, sizeof line) &&
                    strcmp(line, "connected") == 0;
    globfree(&found);
    return connected;
}

void fl_cards_list(fl_cards *out, const char *root)
{
    fl_pci pci[FL_MAX_CARDS];
    *out = (fl_cards){0};
    out->n = fl_pci_list(root, FL_PCI_DISPLAY, pci, FL_MAX_CARDS);
    read_driver(out, root);
    for (int i = 0; i < out->n; i++) {
        out->card[i].pci = pci[i];
        out->card[i].display = has_display(&pci[i], root);
        read_name(&out->card[i], root);
    }
}
