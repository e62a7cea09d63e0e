#include "runtime/tools/calibrate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/decode/rates.h"
#include "runtime/model/machine.h"
#include "runtime/tools/measure.h"
#include "runtime/tools/setup.h"
#include "runtime/tools/survey_text.h"

/* No further request or try of passes is begun after so long. */
static const double time_limit_s = 30.0;

/* What is known of this machine, and under which names it is stored. */
typedef struct machine {
    fl_survey survey;
    char text[FL_MACHINE_TEXT], setup[FL_MACHINE_SETUP];
} machine;

/* A line that rewrites itself; nothing where it could not. */
static void show_progress(void *arg, const char *part)
{
    if (*(const bool *)arg) fprintf(stderr, "\rcalibrating: %s\033[K", part);
}

static void end_progress(const void *arg)
{
    if (*(const bool *)arg) fprintf(stderr, "\r\033[K");
}

static fl_status open_facts(const fl_model *model, fl_facts **facts, fl_err *err)
{
    FL_TRY(fl_facts_of(facts, model->src, err));
    if (fl_facts_note(*facts)) fprintf(stderr, "note: %s\n", fl_facts_note(*facts));
    return FL_OK;
}

static void print_mode(const fl_measured *m, fl_gen_mode mode)
{
    const fl_measured_mode *t = &m->mode[mode];
    if (t->tokens == 0) return;
    printf("  %-5s %8.1f tokens/s, %5.2f tokens per pass", fl_gen_mode_name(mode),
           fl_measured_rate(m, mode), (double)t->tokens / (double)fl_measured_passes(t));
    if (t->drafted > 0)
        printf(", %" PRId64 " of %" PRId64 " drafted tokens right", t->accepted, t->drafted);
    if (t->blocks > 0)
        printf(", %.1f passes per block", (double)fl_measured_passes(t) / (double)t->blocks);
    putchar('\n');
}

/* path NULL: it could not be stored. */
static void print_table(const char *key, const machine *mc, const fl_measured *m,
                        const fl_choice *choice, const char *path)
{
    printf("%s\n", mc->text);
    fl_survey_print(&mc->survey);
    printf("%s\n", key);
    for (int i = 0; i < m->n_passes; i++)
        printf("  %-7s of %4d rows %10.2f ms\n", m->pass[i].kind, m->pass[i].rows,
               m->pass[i].seconds * 1e3);
    printf("Decoding, over %d bundled request%s\n", m->n_requests, m->n_requests == 1 ? "" : "s");
    for (int i = FL_GEN_AR; i < FL_GEN_MODES; i++) print_mode(m, (fl_gen_mode)i);
    printf("run --mode auto takes %s: %s\n", fl_gen_mode_name(choice->mode), choice->reason);
    if (path) printf("stored in %s\n", path);
}

static fl_json *machine_json(const machine *mc)
{
    fl_json *j = fl_survey_parts(&mc->survey);
    fl_json_set_str(j, "machine", mc->text);
    fl_json_set_str(j, "setup", mc->setup);
    fl_json_set(j, "measured", fl_survey_entry(&mc->survey));
    return j;
}

static fl_status print_json(const char *key, const machine *mc, const fl_measured *m,
                            const fl_choice *choice, const char *path, fl_err *err)
{
    fl_json *j = fl_json_new_object();
    fl_json_set(j, "machine", machine_json(mc));
    fl_json_set_str(j, "setup", key);
    fl_json_set(j, "rates", fl_measured_json(m));
    fl_json_set_str(j, "auto", fl_gen_mode_name(choice->mode));
    fl_json_set_str(j, "auto_reason", choice->reason);
    if (path) fl_json_set_str(j, "path", path);
    char *text = fl_json_dump(j, 1);
    fl_json_free(&j);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "calibrate: out of memory");
    printf("%s\n", text);
    free(text);
    return FL_OK;
}

