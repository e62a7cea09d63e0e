#ifndef FL_BASE_CARDS_H
#define FL_BASE_CARDS_H

#include "runtime/base/pci.h"

/* Graphics cards, as the kernel and NVIDIA's driver show them without being loaded by us. `root` as
 * in sysfile.h. Held by tests/base/test_cards.c. */

enum { FL_MAX_CARDS = 16 };

typedef struct fl_card {
    fl_pci pci;
    char name[64]; /* as the driver says; "": unknown */
    bool display;  /* a screen is attached */
} fl_card;

typedef struct fl_cards {
    int n;
    fl_card card[FL_MAX_CARDS]; /* by rising PCI address */
    char driver[32];            /* version of NVIDIA's kernel module; "": not loaded */
} fl_cards;

void fl_cards_list(fl_cards *out, const char *root);

#endif
