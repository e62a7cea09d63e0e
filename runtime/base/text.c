#include "runtime/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *fl_text_reserve(fl_text *t, size_t more)
{
    if (t->failed) return NULL;
    /* One byte is kept for the NUL of fl_text_take. */
    if (t->cap - t->n > more) return t->p + t->n;
    const size_t cap = t->n + more + t->n / 2 + 64;
    char *p = more < SIZE_MAX / 4 ? realloc(t->p, cap) : NULL;
    if (!p) {
        t->failed = true;
        return NULL;
    }
    t->p = p;
    t->cap = cap;
    return p + t->n;
}

void fl_text_add(fl_text *t, fl_str s)
{
    char *p = s.n ? fl_text_reserve(t, s.n) : NULL;
    if (!p) return;
    memcpy(p, s.p, s.n);
    t->n += s.n;
}

void fl_text_puts(fl_text *t, const char *s) { fl_text_add(t, (fl_str){s, strlen(s)}); }

void fl_text_printf(fl_text *t, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = n > 0 ? fl_text_reserve(t, (size_t)n) : NULL;
    if (p) t->n += (size_t)vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
}

fl_status fl_text_take(fl_text *t, const char *what, char **out, size_t *n, fl_err *err)
{
    char *p = fl_text_reserve(t, 0);
    *out = NULL;
    if (n) *n = 0;
    if (!p) {
        const size_t had = t->n;
        fl_text_fini(t);
        return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %s behind %zu bytes", what, had);
    }
    *p = 0;
    *out = t->p;
    if (n) *n = t->n;
    *t = (fl_text){0};
    return FL_OK;
}

void fl_text_fini(fl_text *t)
{
    free(t->p);
    *t = (fl_text){0};
}
