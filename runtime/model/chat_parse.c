#include <stdlib.h>

#include "runtime/base/utf8.h"
#include "runtime/model/chat.h"
#include "runtime/model/chat_text.h"

/* ---- what a tool says about its parameters ------------------------------------------------ */

enum { ANY_STRING = 1, ANY_OTHER = 2, ANY_NULL = 4, ANY_BOOL = 8 };

/* {"type":"function","function":{...}} or the inner object alone; NULL when unknown. */
static const fl_json *find_tool(const fl_json *tools, fl_str name)
{
    for (size_t i = 0; i < fl_json_size(tools); i++) {
        const fl_json *t = fl_json_at(tools, i), *f = fl_json_get(t, "function");
        if (f) t = f;
        const fl_str s = fl_chat_json_str(fl_json_get(t, "name"));
        if (s.n == name.n && !memcmp(s.p, name.p, s.n)) return t;
    }
    return NULL;
}

static int types_of_name(const char *type)
{
    if (!strcmp(type, "string")) return ANY_STRING;
    if (!strcmp(type, "null")) return ANY_NULL;
    if (!strcmp(type, "boolean")) return ANY_BOOL;
    return *type ? ANY_OTHER : 0;
}

static int types_of_value(const fl_json *v)
{
    switch (fl_json_kind_of(v)) {
    case FL_JSON_STRING: return ANY_STRING;
    case FL_JSON_NULL: return ANY_NULL;
    case FL_JSON_BOOL: return ANY_BOOL;
    default: return ANY_OTHER;
    }
}

/* "#/$defs/Name": the schema it points to, inside `root`. */
static const fl_json *resolve(const fl_json *root, const char *ref)
{
    if (strncmp(ref, "#/", 2) != 0) return NULL;
    const fl_json *j = root;
    for (const char *p = ref + 2; j && *p;) {
        char key[128];
        const size_t n = strcspn(p, "/");
        if (n >= sizeof key) return NULL;
        memcpy(key, p, n);
        key[n] = 0;
        j = fl_json_get(j, key);
        p += n + (p[n] == '/');
    }
    return j;
}

/* The kinds of value a schema allows, as a set; 0 when it does not say. */
static int types_of_schema(const fl_json *root, const fl_json *schema, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf", "allOf"};
    const fl_json *type = fl_json_get(schema, "type");
    int set = types_of_name(fl_json_str(type, ""));
    for (size_t i = 0; fl_json_kind_of(type) == FL_JSON_ARRAY && i < fl_json_size(type); i++)
        set |= types_of_name(fl_json_str(fl_json_at(type, i), ""));
    if (set || depth > 8) return set;
    const fl_json *values = fl_json_get(schema, "enum"), *one = fl_json_get(schema, "const");
    for (size_t i = 0; fl_json_kind_of(values) == FL_JSON_ARRAY && i < fl_json_size(values); i++)
        set |= types_of_value(fl_json_at(values, i));
    if (one) set |= types_of_value(one);
    for (int u = 0; u < 3; u++) {
        const fl_json *list = fl_json_get(schema, unions[u]);
        for (size_t i = 0; fl_json_kind_of(list) == FL_JSON_ARRAY && i < fl_json_size(list); i++)
            set |= types_of_schema(root, fl_json_at(list, i), depth + 1);
    }
    const fl_json *target = resolve(root, fl_json_str(fl_json_get(schema, "$ref"), ""));
    return target ? set | types_of_schema(root, target, depth + 1) : set;
}

static int types_of_parameter(const fl_json *tool, const char *key)
{
    const fl_json *root = fl_json_get(tool, "parameters");
    return types_of_schema(root, fl_json_get(fl_json_get(root, "properties"), key), 0);
}

static bool is_word(fl_str s, const char *word)
{
    return s.n == strlen(word) && !memcmp(s.p, word, s.n);
}

/* A parsed value that the schema (its set of kinds) takes instead of the raw text. */
static bool is_wanted(const fl_json *v, int types)
{
    const int kind = types_of_value(v);
    if (kind == ANY_STRING) return false;
    return !(types & ANY_STRING) || types & kind;
}

/* A parameter's text as a value: raw where the schema wants a string, else what it says as JSON,
 * else raw again (a number too large for JSON's reader, a value that is no JSON). Where a string
 * is one choice of several, only a value of another choice is read as JSON. True, False and None
 * are how the 3.5 prompt format shows true, false and null. NULL when out of memory. */
