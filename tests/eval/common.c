#include "tests/eval/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/model/chat.h"

_Noreturn void ev_die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(2);
}

void *ev_alloc(size_t n)
{
    void *p = calloc(1, n ? n : 1);
    if (!p) ev_die("no memory for %zu bytes", n);
    return p;
}

static char *copy_str(const fl_json *j, const char *what, const char *path, int line)
{
    const char *s = fl_json_str(j, NULL);
    if (!s) ev_die("%s line %d: no \"%s\"", path, line, what);
    char *c = strdup(s);
    if (!c) ev_die("no memory");
    return c;
}

void ev_set_load(ev_set *s, const char *path)
{
    fl_err err = {0};
    char *data;
    uint64_t n;
    if (fl_file_load(path, 64 << 20, &data, &n, &err) != FL_OK) ev_die("%s", err.msg);
    s->n = 0;
    s->item = NULL;
    char *save = NULL;
    for (char *line = strtok_r(data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        s->item = realloc(s->item, (size_t)(s->n + 1) * sizeof *s->item);
        if (!s->item) ev_die("no memory");
        ev_prompt *p = &s->item[s->n++];
        if (fl_json_parse(line, strlen(line), path, &p->json, &err) != FL_OK)
            ev_die("line %d: %s", s->n, err.msg);
        const fl_json *answer = fl_json_get(p->json, "answer");
        if (!answer) answer = fl_json_get(p->json, "expected");
        p->task = copy_str(fl_json_get(p->json, "task"), "task", path, s->n);
        p->prompt = copy_str(fl_json_get(p->json, "prompt"), "prompt", path, s->n);
        p->answer = copy_str(answer, "answer", path, s->n);
        p->think = fl_json_bool(fl_json_get(p->json, "think"), false);
        const char *end = fl_json_str(fl_json_get(p->json, "completion"), p->answer);
        p->whole = ev_alloc(strlen(p->prompt) + strlen(end) + 1);
        strcat(strcpy(p->whole, p->prompt), end);
    }
    free(data);
}

void ev_set_free(ev_set *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->item[i].task);
        free(s->item[i].prompt);
        free(s->item[i].answer);
        free(s->item[i].whole);
        fl_json_free(&s->item[i].json);
    }
    free(s->item);
    *s = (ev_set){0};
}

int ev_set_unlike_renderer(const ev_set *s)
{
    int unlike = 0;
    for (int i = 0; i < s->n; i++) {
        const ev_prompt *p = &s->item[i];
        fl_err err = {0};
        char *text = NULL;
        size_t n = 0;
        const fl_chat_params c = {.messages = fl_json_get(p->json, "messages"),
                                  .tools = fl_json_get(p->json, "tools"),
                                  .add_generation_prompt = true,
                                  .enable_thinking = p->think};
        if (fl_chat_render(&c, &text, &n, &err) != FL_OK) {
            printf("prompt %d: %s\n", i + 1, err.msg);
            unlike++;
        } else if (strcmp(text, p->prompt) != 0) {
            printf("prompt %d (%s) renders differently:\n%s\ninstead of:\n%s\n", i + 1, p->task,
                   text, p->prompt);
            unlike++;
        }
        free(text);
    }
    return unlike;
}

void ev_open(ev_model *m, const char *path, const fl_engine_params *p)
{
    fl_err err = {0};
    *m = (ev_model){0};
    if (fl_model_open(&m->model, path, &err) != FL_OK) ev_die("%s", err.msg);
    fl_hparams *hp = &m->model->index->hp;
    if (p->n_ctx > hp->n_ctx_train) hp->n_ctx_train = p->n_ctx;
    if (fl_engine_open(&m->engine, m->model, p, &err) != FL_OK ||
        fl_engine_load(m->engine, NULL, NULL, &err) != FL_OK ||
        fl_generator_create(&m->gen, m->engine, &err) != FL_OK)
        ev_die("%s", err.msg);
    if (!m->model->tokenizer) ev_die("%s: no tokenizer", path);
}

void ev_close(ev_model *m)
{
    fl_generator_destroy(&m->gen);
    fl_engine_close(&m->engine);
    fl_model_close(&m->model);
}

int32_t *ev_encode(const ev_model *m, const char *text, size_t *n)
{
    fl_err err = {0};
    int32_t *ids = NULL;
    if (fl_tokenizer_encode(m->model->tokenizer, text, strlen(text), true, &ids, n, &err) != FL_OK)
        ev_die("%s", err.msg);
    return ids;
}

typedef struct collected {
    char *p;
    size_t n;
} collected;

static bool collect(void *arg, const char *text, size_t n)
{
    collected *c = arg;
    c->p = realloc(c->p, c->n + n + 1);
    if (!c->p) ev_die("no memory");
    memcpy(c->p + c->n, text, n);
    c->n += n;
    c->p[c->n] = 0;
    return true;
}

char *ev_answer(ev_model *m, const char *prompt, fl_gen_mode mode, int64_t max_tokens,
                fl_gen_result *result)
{
    fl_err err = {0};
    fl_gen_config c;
    collected text = {0};
    size_t n = 0;
    int32_t *ids = ev_encode(m, prompt, &n);
    fl_gen_config_init(&c, m->model);
    c.mode = mode;
    c.sampler.temp = 0;
    c.max_tokens = max_tokens;
    c.draft_always = true;
    c.on_text = collect;
    c.arg = &text;
    if (fl_generate(m->gen, &c, ids, (int64_t)n, result, &err) != FL_OK) ev_die("%s", err.msg);
    free(ids);
    return text.p ? text.p : ev_alloc(1);
}

char *ev_visible(const char *text)
{
    static const char mark[] = "</think>";
    for (const char *at; (at = strstr(text, mark)); text = at + sizeof mark - 1) {}
    while (*text == ' ' || *text == '\n') text++;
    size_t n = strlen(text);
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\n')) n--;
    char *out = ev_alloc(n + 1);
    memcpy(out, text, n);
    return out;
}
