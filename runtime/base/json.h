#ifndef FL_BASE_JSON_H
#define FL_BASE_JSON_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* JSON values; the library behind it is seen by json.c alone. Objects keep their key order.
 * A value is owned by its root; free the root with fl_json_free. Borrowed children live as long
 * as the root. */
typedef struct fl_json fl_json;

typedef enum fl_json_kind {
    FL_JSON_NULL,
    FL_JSON_BOOL,
    FL_JSON_INT,
    FL_JSON_REAL,
    FL_JSON_STRING,
    FL_JSON_ARRAY,
    FL_JSON_OBJECT
} fl_json_kind;

/* Parses n bytes of UTF-8 text; `what` names the source in the error (file path). Nesting is
 * limited (2,048), duplicate keys are refused. */
FL_CHECKED fl_status fl_json_parse(const char *text, size_t n, const char *what, fl_json **out,
                                   fl_err *err);
/* The same for a value of any kind ("7", "\"x\"", "null"), as tool arguments are. */
FL_CHECKED fl_status fl_json_parse_any(const char *text, size_t n, const char *what, fl_json **out,
                                       fl_err *err);
void fl_json_free(fl_json **j);

fl_json_kind fl_json_kind_of(const fl_json *j);
size_t fl_json_size(const fl_json *j);                     /* array or object, else 0 */
const fl_json *fl_json_at(const fl_json *array, size_t i); /* NULL when absent */
const fl_json *fl_json_get(const fl_json *object,
                           const char *k); /* NULL when absent or not an object */
/* Iteration in file order: i-th key and value of an object (amortised constant time in order). */
bool fl_json_next(const fl_json *object, void **iter, const char **key, const fl_json **value);

/* Typed reads with a default for a missing value or another kind. */
const char *fl_json_str(const fl_json *j, const char *def); /* bytes up to NUL */
size_t fl_json_str_len(const fl_json *j);
int64_t fl_json_int(const fl_json *j, int64_t def);
double fl_json_num(const fl_json *j, double def); /* int or real */
bool fl_json_bool(const fl_json *j, bool def);

/* Building. set/append take ownership of the child; out of memory aborts the process inside the
 * builder only for tiny objects, never for data of a model. */
fl_json *fl_json_new_object(void);
fl_json *fl_json_new_array(void);
fl_json *fl_json_new_str(const char *s);
/* n bytes of valid UTF-8, which may hold NUL; NULL when they are not or memory is out. */
fl_json *fl_json_new_strn(const char *s, size_t n);
fl_json *fl_json_new_int(int64_t v);
fl_json *fl_json_new_num(double v);
fl_json *fl_json_new_bool(bool v);
fl_json *fl_json_new_null(void);
void fl_json_set(fl_json *object, const char *key, fl_json *child);
void fl_json_append(fl_json *array, fl_json *child);
void fl_json_set_str(fl_json *object, const char *key, const char *s);
void fl_json_set_int(fl_json *object, const char *key, int64_t v);
void fl_json_set_num(fl_json *object, const char *key, double v);
void fl_json_set_bool(fl_json *object, const char *key, bool v);
/* A copy of its own; null for NULL. */
fl_json *fl_json_copy(const fl_json *j);
/* Text (malloc'ed, caller frees); indent 0 = one line. */
char *fl_json_dump(const fl_json *j, int indent);

/* "jansson 2.14". Returns buf. */
const char *fl_json_library(char buf[32]);

#endif
