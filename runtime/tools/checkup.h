#ifndef FL_TOOLS_CHECKUP_H
#define FL_TOOLS_CHECKUP_H

#include "runtime/base/cards.h"
#include "runtime/base/drive.h"
#include "runtime/base/limits.h"
#include "runtime/base/topology.h"

/* What doctor knows of a machine, and what is wrong with it. Looking and judging are apart: tests
 * judge machines that are written down. Held by tests/tools/test_checkup.c. */

typedef struct fl_warning {
    const char *code; /* "memlock": for programs, stable */
    char what[320];   /* one sentence */
    char mend[320];   /* the command or the step that mends it; "": there is none */
} fl_warning;

enum { FL_MAX_WARNINGS = 48 };

typedef struct fl_checkup {
    /* The machine. */
    char cpu[128];
    char tier[32]; /* best kernels; "" before fl_checkup_look */
    fl_topology topo;
    fl_limits limits;
    int io_uring_disabled; /* kernel.io_uring_disabled: 1 or 2; 0: no, or unknown */
    fl_cards cards;
    /* Of the path: the model's, or where the program was started. */
    char path[256];
    bool has_drive; /* the next two are known */
    fl_drive drive;
    fl_pci controller; /* address "": unknown */
    /* Reading that path: "uring", and why not. */
    char io[16], io_fallback[512];
    /* The model, where one is given. */
    bool has_model;
    uint64_t model_bytes;
    char plan[256];       /* in one line; "": see plan_error */
    char plan_error[512]; /* why there is none */
    bool calibrated;
    /* What calibrate could pin of what it tried, and why no more; 0 of 0: not known. */
    uint64_t pinned_bytes, pin_wanted;
    char pin_end[64];

    int n_warnings;
    fl_warning warning[FL_MAX_WARNINGS];
} fl_checkup;

/* Fills in the machine and the path's drive (path: an existing one). `root` as in sysfile.h;
 * processors and nodes are hwloc's, which has its own variables for another machine. */
void fl_checkup_look(fl_checkup *c, const char *root, const char *path);
/* From what is filled in, nothing else, to the warnings. */
void fl_checkup_judge(fl_checkup *c);

/* The card that a run would use if this build could: the first of NVIDIA's; NULL: none. */
const fl_card *fl_checkup_card(const fl_checkup *c);
/* Cores of the strongest kind. */
int fl_checkup_strong_cores(const fl_checkup *c);

#endif
