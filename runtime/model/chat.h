#ifndef FL_MODEL_CHAT_H
#define FL_MODEL_CHAT_H

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "runtime/base/str.h"
#include "runtime/model/tokenizer.h"

/* The chat format of Qwen3.5 and 3.6, by rules (no template engine). */
typedef struct fl_chat_params {
    const fl_json *messages; /* array of {role, content, reasoning_content?, tool_calls?, ...} */
    const fl_json *tools;    /* array or NULL */
    bool add_generation_prompt;
    int enable_thinking;    /* 1, 0; -1 unset = on */
    bool preserve_thinking; /* reasoning of earlier turns stays in the prompt */
    bool rules_35;          /* 3.5: bare tool arguments as Python's str(), no preserve_thinking */
} fl_chat_params;

/* *text is malloc'ed UTF-8, NUL-terminated, *n its length. Errors are FL_E_ARG and name the
 * message's index. tests/model/test_chat.c holds it to the published templates. */
FL_CHECKED fl_status fl_chat_render(const fl_chat_params *p, char **text, size_t *n, fl_err *err);

/* The conversation as token ids (malloc'ed). They are those of the text, but control tokens
 * (<|im_start|>, <|im_end|>, <|endoftext|> ...) are only those that the format itself writes: in a
 * message, a tool's answer or a tool's description the same words are plain text, so that no
 * content can end its turn or open another. Tags that are no control tokens (<think>,
 * <tool_call>) are tokens wherever they stand, as in the published template. */
FL_CHECKED fl_status fl_chat_encode(const fl_chat_params *p, const fl_tokenizer *t, int32_t **ids,
                                    size_t *n, fl_err *err);

/* The usual case: optional system text, one user text; ill-formed UTF-8 becomes U+FFFD. */
FL_CHECKED fl_status fl_chat_render_simple(const char *system, const char *user, bool think,
                                           char **text, size_t *n, fl_err *err);
FL_CHECKED fl_status fl_chat_encode_simple(const char *system, const char *user, bool think,
                                           const fl_tokenizer *t, int32_t **ids, size_t *n,
                                           fl_err *err);

/* Python's json.dumps(ensure_ascii=False) of a value; malloc'ed. Numbers as Python writes them
 * (1.0, 1e-05, 1e+16, the shortest digits that read back). The JSON reader in front knows
 * integers of 64 bits and finite reals: it refuses larger ones, and lone surrogates, which Python
 * would take. */
FL_CHECKED fl_status fl_chat_python_json(const fl_json *v, char **text, fl_err *err);

/* An answer taken apart: reasoning, visible text, tool calls (array of {name, arguments}).
 * thinking_open: the prompt ended inside <think>; an answer that itself starts with <think> is
 * read the same way. Reasoning without </think> (the answer was cut) is all reasoning.
 *
 * A call is <tool_call><function=NAME>, any number of <parameter=KEY>VALUE</parameter>,
 * </function></tool_call>, with white space between. A VALUE loses one line end at either side; it
 * is a string where the tool's schema says string, else JSON where it is JSON, else a string. Of a
 * repeated KEY the last counts. A malformed or unfinished call stays in the text. Calls inside the
 * reasoning are delivered when no visible text or call follows it, else they are reasoning text.
 * So nothing is dropped but white space: reasoning is stripped, content loses line ends behind
 * </think> and the white space around calls (pieces of text between calls are joined by an empty
 * line). Ill-formed UTF-8 becomes U+FFFD. Linear in n for what models write. */
typedef struct fl_chat_answer {
    char *reasoning; /* malloc'ed, NUL-terminated, never NULL; "" when there is none */
    char *content;
    size_t reasoning_n, content_n; /* lengths: a model can write NUL */
    fl_json *tool_calls;           /* NULL when none */
} fl_chat_answer;
FL_CHECKED fl_status fl_chat_parse_answer(const char *text, size_t n, bool thinking_open,
                                          const fl_json *tools, fl_chat_answer *out, fl_err *err);
void fl_chat_answer_free(fl_chat_answer *a);

/* The same while the answer is being written: what can be shown already. Deltas come as whole
 * characters; their sum, with that of finish, is exactly the final reasoning and content. Text
 * that may be part of a tag, a call or stripped white space is held back. */
typedef struct fl_chat_stream fl_chat_stream;
typedef struct fl_chat_delta { /* valid until the next call; empty: nothing to show yet */
    fl_str reasoning, content;
} fl_chat_delta;
/* `tools` is borrowed until close. */
FL_CHECKED fl_status fl_chat_stream_open(fl_chat_stream **out, bool thinking_open,
                                         const fl_json *tools, fl_err *err);
/* Room for an answer of `bytes`: up to there push allocates nothing for text that is UTF-8. */
FL_CHECKED fl_status fl_chat_stream_reserve(fl_chat_stream *s, size_t bytes, fl_err *err);
/* text: whole characters, as fl_detok_push gives them. */
FL_CHECKED fl_status fl_chat_stream_push(fl_chat_stream *s, const char *text, size_t n,
                                         fl_chat_delta *delta, fl_err *err);
/* The complete answer (owned by s) and what was not shown of it yet. */
FL_CHECKED fl_status fl_chat_stream_finish(fl_chat_stream *s, const fl_chat_answer **answer,
                                           fl_chat_delta *delta, fl_err *err);
void fl_chat_stream_close(fl_chat_stream **s);

#endif
