#include "runtime/tools/plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "offload/plan_svg.h"
#include "offload/plan_text.h"
#include "runtime/decode/outlook.h"
#include "runtime/tools/setup.h"

/* Both texts, one behind the other; NULL when memory is out. */
static char *joined(char *a, char *b)
{
    char *text = NULL;
    if (!a || !b || asprintf(&text, "%s%s", a, b) < 0) text = NULL;
    free(a);
    free(b);
    return text;
}

static fl_status print_plan(const fl_options *o, const fl_engine *e, const fl_gen_config *c,
                            const fl_forecast *f, fl_err *err)
{
    const fl_choice choice = fl_gen_choose(c->mode, &c->clover, &c->facts, e->params.held_rows > 1);
    const char *mode = fl_gen_mode_name(choice.mode), *reason = choice.reason;
    char *text = NULL;
    if (o->json) {
        fl_json *j = fl_plan_json(&e->plan);
        if (j) {
            fl_json_set_str(j, "mode", mode);
            fl_json_set_str(j, "mode_reason", reason);
            fl_json_set_int(j, "threads", fl_pool_threads(e->exec.pool));
            fl_json_set_int(j, "ctx", e->params.n_ctx);
            fl_json_set_int(j, "chunk", e->params.chunk);
            fl_json_set(j, "prediction", fl_forecast_json(f));
        }
        text = j ? fl_json_dump(j, 1) : NULL;
        fl_json_free(&j);
    } else {
        text = joined(fl_plan_text(&e->plan),
                      fl_forecast_text(f, &e->plan, fl_outlook_kind(choice.mode)));
    }
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "plan: out of memory");
    if (!o->json)
        printf("For run --mode %s (%s), %lld tokens of context, %d threads\n", mode, reason,
               (long long)e->params.n_ctx, fl_pool_threads(e->exec.pool));
    fputs(text, stdout);
    if (o->json) putchar('\n');
    free(text);
    return FL_OK;
}

fl_status fl_tool_plan(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    fl_facts *facts = NULL;
    fl_outlook outlook;
    fl_gen_config c;
    FL_GO(fl_setup_open(o, &model, &engine, &c, err));
    FL_GO(fl_gen_check_mode(&c, engine, err)); /* no plan for what run refuses */
    FL_GO(fl_facts_of(&facts, model->src, err));
    FL_GO(fl_outlook_make(&outlook, engine, &c.clover, facts, err));
    if (o->svg) {
        FL_GO(fl_setup_check_output(model->src, o->svg, err));
        FL_GO(fl_plan_svg_write(&engine->plan, engine->plan_input.heat, o->svg, err));
    }
    st = print_plan(o, engine, &c, &outlook.forecast, err);
out:
    fl_facts_close(&facts);
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}
