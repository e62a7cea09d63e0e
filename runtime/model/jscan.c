#include "runtime/model/jscan.h"

#include <ctype.h>
#include <string.h>

fl_status fl_jscan_bad(const fl_jscan *c, const char *expected)
{
    if (c->p >= c->end)
        return FL_FAIL(c->err, FL_E_FORMAT, 0,
                       "%s: the text ends where %s should stand: the file is damaged, download it "
                       "again",
                       c->path, expected);
    return FL_FAIL(c->err, FL_E_FORMAT, 0,
                   "%s: byte %td is 0x%02x where %s should stand: the file is damaged, "
                   "download it again",
                   c->path, (ptrdiff_t)c->base + (c->p - c->start), (unsigned char)*c->p, expected);
}

static void space(fl_jscan *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t'))
        c->p++;
}

/* Takes the character if it stands there. */
bool fl_jscan_take(fl_jscan *c, char ch)
{
    space(c);
    if (c->p >= c->end || *c->p != ch) return false;
    c->p++;
    return true;
}

fl_status fl_jscan_expect(fl_jscan *c, char ch)
{
    const char what[] = {'\'', ch, '\'', 0};
    return fl_jscan_take(c, ch) ? FL_OK : fl_jscan_bad(c, what);
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        const char h = p[i];
        const int d = h >= '0' && h <= '9'   ? h - '0'
                      : h >= 'a' && h <= 'f' ? h - 'a' + 10
                      : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                             : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* One escape behind a backslash at c->p; writes its UTF-8 (never longer than the escape). */
static fl_status unescape(fl_jscan *c, char **w)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (c->end - c->p >= 5 && *c->p == 'u') {
        const int v = hex4(c->p + 1);
        if (v <= 0 || (v >= 0xd800 && v < 0xe000))
            return fl_jscan_bad(c, "an escape of a plain character");
        if (v < 0x80) {
            *(*w)++ = (char)v;
        } else if (v < 0x800) {
            *(*w)++ = (char)(0xc0 | v >> 6);
            *(*w)++ = (char)(0x80 | (v & 63));
        } else {
            *(*w)++ = (char)(0xe0 | v >> 12);
            *(*w)++ = (char)(0x80 | (v >> 6 & 63));
            *(*w)++ = (char)(0x80 | (v & 63));
        }
        c->p += 5;
        return FL_OK;
    }
    const char *hit = c->p < c->end && *c->p ? strchr(from, *c->p) : NULL;
    if (!hit) return fl_jscan_bad(c, "an escape");
    *(*w)++ = to[hit - from];
    c->p++;
    return FL_OK;
}

fl_status fl_jscan_string(fl_jscan *c, fl_str *out, const char *what)
{
    if (!fl_jscan_take(c, '"')) return fl_jscan_bad(c, what);
    char *const from = c->p, *w = c->p;
    while (c->p < c->end && *c->p != '"') {
        if ((unsigned char)*c->p < 0x20) return fl_jscan_bad(c, "a character of a string");
        if (*c->p == '\\') {
            c->p++;
            FL_TRY(unescape(c, &w));
        } else {
            *w++ = *c->p++;
        }
    }
    *out = (fl_str){from, (size_t)(w - from)};
    return fl_jscan_expect(c, '"');
}

/* A whole number without sign. */
fl_status fl_jscan_number(fl_jscan *c, uint64_t *v)
{
    space(c);
    if (c->p >= c->end || *c->p < '0' || *c->p > '9')
        return fl_jscan_bad(c, "a whole number of 0 or more");
    *v = 0;
    for (; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++)
        if (__builtin_mul_overflow(*v, 10u, v) ||
            __builtin_add_overflow(*v, (uint64_t)(*c->p - '0'), v))
            return fl_jscan_bad(c, "a number below 2^64");
    return FL_OK;
}

/* [n, n, ...] of at most `max` numbers. */
fl_status fl_jscan_numbers(fl_jscan *c, uint64_t *v, int max, int *n)
{
    *n = 0;
    FL_TRY(fl_jscan_expect(c, '['));
    if (fl_jscan_take(c, ']')) return FL_OK;
    do {
        if (*n == max) return fl_jscan_bad(c, "the end of a list");
        FL_TRY(fl_jscan_number(c, &v[(*n)++]));
    } while (fl_jscan_take(c, ','));
    return fl_jscan_expect(c, ']');
}

static fl_status skip_value(fl_jscan *c, int depth);

/* The rest of an object or array behind its opening bracket. */
static fl_status skip_members(fl_jscan *c, bool object, int depth)
{
    const char close = object ? '}' : ']';
    fl_str s;
    if (fl_jscan_take(c, close)) return FL_OK;
    do {
        if (object) {
            FL_TRY(fl_jscan_string(c, &s, "a name"));
            FL_TRY(fl_jscan_expect(c, ':'));
        }
        FL_TRY(skip_value(c, depth));
    } while (fl_jscan_take(c, ','));
    return fl_jscan_expect(c, close);
}

static fl_status skip_value(fl_jscan *c, int depth)
{
    fl_str s;
    if (depth == 0) return fl_jscan_bad(c, "a value nested less deeply");
    if (fl_jscan_take(c, '{')) return skip_members(c, true, depth - 1);
    if (fl_jscan_take(c, '[')) return skip_members(c, false, depth - 1);
    if (c->p < c->end && *c->p == '"') return fl_jscan_string(c, &s, "a text");
    const char *from = c->p; /* a number, true, false or null */
    while (c->p < c->end && (isalnum((unsigned char)*c->p) || strchr("+-.", *c->p))) {
        if (*c->p == 0) break;
        c->p++;
    }
    return c->p > from ? FL_OK : fl_jscan_bad(c, "a value");
}

fl_status fl_jscan_skip(fl_jscan *c) { return skip_value(c, 32); }

fl_status fl_jscan_end(fl_jscan *c)
{
    space(c);
    return c->p == c->end ? FL_OK : fl_jscan_bad(c, "the end");
}
