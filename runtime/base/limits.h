#ifndef FL_BASE_LIMITS_H
#define FL_BASE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* What this process may take of its machine. `root` as in sysfile.h. Held by
 * tests/base/test_limits.c. */

typedef struct fl_limits {
    char kernel[128];      /* release; "": unknown */
    bool wsl;              /* Windows runs this kernel (WSL2) */
    uint64_t memory;       /* bytes; 0: unknown */
    uint64_t available;    /* of these, without pushing others out */
    uint64_t memlock;      /* that may be locked; UINT64_MAX: no limit, or one that does not bind
                              this process */
    uint64_t memlock_hard; /* how far `ulimit -l` may raise it */
    int group_cpus;        /* what control groups leave of it (groups.h); 0: all */
    uint64_t group_memory; /* 0: all */
    uint64_t group_memory_left;
} fl_limits;

void fl_limits_read(fl_limits *l, const char *root);

/* The most memory that can be pinned by these limits; what the driver grants may be less. */
uint64_t fl_limits_pinnable(const fl_limits *l);

#endif
