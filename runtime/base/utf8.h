#ifndef FL_BASE_UTF8_H
#define FL_BASE_UTF8_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* What fl_utf8_next reports instead of a code point. */
#define FL_UTF8_BAD 0xFFFFFFFFu /* ill-formed */
#define FL_UTF8_CUT 0xFFFFFFFEu /* well-formed so far, but the bytes end inside the character */

/* Reads one character at p < end. Returns its length in bytes, >= 1. For an ill-formed sequence
 * *cp is FL_UTF8_BAD and the length is that of its maximal subpart (Unicode table 3-7), so that
 * one U+FFFD per such part gives what Python's errors="replace" gives. */
int fl_utf8_next(const char *p, const char *end, uint32_t *cp);
/* Writes a code point < 0x110000 as 1..4 bytes; returns the count. */
int fl_utf8_put(char *buf, uint32_t cp);
/* First byte that is not part of a well-formed character, or n when the text is valid. */
size_t fl_utf8_valid_prefix(const char *text, size_t n);
/* Text with each ill-formed part replaced by U+FFFD. *fixed is NULL when the text was valid
 * already, else malloc'ed and NUL-terminated. */
FL_CHECKED fl_status fl_utf8_repair(const char *text, size_t n, char **fixed, size_t *n_fixed,
                                    fl_err *err);
/* White_Space of Unicode. */
bool fl_utf8_is_space(uint32_t cp);

#endif
