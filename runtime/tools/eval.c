#include "runtime/tools/eval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/hash.h"
#include "runtime/model/identity.h"
#include "runtime/tools/eval_report.h"
#include "runtime/tools/eval_run.h"
#include "runtime/tools/setup.h"

enum { DEFAULT_WINDOW = 512 };

/* ---- a model, opened ---- */

typedef struct subject {
    const char *path, *name; /* name: the path's last part */
    fl_model *model;
    fl_engine *engine;
    fl_gen_config gen;
    uint64_t tokenizer;
} subject;

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* Spelling and kind of every token. */
static uint64_t hash_vocabulary(const fl_tokenizer *t)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < fl_tokenizer_size(t); i++) {
        const fl_str piece = fl_tokenizer_piece(t, i);
        h = fl_hash64_seeded(piece.p, piece.n, h + (uint64_t)fl_tokenizer_kind(t, i));
    }
    return h;
}

static fl_status open_subject(subject *s, const fl_options *o, const char *path, fl_err *err)
{
    fl_options mine = *o;
    mine.args = &path;
    mine.n_args = 1;
    if (mine.ctx == 0) mine.ctx = DEFAULT_WINDOW;
    s->path = path;
    s->name = last_part(path);
    FL_TRY(fl_setup_open(&mine, &s->model, &s->engine, &s->gen, err));
    if (!s->model->tokenizer)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0, "%s: holds no tokenizer to read the text with",
                       path);
    s->tokenizer = hash_vocabulary(s->model->tokenizer);
    return FL_OK;
}

static void close_subject(subject *s)
{
    fl_engine_close(&s->engine);
    fl_model_close(&s->model);
}

/* ---- what to measure ---- */

static int blocks_of(const subject *s)
{
    const fl_clover *c = &s->gen.clover;
    return c->has_blocks && c->mask_id >= 0 ? c->block_size : 0;
}

static fl_status make_plan(fl_eval_plan *p, const fl_options *o, const subject *s,
                           const fl_corpus *text, fl_err *err)
{
    const char *passes = o->passes ? o->passes : "all";
    *p = (fl_eval_plan){.text = text,
                        .ctx = (int)s->engine->params.n_ctx,
                        .prompts = o->all,
                        .fill = fl_mask_fill(s->model),
                        .causal = strcmp(passes, "masked") != 0,
                        .block_size = strcmp(passes, "causal") != 0 ? blocks_of(s) : 0};
    if (!p->causal && p->block_size == 0)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0, "--passes masked: %s knows no masks", s->path);
    if (p->block_size && p->ctx < 2 * p->block_size)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--ctx %d: too short for blocks of %d in a window's second half; give %d or "
                       "--passes causal",
                       p->ctx, p->block_size, 2 * p->block_size);
    FL_TRY(fl_eval_plan_windows(p, s->gen.clover.block_align, err));
    if (p->n_windows == 0)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: the text gives nothing to score in windows of %d tokens: it has %lld; "
                       "give more text or another --ctx",
                       text->doc[0].path, p->ctx, (long long)text->n);
    if (o->windows > 0 && o->windows < p->n_windows) p->n_windows = o->windows;
    return FL_OK;
}

static fl_status describe(fl_logit_setup *out, const subject *s, const fl_eval_plan *p, fl_err *err)
{
    *out = (fl_logit_setup){.tokenizer = s->tokenizer,
                            .text = fl_corpus_hash(p->text),
                            .vocab = (uint32_t)s->model->index->hp.n_vocab,
                            .ctx = (uint32_t)p->ctx,
                            .windows = (uint32_t)p->n_windows,
                            .block_size = (uint32_t)p->block_size,
                            .causal = p->causal,
                            .prompts = p->prompts,
                            .act_f32 = s->engine->params.act_f32,
                            .kv_type = s->engine->params.kv_type};
    snprintf(out->name, sizeof out->name, "%s", s->name);
    return fl_model_identity(s->model->src, &out->model, err);
}

