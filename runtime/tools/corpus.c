#include "runtime/tools/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/text.h"
#include "runtime/base/utf8.h"
#include "runtime/model/chat.h"

static const uint64_t file_limit = 512ull << 20; /* what the tokenizer takes */

static fl_status no_memory(fl_err *err)
{
    return FL_FAIL(err, FL_E_NOMEM, 0, "text: out of memory");
}

static fl_status add_ids(fl_corpus *c, const int32_t *ids, size_t n, fl_err *err)
{
    if (c->n + (int64_t)n > c->room) {
        const int64_t room = 2 * c->room + (int64_t)n;
        int32_t *grown = realloc(c->ids, (size_t)room * sizeof *grown);
        if (!grown) return no_memory(err);
        c->ids = grown;
        c->room = room;
    }
    if (n) memcpy(c->ids + c->n, ids, n * sizeof *ids);
    c->n += (int64_t)n;
    return FL_OK;
}

/* What was added behind `start` is a document. */
static fl_status add_doc(fl_corpus *c, const char *path, int line, int64_t start, int64_t prompt,
                         fl_err *err)
{
    if (c->n == start) return FL_OK;
    if (c->n_docs == c->doc_room) {
        const int room = 2 * c->doc_room + 16;
        fl_corpus_doc *grown = realloc(c->doc, (size_t)room * sizeof *grown);
        if (!grown) return no_memory(err);
        c->doc = grown;
        c->doc_room = room;
    }
    c->doc[c->n_docs++] = (fl_corpus_doc){path, line, start, c->n - start, prompt};
    return FL_OK;
}

/* controls: their spelling means the control token. */
static fl_status add_text(fl_corpus *c, const fl_tokenizer *t, const char *text, size_t n,
                          bool controls, fl_err *err)
{
    char *fixed = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    FL_TRY(fl_utf8_repair(text, n, &fixed, &n, err));
    const char *valid = fixed ? fixed : text;
    fl_status st = controls ? fl_tokenizer_encode(t, valid, n, true, &ids, &n_ids, err)
                            : fl_tokenizer_encode_format(t, valid, n, NULL, 0, &ids, &n_ids, err);
    if (st == FL_OK) st = add_ids(c, ids, n_ids, err);
    free(ids);
    free(fixed);
    return st;
}

static fl_str str_of(const fl_json *s) { return (fl_str){fl_json_str(s, ""), fl_json_str_len(s)}; }

/* Ids that two texts begin with. */
static int64_t same_start(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b)
{
    int64_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* One text, so that tokens form across the border as they do in a rendered conversation. */
static fl_status add_turn(fl_corpus *c, const fl_tokenizer *t, const fl_json *prompt,
                          const fl_json *completion, int64_t *n_prompt, fl_err *err)
{
    fl_text whole = {0};
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0, n_ids = 0;
    const int64_t start = c->n;
    fl_text_add(&whole, str_of(prompt));
    fl_text_add(&whole, str_of(completion));
    FL_TRY(fl_text_take(&whole, "text", &text, &n, err));
    fl_status st = add_text(c, t, text, n, true, err);
    if (st == FL_OK)
        st = fl_tokenizer_encode(t, str_of(prompt).p, str_of(prompt).n, true, &ids, &n_ids, err);
    if (st == FL_OK) *n_prompt = same_start(c->ids + start, c->n - start, ids, (int64_t)n_ids);
    free(ids);
    free(text);
    return st;
}

static bool is_string(const fl_json *j) { return j && fl_json_kind_of(j) == FL_JSON_STRING; }

/* The messages before the first answer; NULL when there is no answer. */
static fl_json *before_answer(const fl_json *messages)
{
    fl_json *head = fl_json_new_array();
    for (size_t i = 0; i < fl_json_size(messages); i++) {
        const fl_json *m = fl_json_at(messages, i);
        if (strcmp(fl_json_str(fl_json_get(m, "role"), ""), "assistant") == 0) return head;
        fl_json_append(head, fl_json_copy(m));
    }
    fl_json_free(&head);
    return NULL;
}

/* An answer's own template may open its thoughts otherwise than a request for one does: the prompt
 * is what both begin with. */
static fl_status add_chat(fl_corpus *c, const fl_tokenizer *t, const fl_json *line,
                          int64_t *n_prompt, fl_err *err)
{
    fl_chat_params p = {.messages = fl_json_get(line, "messages"),
                        .tools = fl_json_get(line, "tools"),
                        .enable_thinking = -1,
                        .preserve_thinking = true};
    int32_t *ids = NULL;
    size_t n = 0;
    const int64_t start = c->n;
    FL_TRY(fl_chat_encode(&p, t, &ids, &n, err));
    fl_status st = add_ids(c, ids, n, err);
    free(ids);
    fl_json *head = before_answer(p.messages);
    if (st != FL_OK || !head) return st;
    ids = NULL;
    p.messages = head;
    p.add_generation_prompt = true;
    if (fl_json_size(head)) st = fl_chat_encode(&p, t, &ids, &n, err);
    if (st == FL_OK && ids) *n_prompt = same_start(c->ids + start, c->n - start, ids, (int64_t)n);
    free(ids);
    fl_json_free(&head);
    return st;
}

static fl_status add_object(fl_corpus *c, const fl_tokenizer *t, const fl_json *line,
                            const char *what, int64_t *n_prompt, fl_err *err)
{
    const fl_json *prompt = fl_json_get(line, "prompt"), *end = fl_json_get(line, "completion");
    const fl_json *text = fl_json_get(line, "text");
    if (is_string(prompt) && is_string(end)) return add_turn(c, t, prompt, end, n_prompt, err);
    if (fl_json_get(line, "messages")) {
        fl_err inner = {0};
        const fl_status st = add_chat(c, t, line, n_prompt, &inner);
        return st == FL_OK ? FL_OK : FL_FAIL(err, st, 0, "%s: %s", what, inner.msg);
    }
    if (is_string(text)) return add_text(c, t, str_of(text).p, str_of(text).n, false, err);
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: expected \"text\", \"messages\", or \"prompt\" with \"completion\"", what);
}

