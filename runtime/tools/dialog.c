#include "runtime/tools/dialog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/identity.h"
#include "runtime/tools/setup.h"

static fl_status read_messages(fl_dialog *d, fl_err *err)
{
    size_t n = 0;
    const char *note = fl_session_note(d->session, &n);
    FL_TRY(fl_json_parse(note, n, d->path, &d->kept, err));
    if (fl_json_kind_of(d->kept) == FL_JSON_ARRAY) return FL_OK;
    return FL_FAIL(err, FL_E_FORMAT, 0, "%s: the session holds no list of messages", d->path);
}

/* A place that cannot be written to is found before the answer is made, not behind it. */
static fl_status check_place(const char *path, fl_err *err)
{
    fl_outfile *f = NULL;
    FL_TRY(fl_outfile_open(&f, path, err));
    fl_outfile_discard(&f);
    return FL_OK;
}

fl_status fl_dialog_open(fl_dialog *d, const fl_options *o, const fl_engine *e, fl_err *err)
{
    *d = (fl_dialog){.path = o->session};
    if (!d->path) return FL_OK;
    FL_TRY(fl_setup_check_output(e->model->src, d->path, err));
    FL_TRY(fl_model_identity(e->model->src, &d->identity, err));
    FL_TRY(check_place(d->path, err));
    FL_TRY(fl_lock_take(&d->lock, d->path, err));
    if (access(d->path, F_OK) != 0) {
        d->kept = fl_json_new_array();
        return FL_OK;
    }
    FL_TRY(fl_session_open(&d->session, d->path, err));
    FL_TRY(fl_session_check(d->session, e, d->identity, err));
    return read_messages(d, err);
}

void fl_dialog_close(fl_dialog *d)
{
    fl_session_close(&d->session);
    fl_lock_release(&d->lock);
    fl_json_free(&d->kept);
    fl_json_free(&d->asked);
}

static bool is_system(const fl_json *message)
{
    return strcmp(fl_json_str(fl_json_get(message, "role"), ""), "system") == 0;
}

/* FL_E_ARG for text that is not UTF-8. */
static fl_status make_message(fl_json **out, const char *role, const char *text, size_t n,
                              fl_err *err)
{
    fl_json *content = fl_json_new_strn(text, n);
    if (!content)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "the %s message is not UTF-8 text; a session keeps no other", role);
    *out = fl_json_new_object();
    fl_json_set_str(*out, "role", role);
    fl_json_set(*out, "content", content);
    return FL_OK;
}

static fl_status add_message(fl_json *list, const char *role, const char *text, size_t n,
                             fl_err *err)
{
    fl_json *m = NULL;
    FL_TRY(make_message(&m, role, text, n, err));
    fl_json_append(list, m);
    return FL_OK;
}

fl_status fl_dialog_ask(fl_dialog *d, const fl_tokenizer *t, const char *system, const char *user,
                        size_t n, bool think, int32_t **ids, size_t *n_ids, fl_err *err)
{
    if (!d->path) return fl_chat_encode_simple(system, user, think, t, ids, n_ids, err);
    d->asked = fl_json_new_array();
    if (system) FL_TRY(add_message(d->asked, "system", system, strlen(system), err));
    for (size_t i = 0; i < fl_json_size(d->kept); i++) {
        const fl_json *m = fl_json_at(d->kept, i);
        if (!system || i > 0 || !is_system(m)) fl_json_append(d->asked, fl_json_copy(m));
    }
    FL_TRY(add_message(d->asked, "user", user, n, err));
    const fl_chat_params p = {
        .messages = d->asked, .add_generation_prompt = true, .enable_thinking = think};
    return fl_chat_encode(&p, t, ids, n_ids, err);
}

fl_status fl_dialog_restore(const fl_dialog *d, fl_generator *g, fl_err *err)
{
    return d->session ? fl_session_restore(d->session, g, d->identity, err) : FL_OK;
}

fl_status fl_dialog_answer(fl_dialog *d, const fl_chat_answer *a, fl_err *err)
{
    if (!d->path || (a->content_n == 0 && !a->tool_calls)) return FL_OK;
    fl_json *m = NULL;
    FL_TRY(make_message(&m, "assistant", a->content, a->content_n, err));
    fl_json *reasoning = a->reasoning_n ? fl_json_new_strn(a->reasoning, a->reasoning_n) : NULL;
    if (reasoning) fl_json_set(m, "reasoning_content", reasoning);
    if (a->tool_calls) fl_json_set(m, "tool_calls", fl_json_copy(a->tool_calls));
    fl_json_append(d->asked, m);
    fl_json_free(&d->kept);
    d->kept = d->asked;
    d->asked = NULL;
    return FL_OK;
}

fl_status fl_dialog_save(const fl_dialog *d, fl_generator *g, bool stats, fl_err *err)
{
    char size[32];
    uint64_t bytes = 0;
    if (!d->path) return FL_OK;
    char *note = fl_json_dump(d->kept, 0);
    if (!note) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", d->path);
    const fl_status st = fl_session_save(g, d->identity, d->path, note, strlen(note), &bytes, err);
    free(note);
    FL_TRY(st);
    if (stats)
        fprintf(stderr, "session %s: %zu messages, %s\n", d->path, fl_json_size(d->kept),
                fl_size_format(size, bytes));
    return FL_OK;
}
