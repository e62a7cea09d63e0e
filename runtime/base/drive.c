#include "runtime/base/drive.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/sysfile.h"

/* Drives below a mapped one are looked for so deep: LVM on LUKS on RAID on a partition. */
enum { MAX_DEPTH = 4, NAME = 64 };

/* ---- which block device ---- */

typedef struct mount {
    char numbers[32], point[256], type[32], source[256];
} mount;

/* "36 35 98:0 /sub /point rw,noatime shared:1 - ext4 /dev/sda1 rw" */
static bool parse_mount(const char *line, mount *m)
{
    const char *dash = strstr(line, " - ");
    return dash && sscanf(line, "%*d %*d %31s %*s %255s", m->numbers, m->point) == 2 &&
           sscanf(dash + 3, "%31s %255s", m->type, m->source) == 2;
}

static bool lies_under(const char *path, const char *point)
{
    const size_t n = strlen(point);
    return strcmp(point, "/") == 0 ||
           (strncmp(path, point, n) == 0 && (path[n] == '/' || path[n] == '\0'));
}

/* By the path: the number that stat gives is not that of the mount on btrfs. */
static bool find_mount(const char *root, const char *path, mount *out)
{
    char name[FL_SYS_PATH], line[2048];
    mount m;
    size_t longest = 0;
    FILE *f = fl_sys_path(name, root, "/proc/self/mountinfo") ? fopen(name, "re") : NULL;
    if (!f) return false;
    while (fgets(line, sizeof line, f)) {
        if (!parse_mount(line, &m) || !lies_under(path, m.point)) continue;
        if (strlen(m.point) < longest) continue;
        longest = strlen(m.point); /* of equal ones the last lies on top */
        *out = m;
    }
    fclose(f);
    return longest > 0;
}

/* Folder of a block device, links resolved. */
static bool block_folder(const char *root, const char *how, const char *name, char out[PATH_MAX])
{
    char path[FL_SYS_PATH], full[FL_SYS_PATH];
    snprintf(path, sizeof path, "/sys/%s/%s", how, name);
    return fl_sys_path(full, root, path) && realpath(full, out);
}

static bool mounted_folder(const char *root, const mount *m, char out[PATH_MAX])
{
    char resolved[PATH_MAX];
    if (block_folder(root, "dev/block", m->numbers, out)) return true;
    if (strncmp(m->source, "/dev/", 5) != 0) return false;
    const char *source = realpath(m->source, resolved) ? resolved : m->source;
    return block_folder(root, "class/block", strrchr(source, '/') + 1, out);
}

/* ---- which drive ---- */

static bool has(const char *folder, const char *name)
{
    char path[PATH_MAX + NAME];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* The first device that a mapped one is made of. */
static bool first_slave(const char *folder, char name[NAME])
{
    char path[PATH_MAX + NAME];
    name[0] = '\0';
    snprintf(path, sizeof path, "%s/slaves", folder);
    DIR *d = opendir(path);
    if (!d) return false;
    for (const struct dirent *x; (x = readdir(d));)
        if (x->d_name[0] != '.' && strlen(x->d_name) < NAME &&
            (name[0] == '\0' || strcmp(x->d_name, name) < 0))
            strcpy(name, x->d_name);
    closedir(d);
    return name[0] != '\0';
}

static void to_whole_drive(const char *root, char folder[PATH_MAX])
{
    char name[NAME], below[PATH_MAX];
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        if (has(folder, "partition")) *strrchr(folder, '/') = '\0';
        if (!first_slave(folder, name) || !block_folder(root, "class/block", name, below)) return;
        strcpy(folder, below);
    }
}

/* "0000:01:00.0" */
static bool is_address(const char *s, size_t n)
{
    static const char form[] = "xxxx:xx:xx.x";
    if (n != sizeof form - 1) return false;
    for (size_t i = 0; i < n; i++)
        if (form[i] == 'x' ? !isxdigit((unsigned char)s[i]) : s[i] != form[i]) return false;
    return true;
}

/* The last PCI device on the way to a folder. */
static void find_address(const char *folder, char out[16])
{
    for (const char *p = strchr(folder, '/'); p; p = strchr(p, '/')) {
        const size_t n = strcspn(++p, "/");
        if (is_address(p, n)) snprintf(out, 16, "%.*s", (int)n, p);
    }
}

/* With multipath a namespace does not lie below its controller. */
static void find_nvme_address(const char *root, const char *name, char out[16])
{
    char path[FL_SYS_PATH], line[32];
    const size_t n = strcspn(name + 4, "n") + 4; /* "nvme0" of "nvme0n1" */
    snprintf(path, sizeof path, "/sys/class/nvme/%.*s/address", (int)n, name);
    if (fl_sys_line(root, path, line, sizeof line) && is_address(line, strlen(line)))
        strcpy(out, line);
}

static void describe(const char *root, const char *folder, fl_drive *out)
{
    uint64_t v = 0;
    snprintf(out->name, sizeof out->name, "%s", strrchr(folder, '/') + 1);
    out->nvme = strncmp(out->name, "nvme", 4) == 0;
    out->virtual = strncmp(out->name, "vd", 2) == 0 || strncmp(out->name, "xvd", 3) == 0;
    if (fl_sys_number(folder, "/queue/rotational", "", &v)) out->rotational = v != 0;
    fl_sys_text(folder, "/device/model", "", out->model, sizeof out->model);
    find_address(folder, out->pci);
    if (out->nvme && out->pci[0] == '\0') find_nvme_address(root, out->name, out->pci);
}

bool fl_drive_under(const char *root, const char *path, fl_drive *out)
{
    char full[PATH_MAX], folder[PATH_MAX];
    mount m = {0};
    *out = (fl_drive){.rotational = -1};
    if (!realpath(path, full) || !find_mount(root, full, &m)) return false;
    snprintf(out->mount, sizeof out->mount, "%s", m.point);
    snprintf(out->file_system, sizeof out->file_system, "%s", m.type);
    if (!mounted_folder(root, &m, folder)) return true;
    to_whole_drive(root, folder);
    describe(root, folder, out);
    return true;
}
