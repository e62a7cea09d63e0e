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

/* ---- script ---- */

fl_status fl_routing_open_script(fl_routing *r, const fl_model *m, const char *path, fl_err *err)
{
    const fl_hparams *hp = &m->index->hp;
    FL_TRY(fl_trace_open(&r->script, path, err));
    const fl_trace_shape *s = fl_trace_get_shape(r->script);
    for (int k = 0; k < FL_N_PASS_KINDS; k++) r->at[k] = -1;
    r->block_before = -1;
    if (s->n_expert == hp->n_expert && s->top_k == hp->top_k && fl_trace_n_passes(r->script) > 0)
        return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0, "%s: %d passes of %d of %d experts; the model takes %d of %d",
                   path, fl_trace_n_passes(r->script), s->top_k, s->n_expert, hp->top_k,
                   hp->n_expert);
}

/* The next pass of that kind behind `from`, from the first one on behind the last; with `first` the
 * next that begins a block. -1: there is none. */
static int find_pass(const fl_trace *t, fl_pass_kind kind, int from, bool first)
{
    const int n = fl_trace_n_passes(t);
    for (int i = 1; i <= n; i++) {
        const int p = (from + i) % n;
        const fl_trace_pass *x = fl_trace_get_pass(t, p);
        if (x->kind == kind && (!first || x->first)) return p;
    }
    return -1;
}

/* A block that goes on longer than the script's stays at its last pass. */
static void follow_on(fl_routing *r, const fl_trace_pass *pass)
{
    int *at = &r->at[pass->kind];
    if (pass->first) r->block_before = *at;
    const int next = find_pass(r->script, pass->kind, *at, pass->first);
    const bool goes_on = pass->kind == FL_PASS_BLOCK && !pass->first;
    if (next >= 0 && !(goes_on && fl_trace_get_pass(r->script, next)->first)) *at = next;
}

/* The pass before that one in the script, of its kind; itself where there is none. */
static int find_before(const fl_routing *r, int pass)
{
    const fl_pass_kind kind = fl_trace_get_pass(r->script, pass)->kind;
    for (int p = pass - 1; p >= 0; p--)
        if (fl_trace_get_pass(r->script, p)->kind == kind) return p;
    return pass;
}

/* Row `row` of those that are not clean, if only some of the pass's are; rows wrap around. */
static void follow_row(const fl_routing *r, int layer, int row, int pass, int32_t *experts)
{
    const fl_trace_pass *x = fl_trace_get_pass(r->script, pass);
    const int clean = x->clean < x->rows ? x->clean : 0;
    const int n = x->rows - clean, n_layer = fl_trace_get_shape(r->script)->n_layer;
    fl_trace_row(r->script, pass, layer % n_layer, clean + row % n, experts);
}

bool fl_routing_follow(const fl_routing *r, int layer, int rows, bool guess, int32_t *experts)
{
    if (!r->script || r->at[r->pass.kind] < 0) return false;
    const int now = r->at[r->pass.kind], top_k = fl_trace_get_shape(r->script)->top_k;
    const int before = find_before(r, now);
    const int clean = r->pass.clean < r->pass.rows ? r->pass.clean : 0;
    for (int i = 0; i < rows; i++) {
        const bool old = guess && i % 5 == 4;
        const int pass = i < clean && r->block_before >= 0 ? r->block_before : old ? before : now;
        follow_row(r, layer, i < clean ? i : i - clean, pass, experts + i * top_k);
    }
    return true;
}

int fl_routing_scripted(const fl_routing *r)
{
    if (!r->script || r->at[r->pass.kind] < 0) return 0;
    return fl_trace_get_pass(r->script, r->at[r->pass.kind])->done;
}

void fl_routing_fini(fl_routing *r)
{
    fl_trace_close(&r->script);
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
    if (r->script) follow_on(r, &r->pass);
    if (r->profile) fl_profile_pass(r->profile, pass->kind, r->pass.first, pass->clean);
}

void fl_routing_layer(fl_routing *r, int layer, int rows, int top_k, const int32_t *experts)
{
    if (r->profile) fl_profile_layer(r->profile, layer, rows, top_k, experts);
    if (r->writer && layer < r->n_layer) fl_trace_writer_layer(r->writer, layer, rows, experts);
}

void fl_routing_end(fl_routing *r) { r->over = true; }
