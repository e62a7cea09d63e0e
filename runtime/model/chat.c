#include "runtime/model/chat.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/utf8.h"
#include "runtime/model/chat_text.h"

static const char tools_head[] =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char tools_tail[] =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
    "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block "
    "must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT>";

typedef enum role { SYSTEM, USER, ASSISTANT, TOOL } role;

typedef struct message {
    const fl_json *j;
    role role;
    fl_str content; /* stripped; inside j, or in `joined` */
    char *joined;   /* content that came in parts */
} message;

typedef struct rendering {
    const fl_chat_params *p;
    message *m;
    size_t n, last_query;
    fl_text out;
    fl_token_place *control; /* the control tokens in out */
    size_t n_control, room;
    fl_err *err;
} rendering;

/* ---- reading messages --------------------------------------------------------------------- */

static fl_status join_parts(rendering *r, size_t i, const fl_json *list)
{
    fl_text t = {0};
    for (size_t k = 0; k < fl_json_size(list); k++) {
        const fl_json *part = fl_json_at(list, k);
        const fl_json *text = fl_json_get(part, "text");
        const char *type = fl_json_str(fl_json_get(part, "type"), "");
        if (fl_json_kind_of(text) != FL_JSON_STRING || fl_json_get(part, "image") ||
            fl_json_get(part, "image_url") || fl_json_get(part, "video") ||
            !strcmp(type, "image") || !strcmp(type, "video")) {
            fl_text_fini(&t);
            return FL_FAIL(r->err, FL_E_ARG, 0,
                           "messages[%zu].content[%zu] has type \"%s\"; this model reads text "
                           "parts only",
                           i, k, type);
        }
        fl_text_add(&t, fl_chat_json_str(text));
    }
    size_t n;
    FL_TRY(fl_text_take(&t, "a message", &r->m[i].joined, &n, r->err));
    r->m[i].content = (fl_str){r->m[i].joined, n};
    return FL_OK;
}

static fl_status read_message(rendering *r, size_t i)
{
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    message *m = &r->m[i];
    m->j = fl_json_at(r->p->messages, i);
    const char *name = fl_json_str(fl_json_get(m->j, "role"), "(none)");
    int k = 0;
    while (k < 4 && strcmp(name, names[k]) != 0) k++;
    if (k == 4)
        return FL_FAIL(r->err, FL_E_ARG, 0,
                       "messages[%zu].role is \"%s\"; system, user, assistant or tool expected", i,
                       name);
    m->role = (role)k;
    if (m->role == SYSTEM && i > 0)
        return FL_FAIL(r->err, FL_E_ARG, 0,
                       "messages[%zu] is a system message; only the first message can be one", i);
    const fl_json *content = fl_json_get(m->j, "content");
    switch (fl_json_kind_of(content)) {
    case FL_JSON_NULL: m->content = (fl_str){"", 0}; break;
    case FL_JSON_STRING: m->content = fl_chat_json_str(content); break;
    case FL_JSON_ARRAY: FL_TRY(join_parts(r, i, content)); break;
    default:
        return FL_FAIL(r->err, FL_E_ARG, 0,
                       "messages[%zu].content must be a string or a list of text parts", i);
    }
    m->content = fl_chat_strip(m->content);
    return FL_OK;
}

static bool is_tool_response(fl_str s)
{
    return fl_chat_starts(s, "<tool_response>") && fl_chat_ends(s, "</tool_response>");
}

