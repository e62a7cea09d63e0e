#include "runtime/tools/importance_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/hash.h"
#include "runtime/base/memory.h"
#include "runtime/base/options.h"
#include "runtime/base/space.h"
#include "runtime/model/identity.h"
#include "runtime/tools/importance_layer.h"
#include "runtime/tools/importance_merge.h"
#include "runtime/tools/importance_text.h"
#include "runtime/tools/importance_work.h"

typedef struct run {
    const fl_importance_job *job;
    fl_importance_result *out;
    fl_importance_text text;
    fl_importance_origin origin;
    fl_importance_work *work;
    fl_sweep *sweep;
    fl_layer_moments *moments; /* of the layer at hand */
    int layer;
    uint64_t saved_ns;
} run;

static const fl_index *index_of(const run *r) { return r->job->model->index; }

static double seconds_since(uint64_t t0) { return (double)(fl_clock_ns() - t0) * 1e-9; }

/* ---- before anything is read ---- */

static fl_status describe(run *r, fl_err *err)
{
    uint64_t identity = 0;
    const fl_index *ix = index_of(r);
    FL_TRY(fl_model_identity(ix->src, &identity, err));
    r->origin = (fl_importance_origin){.tied = ix->output.tensor == ix->embed.tensor};
    snprintf(r->origin.model, sizeof r->origin.model, "%s", ix->hp.name);
    snprintf(r->origin.identity, sizeof r->origin.identity, "%016" PRIx64, identity);
    return FL_OK;
}

static fl_status check_memory(const run *r, int threads, fl_err *err)
{
    char need[32], have[32];
    const fl_index *ix = index_of(r);
    const uint64_t take = fl_sweep_bytes(r->job->model, &r->text.sweep, threads) +
                          fl_layer_moments_bytes(ix, threads);
    const uint64_t room = fl_memory_available();
    if (take <= room) return FL_OK;
    const uint64_t rows = (uint64_t)r->text.sweep.n_rows;
    const uint64_t row = 2 * (uint64_t)ix->hp.d_model * sizeof(float);
    const uint64_t over = (take - room) / row + 1;
    const int64_t fit =
        over < rows ? (int64_t)((rows - over) * (uint64_t)r->text.tokens / rows) : 0;
    return FL_FAIL(err, FL_E_NOMEM, 0,
                   "%lld tokens of text need %s of memory, %s are free; take --tokens %lld, and "
                   "merge several runs if that is too little",
                   (long long)r->text.tokens, fl_size_format(need, take),
                   fl_size_format(have, room), (long long)fit);
}

static fl_status check_space(const run *r, fl_err *err)
{
    const fl_index *ix = index_of(r);
    uint64_t bytes = 0;
    for (int l = 0; l <= ix->hp.n_layer; l++)
        bytes += fl_layer_moments_file_bytes(ix, l, r->text.sweep.max_block > 0);
    bytes = 2 * bytes + 2 * (uint64_t)(r->text.sweep.n_rows * ix->hp.d_model) * sizeof(float);
    return fl_space_check(r->job->out, bytes, r->job->out, err);
}

/* All that the result depends on, for a later run to compare. */
static fl_status open_work(run *r, fl_err *err)
{
    char job[1024];
    const fl_clover *sw = r->job->sw;
    const int blocks[] = {sw->has_blocks, sw->block_size,  sw->gdn_block_mode,
                          sw->gdn_scan,   sw->gdn_combine, sw->gdn_conv_edge,
                          sw->gdn_tail,   sw->pool,        sw->pool_c};
    snprintf(job, sizeof job,
             "fourleaf importance 1\nmodel %s\ntext %016" PRIx64 "\ntokens %" PRId64
             "\nblock rows %" PRId64 "\nblock switches %016" PRIx64 "\nactivations %s\ncache %u\n"
             "value heads %s\n",
             r->origin.identity, r->text.hash, r->text.tokens, r->text.block_rows,
             fl_hash64(blocks, sizeof blocks), r->job->sweep.act_f32 ? "f32" : "law",
             r->job->sweep.kv_type, index_of(r)->hp.v_grouped ? "grouped" : "tiled");
    return fl_importance_work_open(&r->work, r->job->out, job, err);
}

