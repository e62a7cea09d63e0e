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

static fl_status add_ids(fl_corpus *c, const int32_t *ids, size_t n, fl_err *err)
{
    int32_t *grown = realloc(c->ids, ((size_t)c->n + n + 1) * sizeof *grown);
    if (!grown) return FL_FAIL(err, FL_E_NOMEM, 0, "text: out of memory");
    if (n) memcpy(grown + c->n, ids, n * sizeof *ids);
    c->ids = grown;
    c->n += (int64_t)n;
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

/* One text, so that tokens form across the border as they do in a rendered conversation. */
static fl_status add_turn(fl_corpus *c, const fl_tokenizer *t, const fl_json *prompt,
                          const fl_json *completion, fl_err *err)
{
    fl_text whole = {0};
    char *text = NULL;
    size_t n = 0;
    fl_text_add(&whole, str_of(prompt));
    fl_text_add(&whole, str_of(completion));
    FL_TRY(fl_text_take(&whole, "text", &text, &n, err));
    const fl_status st = add_text(c, t, text, n, true, err);
    free(text);
    return st;
}

static bool is_string(const fl_json *j) { return j && fl_json_kind_of(j) == FL_JSON_STRING; }

static fl_status add_chat(fl_corpus *c, const fl_tokenizer *t, const fl_json *line, fl_err *err)
{
    const fl_chat_params p = {.messages = fl_json_get(line, "messages"),
                              .tools = fl_json_get(line, "tools"),
                              .enable_thinking = -1,
                              .preserve_thinking = true};
    int32_t *ids = NULL;
    size_t n = 0;
    FL_TRY(fl_chat_encode(&p, t, &ids, &n, err));
    const fl_status st = add_ids(c, ids, n, err);
    free(ids);
    return st;
}

static fl_status add_object(fl_corpus *c, const fl_tokenizer *t, const fl_json *line,
                            const char *what, fl_err *err)
{
    const fl_json *prompt = fl_json_get(line, "prompt"), *end = fl_json_get(line, "completion");
    const fl_json *text = fl_json_get(line, "text");
    if (is_string(prompt) && is_string(end)) return add_turn(c, t, prompt, end, err);
    if (fl_json_get(line, "messages")) {
        fl_err inner = {0};
        const fl_status st = add_chat(c, t, line, &inner);
        return st == FL_OK ? FL_OK : FL_FAIL(err, st, 0, "%s: %s", what, inner.msg);
    }
    if (is_string(text)) return add_text(c, t, str_of(text).p, str_of(text).n, false, err);
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: expected \"text\", \"messages\", or \"prompt\" with \"completion\"", what);
}

static fl_status add_lines(fl_corpus *c, const fl_tokenizer *t, const char *path, const char *data,
                           size_t n, fl_err *err)
{
    int number = 0;
    for (const char *at = data, *end = data + n; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        number++;
        if (strspn(at, " \t\r") < (size_t)(stop - at)) {
            char what[4096];
            fl_json *line = NULL;
            snprintf(what, sizeof what, "%s line %d", path, number);
            fl_status st = fl_json_parse(at, (size_t)(stop - at), what, &line, err);
            if (st == FL_OK) st = add_object(c, t, line, what, err);
            fl_json_free(&line);
            if (st != FL_OK) return st;
        }
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
    fl_corpus_part *p = &c->part[c->n_parts];
    *p = (fl_corpus_part){.path = path, .start = c->n};
    FL_TRY(fl_file_load(path, file_limit, &data, &n, err));
    const fl_status st =
        has_lines(path) ? add_lines(c, t, path, data, n, err) : add_text(c, t, data, n, false, err);
    free(data);
    FL_TRY(st);
    p->n = c->n - p->start;
    if (p->n == 0) return FL_FAIL(err, FL_E_ARG, 0, "%s: holds no text", path);
    c->n_parts++;
    return FL_OK;
}

fl_status fl_corpus_open(fl_corpus *out, const fl_tokenizer *t, const char *const *paths,
                         int n_paths, fl_err *err)
{
    *out = (fl_corpus){.part = calloc((size_t)n_paths + 1, sizeof *out->part)};
    fl_status st = out->part ? FL_OK : FL_FAIL(err, FL_E_NOMEM, 0, "text: out of memory");
    for (int i = 0; st == FL_OK && i < n_paths; i++) st = add_file(out, t, paths[i], err);
    if (st != FL_OK) fl_corpus_close(out);
    return st;
}

void fl_corpus_close(fl_corpus *c)
{
    free(c->ids);
    free(c->part);
    *c = (fl_corpus){0};
}

uint64_t fl_corpus_hash(const fl_corpus *c)
{
    uint64_t h = fl_hash64(c->ids, (size_t)c->n * sizeof *c->ids);
    for (int i = 0; i < c->n_parts; i++)
        h = fl_hash64_seeded(&c->part[i].n, sizeof c->part[i].n, h);
    return h;
}
