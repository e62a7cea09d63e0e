#include "runtime/model/chat_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/utf8.h"
#include "runtime/model/chat.h"

static bool is_strippable(uint32_t cp)
{
    return fl_utf8_is_space(cp) || (cp >= 0x1C && cp <= 0x1F);
}

fl_str fl_chat_rstrip(fl_str s)
{
    while (s.n) {
        size_t i = s.n - 1;
        while (i > 0 && ((uint8_t)s.p[i] & 0xC0) == 0x80) i--;
        uint32_t cp;
        (void)fl_utf8_next(s.p + i, s.p + s.n, &cp);
        if (!is_strippable(cp)) break;
        s.n = i;
    }
    return s;
}

fl_str fl_chat_strip(fl_str s)
{
    while (s.n) {
        uint32_t cp;
        const int len = fl_utf8_next(s.p, s.p + s.n, &cp);
        if (!is_strippable(cp)) break;
        s = fl_chat_from(s, (size_t)len);
    }
    return fl_chat_rstrip(s);
}

fl_str fl_chat_lstrip_byte(fl_str s, char c)
{
    while (s.n && s.p[0] == c) s = fl_chat_from(s, 1);
    return s;
}

fl_str fl_chat_rstrip_byte(fl_str s, char c)
{
    while (s.n && s.p[s.n - 1] == c) s.n--;
    return s;
}

size_t fl_chat_find(fl_str s, const char *what)
{
    const char *p = s.n ? memmem(s.p, s.n, what, strlen(what)) : NULL;
    return p ? (size_t)(p - s.p) : s.n;
}

size_t fl_chat_find_last(fl_str s, const char *what)
{
    const size_t k = strlen(what);
    for (size_t i = s.n; i-- > 0;)
        if (s.p[i] == *what && i + k <= s.n && !memcmp(s.p + i, what, k)) return i;
    return s.n;
}

bool fl_chat_starts(fl_str s, const char *what)
{
    const size_t k = strlen(what);
    return s.n >= k && !memcmp(s.p, what, k);
}

bool fl_chat_ends(fl_str s, const char *what)
{
    const size_t k = strlen(what);
    return s.n >= k && !memcmp(s.p + s.n - k, what, k);
}

/* ---- Python's numbers --------------------------------------------------------------------- */

/* Adds one to the last of k decimal digits; false when that would need one digit more. */
static bool next_up(char *digit, int k)
{
    for (int i = k - 1; i >= 0; i--) {
        if (digit[i] != '9') {
            digit[i]++;
            return true;
        }
        digit[i] = '0';
    }
    return false;
}

/* Shortest decimal digits of v > 0 that read back as v; returns their count, *exp10 is the
 * exponent of the first digit. Of k digits the nearest decimal is tried first; at a power of two
 * the gap above v is wider than the one below, so there the next decimal up can be the only one
 * of its length that reads back. */
static int shortest_digits(double v, char digit[20], int *exp10)
{
    for (int k = 1;; k++) {
        char buf[40];
        snprintf(buf, sizeof buf, "%.*e", k - 1, v);
        const char *e = strchr(buf, 'e');
        *exp10 = atoi(e + 1);
        digit[0] = buf[0];
        memcpy(digit + 1, buf + 2, (size_t)(k - 1));
        digit[k] = 0;
        if (k >= 17 || strtod(buf, NULL) == v) return k;
        if (!next_up(digit, k)) continue;
        snprintf(buf, sizeof buf, "%se%d", digit, *exp10 - (k - 1));
        if (strtod(buf, NULL) == v) return k;
    }
}

