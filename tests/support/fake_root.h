#ifndef FL_TESTS_SUPPORT_FAKE_ROOT_H
#define FL_TESTS_SUPPORT_FAKE_ROOT_H

/* Another machine's /proc and /sys, written below a folder, and a file to ask about. */
typedef struct fl_fake_machine {
    char *root;
    char *file; /* root/model.gguf, one byte, by its real path */
} fl_fake_machine;

extern fl_fake_machine fl_fake;

/* Setup and teardown for cmocka. */
int fl_fake_setup(void **state);
int fl_fake_teardown(void **state);
#define FL_FAKE_TEST(f) cmocka_unit_test_setup_teardown(f, fl_fake_setup, fl_fake_teardown)

/* Paths begin with '/'; folders on the way are made. */
void fl_fake_put(const char *path, const char *text);
/* A symbolic link; a target that begins with '/' is meant below root, as on the machine itself. */
void fl_fake_link(const char *path, const char *target);

/* A PCI device below a port of its own; what is NULL is not written. */
typedef struct fl_fake_link_text {
    const char *speed, *width; /* "16.0 GT/s PCIe", "16" */
} fl_fake_link_text;

typedef struct fl_fake_pci {
    const char *address, *class, *vendor; /* "0000:01:00.0", "0x030000", "0x10de" */
    const char *driver;
    int node;
    fl_fake_link_text now, device, slot;
} fl_fake_pci;

void fl_fake_pci_put(const fl_fake_pci *d);

#endif
