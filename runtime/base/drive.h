#ifndef FL_BASE_DRIVE_H
#define FL_BASE_DRIVE_H

#include <stdbool.h>

/* The drive that a file lies on, behind partitions, LUKS, LVM and RAID (of several drives the first
 * one). `root` as in sysfile.h: where /proc and /sys are looked at; the file itself is this
 * machine's. Held by tests/base/test_drive.c. */

typedef struct fl_drive {
    char mount[256];      /* where the file system is mounted */
    char file_system[32]; /* "ext4", "nfs4", "9p" */
    char name[64];        /* "nvme0n1"; "": none, as over a network or in memory */
    char model[64];       /* "": unknown */
    char pci[16];         /* address of its controller; "": unknown */
    int rotational;       /* 1, 0; -1: unknown */
    bool nvme;
    bool virtual; /* of a virtual machine: what it says of itself need not hold */
} fl_drive;

/* False when the path does not exist or nobody knows where it is mounted. */
bool fl_drive_under(const char *root, const char *path, fl_drive *out);

#endif
