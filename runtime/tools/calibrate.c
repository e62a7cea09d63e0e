#include "runtime/tools/calibrate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/decode/rates.h"
#include "runtime/tools/measure.h"
#include "runtime/tools/setup.h"

/* No further part is begun after so long. */
static const double time_limit_s = 60.0;

/* A line that rewrites itself; nothing where it could not. */
static void show_progress(void *arg, const char *part)
{
    if (*(const bool *)arg) fprintf(stderr, "\rcalibrating: %s\033[K", part);
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
static void print_table(const char *key, const fl_measured *m, const fl_choice *choice,
                        const char *path)
{
    printf("%s\n", key);
    for (int i = 0; i < m->n_passes; i++)
        printf("  %-7s of %4d rows %10.2f ms\n", m->pass[i].kind, m->pass[i].rows,
               m->pass[i].seconds * 1e3);
    printf("Decoding, over %d bundled request%s\n", m->n_requests, m->n_requests == 1 ? "" : "s");
    for (int i = FL_GEN_AR; i < FL_GEN_MODES; i++) print_mode(m, (fl_gen_mode)i);
    printf("run --mode auto takes %s: %s\n", fl_gen_mode_name(choice->mode), choice->reason);
    if (path) printf("stored in %s\n", path);
}

static fl_status print_json(const char *key, fl_json *entry, const fl_choice *choice,
                            const char *path, fl_err *err)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_str(j, "setup", key);
    fl_json_set(j, "rates", entry);
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

/* Measures, stores, prints: neither what could not be stored nor what could not be printed is lost
 * to the other. */
static fl_status calibrate(const fl_options *o, fl_engine *e, fl_generator *g,
                           const fl_gen_config *gen, fl_facts *facts, fl_err *err)
{
    bool terminal = isatty(STDERR_FILENO);
    fl_measured m;
    char key[FL_RATES_KEY];
    fl_rates_key(key, e);
    const fl_mode_facts before = fl_rates_read(facts, key);
    const fl_measure_config c = {.gen = gen,
                                 .think = o->think != 0,
                                 .block = fl_gen_block_earned(&gen->clover, &before),
                                 .seconds = time_limit_s,
                                 .progress = show_progress,
                                 .arg = &terminal};
    const fl_status st = fl_measure(e, g, &c, &m, err);
    if (terminal) fprintf(stderr, "\r\033[K");
    FL_TRY(st);
    const fl_status stored = fl_rates_store(facts, key, fl_measured_json(&m), err);
    const char *path = stored == FL_OK ? fl_facts_path(facts) : NULL;
    const fl_mode_facts known = fl_rates_read(facts, key);
    const fl_choice choice = fl_gen_choose(FL_GEN_AUTO, &gen->clover, &known, true);
    if (o->json)
        FL_TRY(print_json(key, fl_measured_json(&m), &choice, path, err));
    else
        print_table(key, &m, &choice, path);
    return stored;
}

fl_status fl_tool_calibrate(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    fl_generator *gen = NULL;
    fl_facts *facts = NULL;
    fl_gen_config c;
    fl_options with_drafts = *o; /* so that the plan has room for them, as auto's first one */
    with_drafts.mode = "spec";
    FL_GO(fl_setup_open(&with_drafts, &model, &engine, &c, err));
    FL_GO(open_facts(model, &facts, err));
    FL_GO(fl_facts_writable(facts, err));
    FL_GO(fl_setup_load(engine, err));
    if (o->block_mode && !c.clover.has_blocks)
        fprintf(stderr, "note: --block-mode has no effect, the model knows no masks\n");
    FL_GO(fl_generator_create(&gen, engine, err));
    st = calibrate(o, engine, gen, &c, facts, err);
out:
    fl_facts_close(&facts);
    fl_generator_destroy(&gen);
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}