static fl_status read_messages(rendering *r)
{
    r->n = fl_json_kind_of(r->p->messages) == FL_JSON_ARRAY ? fl_json_size(r->p->messages) : 0;
    if (r->n == 0) return FL_FAIL(r->err, FL_E_ARG, 0, "messages is empty");
    r->m = calloc(r->n, sizeof *r->m);
    if (!r->m) return FL_FAIL(r->err, FL_E_NOMEM, 0, "no memory for %zu messages", r->n);
    r->last_query = r->n;
    for (size_t i = 0; i < r->n; i++) {
        FL_TRY(read_message(r, i));
        if (r->m[i].role == USER && !is_tool_response(r->m[i].content)) r->last_query = i;
    }
    if (r->last_query == r->n)
        return FL_FAIL(r->err, FL_E_ARG, 0,
                       "none of the %zu messages is a question of the user (role \"user\")", r->n);
    return FL_OK;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Only what is written here is a control token; the same words in a message are its text. */
static void put_control(rendering *r, const char *token)
{
    if (r->n_control == r->room) {
        const size_t room = 2 * r->room + 16;
        fl_token_place *grown = realloc(r->control, room * sizeof *grown);
        if (!grown) {
            r->out.failed = true;
            return;
        }
        r->control = grown;
        r->room = room;
    }
    r->control[r->n_control++] = (fl_token_place){r->out.n, strlen(token)};
    fl_text_puts(&r->out, token);
}

static void put_start(rendering *r, const char *who)
{
    put_control(r, "<|im_start|>");
    fl_text_puts(&r->out, who);
}

static void put_end(rendering *r)
{
    put_control(r, "<|im_end|>");
    fl_text_puts(&r->out, "\n");
}

static void put_head(rendering *r)
{
    const message *first = &r->m[0];
    const fl_json *tools = r->p->tools;
    const size_t n_tools = fl_json_kind_of(tools) == FL_JSON_ARRAY ? fl_json_size(tools) : 0;
    if (n_tools == 0 && first->role != SYSTEM) return;
    put_start(r, "system\n");
    if (n_tools) {
        fl_text_puts(&r->out, tools_head);
        for (size_t i = 0; i < n_tools; i++) {
            fl_text_puts(&r->out, "\n");
            fl_chat_put_json(&r->out, fl_json_at(tools, i));
        }
        fl_text_puts(&r->out, tools_tail);
        if (first->role == SYSTEM && first->content.n) fl_text_puts(&r->out, "\n\n");
    }
    if (first->role == SYSTEM) fl_text_add(&r->out, first->content);
    put_end(r);
}

static void put_argument(rendering *r, const char *key, const fl_json *v)
{
    const fl_json_kind kind = fl_json_kind_of(v);
    fl_text_puts(&r->out, "<parameter=");
    fl_text_puts(&r->out, key);
    fl_text_puts(&r->out, ">\n");
    if (kind == FL_JSON_STRING)
        fl_text_add(&r->out, fl_chat_json_str(v));
    else if (r->p->rules_35 && kind != FL_JSON_ARRAY && kind != FL_JSON_OBJECT)
        fl_chat_put_python_str(&r->out, v);
    else
        fl_chat_put_json(&r->out, v);
    fl_text_puts(&r->out, "\n</parameter>\n");
}

static fl_status put_arguments(rendering *r, size_t i, size_t k, const fl_json *args)
{
    char where[96];
    fl_json *parsed = NULL;
    snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu].arguments", i, k);
    if (fl_json_kind_of(args) == FL_JSON_NULL) return FL_OK;
    if (fl_json_kind_of(args) == FL_JSON_STRING) {
        /* The OpenAI interface carries them as JSON text; some clients send none as "". */
        const fl_str s = fl_chat_strip(fl_chat_json_str(args));
        if (s.n == 0) return FL_OK;
        FL_TRY(fl_json_parse(s.p, s.n, where, &parsed, r->err));
        args = parsed;
    }
    fl_status st = FL_OK;
    if (fl_json_kind_of(args) == FL_JSON_OBJECT) {
        void *it = NULL;
        const char *key;
        const fl_json *v;
        while (fl_json_next(args, &it, &key, &v)) put_argument(r, key, v);
    } else {
        st = FL_FAIL(r->err, FL_E_ARG, 0, "%s must be an object", where);
    }
    fl_json_free(&parsed);
    return st;
}

static fl_status put_tool_calls(rendering *r, size_t i, bool behind_text)
{
    const fl_json *calls = fl_json_get(r->m[i].j, "tool_calls");
    const size_t n = fl_json_kind_of(calls) == FL_JSON_ARRAY ? fl_json_size(calls) : 0;
    for (size_t k = 0; k < n; k++) {
        const fl_json *call = fl_json_at(calls, k);
        const fl_json *function = fl_json_get(call, "function");
        if (function) call = function;
        const fl_json *name = fl_json_get(call, "name");
        if (fl_json_kind_of(name) != FL_JSON_STRING)
            return FL_FAIL(r->err, FL_E_ARG, 0, "messages[%zu].tool_calls[%zu] has no name", i, k);
        fl_text_puts(&r->out, k > 0 ? "\n" : behind_text ? "\n\n" : "");
        fl_text_puts(&r->out, "<tool_call>\n<function=");
        fl_text_add(&r->out, fl_chat_json_str(name));
        fl_text_puts(&r->out, ">\n");
        FL_TRY(put_arguments(r, i, k, fl_json_get(call, "arguments")));
        fl_text_puts(&r->out, "</function>\n</tool_call>");
    }
    return FL_OK;
}

static fl_status put_assistant(rendering *r, size_t i)
{
    static const char open[] = "<think>", close[] = "</think>";
    const fl_json *given = fl_json_get(r->m[i].j, "reasoning_content");
    fl_str content = r->m[i].content, reasoning = {"", 0};
    if (fl_json_kind_of(given) == FL_JSON_STRING) {
        reasoning = fl_chat_json_str(given);
    } else if (fl_chat_find(content, close) < content.n) {
        const size_t last = fl_chat_find_last(content, close);
        reasoning = fl_chat_rstrip_byte((fl_str){content.p, fl_chat_find(content, close)}, '\n');
        const size_t opened = fl_chat_find_last(reasoning, open);
        if (opened < reasoning.n) reasoning = fl_chat_from(reasoning, opened + sizeof open - 1);
        content = fl_chat_lstrip_byte(fl_chat_from(content, last + sizeof close - 1), '\n');
    }
    put_start(r, "assistant\n");
    if (i > r->last_query || (r->p->preserve_thinking && !r->p->rules_35)) {
        fl_text_puts(&r->out, "<think>\n");
        fl_text_add(&r->out, fl_chat_strip(reasoning));
        fl_text_puts(&r->out, "\n</think>\n\n");
    }
    fl_text_add(&r->out, content);
    FL_TRY(put_tool_calls(r, i, fl_chat_strip(content).n > 0));
    put_end(r);
    return FL_OK;
}

