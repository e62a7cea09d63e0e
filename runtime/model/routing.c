#include "runtime/model/routing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/facts.h"

enum { MAX_NAME = 32 };

/* ---- profile ---- */

static bool name_is_good(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t n = strlen(name);
    return n >= 1 && n <= MAX_NAME && strspn(name, good) == n && name[0] != '.';
}

/* What a damaged file held is lost; that is no reason not to run. */
static fl_status load_profile(fl_routing *r, fl_err *err)
{
    fl_err why = {0};
    if (!r->profile_path || fl_profile_load(r->profile, r->profile_path, &why) == FL_OK)
        return FL_OK;
    if (asprintf(&r->profile_note, "%s; the profile is begun anew", why.msg) >= 0) return FL_OK;
    r->profile_note = NULL;
    return FL_FAIL(err, FL_E_NOMEM, 0, "profile: out of memory");
}

fl_status fl_routing_open_profile(fl_routing *r, const fl_model *m, const char *name, fl_err *err)
{
    char kind[MAX_NAME + sizeof ".profile"];
    const fl_hparams *hp = &m->index->hp;
    fl_facts *f = NULL;
    fl_status st;
    if (!name_is_good(name))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--profile %s: expected 1 to %d letters, digits, dots, dashes and "
                       "underscores, the first one no dot",
                       name, MAX_NAME);
    snprintf(kind, sizeof kind, "%s.profile", name);
    /* The MTP block's layers count whether they are loaded or not: one shape for all runs. */
    FL_GO(fl_profile_create(&r->profile, hp->n_layer + hp->n_mtp, hp->n_expert, err));
    FL_GO(fl_facts_of(&f, m->index->src, err));
    FL_GO(fl_facts_sibling(f, kind, &r->profile_path, err));
    st = load_profile(r, err);
out:
    fl_facts_close(&f);
    return st;
}

fl_status fl_routing_save_profile(fl_routing *r, const fl_model *m, fl_err *err)
{
    fl_facts *f = NULL;
    if (!r->profile || !r->profile_path) return FL_OK;
    FL_TRY(fl_facts_of(&f, m->index->src, err));
    fl_status st = fl_facts_writable(f, err);
    if (st == FL_OK) st = fl_profile_save(r->profile, r->profile_path, err);
    fl_facts_close(&f);
    return st;
}

/* ---- trace ---- */

fl_status fl_routing_open_trace(fl_routing *r, const fl_model *m, const char *path, int block,
                                int max_rows, fl_err *err)
{
    const fl_hparams *hp = &m->index->hp;
    const fl_trace_shape shape = {.n_layer = hp->n_layer,
                                  .n_expert = hp->n_expert,
                                  .top_k = hp->top_k,
                                  .block = block,
                                  .name = "recorded"};
    r->n_layer = hp->n_layer;
    return fl_trace_writer_open(&r->writer, path, &shape, max_rows, err);
}

static void put_pass(fl_routing *r)
{
    if (r->over && r->writer && r->st == FL_OK)
        r->st = fl_trace_writer_pass(r->writer, &r->pass, &r->err);
    r->over = false;
}

fl_status fl_routing_save_trace(fl_routing *r, fl_err *err)
{
    if (!r->writer) return FL_OK;
    put_pass(r);
    if (r->st == FL_OK) return fl_trace_writer_commit(&r->writer, err);
    fl_trace_writer_discard(&r->writer);
    return FL_FAIL(err, r->st, r->err.sys, "%s", r->err.msg);
}

void fl_routing_fini(fl_routing *r)
{
    fl_profile_destroy(&r->profile);
    free(r->profile_path);
    free(r->profile_note);
    fl_trace_writer_discard(&r->writer);
}

/* ---- passes ---- */

void fl_routing_begin(fl_routing *r, const fl_trace_pass *pass, int64_t block_at)
{
    const bool block = pass->kind == FL_PASS_BLOCK;
    put_pass(r);
    r->pass = *pass;
    r->pass.first = block && block_at != r->block_at;
    r->pass.done = pass->clean == pass->rows ? pass->rows : 0;
    r->block_at = block ? block_at : -1;
    if (r->profile) fl_profile_pass(r->profile, pass->kind, r->pass.first, pass->clean);
}

void fl_routing_layer(fl_routing *r, int layer, int rows, int top_k, const int32_t *experts)
{
    if (r->profile) fl_profile_layer(r->profile, layer, rows, top_k, experts);
    if (r->writer && layer < r->n_layer) fl_trace_writer_layer(r->writer, layer, rows, experts);
}

void fl_routing_end(fl_routing *r) { r->over = true; }
