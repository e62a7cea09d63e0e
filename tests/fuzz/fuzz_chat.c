/* First byte '[' : the input is a list of messages, rendered both ways. Else: the rest is an
 * answer; taken apart whole and in pieces (the first byte says how) it must come out the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void need(bool ok)
{
    if (!ok) abort();
}

static void try_messages(const char *text, size_t n)
{
    fl_json *m;
    if (fl_json_parse(text, n, "fuzz", &m, NULL) != FL_OK) return;
    for (int k = 0; k < 4; k++) {
        const fl_chat_params p = {.messages = m,
                                  .tools = k & 1 ? m : NULL,
                                  .add_generation_prompt = true,
                                  .enable_thinking = k - 1,
                                  .preserve_thinking = k & 1,
                                  .rules_35 = k & 2};
        char *out;
        size_t len;
        if (fl_chat_render(&p, &out, &len, NULL) == FL_OK) need(strlen(out) <= len);
        free(out);
    }
    fl_json_free(&m);
}

typedef struct sum {
    char *p;
    size_t n;
} sum;

static void add(sum *s, fl_str part)
{
    memcpy(s->p + s->n, part.p, part.n);
    s->n += part.n;
}

static void try_answer(const char *text, size_t n, bool open, size_t step)
{
    static fl_json *tools;
    static const char schema[] =
        "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
        "\"o\":{\"type\":[\"object\",\"null\",\"boolean\"]}}}}]";
    if (!tools) need(fl_json_parse(schema, sizeof schema - 1, "tools", &tools, NULL) == FL_OK);
    fl_chat_answer a;
    fl_chat_stream *s;
    fl_chat_delta d;
    const fl_chat_answer *b;
    sum r = {malloc(3 * n + 1), 0}, c = {malloc(3 * n + 1), 0};
    need(r.p && c.p);
    need(fl_chat_parse_answer(text, n, open, tools, &a, NULL) == FL_OK);
    need(fl_chat_stream_open(&s, open, tools, NULL) == FL_OK);
    for (size_t at = 0; at < n;) {
        size_t k = step < n - at ? step : n - at;
        /* Whole characters, as the detokenizer gives them. */
        for (uint32_t cp; k < n - at; k += (size_t)fl_utf8_next(text + at + k, text + n, &cp))
            if (((uint8_t)text[at + k] & 0xC0) != 0x80) break;
        need(fl_chat_stream_push(s, text + at, k, &d, NULL) == FL_OK);
        add(&r, d.reasoning);
        add(&c, d.content);
        at += k;
    }
    need(fl_chat_stream_finish(s, &b, &d, NULL) == FL_OK);
    add(&r, d.reasoning);
    add(&c, d.content);
    need(r.n == b->reasoning_n && !memcmp(r.p, b->reasoning, r.n));
    need(c.n == b->content_n && !memcmp(c.p, b->content, c.n));
    need(fl_json_size(a.tool_calls) == fl_json_size(b->tool_calls));
    fl_chat_stream_close(&s);
    fl_chat_answer_free(&a);
    free(r.p);
    free(c.p);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    if (n && p[0] == '[')
        try_messages((const char *)p, n);
    else if (n)
        try_answer((const char *)p + 1, n - 1, p[0] & 1, 1 + (p[0] >> 1) % 16);
    return 0;
}
