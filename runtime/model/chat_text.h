#ifndef FL_MODEL_CHAT_TEXT_H
#define FL_MODEL_CHAT_TEXT_H

#include <stdbool.h>
#include <string.h>

#include "runtime/base/json.h"
#include "runtime/base/text.h"

/* What the chat rules share: strings as Python treats them, and JSON as Python writes it. */

/* str.strip(): white space at both ends; White_Space and U+001C..U+001F. Valid UTF-8. */
fl_str fl_chat_strip(fl_str s);
fl_str fl_chat_rstrip(fl_str s);
/* str.strip of one character. */
fl_str fl_chat_lstrip_byte(fl_str s, char c);
fl_str fl_chat_rstrip_byte(fl_str s, char c);
/* First or last occurrence of `what` (NUL-terminated, not empty), or s.n. */
size_t fl_chat_find(fl_str s, const char *what);
size_t fl_chat_find_last(fl_str s, const char *what);
bool fl_chat_starts(fl_str s, const char *what);
bool fl_chat_ends(fl_str s, const char *what);

static inline fl_str fl_chat_from(fl_str s, size_t at) { return (fl_str){s.p + at, s.n - at}; }
static inline fl_str fl_chat_json_str(const fl_json *j)
{
    return (fl_str){fl_json_str(j, ""), fl_json_str_len(j)};
}

/* json.dumps(v, ensure_ascii=False). */
void fl_chat_put_json(fl_text *t, const fl_json *v);
/* str(v) of a value that is neither list, dict nor str: True, None, 1.5, 7. */
void fl_chat_put_python_str(fl_text *t, const fl_json *v);
/* repr(float) of Python: the shortest digits that read back as v. buf has 32 bytes. */
void fl_chat_float_repr(char *buf, double v);

#endif
