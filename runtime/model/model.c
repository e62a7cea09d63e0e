#include "runtime/model/model.h"

#include <stdlib.h>

static bool has_tokenizer(const fl_source *src)
{
    const fl_gguf *g = fl_source_gguf(src);
    return g ? fl_gguf_find(g, "tokenizer.ggml.tokens") != NULL
             : fl_source_tokenizer_path(src) != NULL;
}

fl_status fl_model_open(fl_model **out, const char *path, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *m = calloc(1, sizeof(*m));
    if (!m) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", path);
    FL_GO(fl_source_open(&m->src, path, err));
    FL_GO(fl_index_build(&m->index, m->src, err));
    if (has_tokenizer(m->src)) FL_GO(fl_tokenizer_open(&m->tokenizer, m->src, err));
    *out = m;
    return FL_OK;
out:
    fl_model_close(&m);
    return st;
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
