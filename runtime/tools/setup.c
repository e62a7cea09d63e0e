#include "runtime/tools/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/decode/outlook.h"
#include "runtime/model/machine.h"
#include "runtime/tools/progress.h"
#include "runtime/tools/shape.h"

enum { DRAFT_ROWS = 32 /* verified at once on a model without blocks */ };

fl_status fl_setup_model_path(const fl_options *o, const char **path, fl_err *err)
{
    if (o->n_args < 1)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: which model? Give a .gguf file or a safetensors folder",
                       o->command ? o->command : "fourleaf");
    *path = o->args[0];
    return FL_OK;
}

static fl_status parse_mode(const char *name, fl_gen_mode *out, fl_err *err)
{
    for (int m = FL_GEN_AUTO; m <= FL_GEN_SPEC; m++)
        if (!name || strcmp(name, fl_gen_mode_name((fl_gen_mode)m)) == 0) {
            *out = (fl_gen_mode)m;
            return FL_OK;
        }
    return FL_FAIL(err, FL_E_ARG, 0, "--mode %s: expected auto, ar, block or spec", name);
}

fl_status fl_setup_check_output(const fl_source *src, const char *out, fl_err *err)
{
    if (!fl_source_has_file(src, out)) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0, "%s: is a file of the model to read; name another one", out);
}

fl_status fl_setup_asked(const fl_options *o, fl_wiring *w, fl_err *err)
{
    *w = fl_wiring_none();
    if (o->v_heads) w->v_grouped = strcmp(o->v_heads, "grouped") == 0;
    return o->map ? fl_role_map_load(&w->roles, o->map, err) : FL_OK;
}

static fl_lane_choice parse_lanes(const char *name)
{
    if (!name || strcmp(name, "auto") == 0) return FL_LANES_AUTO;
    return strcmp(name, "cpu") == 0 ? FL_LANES_CPU : FL_LANES_DEVICE;
}

fl_status fl_setup_engine_params(const fl_options *o, fl_engine_params *p, fl_err *err)
{
    *p = fl_engine_defaults();
    p->device = o->device;
    p->vram = o->vram;
    p->ram = o->ram;
    p->lanes = parse_lanes(o->lanes);
    p->gpu_layers = (int)o->gpu_layers;
    p->gpu_experts = (int)o->gpu_experts;
    if (o->policy && !fl_policy_find(o->policy, &p->policy))
        return FL_FAIL(err, FL_E_ARG, 0, "--cache-policy %s: expected lru, lfu or block",
                       o->policy);
    p->no_prefetch = o->prefetch == 0;
    p->link_bytes_s = o->link_rate;
    if (o->command && fl_options_takes(o->command, "ctx"))
        p->less = "a smaller --ctx or --chunk needs less";
    p->n_ctx = o->ctx;
    p->chunk = o->chunk;
    p->threads = o->threads;
    p->cpu_tier = o->cpu;
    p->io = o->io;
    p->state_budget = o->state_budget;
    p->trace = o->trace_out;
    p->script = o->trace;
    /* What a script does says nothing about real text. */
    if (o->command && fl_options_takes(o->command, "profile") && (o->profile || !o->trace))
        p->profile = !o->profile ? "default" : strcmp(o->profile, "none") == 0 ? NULL : o->profile;
    if (o->kv) p->kv_type = (uint32_t)fl_type_by_name(o->kv);
    if (o->act && strcmp(o->act, "f32") == 0)
        p->act_f32 = true;
    else if (o->act && strcmp(o->act, "law") != 0)
        return FL_FAIL(err, FL_E_ARG, 0, "--act %s: expected law or f32", o->act);
    return FL_OK;
}

static void take(double given, double *value, fl_origin *from)
{
    if (isnan(given)) return;
    *value = given;
    *from = FL_FROM_USER;
}

static void take_soft_ends(const fl_options *o, fl_soft_config *s, fl_origin *from)
{
    const bool given = o->soft_think >= 0 || o->soft_answer >= 0 || !isnan(o->soft_slope);
    if (o->soft_end < 0 && !given) return;
    *from = FL_FROM_USER;
    /* On a model that has none of its own, what Clover does. */
    if (s->slope == 0.0) *s = (fl_soft_config){FL_SOFT_THINK, FL_SOFT_ANSWER, FL_SOFT_SLOPE};
    if (o->soft_think >= 0) s->think = o->soft_think;
    if (o->soft_answer >= 0) s->answer = o->soft_answer;
    if (!isnan(o->soft_slope)) s->slope = o->soft_slope;
    if (o->soft_end == 0) s->slope = 0.0;
}

