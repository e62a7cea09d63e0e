#include "runtime/base/pci.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/sysfile.h"

#define DEVICES "/sys/bus/pci/devices"

static bool read_line(const char *root, const char *address, const char *name, char *line,
                      size_t size)
{
    char path[FL_SYS_PATH];
    snprintf(path, sizeof path, DEVICES "/%s/%s", address, name);
    return fl_sys_line(root, path, line, size);
}

static int64_t read_int(const char *root, const char *address, const char *name, int64_t missing)
{
    char line[64], *end = NULL;
    if (!read_line(root, address, name, line, sizeof line)) return missing;
    const int64_t v = strtoll(line, &end, 0);
    return end == line ? missing : v;
}

/* `which`: "current" or "max"; `at`: "" or "../", the port above. Speeds read "16.0 GT/s PCIe". */
static fl_link read_link(const char *root, const char *address, const char *at, const char *which)
{
    char name[64], line[64];
    snprintf(name, sizeof name, "%s%s_link_speed", at, which);
    const double gt_s = read_line(root, address, name, line, sizeof line) ? strtod(line, NULL) : 0;
    snprintf(name, sizeof name, "%s%s_link_width", at, which);
    const int64_t lanes = read_int(root, address, name, 0);
    if (gt_s < 1 || gt_s > 1000 || lanes < 1 || lanes > 32) return (fl_link){0, 0};
    return (fl_link){(int)(gt_s * 1000 + 0.5), (int)lanes};
}

static void read_driver(const char *root, const char *address, char *out, size_t size)
{
    char path[FL_SYS_PATH], name[128], target[FL_SYS_PATH];
    snprintf(name, sizeof name, DEVICES "/%s/driver", address);
    const ssize_t n =
        fl_sys_path(path, root, name) ? readlink(path, target, sizeof target - 1) : -1;
    out[0] = '\0';
    if (n <= 0) return;
    target[n] = '\0';
    const char *slash = strrchr(target, '/');
    const char *name_only = slash ? slash + 1 : target;
    snprintf(out, size, "%.*s", (int)size - 1, name_only);
}

bool fl_pci_read(const char *root, const char *address, fl_pci *out)
{
    *out = (fl_pci){.node = -1};
    const int64_t class = read_int(root, address, "class", -1);
    if (class < 0 || strlen(address) >= sizeof out->address) return false;
    strcpy(out->address, address);
    out->class = (uint32_t) class;
    out->vendor = (uint32_t)read_int(root, address, "vendor", 0);
    out->node = (int)read_int(root, address, "numa_node", -1);
    read_driver(root, address, out->driver, sizeof out->driver);
    out->now = read_link(root, address, "", "current");
    out->device = read_link(root, address, "", "max");
    out->slot = read_link(root, address, "../", "max");
    return true;
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const fl_pci *)a)->address, ((const fl_pci *)b)->address);
}

int fl_pci_list(const char *root, uint32_t base_class, fl_pci *out, int max)
{
    char path[FL_SYS_PATH];
    int n = 0;
    DIR *d = fl_sys_path(path, root, DEVICES) ? opendir(path) : NULL;
    if (!d) return 0;
    for (const struct dirent *x; n < max && (x = readdir(d));)
        if (x->d_name[0] != '.' && fl_pci_read(root, x->d_name, &out[n]) &&
            out[n].class >> 16 == base_class)
            n++;
    closedir(d);
    qsort(out, (size_t)n, sizeof *out, by_address);
    return n;
}

fl_link fl_link_least(fl_link a, fl_link b)
{
    if (a.lanes == 0 || b.lanes == 0) return (fl_link){0, 0};
    return (fl_link){a.mt_s < b.mt_s ? a.mt_s : b.mt_s, a.lanes < b.lanes ? a.lanes : b.lanes};
}

uint64_t fl_link_bytes_s(fl_link l)
{
    /* 8 of 10 bits up to generation 2, 128 of 130 from 3 on. */
    const uint64_t bits = (uint64_t)l.mt_s * 1000000u * (uint64_t)l.lanes;
    return (l.mt_s < 8000 ? bits / 10 * 8 : bits / 130 * 128) / 8;
}

const char *fl_link_format(char buf[32], fl_link l)
{
    int generation = 1;
    for (int mt_s = 2500; mt_s < l.mt_s; generation++)
        mt_s = mt_s == 2500 ? 5000 : mt_s == 5000 ? 8000 : 2 * mt_s;
    if (l.lanes == 0)
        snprintf(buf, 32, "an unknown link");
    else
        snprintf(buf, 32, "PCIe %d.0 x%d", generation, l.lanes);
    return buf;
}
