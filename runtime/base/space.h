#ifndef FL_BASE_SPACE_H
#define FL_BASE_SPACE_H

#include "runtime/base/status.h"

/* Whether `bytes` more fit on the file system of `file` (its folder is asked; the file need not
 * exist). FL_E_IO when not: the line begins with `what` and names the room there. */
FL_CHECKED fl_status fl_space_check(const char *file, uint64_t bytes, const char *what,
                                    fl_err *err);

#endif