/* ---- the reference ---- */

typedef struct reference {
    fl_logit_writer *tmp; /* its rows, where it had to be run */
    fl_logit_reader *rows;
    fl_eval_plan plan; /* of the rows that are there */
} reference;

/* `path`: what the user named. */
static fl_status check_reference(const reference *r, const char *path, const subject *s,
                                 fl_eval_plan *p, const fl_options *o, fl_err *err)
{
    const fl_logit_setup *f = fl_logit_reader_setup(r->rows);
    if (f->tokenizer != s->tokenizer || f->vocab != s->model->index->hp.n_vocab)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: has another vocabulary than %s; they cannot be compared", path,
                       s->path);
    if (f->text != fl_corpus_hash(p->text))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: holds rows of another text; give the text it was made from, or make "
                       "it anew",
                       path);
    if (f->ctx != (uint32_t)p->ctx)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: holds windows of %u tokens, here they have %d; give "
                       "--ctx %u",
                       path, f->ctx, p->ctx, f->ctx);
    if (f->prompts != p->prompts)
        return FL_FAIL(err, FL_E_ARG, 0, "%s: holds rows %s prompts; %s --all", path,
                       f->prompts ? "with" : "without", f->prompts ? "give" : "leave out");
    if (f->block_size && p->block_size && f->block_size != (uint32_t)p->block_size)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: holds blocks of %u, %s has blocks of %d; give --passes causal", path,
                       f->block_size, s->path, p->block_size);
    if (!(f->causal && p->causal) && !(f->block_size && p->block_size))
        return FL_FAIL(err, FL_E_ARG, 0, "%s: holds no rows of the passes that are measured", path);
    if (f->windows >= p->n_windows) return FL_OK;
    if (o->windows > 0)
        return FL_FAIL(err, FL_E_ARG, 0, "--windows %lld: %s holds %u", (long long)o->windows, path,
                       f->windows);
    p->n_windows = f->windows;
    return FL_OK;
}

/* Opens rows of logits and makes sure that they are what `p` asks for; p loses the windows that the
 * file lacks. */
static fl_status open_rows(reference *r, const char *file, const char *path, const subject *s,
                           fl_eval_plan *p, const fl_options *o, fl_err *err)
{
    FL_TRY(fl_logit_reader_open(&r->rows, file, err));
    const fl_logit_setup *f = fl_logit_reader_setup(r->rows);
    FL_TRY(check_reference(r, path, s, p, o, err));
    r->plan = *p;
    r->plan.window = NULL;
    r->plan.causal = f->causal;
    r->plan.block_size = (int)f->block_size;
    FL_TRY(fl_eval_plan_windows(&r->plan, s->gen.clover.block_align, err));
    const bool known = f->windows <= r->plan.n_windows && f->block_size <= FL_MAX_BLOCK;
    r->plan.n_windows = f->windows;
    if (!known || (uint64_t)fl_eval_all_rows(&r->plan) != fl_logit_reader_rows(r->rows))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the file of logits is damaged: %llu rows are not those of %u windows",
                       path, (unsigned long long)fl_logit_reader_rows(r->rows), f->windows);
    return FL_OK;
}

static fl_status run_subject(subject *s, const fl_eval_plan *p, const reference *r,
                             fl_logit_writer *writer, fl_eval_stats *stats, fl_err *err)
{
    FL_TRY(fl_setup_load(s->engine, err));
    fl_eval_job job = {
        .engine = s->engine, .sw = &s->gen.clover, .plan = p, .writer = writer, .what = s->name};
    if (r && r->rows) {
        job.reference = r->rows;
        job.reference_plan = r->plan;
    }
    return fl_eval_run(&job, stats, err);
}

/* The reference's own passes over the plan, into a file that nobody else sees. It has left memory
 * when this returns. */