/* Results in a row share one user turn. */
static void put_tool(rendering *r, size_t i)
{
    if (i > 0 && r->m[i - 1].role != TOOL) put_start(r, "user");
    fl_text_puts(&r->out, "\n<tool_response>\n");
    fl_text_add(&r->out, r->m[i].content);
    fl_text_puts(&r->out, "\n</tool_response>");
    if (i + 1 == r->n || r->m[i + 1].role != TOOL) put_end(r);
}

static void put_answer_start(rendering *r, bool think)
{
    put_start(r, "assistant\n");
    fl_text_puts(&r->out, "<think>\n");
    if (!think) fl_text_puts(&r->out, "\n</think>\n\n");
}

static fl_status put_messages(rendering *r)
{
    for (size_t i = 0; i < r->n; i++) {
        switch (r->m[i].role) {
        case SYSTEM: break;
        case USER:
            put_start(r, "user\n");
            fl_text_add(&r->out, r->m[i].content);
            put_end(r);
            break;
        case ASSISTANT: FL_TRY(put_assistant(r, i)); break;
        case TOOL: put_tool(r, i); break;
        }
    }
    if (r->p->add_generation_prompt) { put_answer_start(r, r->p->enable_thinking != 0); }
    return FL_OK;
}

static fl_status render(rendering *r)
{
    FL_TRY(read_messages(r));
    put_head(r);
    return put_messages(r);
}

static void rendering_fini(rendering *r)
{
    for (size_t i = 0; r->m && i < r->n; i++) free(r->m[i].joined);
    free(r->m);
    free(r->control);
    fl_text_fini(&r->out);
}

/* Hands over the text, or its ids when there is a tokenizer. */
static fl_status take(rendering *r, const fl_tokenizer *t, char **text, int32_t **ids, size_t *n)
{
    if (!t) return fl_text_take(&r->out, "the prompt", text, n, r->err);
    if (r->out.failed)
        return FL_FAIL(r->err, FL_E_NOMEM, 0, "no memory for the prompt behind %zu bytes",
                       r->out.n);
    return fl_tokenizer_encode_format(t, r->out.p, r->out.n, r->control, r->n_control, ids, n,
                                      r->err);
}

static fl_status render_and_take(const fl_chat_params *p, const fl_tokenizer *t, char **text,
                                 int32_t **ids, size_t *n, fl_err *err)
{
    rendering r = {.p = p, .err = err};
    fl_status st = render(&r);
    if (st == FL_OK) st = take(&r, t, text, ids, n);
    rendering_fini(&r);
    return st;
}

fl_status fl_chat_render(const fl_chat_params *p, char **text, size_t *n, fl_err *err)
{
    *text = NULL;
    *n = 0;
    return render_and_take(p, NULL, text, NULL, n, err);
}

fl_status fl_chat_encode(const fl_chat_params *p, const fl_tokenizer *t, int32_t **ids, size_t *n,
                         fl_err *err)
{
    *ids = NULL;
    *n = 0;
    return render_and_take(p, t, NULL, ids, n, err);
}

/* ---- the usual case ----------------------------------------------------------------------- */

/* A message that comes from outside, stripped; its UTF-8 is made valid. */
static fl_status put_simple(rendering *r, const char *who, const char *text)
{
    char *fixed = NULL;
    size_t n = strlen(text);
    FL_TRY(fl_utf8_repair(text, n, &fixed, &n, r->err));
    put_start(r, who);
    fl_text_add(&r->out, fl_chat_strip((fl_str){fixed ? fixed : text, n}));
    put_end(r);
    free(fixed);
    return FL_OK;
}

static fl_status simple(const char *system, const char *user, bool think, const fl_tokenizer *t,
                        char **text, int32_t **ids, size_t *n, fl_err *err)
{
    rendering r = {.err = err};
    fl_status st = FL_OK;
    if (system) FL_GO(put_simple(&r, "system\n", system));
    FL_GO(put_simple(&r, "user\n", user));
    put_answer_start(&r, think);
    st = take(&r, t, text, ids, n);
out:
    rendering_fini(&r);
    return st;
}

fl_status fl_chat_render_simple(const char *system, const char *user, bool think, char **text,
                                size_t *n, fl_err *err)
{
    *text = NULL;
    *n = 0;
    return simple(system, user, think, NULL, text, NULL, n, err);
}

fl_status fl_chat_encode_simple(const char *system, const char *user, bool think,
                                const fl_tokenizer *t, int32_t **ids, size_t *n, fl_err *err)
{
    *ids = NULL;
    *n = 0;
    return simple(system, user, think, t, NULL, ids, n, err);
}
