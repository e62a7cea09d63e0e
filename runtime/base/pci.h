#ifndef FL_BASE_PCI_H
#define FL_BASE_PCI_H

#include <stdbool.h>
#include <stdint.h>

/* PCI devices and their links, as sysfs shows them. `root` as in sysfile.h. Held by
 * tests/base/test_pci.c. */

typedef struct fl_link {
    int mt_s;  /* megatransfers per second and lane: 2500, 5000, 8000, 16000, 32000, 64000 */
    int lanes; /* 0: unknown, and mt_s too */
} fl_link;

typedef struct fl_pci {
    char address[16]; /* "0000:01:00.0" */
    uint32_t class;   /* 0x030000: VGA; 0x010802: NVMe */
    uint32_t vendor;  /* FL_PCI_NVIDIA, ... */
    int node;         /* NUMA node it is near, -1: unknown, or there is one */
    char driver[32];  /* "": none holds it */
    fl_link now;      /* as the link runs */
    fl_link device;   /* the most that the device can */
    fl_link slot;     /* the most that the port above it can */
} fl_pci;

enum { FL_PCI_NVIDIA = 0x10de, FL_PCI_DISPLAY = 0x03, FL_PCI_STORAGE = 0x01 };

bool fl_pci_read(const char *root, const char *address, fl_pci *out);
/* Devices of a base class (FL_PCI_DISPLAY), by rising address; how many, at most `max`. */
int fl_pci_list(const char *root, uint32_t base_class, fl_pci *out, int max);

/* What both ends can: the lesser speed and width; unknown where one end is. */
fl_link fl_link_least(fl_link a, fl_link b);
/* Bytes per second in one direction after the line code, before packets' headers. */
uint64_t fl_link_bytes_s(fl_link l);
/* "PCIe 4.0 x16"; "an unknown link". Returns buf. */
const char *fl_link_format(char buf[32], fl_link l);

#endif