static fl_status run_reference(reference *r, const char *path, const subject *s,
                               const fl_eval_plan *plan, const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    subject ref = {0};
    fl_eval_stats stats = {0};
    fl_logit_setup setup;
    fl_eval_plan p = *plan;
    char tmp[4096];
    const char *dir = getenv("TMPDIR");
    snprintf(tmp, sizeof tmp, "%s/fourleaf-eval-%ld.logits", dir && *dir ? dir : "/var/tmp",
             (long)getuid());
    FL_GO(open_subject(&ref, o, path, err));
    if (ref.tokenizer != s->tokenizer ||
        ref.model->index->hp.n_vocab != s->model->index->hp.n_vocab)
        FL_GO(FL_FAIL(err, FL_E_ARG, 0,
                      "%s: has another vocabulary than %s; they cannot be compared", path,
                      s->path));
    if (blocks_of(&ref) != p.block_size) p.block_size = 0;
    FL_GO(describe(&setup, &ref, &p, err));
    FL_GO(fl_logit_writer_open(&r->tmp, tmp, &setup, (uint64_t)fl_eval_all_rows(&p), err));
    FL_GO(run_subject(&ref, &p, NULL, r->tmp, &stats, err));
    st = fl_logit_writer_finish(r->tmp, err);
out:
    fl_eval_stats_free(&stats);
    close_subject(&ref);
    return st;
}

static fl_status open_reference(reference *r, const subject *s, fl_eval_plan *p,
                                const fl_options *o, fl_err *err)
{
    if (fl_logit_file_is(o->against)) return open_rows(r, o->against, o->against, s, p, o, err);
    FL_TRY(run_reference(r, o->against, s, p, o, err));
    return open_rows(r, fl_logit_writer_tmp_path(r->tmp), o->against, s, p, o, err);
}

/* ---- the command ---- */

static fl_status open_output(fl_logit_writer **w, const subject *s, const fl_eval_plan *p,
                             const fl_options *o, fl_err *err)
{
    fl_logit_setup setup;
    if (!o->save_logits) return FL_OK;
    FL_TRY(fl_setup_check_output(s->model->src, o->save_logits, err));
    FL_TRY(describe(&setup, s, p, err));
    return fl_logit_writer_open(w, o->save_logits, &setup, (uint64_t)fl_eval_all_rows(p), err);
}

static fl_status report(const fl_options *o, const subject *s, const fl_eval_plan *p,
                        const reference *r, const fl_eval_stats *stats, fl_err *err)
{
    const fl_eval_report out = {.model = s->name,
                                .plan = p,
                                .stats = stats,
                                .reference = r->rows ? fl_logit_reader_setup(r->rows) : NULL};
    if (o->json) return fl_eval_print_json(&out, err);
    fl_eval_print(&out);
    return FL_OK;
}

fl_status fl_tool_eval(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    subject s = {0};
    reference r = {0};
    fl_corpus text = {0};
    fl_eval_plan p = {0};
    fl_eval_stats *stats = calloc(1, sizeof *stats);
    fl_logit_writer *writer = NULL;
    if (!stats) return FL_FAIL(err, FL_E_NOMEM, 0, "eval: out of memory");
    FL_GO(open_subject(&s, o, o->args[0], err));
    FL_GO(fl_corpus_open(&text, s.model->tokenizer, o->args + 1, o->n_args - 1, err));
    FL_GO(make_plan(&p, o, &s, &text, err));
    if (o->against) FL_GO(open_reference(&r, &s, &p, o, err));
    FL_GO(open_output(&writer, &s, &p, o, err));
    FL_GO(run_subject(&s, &p, &r, writer, stats, err));
    if (writer) FL_GO(fl_logit_writer_commit(&writer, err));
    st = report(o, &s, &p, &r, stats, err);
out:
    fl_logit_writer_discard(&writer);
    fl_logit_reader_close(&r.rows);
    fl_logit_writer_discard(&r.tmp);
    fl_eval_stats_free(stats);
    free(stats);
    free(p.window);
    free(r.plan.window);
    fl_corpus_close(&text);
    close_subject(&s);
    return st;
}
