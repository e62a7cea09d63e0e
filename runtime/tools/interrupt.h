#ifndef FL_TOOLS_INTERRUPT_H
#define FL_TOOLS_INTERRUPT_H

#include <stdbool.h>

/* Ctrl-C while text is being made: the first one asks for a clean end, a second one ends the
 * program at once. A program that was started with SIGINT ignored goes on ignoring it. */
void fl_interrupt_catch(void);
bool fl_interrupted(void);
/* Back to the default. */
void fl_interrupt_release(void);

#endif
