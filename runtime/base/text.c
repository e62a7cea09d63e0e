#include "runtime/base/text.h"

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