static fl_status take_sampling(const fl_options *o, fl_gen_config *c, fl_err *err)
{
    fl_sampler_config *s = &c->sampler;
    take(o->temp, &s->temp, &c->from[FL_SET_TEMP]);
    take(o->top_p, &s->top_p, &c->from[FL_SET_TOP_P]);
    take(o->min_p, &s->min_p, &c->from[FL_SET_MIN_P]);
    take(o->presence, &s->presence, &c->from[FL_SET_PRESENCE]);
    take(o->frequency, &s->frequency, &c->from[FL_SET_FREQUENCY]);
    take(o->repetition, &s->repetition, &c->from[FL_SET_REPETITION]);
    if (o->top_k >= 0) {
        s->top_k = o->top_k;
        c->from[FL_SET_TOP_K] = FL_FROM_USER;
    }
    take_soft_ends(o, &s->soft, &c->from[FL_SET_SOFT]);
    return o->logit_bias ? fl_logit_bias_parse(o->logit_bias, s->bias, &s->n_bias, err) : FL_OK;
}

static fl_status gen_config(const fl_options *o, const fl_model *model, fl_gen_config *c,
                            fl_err *err)
{
    fl_gen_config_init(c, model);
    FL_TRY(parse_mode(o->mode, &c->mode, err));
    if (o->block_mode && !fl_gdn_block_mode_parse(o->block_mode, &c->clover.gdn_block_mode))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--block-mode %s: expected causal, blockend, mixed or bidir", o->block_mode);
    if (!isnan(o->threshold)) c->clover.threshold = (float)o->threshold;
    FL_TRY(take_sampling(o, c, err));
    if (o->seed_given) c->sampler.seed = o->seed;
    if (o->trace) { /* a script's drafts are as long as the model's blocks, and all are checked */
        c->draft_min = 0.0f;
        c->draft_always = true;
    }
    c->max_tokens = o->max_tokens;
    c->stop = o->stop;
    c->n_stop = o->n_stop;
    c->ignore_eos = o->ignore_eos;
    if (o->repeat_stop >= 0) c->repeat_stop = o->repeat_stop;
    return FL_OK;
}

static fl_choice choose(const fl_gen_config *c, const fl_engine_params *p)
{
    return fl_gen_choose(c->mode, &c->clover, &c->facts, p->held_rows > 1);
}

/* What is stored about this model and setup. */
static fl_status read_facts(const fl_engine *e, fl_mode_facts *out, fl_err *err)
{
    char key[FL_RATES_KEY];
    fl_facts *f = NULL;
    FL_TRY(fl_facts_of(&f, e->model->src, err));
    if (fl_facts_note(f)) fprintf(stderr, "note: %s\n", fl_facts_note(f));
    fl_rates_key(key, e);
    *out = fl_rates_read(f, key);
    fl_facts_close(&f);
    return FL_OK;
}

/* Reads go the way that calibrate, which tries both, found faster here. */
static fl_status take_kept_reads(const fl_options *o, const fl_model *model, fl_engine_params *p,
                                 fl_err *err)
{
    char machine[FL_MACHINE_TEXT];
    fl_facts *f = NULL;
    if (p->io || o->shape || (o->command && strcmp(o->command, "calibrate") == 0)) return FL_OK;
    FL_TRY(fl_facts_of(&f, model->src, err));
    fl_machine_describe(machine, NULL, fl_source_paths(model->src)[0]);
    const fl_json *reads = fl_machine_part(f, machine, "reads");
    if (strcmp(fl_json_str(fl_json_get(reads, "keep"), ""), "buffered") == 0) p->io = "buffered";
    fl_facts_close(&f);
    return FL_OK;
}

/* Rates belong to a plan with room for drafts, so auto makes that one first; where it then does not
 * speculate, the room and that of the MTP block go to experts. */