static fl_json *value_of(fl_str s, int types)
{
    fl_json *v = NULL;
    fl_str bare = fl_chat_strip(s);
    if (types != ANY_STRING && bare.n) {
        if (types & ANY_BOOL && is_word(bare, "True")) return fl_json_new_bool(true);
        if (types & ANY_BOOL && is_word(bare, "False")) return fl_json_new_bool(false);
        if (types && !(types & ANY_STRING) && is_word(bare, "None")) bare.p = "null";
        if (fl_json_parse_any(bare.p, bare.n, "argument", &v, NULL) == FL_OK) {
            if (is_wanted(v, types)) return v;
            fl_json_free(&v);
        }
    }
    return fl_json_new_strn(s.p, s.n);
}

/* ---- calls -------------------------------------------------------------------------------- */

typedef struct parser {
    const fl_json *tools;
    fl_str s;
    /* The last search for the end of a parameter: from `from`, it is at `found` (s.n: there is
     * none). Kept so that many unfinished calls do not cost quadratic time. */
    size_t from, found;
    bool searched, nomem;
} parser;

static bool at_word(const parser *p, size_t at, const char *word)
{
    return fl_chat_starts(fl_chat_from(p->s, at), word);
}

static size_t skip_space(const parser *p, size_t at)
{
    while (at < p->s.n && memchr(" \t\r\n", p->s.p[at], 4)) at++;
    return at;
}

/* `word` and the white space around it; false when it is not there. */
static bool take_word(const parser *p, size_t *at, const char *word)
{
    const size_t i = skip_space(p, *at);
    if (!at_word(p, i, word)) return false;
    *at = skip_space(p, i + strlen(word));
    return true;
}

/* "<word=NAME>"; NAME has no line end, '<' or NUL. */
static bool take_named(const parser *p, size_t *at, const char *word, fl_str *name)
{
    const size_t i = skip_space(p, *at);
    if (!at_word(p, i, word)) return false;
    const size_t start = i + strlen(word);
    size_t end = start;
    while (end < p->s.n && !memchr("><\r\n", p->s.p[end], 5)) end++;
    *name = fl_chat_strip((fl_str){p->s.p + start, end - start});
    *at = end + 1;
    return end < p->s.n && p->s.p[end] == '>' && name->n > 0;
}

/* Where the value that starts at `at` ends: the first "</parameter>" with another parameter or the
 * end of the call behind it, since a value may hold the tag itself. s.n when there is none. */
static size_t value_end(parser *p, size_t at)
{
    static const char close[] = "</parameter>";
    if (p->searched && at >= p->from && at <= p->found) return p->found;
    size_t i = at;
    for (;; i += sizeof close - 1) {
        i += fl_chat_find(fl_chat_from(p->s, i), close);
        if (i >= p->s.n) break;
        size_t k = i + sizeof close - 1;
        if (at_word(p, skip_space(p, k), "<parameter=")) break;
        if (take_word(p, &k, "</function>") && take_word(p, &k, "</tool_call>")) break;
    }
    p->searched = true;
    p->from = at;
    p->found = i < p->s.n ? i : p->s.n;
    return p->found;
}

/* One parameter; its value goes into args, which is NULL when only the form is checked. */
static bool take_parameter(parser *p, size_t *at, const fl_json *tool, fl_json *args)
{
    fl_str key;
    char name[256];
    if (!take_named(p, at, "<parameter=", &key) || key.n >= sizeof name) return false;
    const size_t end = value_end(p, *at);
    if (end == p->s.n) return false;
    fl_str v = {p->s.p + *at, end - *at};
    *at = skip_space(p, end + strlen("</parameter>"));
    if (!args) return true;
    if (fl_chat_starts(v, "\n")) v = fl_chat_from(v, 1);
    if (fl_chat_ends(v, "\n")) v.n--;
    memcpy(name, key.p, key.n);
    name[key.n] = 0;
    fl_json *child = value_of(v, types_of_parameter(tool, name));
    if (child) fl_json_set(args, name, child);
    p->nomem |= !child;
    return true;
}

/* The parameters from `at` and the end of the call; false when the form is not that of a call. */
static bool take_body(parser *p, size_t *at, const fl_json *tool, fl_json *args)
{
    while (at_word(p, skip_space(p, *at), "<parameter="))
        if (!take_parameter(p, at, tool, args)) return false;
    if (!take_word(p, at, "</function>") || !at_word(p, *at, "</tool_call>")) return false;
    *at += strlen("</tool_call>");
    return true;
}

/* The call whose "<tool_call>" is at *at; NULL (and *at stays) when it is not one, or unfinished.
 * The form is checked before any value is made: an unfinished call may be long. */
