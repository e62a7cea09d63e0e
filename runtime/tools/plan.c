#include "runtime/tools/plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "offload/plan_text.h"
#include "runtime/tools/setup.h"

static fl_status print_plan(const fl_options *o, const fl_plan *plan, fl_err *err)
{
    char *text = NULL;
    if (o->json) {
        fl_json *j = fl_plan_json(plan);
        text = j ? fl_json_dump(j, 1) : NULL;
        fl_json_free(&j);
    } else {
        text = fl_plan_text(plan);
    }
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "plan: out of memory");
    fputs(text, stdout);
    if (o->json) putchar('\n');
    free(text);
    return fflush(stdout) == 0 ? FL_OK
                               : FL_FAIL(err, FL_E_IO, 0, "standard output cannot be written");
}

fl_status fl_tool_plan(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    const char *path = NULL;
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    fl_engine_params p;
    FL_GO(fl_setup_model_path(o, &path, err));
    FL_GO(fl_model_open(&model, path, err));
    FL_GO(fl_setup_engine_params(o, model, &p, err));
    FL_GO(fl_engine_open(&engine, model, &p, err));
    st = print_plan(o, &engine->plan, err);
out:
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}