static fl_status open_engine(const fl_options *o, const fl_model *model, fl_gen_config *c,
                             fl_engine **engine, fl_err *err)
{
    fl_engine_params p;
    FL_TRY(fl_setup_engine_params(o, &p, err));
    FL_TRY(take_kept_reads(o, model, &p, err));
    const bool decodes =
        !o->command || (strcmp(o->command, "logits") != 0 && strcmp(o->command, "eval") != 0);
    if (decodes && (c->mode == FL_GEN_AUTO || c->mode == FL_GEN_SPEC)) {
        p.held_rows = c->clover.block_size > 1 ? c->clover.block_size : DRAFT_ROWS;
        p.mtp = !c->clover.has_blocks && model->index->hp.n_mtp > 0;
    }
    FL_TRY(fl_engine_open(engine, model, &p, err));
    if (!decodes || c->mode != FL_GEN_AUTO) return FL_OK;
    FL_TRY(read_facts(*engine, &c->facts, err));
    if (choose(c, &p).mode == FL_GEN_SPEC) return FL_OK;
    fl_engine_close(engine);
    p.held_rows = 0;
    p.mtp = false;
    return fl_engine_open(engine, model, &p, err);
}

static fl_status open_model(const fl_options *o, fl_model **model, fl_err *err)
{
    const char *path = NULL;
    fl_wiring asked;
    FL_TRY(fl_setup_asked(o, &asked, err));
    if (o->shape) return fl_shape_open(model, o->shape, &asked, err);
    FL_TRY(fl_setup_model_path(o, &path, err));
    return fl_model_open_known(model, path, &asked, err);
}

fl_status fl_setup_open(const fl_options *o, fl_model **model, fl_engine **engine, fl_gen_config *c,
                        fl_err *err)
{
    fl_status st = FL_OK;
    *model = NULL;
    *engine = NULL;
    FL_GO(open_model(o, model, err));
    FL_GO(gen_config(o, *model, c, err));
    FL_GO(open_engine(o, *model, c, engine, err));
    return FL_OK;
out:
    fl_engine_close(engine);
    fl_model_close(model);
    return st;
}

/* ---- loading ---- */

static void show_loading(void *arg, uint64_t done, uint64_t total)
{
    fl_progress *p = arg;
    char size[32], line[FL_PROGRESS_LINE];
    double spent = 0.0;
    if (total == 0 || done == 0 || !fl_progress_due(p, &spent)) return;
    const double rate = (double)done / spent;
    snprintf(line, sizeof(line), "loading: %3.0f %% of %s, %.2f GB/s, %.0f s left",
             100.0 * (double)done / (double)total, fl_size_format(size, total), rate * 1e-9,
             (double)(total - done) / rate);
    fl_progress_line(p, line);
}

/* One line on the plan, and what is expected of it. */
static fl_status say_plan(const fl_engine *e, fl_err *err)
{
    fl_facts *facts = NULL;
    fl_outlook outlook;
    char *line = NULL;
    fl_status st;
    FL_GO(fl_facts_of(&facts, e->model->src, err));
    FL_GO(fl_outlook_make(&outlook, e, &e->model->index->clover, facts, err));
    line = fl_forecast_line(&outlook.forecast, &e->plan);
    if (line) fprintf(stderr, "%s\n", line);
out:
    free(line);
    fl_facts_close(&facts);
    return st;
}

fl_status fl_setup_load(fl_engine *engine, fl_err *err)
{
    FL_TRY(say_plan(engine, err));
    fl_progress p;
    fl_progress_start(&p);
    const fl_status st = fl_engine_load(engine, show_loading, &p, err);
    fl_progress_end(&p);
    FL_TRY(st);
    if (engine->routing.script)
        fprintf(stderr,
                "note: routing, commits and acceptance follow %s: text and speed are synthetic\n",
                engine->params.script);
    if (engine->routing.profile_note) fprintf(stderr, "note: %s\n", engine->routing.profile_note);
    const char *fallback = fl_io_fallback(engine->io);
    if (fallback) fprintf(stderr, "note: %s\n", fallback);
    if (strcmp(fl_io_backend(engine->io), "buffered") == 0)
        fprintf(stderr, "note: reads go through the page cache, which calibrate found faster here; "
                        "--io uring reads past it\n");
    for (int i = 0; i < engine->model->index->n_notes; i++)
        fprintf(stderr, "note: %s\n", engine->model->index->note[i]);
    return FL_OK;
}