static fl_json *take_call(parser *p, size_t *at)
{
    size_t i = *at;
    fl_str name;
    if (!take_word(p, &i, "<tool_call>") || !take_named(p, &i, "<function=", &name)) return NULL;
    size_t end = i;
    if (!take_body(p, &end, NULL, NULL)) return NULL;
    fl_json *call = fl_json_new_object(), *args = fl_json_new_object();
    fl_json *n = fl_json_new_strn(name.p, name.n);
    (void)take_body(p, &i, find_tool(p->tools, name), args);
    if (n) fl_json_set(call, "name", n);
    p->nomem |= !n;
    fl_json_set(call, "arguments", args);
    *at = end;
    return call;
}

static void add_piece(fl_text *text, fl_str piece, bool behind_call)
{
    if (behind_call) {
        const fl_str s = fl_chat_strip(piece);
        if (s.n == 0) return;
        piece = fl_chat_from(piece, (size_t)(s.p - piece.p));
        if (text->n) fl_text_puts(text, "\n\n");
    }
    fl_text_add(text, piece);
}

/* Takes the calls out of `s`. Text before a call loses the white space at its end, text behind one
 * that at its start; what is left is joined by an empty line. Without a call *text is s. */
static fl_json *take_calls(parser *p, fl_str s, fl_text *text)
{
    fl_json *calls = NULL;
    size_t from = 0, at = 0;
    p->s = s;
    p->searched = false;
    for (;;) {
        at += fl_chat_find(fl_chat_from(s, at), "<tool_call>");
        if (at >= s.n) break;
        const size_t start = at;
        fl_json *call = take_call(p, &at);
        if (!call) {
            at++;
            continue;
        }
        add_piece(text, fl_chat_rstrip((fl_str){s.p + from, start - from}), calls != NULL);
        if (!calls) calls = fl_json_new_array();
        fl_json_append(calls, call);
        from = at;
    }
    add_piece(text, fl_chat_from(s, from), calls != NULL);
    return calls;
}

/* ---- the answer --------------------------------------------------------------------------- */

/* Divides the text at the end of its reasoning. False: it has none. */
static bool divide(fl_str s, bool thinking_open, fl_str *reasoning, fl_str *content)
{
    static const char open[] = "<think>", close[] = "</think>";
    const fl_str bare = fl_chat_strip(s);
    const bool opens = fl_chat_starts(bare, open);
    *reasoning = (fl_str){"", 0};
    *content = s;
    if (!opens && !thinking_open) return false;
    if (opens) s = fl_chat_from(s, (size_t)(bare.p - s.p) + sizeof open - 1);
    const size_t end = fl_chat_find(s, close);
    *reasoning = (fl_str){s.p, end};
    *content = fl_chat_from(s, end < s.n ? end + sizeof close - 1 : end);
    *content = fl_chat_lstrip_byte(*content, '\n');
    return true;
}

static fl_status parse_valid(fl_str s, bool thinking_open, const fl_json *tools,
                             fl_chat_answer *out, fl_err *err)
{
    parser p = {.tools = tools};
    fl_str reasoning, content;
    fl_text r = {0}, c = {0};
    fl_status st;
    const bool thought = divide(s, thinking_open, &reasoning, &content);
    out->tool_calls = take_calls(&p, content, &c);
    if (thought && !out->tool_calls && fl_chat_strip(content).n == 0)
        out->tool_calls = take_calls(&p, reasoning, &r);
    else
        fl_text_add(&r, reasoning);
    if (p.nomem) c.failed = true;
    const fl_str stripped = fl_chat_strip((fl_str){r.p, r.n});
    if (stripped.n) memmove(r.p, stripped.p, stripped.n);
    r.n = stripped.n;
    FL_GO(fl_text_take(&r, "an answer", &out->reasoning, &out->reasoning_n, err));
    FL_GO(fl_text_take(&c, "an answer", &out->content, &out->content_n, err));
out:
    fl_text_fini(&r);
    fl_text_fini(&c);
    if (st != FL_OK) fl_chat_answer_free(out);
    return st;
}

fl_status fl_chat_parse_answer(const char *text, size_t n, bool thinking_open, const fl_json *tools,
                               fl_chat_answer *out, fl_err *err)
{
    char *fixed;
    *out = (fl_chat_answer){0};
    FL_TRY(fl_utf8_repair(text, n, &fixed, &n, err));
    const fl_str s = {fixed ? fixed : text, n};
    const fl_status st = parse_valid(s, thinking_open, tools, out, err);
    free(fixed);
    return st;
}

void fl_chat_answer_free(fl_chat_answer *a)
{
    free(a->reasoning);
    free(a->content);
    fl_json_free(&a->tool_calls);
    *a = (fl_chat_answer){0};
}
