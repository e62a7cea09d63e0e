#include "tests/support/fake_root.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmp.h"

fl_fake_machine fl_fake;

int fl_fake_setup(void **state)
{
    char *path = NULL;
    (void)state;
    fl_tmp_begin(&fl_fake.root, &path, "model.gguf");
    fl_tmp_write(path, "x", 1);
    fl_fake.file = realpath(path, NULL);
    free(path);
    return fl_fake.file ? 0 : 1;
}

int fl_fake_teardown(void **state)
{
    (void)state;
    return fl_tmp_end(fl_fake.root, fl_fake.file);
}

/* root/path with the folders above it; malloc'ed. */
static char *place(const char *path)
{
    assert_true(path[0] == '/');
    char *full = fl_tmp_path(fl_fake.root, path + 1);
    for (char *p = full + strlen(fl_fake.root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        assert_true(mkdir(full, 0755) == 0 || errno == EEXIST);
        *p = '/';
    }
    return full;
}

void fl_fake_put(const char *path, const char *text)
{
    char *full = place(path);
    fl_tmp_write(full, text, strlen(text));
    free(full);
}

void fl_fake_link(const char *path, const char *target)
{
    char *full = place(path);
    char *to = target[0] == '/' ? place(target) : strdup(target);
    unlink(full);
    assert_int_equal(symlink(to, full), 0);
    free(to);
    free(full);
}

#define PORT "/sys/devices/pci0000:00/0000:00:01.0"

static void put_below(const char *folder, const char *name, const char *text)
{
    char path[512];
    if (!text) return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    fl_fake_put(path, text);
}

void fl_fake_pci_put(const fl_fake_pci *d)
{
    char port[128], folder[256], path[512], node[16];
    snprintf(port, sizeof port, PORT "/port-of-%s", d->address);
    snprintf(folder, sizeof folder, "%s/%s", port, d->address);
    snprintf(node, sizeof node, "%d\n", d->node);
    put_below(folder, "class", d->class);
    put_below(folder, "vendor", d->vendor);
    put_below(folder, "numa_node", node);
    put_below(folder, "current_link_speed", d->now.speed);
    put_below(folder, "current_link_width", d->now.width);
    put_below(folder, "max_link_speed", d->device.speed);
    put_below(folder, "max_link_width", d->device.width);
    put_below(port, "max_link_speed", d->slot.speed);
    put_below(port, "max_link_width", d->slot.width);
    if (d->driver) {
        char driver[128];
        snprintf(driver, sizeof driver, "../../../../../bus/pci/drivers/%s", d->driver);
        snprintf(path, sizeof path, "%s/driver", folder);
        fl_fake_link(path, driver);
    }
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s", d->address);
    fl_fake_link(path, folder);
}
