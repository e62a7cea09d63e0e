#include "runtime/tools/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/machine.h"
#include "runtime/tools/checkup_text.h"
#include "runtime/tools/setup.h"

/* A file that is there on every machine, to see whether io_uring works at all. */
static const char own_program[] = "/proc/self/exe";

static void look_at_io(fl_checkup *c, const fl_options *o)
{
    const char *const path[] = {c->has_model ? c->path : own_program};
    fl_err err = {0};
    fl_io *io = NULL;
    if (fl_io_open(&io, o->io, path, 1, 1, &err) != FL_OK) {
        snprintf(c->io_fallback, sizeof c->io_fallback, "%s", err.msg);
        return;
    }
    snprintf(c->io, sizeof c->io, "%s", fl_io_backend(io));
    /* How the program's own file is read with O_DIRECT matters to nobody. */
    const bool matters = c->has_model || strcmp(c->io, "uring") != 0;
    if (matters && fl_io_fallback(io))
        snprintf(c->io_fallback, sizeof c->io_fallback, "%s", fl_io_fallback(io));
    fl_io_close(&io);
}

static void describe_plan(fl_checkup *c, const fl_plan *p)
{
    char device[32], host[32];
    snprintf(c->plan, sizeof c->plan,
             "%d of %d experts in device memory, %d in host memory, %d stay in the file; %s of "
             "device memory, %s of host memory",
             p->n_resident, p->n_total, p->n_host, p->n_total - p->n_resident - p->n_host,
             fl_size_format(device, p->device_bytes), fl_size_format(host, p->host_bytes));
}

static void look_at_pinned(fl_checkup *c, const fl_json *pinned)
{
    c->pinned_bytes = (uint64_t)fl_json_int(fl_json_get(pinned, "bytes"), 0);
    c->pin_wanted = (uint64_t)fl_json_int(fl_json_get(pinned, "wanted_bytes"), 0);
    snprintf(c->pin_end, sizeof c->pin_end, "%s", fl_json_str(fl_json_get(pinned, "end"), ""));
}

/* A plan that does not fit is a finding, not a failure. */
static fl_status look_at_plan(fl_checkup *c, const fl_options *o, fl_rates *rates, fl_err *err)
{
    char machine[FL_MACHINE_TEXT], setup[FL_MACHINE_SETUP];
    fl_err own = {0};
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    fl_facts *facts = NULL;
    fl_gen_config gen;
    fl_status st = fl_setup_open(o, &model, &engine, &gen, &own);
    if (st != FL_OK) {
        snprintf(c->plan_error, sizeof c->plan_error, "%s", own.msg);
        return FL_OK;
    }
    describe_plan(c, &engine->plan);
    FL_GO(fl_facts_of(&facts, model->src, err));
    fl_machine_describe(machine, NULL, c->path);
    fl_machine_setup(setup, engine);
    c->calibrated = fl_machine_rates(facts, machine, setup, rates);
    look_at_pinned(c, fl_machine_part(facts, machine, "pinned"));
out:
    fl_facts_close(&facts);
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}

/* The first file of the model, and how large all of them are. */
static fl_status find_model(const char *given, char **file, uint64_t *bytes, fl_err *err)
{
    fl_source *src = NULL;
    *bytes = 0;
    FL_TRY(fl_source_open(&src, given, err));
    for (int i = 0; i < fl_source_n_files(src); i++) *bytes += fl_source_file_bytes(src, i);
    *file = strdup(fl_source_paths(src)[0]);
    fl_source_close(&src);
    return *file ? FL_OK : FL_FAIL(err, FL_E_NOMEM, 0, "doctor: out of memory");
}

fl_status fl_tool_doctor(const fl_options *o, fl_err *err)
{
    char *file = NULL;
    uint64_t bytes = 0;
    fl_rates rates = {0};
    fl_status st = FL_OK;
    fl_checkup *c = calloc(1, sizeof *c); /* large: a table of cores */
    if (!c) return FL_FAIL(err, FL_E_NOMEM, 0, "doctor: out of memory");
    if (o->n_args > 0) FL_GO(find_model(o->args[0], &file, &bytes, err));
    fl_checkup_look(c, NULL, file ? file : ".");
    c->has_model = file != NULL;
    c->model_bytes = bytes;
    look_at_io(c, o);
    if (c->has_model) FL_GO(look_at_plan(c, o, &rates, err));
    fl_checkup_judge(c);
    if (o->json)
        st = fl_checkup_print_json(c, &rates, err);
    else
        fl_checkup_print(c, &rates);
out:
    free(file);
    free(c);
    return st;
}
