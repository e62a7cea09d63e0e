#ifndef FL_MODEL_JSCAN_H
#define FL_MODEL_JSCAN_H

#include <stdbool.h>

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* A scanner over JSON text of a known shape, for tables too large for a tree of values (a header of
 * 30,000 tensors, a weight map). It reads what is asked for, in order, and allocates nothing;
 * strings are unescaped in place, so the text is changed and must outlive them. */
typedef struct fl_jscan {
    char *p, *end, *start;
    uint64_t base; /* offset of `start` in the file, for messages */
    const char *path;
    fl_err *err;
} fl_jscan;

/* FL_E_FORMAT: what stands at the cursor is not `expected`. */
FL_CHECKED fl_status fl_jscan_bad(const fl_jscan *c, const char *expected);
/* White space is skipped before every read. True when `ch` stood there and was taken. */
bool fl_jscan_take(fl_jscan *c, char ch);
FL_CHECKED fl_status fl_jscan_expect(fl_jscan *c, char ch);
/* A string without control characters and NUL; `what` names it in messages. */
FL_CHECKED fl_status fl_jscan_string(fl_jscan *c, fl_str *out, const char *what);
/* A whole number of 0 or more, below 2^64. */
FL_CHECKED fl_status fl_jscan_number(fl_jscan *c, uint64_t *v);
/* [n, n, ...] of at most `max` such numbers. */
FL_CHECKED fl_status fl_jscan_numbers(fl_jscan *c, uint64_t *v, int max, int *n);
/* Any value; nesting up to 32. */
FL_CHECKED fl_status fl_jscan_skip(fl_jscan *c);
/* Nothing but white space is left. */
FL_CHECKED fl_status fl_jscan_end(fl_jscan *c);

#endif
