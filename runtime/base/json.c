#include "runtime/base/json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* fl_json is jansson's json_t under another name; this file alone knows it. */
static json_t *j_(const fl_json *j) { return (json_t *)(uintptr_t)j; }
static fl_json *f_(const json_t *j) { return (fl_json *)(uintptr_t)j; }

static fl_status parse(const char *text, size_t n, const char *what, size_t flags, fl_json **out,
                       fl_err *err)
{
    json_error_t e;
    json_t *j = json_loadb(text, n, flags | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    *out = f_(j);
    if (!j)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: not valid JSON at line %d, column %d: %s", what,
                       e.line, e.column, e.text);
    return FL_OK;
}

fl_status fl_json_parse(const char *text, size_t n, const char *what, fl_json **out, fl_err *err)
{
    return parse(text, n, what, 0, out, err);
}

fl_status fl_json_parse_any(const char *text, size_t n, const char *what, fl_json **out,
                            fl_err *err)
{
    return parse(text, n, what, JSON_DECODE_ANY, out, err);
}

void fl_json_free(fl_json **j)
{
    json_decref(j_(*j));
    *j = NULL;
}

fl_json_kind fl_json_kind_of(const fl_json *j)
{
    if (!j) return FL_JSON_NULL;
    switch (json_typeof(j_(j))) {
    case JSON_OBJECT: return FL_JSON_OBJECT;
    case JSON_ARRAY: return FL_JSON_ARRAY;
    case JSON_STRING: return FL_JSON_STRING;
    case JSON_INTEGER: return FL_JSON_INT;
    case JSON_REAL: return FL_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return FL_JSON_BOOL;
    case JSON_NULL: break;
    }
    return FL_JSON_NULL;
}

size_t fl_json_size(const fl_json *j)
{
    return json_is_array(j_(j)) ? json_array_size(j_(j)) : json_object_size(j_(j));
}

const fl_json *fl_json_at(const fl_json *array, size_t i)
{
    return f_(json_array_get(j_(array), i));
}

const fl_json *fl_json_get(const fl_json *object, const char *k)
{
    return f_(json_object_get(j_(object), k));
}

bool fl_json_next(const fl_json *object, void **iter, const char **key, const fl_json **value)
{
    *iter = *iter ? json_object_iter_next(j_(object), *iter) : json_object_iter(j_(object));
    if (!*iter) return false;
    *key = json_object_iter_key(*iter);
    *value = f_(json_object_iter_value(*iter));
    return true;
}

const char *fl_json_str(const fl_json *j, const char *def)
{
    const char *s = json_string_value(j_(j));
    return s ? s : def;
}

size_t fl_json_str_len(const fl_json *j) { return json_string_length(j_(j)); }

int64_t fl_json_int(const fl_json *j, int64_t def)
{
    return json_is_integer(j_(j)) ? (int64_t)json_integer_value(j_(j)) : def;
}

double fl_json_num(const fl_json *j, double def)
{
    return json_is_number(j_(j)) ? json_number_value(j_(j)) : def;
}

bool fl_json_bool(const fl_json *j, bool def)
{
    return json_is_boolean(j_(j)) ? json_is_true(j_(j)) : def;
}

/* Builders serve small objects; a process that cannot get their few bytes cannot report either. */
static fl_json *need(json_t *j)
{
    if (!j) abort();
    return f_(j);
}

fl_json *fl_json_new_object(void) { return need(json_object()); }
fl_json *fl_json_new_array(void) { return need(json_array()); }
fl_json *fl_json_new_int(int64_t v) { return need(json_integer(v)); }
fl_json *fl_json_new_bool(bool v) { return need(json_boolean(v)); }
fl_json *fl_json_new_null(void) { return need(json_null()); }

/* Strings from files may be invalid UTF-8: JSON cannot carry them, so bad bytes become '?'. */
fl_json *fl_json_new_str(const char *s)
{
    json_t *j = json_string(s ? s : "");
    if (j) return f_(j);
    char *copy = strdup(s);
    if (!copy) abort();
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    fl_json *r = need(json_string(copy));
    free(copy);
    return r;
}

fl_json *fl_json_new_strn(const char *s, size_t n) { return f_(json_stringn(s, n)); }

/* JSON has no NaN and no infinity: null stands for them. */
fl_json *fl_json_new_num(double v) { return need(isfinite(v) ? json_real(v) : json_null()); }

void fl_json_set(fl_json *object, const char *key, fl_json *child)
{
    if (json_object_set_new(j_(object), key, j_(child)) != 0) abort();
}

void fl_json_append(fl_json *array, fl_json *child)
{
    if (json_array_append_new(j_(array), j_(child)) != 0) abort();
}

void fl_json_set_str(fl_json *o, const char *key, const char *s)
{
    fl_json_set(o, key, fl_json_new_str(s));
}
void fl_json_set_int(fl_json *o, const char *key, int64_t v)
{
    fl_json_set(o, key, fl_json_new_int(v));
}
void fl_json_set_num(fl_json *o, const char *key, double v)
{
    fl_json_set(o, key, fl_json_new_num(v));
}
void fl_json_set_bool(fl_json *o, const char *key, bool v)
{
    fl_json_set(o, key, fl_json_new_bool(v));
}

fl_json *fl_json_copy(const fl_json *j)
{
    return j ? need(json_deep_copy(j_(j))) : fl_json_new_null();
}

char *fl_json_dump(const fl_json *j, int indent)
{
    return json_dumps(j_(j), JSON_ENCODE_ANY | (indent ? JSON_INDENT(indent) : 0));
}

const char *fl_json_library(char buf[32])
{
    snprintf(buf, 32, "jansson %s", jansson_version_str());
    return buf;
}
