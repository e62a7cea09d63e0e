#ifndef FL_MODEL_CHAT_H
#define FL_MODEL_CHAT_H

#include "runtime/base/json.h"
#include "runtime/base/status.h"

/* The chat format of Qwen3.5 and 3.6, by rules (no template engine). */
typedef struct fl_chat_params {
    const fl_json *messages; /* array of {role, content, reasoning_content?, tool_calls?, ...} */
    const fl_json *tools;    /* array or NULL */
    bool add_generation_prompt;
    int enable_thinking; /* 1, 0; -1 unset = on */
    bool preserve_thinking;
    bool rules_35; /* 3.5's spelling of non-string tool arguments (Python str) */
} fl_chat_params;

/* *text is malloc'ed UTF-8, NUL-terminated, *n its length. Errors name the message's index. */
FL_CHECKED fl_status fl_chat_render(const fl_chat_params *p, char **text, size_t *n, fl_err *err);

/* The usual case: optional system text, one user text. */
FL_CHECKED fl_status fl_chat_render_simple(const char *system, const char *user, bool think,
                                           char **text, size_t *n, fl_err *err);

/* Python's json.dumps(ensure_ascii=False) of a value; malloc'ed. */
FL_CHECKED fl_status fl_chat_python_json(const fl_json *v, char **text, fl_err *err);

/* An answer taken apart: reasoning, visible text, tool calls (array of {name, arguments}).
 * thinking_open: the prompt ended inside <think>. All malloc'ed; tool_calls NULL when none. A
 * malformed or unfinished call stays in the text; nothing is dropped. */
typedef struct fl_chat_answer {
    char *reasoning;
    char *content;
    fl_json *tool_calls;
} fl_chat_answer;
FL_CHECKED fl_status fl_chat_parse_answer(const char *text, size_t n, bool thinking_open,
                                          const fl_json *tools, fl_chat_answer *out, fl_err *err);
void fl_chat_answer_free(fl_chat_answer *a);

#endif