void fl_chat_float_repr(char *buf, double v)
{
    char digit[20];
    int e = 0;
    if (!isfinite(v)) {
        strcpy(buf, isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
        return;
    }
    if (signbit(v)) *buf++ = '-';
    v = fabs(v);
    if (v == 0) {
        strcpy(buf, "0.0");
        return;
    }
    int n = shortest_digits(v, digit, &e);
    while (n > 1 && digit[n - 1] == '0') n--;
    if (e < -4 || e >= 16) {
        *buf++ = digit[0];
        if (n > 1) buf += sprintf(buf, ".%.*s", n - 1, digit + 1);
        sprintf(buf, "e%c%02d", e < 0 ? '-' : '+', abs(e));
    } else if (e < 0) {
        sprintf(buf, "0.%.*s%.*s", -e - 1, "0000", n, digit);
    } else if (n <= e + 1) {
        sprintf(buf, "%.*s%.*s.0", n, digit, e + 1 - n, "0000000000000000");
    } else {
        sprintf(buf, "%.*s.%.*s", e + 1, digit, n - e - 1, digit + e + 1);
    }
}

static void put_number(fl_text *t, const fl_json *v)
{
    char buf[32];
    if (fl_json_kind_of(v) == FL_JSON_INT)
        snprintf(buf, sizeof buf, "%lld", (long long)fl_json_int(v, 0));
    else
        fl_chat_float_repr(buf, fl_json_num(v, 0));
    fl_text_puts(t, buf);
}

void fl_chat_put_python_str(fl_text *t, const fl_json *v)
{
    switch (fl_json_kind_of(v)) {
    case FL_JSON_NULL: fl_text_puts(t, "None"); break;
    case FL_JSON_BOOL: fl_text_puts(t, fl_json_bool(v, false) ? "True" : "False"); break;
    default: put_number(t, v); break;
    }
}

/* ---- Python's JSON ------------------------------------------------------------------------ */

static void put_quoted(fl_text *t, fl_str s)
{
    static const char named[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
    size_t from = 0;
    fl_text_puts(t, "\"");
    for (size_t i = 0; i < s.n; i++) {
        const uint8_t c = (uint8_t)s.p[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        char esc[8];
        const char *k = c ? strchr(named, c) : NULL;
        if (k)
            snprintf(esc, sizeof esc, "\\%c", letter[k - named]);
        else
            snprintf(esc, sizeof esc, "\\u%04x", c);
        fl_text_add(t, (fl_str){s.p + from, i - from});
        fl_text_puts(t, esc);
        from = i + 1;
    }
    fl_text_add(t, fl_chat_from(s, from));
    fl_text_puts(t, "\"");
}

static void put_object(fl_text *t, const fl_json *v)
{
    void *it = NULL;
    const char *key, *sep = "";
    const fl_json *child;
    fl_text_puts(t, "{");
    while (fl_json_next(v, &it, &key, &child)) {
        fl_text_puts(t, sep);
        put_quoted(t, (fl_str){key, strlen(key)});
        fl_text_puts(t, ": ");
        fl_chat_put_json(t, child);
        sep = ", ";
    }
    fl_text_puts(t, "}");
}

void fl_chat_put_json(fl_text *t, const fl_json *v)
{
    switch (fl_json_kind_of(v)) {
    case FL_JSON_NULL: fl_text_puts(t, "null"); break;
    case FL_JSON_BOOL: fl_text_puts(t, fl_json_bool(v, false) ? "true" : "false"); break;
    case FL_JSON_INT:
    case FL_JSON_REAL: put_number(t, v); break;
    case FL_JSON_STRING: put_quoted(t, fl_chat_json_str(v)); break;
    case FL_JSON_ARRAY:
        fl_text_puts(t, "[");
        for (size_t i = 0; i < fl_json_size(v); i++) {
            if (i) fl_text_puts(t, ", ");
            fl_chat_put_json(t, fl_json_at(v, i));
        }
        fl_text_puts(t, "]");
        break;
    case FL_JSON_OBJECT: put_object(t, v); break;
    }
}

fl_status fl_chat_python_json(const fl_json *v, char **text, fl_err *err)
{
    fl_text t = {0};
    fl_chat_put_json(&t, v);
    return fl_text_take(&t, "JSON", text, NULL, err);
}
