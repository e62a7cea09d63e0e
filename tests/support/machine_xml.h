#ifndef FL_TESTS_SUPPORT_MACHINE_XML_H
#define FL_TESTS_SUPPORT_MACHINE_XML_H

#include <stdbool.h>

/* Machines as hwloc writes them down; malloc'ed text. */

/* Two weak cores of one processor (0, 1), two strong ones of two (2 3, 4 5), one node of 1 GiB;
 * with kinds as far as there is an order among them. */
char *fl_machine_small_xml(bool kinds);
/* Two nodes of 16 GiB. Each has two strong cores of two processors and four weak ones of one:
 * processors 0 to 7 on node 0, 8 to 15 on node 1. */
char *fl_machine_two_nodes_xml(void);

/* From now on hwloc sees that machine, in this process, until reset. Takes the text. */
void fl_machine_set(char *xml);
/* In hwloc's words: "numa:2 core:4 pu:2". */
void fl_machine_set_words(const char *synthetic);
void fl_machine_reset(void);

#endif
