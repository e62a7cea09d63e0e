#include "tests/support/fake_root.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* root/path with the folders above it; malloc'ed. */
static char *place(const char *root, const char *path)
{
    assert_true(path[0] == '/');
    char *full = fl_tmp_path(root, path + 1);
    for (char *p = full + strlen(root); (p = strchr(p, '/')); p++) {
        *p = '\0';
        assert_true(mkdir(full, 0755) == 0 || errno == EEXIST);
        *p = '/';
    }
    return full;
}

void fl_fake_put(const char *root, const char *path, const char *text)
{
    char *full = place(root, path);
    fl_tmp_write(full, text, strlen(text));
    free(full);
}

void fl_fake_link(const char *root, const char *path, const char *target)
{
    char *full = place(root, path);
    char *to = target[0] == '/' ? place(root, target) : strdup(target);
    unlink(full);
    assert_int_equal(symlink(to, full), 0);
    free(to);
    free(full);
}

#define PORT "/sys/devices/pci0000:00/0000:00:01.0"

static void put_below(const char *root, const char *folder, const char *name, const char *text)
{
    char path[512];
    if (!text) return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    fl_fake_put(root, path, text);
}

void fl_fake_pci_put(const char *root, const fl_fake_pci *d)
{
    char port[128], folder[256], path[512], node[16];
    snprintf(port, sizeof port, PORT "/port-of-%s", d->address);
    snprintf(folder, sizeof folder, "%s/%s", port, d->address);
    snprintf(node, sizeof node, "%d\n", d->node);
    put_below(root, folder, "class", d->class);
    put_below(root, folder, "vendor", d->vendor);
    put_below(root, folder, "numa_node", node);
    put_below(root, folder, "current_link_speed", d->now.speed);
    put_below(root, folder, "current_link_width", d->now.width);
    put_below(root, folder, "max_link_speed", d->device.speed);
    put_below(root, folder, "max_link_width", d->device.width);
    put_below(root, port, "max_link_speed", d->slot.speed);
    put_below(root, port, "max_link_width", d->slot.width);
    if (d->driver) {
        char driver[128];
        snprintf(driver, sizeof driver, "../../../../../bus/pci/drivers/%s", d->driver);
        snprintf(path, sizeof path, "%s/driver", folder);
        fl_fake_link(root, path, driver);
    }
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s", d->address);
    fl_fake_link(root, path, folder);
}
