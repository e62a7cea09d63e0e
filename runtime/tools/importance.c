#include "runtime/tools/importance.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/json.h"
#include "runtime/tools/importance_file.h"
#include "runtime/tools/importance_merge.h"
#include "runtime/tools/importance_report.h"
#include "runtime/tools/importance_run.h"
#include "runtime/tools/interrupt.h"
#include "runtime/tools/progress.h"
#include "runtime/tools/setup.h"

enum { WINDOW = 512 };
static const double save_seconds = 30.0;

typedef struct shown {
    fl_progress p;
    int n_layer;
    double first; /* done when this run began */
    bool begun;
} shown;

static bool show(void *arg, int layer, double done, double total)
{
    shown *s = arg;
    char line[FL_PROGRESS_LINE];
    double spent = 0.0;
    if (!s->begun) s->first = done;
    s->begun = true;
    if (fl_progress_due(&s->p, &spent) && done > s->first) {
        const double rate = (done - s->first) / spent;
        char where[48] = "head";
        if (layer < s->n_layer)
            snprintf(where, sizeof where, "layer %d of %d", layer + 1, s->n_layer);
        snprintf(line, sizeof line, "measuring: %3.0f %%, %s, %.1f rows/s, %.0f s left",
                 100.0 * done / total, where, rate / (s->n_layer + 1), (total - done) / rate);
        fl_progress_line(&s->p, line);
    }
    return !fl_interrupted();
}

static fl_status fill_job(const fl_options *o, const fl_model *model, fl_clover *sw,
                          fl_importance_job *j, fl_err *err)
{
    fl_engine_params p;
    FL_TRY(fl_setup_engine_params(o, &p, err));
    *sw = model->index->clover;
    if (o->block_mode && !fl_gdn_block_mode_parse(o->block_mode, &sw->gdn_block_mode))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--block-mode %s: expected causal, blockend, mixed or bidir", o->block_mode);
    *j = (fl_importance_job){.model = model,
                             .sw = sw,
                             .paths = o->args + 1,
                             .n_paths = o->n_args - 1,
                             .ctx = o->ctx > 0 ? o->ctx : WINDOW,
                             .tokens = o->tokens,
                             .out = o->out,
                             .sweep = {.threads = p.threads,
                                       .cpu_tier = p.cpu_tier,
                                       .io = p.io,
                                       .act_f32 = p.act_f32,
                                       .kv_type = p.kv_type},
                             .save_seconds = save_seconds,
                             .go_on = show};
    return FL_OK;
}

static fl_status measure(const fl_options *o, const fl_model *model, fl_importance_result *result,
                         fl_err *err)
{
    fl_clover sw;
    fl_importance_job job;
    fl_err own = {0};
    shown s = {.n_layer = model->index->hp.n_layer};
    FL_TRY(fill_job(o, model, &sw, &job, err));
    job.arg = &s;
    fl_progress_start(&s.p);
    fl_interrupt_catch();
    const fl_status st = fl_importance_run(&job, result, &own);
    fl_interrupt_release();
    fl_progress_end(&s.p);
    if (st == FL_OK) return FL_OK;
    if (st == FL_E_CANCELED)
        return FL_FAIL(err, st, 0, "%s: interrupted; the same command goes on with it", o->out);
    return FL_FAIL(err, st, own.sys, "%s", own.msg);
}

static fl_status measure_model(const fl_options *o, fl_importance_result *result, fl_err *err)
{
    fl_status st;
    fl_wiring asked;
    fl_model *model = NULL;
    FL_GO(fl_setup_asked(o, &asked, err));
    FL_GO(fl_model_open_known(&model, o->args[0], &asked, err));
    FL_GO(fl_setup_check_output(model->src, o->out, err));
    for (int i = 0; i < model->index->n_notes; i++)
        fprintf(stderr, "note: %s\n", model->index->note[i]);
    st = measure(o, model, result, err);
out:
    fl_model_close(&model);
    return st;
}

fl_status fl_tool_importance(const fl_options *o, fl_err *err)
{
    fl_importance_result result = {0};
    if (o->merge)
        FL_TRY(fl_importance_merge(o->out, o->args, o->n_args, err));
    else
        FL_TRY(measure_model(o, &result, err));
    return fl_importance_report(o->out, o->merge ? NULL : &result, o->json, err);
}
