#include <assert.h>
#include <stdlib.h>

#include "runtime/base/utf8.h"
#include "runtime/model/chat.h"
#include "runtime/model/chat_text.h"

static const char think_open[] = "<think>", think_close[] = "</think>", call_open[] = "<tool_call>";

/* REASONING_HELD and CONTENT_HELD: what may be a call began at `scan`; whether it is one is known
 * when more has come, so that nothing behind it is shown yet. */
typedef enum phase { BEGIN, REASONING, REASONING_HELD, CONTENT, CONTENT_HELD } phase;

struct fl_chat_stream {
    const fl_json *tools;
    bool thinking_open;
    phase phase;
    fl_text all;  /* the text so far; the offsets below are into it */
    size_t scan;  /* tags before this are known */
    size_t begin; /* of the content */
    /* What was shown ends here; 0 bytes shown: where the part begins. */
    size_t reasoning_at, content_at;
    size_t reasoning_end; /* behind REASONING_HELD: what waits is all[reasoning_at, here) */
    bool waits;
    size_t n_reasoning, n_content; /* bytes shown */
    fl_chat_answer answer;
};

fl_status fl_chat_stream_open(fl_chat_stream **out, bool thinking_open, const fl_json *tools,
                              fl_err *err)
{
    fl_chat_stream *s = calloc(1, sizeof *s);
    *out = s;
    if (!s) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for an answer");
    s->thinking_open = thinking_open;
    s->tools = tools;
    return FL_OK;
}

fl_status fl_chat_stream_reserve(fl_chat_stream *s, size_t bytes, fl_err *err)
{
    if (fl_text_reserve(&s->all, bytes)) return FL_OK;
    return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for an answer of %zu bytes", bytes);
}

void fl_chat_stream_close(fl_chat_stream **s)
{
    if (!*s) return;
    fl_text_fini(&(*s)->all);
    fl_chat_answer_free(&(*s)->answer);
    free(*s);
    *s = NULL;
}

static fl_str part(const fl_chat_stream *s, size_t from, size_t to)
{
    return (fl_str){s->all.p + from, to - from};
}

/* Whether more text could make `rest` begin with `word`. */
static bool is_open_prefix(fl_str rest, const char *word)
{
    return rest.n < strlen(word) && !memcmp(rest.p, word, rest.n);
}

/* Whether "<function=" follows the "<tool_call>" at `at`, or may yet. */
static bool may_be_call(const fl_chat_stream *s, size_t at)
{
    at += sizeof call_open - 1;
    while (at < s->all.n && memchr(" \t\r\n", s->all.p[at], 4)) at++;
    const fl_str rest = part(s, at, s->all.n);
    return fl_chat_starts(rest, "<function=") || is_open_prefix(rest, "<function=");
}

typedef enum found { NO_TAG, END_OF_REASONING, POSSIBLE_CALL } found;

/* Moves `scan` over plain text: to a tag, to what may become one, or to the end. */
static found scan_tags(fl_chat_stream *s, bool in_reasoning)
{
    for (; s->scan < s->all.n; s->scan++) {
        s->scan += fl_chat_find(part(s, s->scan, s->all.n), "<");
        const fl_str tag = part(s, s->scan, s->all.n);
        if (in_reasoning && fl_chat_starts(tag, think_close)) return END_OF_REASONING;
        if (fl_chat_starts(tag, call_open) && may_be_call(s, s->scan)) return POSSIBLE_CALL;
        if (in_reasoning && is_open_prefix(tag, think_close)) break;
        if (is_open_prefix(tag, call_open)) break;
    }
    return NO_TAG;
}

/* all[*at..to) without the white space at its end, and with strip_start without that at its start;
 * *at moves to its end. */
static fl_str show(const fl_chat_stream *s, size_t *at, size_t to, bool strip_start)
{
    fl_str p = part(s, *at, to);
    const fl_str bare = fl_chat_strip(p);
    if (bare.n == 0) return (fl_str){"", 0};
    if (strip_start) p = fl_chat_from(p, (size_t)(bare.p - p.p));
    p.n = (size_t)(bare.p + bare.n - p.p);
    *at = (size_t)(p.p + p.n - s->all.p);
    return p;
}

static fl_str show_reasoning(fl_chat_stream *s, size_t to)
{
    const fl_str p = show(s, &s->reasoning_at, to, s->n_reasoning == 0);
    s->n_reasoning += p.n;
    return p;
}