static fl_status add_line(fl_corpus *c, const fl_tokenizer *t, const char *path, int number,
                          fl_str text, fl_err *err)
{
    char what[4096];
    fl_json *line = NULL;
    const int64_t start = c->n;
    int64_t prompt = 0;
    snprintf(what, sizeof what, "%s line %d", path, number);
    fl_status st = fl_json_parse(text.p, text.n, what, &line, err);
    if (st == FL_OK) st = add_object(c, t, line, what, &prompt, err);
    if (st == FL_OK) st = add_doc(c, path, number, start, prompt, err);
    fl_json_free(&line);
    return st;
}

static fl_status add_lines(fl_corpus *c, const fl_tokenizer *t, const char *path, const char *data,
                           size_t n, fl_err *err)
{
    int number = 0;
    for (const char *at = data, *end = data + n; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        const fl_str text = {at, (size_t)(stop - at)};
        number++;
        if (strspn(at, " \t\r") < text.n) FL_TRY(add_line(c, t, path, number, text, err));
        at = stop + 1;
    }
    return FL_OK;
}

static bool has_lines(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".jsonl") == 0;
}

static fl_status add_file(fl_corpus *c, const fl_tokenizer *t, const char *path, fl_err *err)
{
    char *data = NULL;
    uint64_t n = 0;
    const int64_t start = c->n;
    FL_TRY(fl_file_load(path, file_limit, &data, &n, err));
    fl_status st = FL_OK;
    if (has_lines(path)) {
        st = add_lines(c, t, path, data, n, err);
    } else {
        st = add_text(c, t, data, n, false, err);
        if (st == FL_OK) st = add_doc(c, path, 0, start, 0, err);
    }
    free(data);
    FL_TRY(st);
    return c->n > start ? FL_OK : FL_FAIL(err, FL_E_ARG, 0, "%s: holds no text", path);
}

fl_status fl_corpus_open(fl_corpus *out, const fl_tokenizer *t, const char *const *paths,
                         int n_paths, fl_err *err)
{
    fl_status st = FL_OK;
    *out = (fl_corpus){0};
    for (int i = 0; st == FL_OK && i < n_paths; i++) st = add_file(out, t, paths[i], err);
    if (st != FL_OK) fl_corpus_close(out);
    return st;
}

void fl_corpus_close(fl_corpus *c)
{
    free(c->ids);
    free(c->doc);
    *c = (fl_corpus){0};
}

uint64_t fl_corpus_hash(const fl_corpus *c)
{
    uint64_t h = fl_hash64(c->ids, (size_t)c->n * sizeof *c->ids);
    for (int i = 0; i < c->n_docs; i++) {
        h = fl_hash64_seeded(&c->doc[i].n, sizeof c->doc[i].n, h);
        h = fl_hash64_seeded(&c->doc[i].prompt, sizeof c->doc[i].prompt, h);
    }
    return h;
}