static fl_status store(fl_facts *facts, const machine *mc, const char *key, const fl_measured *m,
                       fl_err *err)
{
    FL_TRY(fl_machine_store(facts, mc->text, mc->setup, fl_survey_parts(&mc->survey),
                            fl_survey_entry(&mc->survey), err));
    return fl_rates_store(facts, key, fl_measured_json(m), err);
}

/* Measures, stores, prints: neither what could not be stored nor what could not be printed is lost
 * to the other. */
static fl_status calibrate(const fl_options *o, fl_engine *e, const fl_gen_config *gen,
                           fl_facts *facts, const machine *mc, const fl_survey_watch *w,
                           fl_err *err)
{
    fl_measured m;
    char key[FL_RATES_KEY];
    fl_generator *g = NULL;
    fl_rates_key(key, e);
    const fl_mode_facts before = fl_rates_read(facts, key);
    const fl_measure_config c = {.gen = gen,
                                 .think = o->think != 0,
                                 .block = fl_gen_block_earned(&gen->clover, &before),
                                 .seconds = time_limit_s,
                                 .progress = w->progress,
                                 .arg = w->arg};
    FL_TRY(fl_generator_create(&g, e, err));
    const fl_status st = fl_measure(e, g, &c, &m, err);
    fl_generator_destroy(&g);
    end_progress(w->arg);
    FL_TRY(st);
    const fl_status stored = store(facts, mc, key, &m, err);
    const char *path = stored == FL_OK ? fl_facts_path(facts) : NULL;
    const fl_mode_facts known = fl_rates_read(facts, key);
    const fl_choice choice = fl_gen_choose(FL_GEN_AUTO, &gen->clover, &known, true);
    if (o->json)
        FL_TRY(print_json(key, mc, &m, &choice, path, err));
    else
        print_table(key, mc, &m, &choice, path);
    return stored;
}

/* A busy machine makes all that is measured slower than it is. */
static void note_load(void)
{
    double load;
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(&load, 1) == 1 && load > 0.5 * (double)cpus)
        fprintf(stderr,
                "note: other programs keep this machine busy (load %.1f, %ld processors): what is "
                "measured now is slower than it could be\n",
                load, cpus);
}

/* The machine first: how much can be pinned before the engine has threads, links and reads before
 * it is loaded. */
static fl_status open_and_survey(const fl_options *o, fl_model **model, fl_engine **engine,
                                 fl_facts **facts, fl_gen_config *c, machine *mc,
                                 const fl_survey_watch *w, fl_err *err)
{
    const char *path = NULL;
    FL_TRY(fl_setup_model_path(o, &path, err));
    FL_TRY(fl_survey_pin(&mc->survey, path, w, err));
    FL_TRY(fl_setup_open(o, model, engine, c, err));
    FL_TRY(open_facts(*model, facts, err));
    FL_TRY(fl_facts_writable(*facts, err));
    fl_machine_describe(mc->text, NULL, fl_source_paths((*model)->src)[0]);
    fl_machine_setup(mc->setup, *engine);
    FL_TRY(fl_survey_moves(&mc->survey, *engine, w, err));
    end_progress(w->arg);
    FL_TRY(fl_setup_load(*engine, err));
    FL_TRY(fl_store_finish_loading((*engine)->store, err)); /* reads would slow what is measured */
    return fl_survey_computes(&mc->survey, *engine, w, err);
}

fl_status fl_tool_calibrate(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    fl_facts *facts = NULL;
    fl_gen_config c;
    machine mc;
    bool terminal = isatty(STDERR_FILENO);
    const fl_survey_watch w = {show_progress, &terminal};
    fl_options with_drafts = *o; /* so that the plan has room for them, as auto's first one */
    with_drafts.mode = "spec";
    note_load();
    FL_GO(open_and_survey(&with_drafts, &model, &engine, &facts, &c, &mc, &w, err));
    if (o->block_mode && !c.clover.has_blocks)
        fprintf(stderr, "note: --block-mode has no effect, the model knows no masks\n");
    st = calibrate(o, engine, &c, facts, &mc, &w, err);
out:
    end_progress(&terminal);
    fl_facts_close(&facts);
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}