/* The answer begins behind white space and an optional <think>. */
static bool step_begin(fl_chat_stream *s)
{
    const fl_str all = part(s, 0, s->all.n), bare = fl_chat_strip(all);
    if (is_open_prefix(bare, think_open)) return false;
    const bool opens = fl_chat_starts(bare, think_open);
    s->phase = opens || s->thinking_open ? REASONING : CONTENT;
    s->scan = opens ? (size_t)(bare.p - all.p) + sizeof think_open - 1 : 0;
    s->reasoning_at = s->scan;
    return true;
}

static void start_content(fl_chat_stream *s)
{
    s->phase = CONTENT;
    s->reasoning_end = s->scan;
    s->begin = s->scan += sizeof think_close - 1;
    s->content_at = s->begin;
}

static bool step_reasoning(fl_chat_stream *s, fl_chat_delta *d)
{
    const found f = scan_tags(s, true);
    d->reasoning = show_reasoning(s, s->scan);
    if (f == END_OF_REASONING) start_content(s);
    if (f == POSSIBLE_CALL) s->phase = REASONING_HELD;
    return f != NO_TAG;
}

static bool step_reasoning_held(fl_chat_stream *s)
{
    const fl_str rest = part(s, s->scan, s->all.n);
    const size_t at = fl_chat_find(rest, think_close);
    if (at < rest.n) {
        s->scan += at;
        start_content(s);
        s->waits = true;
        return true;
    }
    /* The tag may be cut at the end of the text. */
    if (rest.n >= sizeof think_close - 1) s->scan += rest.n - (sizeof think_close - 2);
    return false;
}

static bool step_content(fl_chat_stream *s, fl_chat_delta *d)
{
    /* Visible text behind it makes the held reasoning plain text. */
    if (s->waits && fl_chat_strip(part(s, s->begin, s->all.n)).n > 0) {
        d->reasoning = show_reasoning(s, s->reasoning_end);
        s->waits = false;
    }
    if (s->begin > 0 && s->n_content == 0) /* line ends behind </think> */
        while (s->content_at < s->all.n && s->all.p[s->content_at] == '\n') s->content_at++;
    if (s->scan < s->content_at) s->scan = s->content_at;
    const found f = scan_tags(s, false);
    d->content = show(s, &s->content_at, s->scan, false);
    s->n_content += d->content.n;
    if (f == POSSIBLE_CALL) s->phase = CONTENT_HELD;
    return false;
}

static bool step(fl_chat_stream *s, fl_chat_delta *d)
{
    switch (s->phase) {
    case BEGIN: return step_begin(s);
    case REASONING: return step_reasoning(s, d);
    case REASONING_HELD: return step_reasoning_held(s);
    case CONTENT: return step_content(s, d);
    case CONTENT_HELD: return false;
    }
    return false;
}

fl_status fl_chat_stream_push(fl_chat_stream *s, const char *text, size_t n, fl_chat_delta *delta,
                              fl_err *err)
{
    char *fixed;
    *delta = (fl_chat_delta){{"", 0}, {"", 0}};
    FL_TRY(fl_utf8_repair(text, n, &fixed, &n, err));
    fl_text_add(&s->all, (fl_str){fixed ? fixed : text, n});
    free(fixed);
    if (s->all.failed)
        return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for an answer of %zu bytes", s->all.n);
    fl_str r = {"", 0};
    for (bool more = s->all.n > 0; more;) {
        more = step(s, delta);
        /* Two steps may show reasoning; the second continues the first. */
        const fl_str d = delta->reasoning;
        if (d.n && d.p != r.p) r = r.n ? (fl_str){r.p, (size_t)(d.p + d.n - r.p)} : d;
    }
    delta->reasoning = r;
    return FL_OK;
}

fl_status fl_chat_stream_finish(fl_chat_stream *s, const fl_chat_answer **answer,
                                fl_chat_delta *delta, fl_err *err)
{
    fl_chat_answer *a = &s->answer;
    *answer = a;
    *delta = (fl_chat_delta){{"", 0}, {"", 0}};
    fl_chat_answer_free(a);
    FL_TRY(fl_chat_parse_answer(s->all.p ? s->all.p : "", s->all.n, s->thinking_open, s->tools, a,
                                err));
    assert(s->n_reasoning <= a->reasoning_n && s->n_content <= a->content_n);
    delta->reasoning = (fl_str){a->reasoning + s->n_reasoning, a->reasoning_n - s->n_reasoning};
    delta->content = (fl_str){a->content + s->n_content, a->content_n - s->n_content};
    return FL_OK;
}
