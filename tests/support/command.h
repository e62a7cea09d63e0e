#ifndef FL_TESTS_SUPPORT_COMMAND_H
#define FL_TESTS_SUPPORT_COMMAND_H

#include "runtime/base/options.h"

/* Commands called as main.c calls them. `words`: what stands behind "fourleaf", single spaces
 * between words; '~' stands for a space within one. */
typedef fl_status (*fl_command)(const fl_options *o, fl_err *err);

FL_CHECKED fl_status fl_command_call(fl_command command, const char *words, fl_err *err);
/* The same with standard output in a file of its own; its text is malloc'ed. A failure ends the
 * test. */
char *fl_command_output(fl_command command, const char *words);

#endif
