#ifndef FL_BASE_TEXT_H
#define FL_BASE_TEXT_H

#include <stdbool.h>

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* Text that grows. Zero-initialise. Out of memory is remembered, further additions do nothing,
 * and fl_text_take reports it: builders need no check of each step. */
typedef struct fl_text {
    char *p;
    size_t n, cap;
    bool failed;
} fl_text;

void fl_text_add(fl_text *t, fl_str s);
void fl_text_puts(fl_text *t, const char *s);
__attribute__((format(printf, 2, 3))) void fl_text_printf(fl_text *t, const char *fmt, ...);
/* Room for `more` further bytes, for writing directly; NULL when out of memory. */
char *fl_text_reserve(fl_text *t, size_t more);
/* The text, malloc'ed and NUL-terminated (never NULL on success), and its length (n may be NULL);
 * *t is empty afterwards, also on failure. `what` names it in the error. */
FL_CHECKED fl_status fl_text_take(fl_text *t, const char *what, char **out, size_t *n, fl_err *err);
void fl_text_fini(fl_text *t);

#endif