static fl_status prepare(run *r, fl_err *err)
{
    const fl_importance_job *j = r->job;
    FL_TRY(describe(r, err));
    FL_TRY(fl_importance_text_open(&r->text, j->model, j->sw, j->paths, j->n_paths, j->ctx,
                                   j->tokens, err));
    r->out->tokens = r->text.tokens;
    r->out->block_rows = r->text.block_rows;
    r->out->n_windows = r->text.sweep.n_seqs;
    FL_TRY(check_memory(r, j->sweep.threads > 0 ? j->sweep.threads : 1, err));
    FL_TRY(open_work(r, err));
    FL_TRY(check_space(r, err));
    return fl_sweep_open(&r->sweep, j->model, &r->text.sweep, j->sw, &j->sweep, err);
}

/* ---- layers ---- */

static void see_rows(void *arg, fl_site site, int expert, const fl_rows *in)
{
    fl_layer_moments_rows(((run *)arg)->moments, site, expert, in);
}

static fl_status end_expert(void *arg, int expert, fl_err *err)
{
    return fl_layer_moments_expert(((run *)arg)->moments, expert, err);
}

static bool go_on(void *arg, int64_t done, int64_t total)
{
    const run *r = arg;
    const double rows = (double)r->text.sweep.n_rows, layers = index_of(r)->hp.n_layer + 1;
    if (!r->job->go_on) return true;
    return r->job->go_on(r->job->arg, r->layer,
                         rows * ((double)r->layer + (double)done / (double)total), rows * layers);
}

/* One layer, or behind the last the head. The head's file says how much text there was, so that the
 * sum over all files is right. */
static fl_status run_layer(run *r, fl_err *err)
{
    const fl_index *ix = index_of(r);
    const bool head = r->layer == ix->hp.n_layer;
    const fl_sweep_watch watch = {
        .see = {see_rows, r}, .expert = end_expert, .go_on = go_on, .arg = r};
    r->origin.tokens = head ? (uint32_t)r->text.tokens : 0;
    r->origin.block_rows = head ? (uint32_t)r->text.block_rows : 0;
    FL_TRY(fl_layer_moments_open(&r->moments, ix, r->layer, r->text.sweep.max_block > 0,
                                 fl_sweep_exec(r->sweep), &r->origin,
                                 fl_importance_work_layer(r->work, r->layer), err));
    FL_TRY(head ? fl_sweep_head(r->sweep, &watch, err)
                : fl_sweep_layer(r->sweep, r->layer, &watch, err));
    return fl_layer_moments_finish(&r->moments, err);
}

static fl_status run_layers(run *r, fl_err *err)
{
    const fl_index *ix = index_of(r);
    int done = -1;
    FL_TRY(fl_importance_work_resume(r->work, ix->hp.n_layer, r->sweep, &r->text.sweep,
                                     ix->hp.d_model, &done, err));
    r->out->first_layer = done + 1;
    if (done < 0) FL_TRY(fl_sweep_embed(r->sweep, err));
    r->saved_ns = fl_clock_ns();
    for (r->layer = done + 1; r->layer <= ix->hp.n_layer; r->layer++) {
        FL_TRY(run_layer(r, err));
        const bool due = seconds_since(r->saved_ns) >= r->job->save_seconds;
        if (!due || r->layer == ix->hp.n_layer) continue;
        FL_TRY(fl_importance_work_save(r->work, r->layer, r->sweep, &r->text.sweep, ix->hp.d_model,
                                       err));
        r->saved_ns = fl_clock_ns();
    }
    return FL_OK;
}

/* The layers' files become one. */
static fl_status join(run *r, fl_err *err)
{
    const int n = index_of(r)->hp.n_layer + 1;
    char **path = calloc((size_t)n, sizeof *path);
    fl_status st = path ? FL_OK : FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", r->job->out);
    for (int i = 0; i < n && st == FL_OK; i++)
        if (!(path[i] = strdup(fl_importance_work_layer(r->work, i))))
            st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: out of memory", r->job->out);
    if (st == FL_OK) st = fl_importance_merge(r->job->out, (const char *const *)path, n, err);
    for (int i = 0; i < n && path; i++) free(path[i]);
    free(path);
    return st;
}

fl_status fl_importance_run(const fl_importance_job *job, fl_importance_result *out, fl_err *err)
{
    run r = {.job = job, .out = out};
    fl_status st;
    *out = (fl_importance_result){0};
    FL_GO(prepare(&r, err));
    FL_GO(run_layers(&r, err));
    out->n_lost = fl_sweep_n_lost(r.sweep);
    out->bytes_read = fl_sweep_bytes_read(r.sweep);
    fl_sweep_close(&r.sweep);
    FL_GO(join(&r, err));
    fl_importance_work_remove(&r.work);
out:
    fl_layer_moments_discard(&r.moments);
    fl_sweep_close(&r.sweep);
    fl_importance_work_close(&r.work);
    fl_importance_text_close(&r.text);
    return st;
}
