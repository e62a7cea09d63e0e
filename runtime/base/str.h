#ifndef FL_BASE_STR_H
#define FL_BASE_STR_H

#include <stddef.h>

/* A borrowed run of bytes; not NUL-terminated. */
typedef struct fl_str {
    const char *p;
    size_t n;
} fl_str;

#endif
