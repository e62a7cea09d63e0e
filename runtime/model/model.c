#include "runtime/model/model.h"

#include <stdlib.h>

#include "runtime/model/facts.h"
#include "runtime/model/index_parts.h"

static bool has_tokenizer(const fl_source *src)
{
    const fl_gguf *g = fl_source_gguf(src);
    return g ? fl_gguf_find(g, "tokenizer.ggml.tokens") != NULL
             : fl_source_tokenizer_path(src) != NULL;
}

/* The probe's section of the facts, then what was asked for. *note: one line to show, or NULL (that
 * the file of facts is damaged is said by who asks for rates). */
static void join_known(fl_wiring *w, const fl_facts *f, const fl_wiring *asked, const char **note)
{
    const fl_json *section = fl_facts_section(f, "probe");
    *w = fl_wiring_none();
    *note = NULL;
    if (section && !fl_wiring_from_json(w, section))
        *note = "what a probe stored on this model is of another version: run fourleaf probe again";
    if (asked->norm_add_one >= 0) w->norm_add_one = asked->norm_add_one;
    if (asked->a_is_log >= 0) w->a_is_log = asked->a_is_log;
    if (asked->v_grouped >= 0) w->v_grouped = asked->v_grouped;
    if (asked->roles.n > 0) w->roles = asked->roles;
}

fl_status fl_index_build_known(fl_index **out, const fl_source *src, const fl_wiring *asked,
                               fl_wiring *known, fl_err *err)
{
    fl_facts *f = NULL;
    fl_wiring w;
    const char *note = NULL;
    *out = NULL;
    FL_TRY(fl_facts_of(&f, src, err));
    join_known(&w, f, asked, &note);
    fl_status st = fl_index_build_as(out, src, &w, err);
    if (known) *known = w;
    if (st == FL_OK && note) st = fl_index_note(*out, err, "%s", note);
    if (st != FL_OK) fl_index_free(out);
    fl_facts_close(&f);
    return st;
}

/* asked NULL: the files alone. */
static fl_status open_model(fl_model **out, const char *path, const fl_wiring *asked, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *m = calloc(1, sizeof(*m));
    if (!m) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    FL_GO(fl_source_open(&m->src, path, err));
    FL_GO(asked ? fl_index_build_known(&m->index, m->src, asked, NULL, err)
                : fl_index_build(&m->index, m->src, err));
    if (has_tokenizer(m->src)) FL_GO(fl_tokenizer_open(&m->tokenizer, m->src, err));
    *out = m;
    return FL_OK;
out:
    fl_model_close(&m);
    return st;
}

fl_status fl_model_open(fl_model **out, const char *path, fl_err *err)
{
    return open_model(out, path, NULL, err);
}

fl_status fl_model_open_known(fl_model **out, const char *path, const fl_wiring *asked, fl_err *err)
{
    return open_model(out, path, asked, err);
}

void fl_model_close(fl_model **m)
{
    if (!*m) return;
    fl_tokenizer_close(&(*m)->tokenizer);
    fl_index_free(&(*m)->index);
    fl_source_close(&(*m)->src);
    free(*m);
    *m = NULL;
}
