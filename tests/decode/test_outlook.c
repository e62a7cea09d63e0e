/* What is stored about a model and machine reaches the prediction; without it public figures do. */
#include <stdlib.h>

#include "runtime/decode/outlook.h"
#include "runtime/model/machine.h"
#include "tests/support/files.h"
#include "tests/support/test.h"

static int setup(void **state)
{
    fl_files_setup_model(state);
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    return 0;
}

typedef struct opened {
    fl_model *model;
    fl_engine *engine;
    fl_facts *facts;
} opened;

static opened open_all(void)
{
    fl_engine_params p = fl_engine_defaults();
    opened o = {0};
    fl_err err = {0};
    p.threads = 1;
    p.held_rows = 8;
    p.profile = "test";
    ASSERT_OK(fl_model_open(&o.model, fl_files.gguf, &err));
    ASSERT_OK(fl_engine_open(&o.engine, o.model, &p, &err));
    ASSERT_OK(fl_facts_of(&o.facts, o.model->src, &err));
    return o;
}

static void close_all(opened *o)
{
    fl_facts_close(&o->facts);
    fl_engine_close(&o->engine);
    fl_model_close(&o->model);
}

static void nothing_stored(void **state)
{
    (void)state;
    opened o = open_all();
    fl_outlook k;
    fl_err err = {0};
    ASSERT_OK(fl_outlook_make(&k, o.engine, &o.model->index->clover, o.facts, &err));
    const fl_forecast *f = &k.forecast;
    assert_true(f->counted[FL_PREDICT_AR] && f->counted[FL_PREDICT_PREFILL]);
    assert_false(f->counted[FL_PREDICT_BLOCK] || f->counted[FL_PREDICT_SPEC]);
    assert_int_equal(f->in.pass[FL_PREDICT_AR].tokens_milli, 1000);
    assert_int_equal(f->in.pass[FL_PREDICT_BLOCK].tokens_milli, 2550);
    assert_int_equal(f->in.pass[FL_PREDICT_SPEC].tokens_milli, 2250);
    assert_int_equal(f->in.pass[FL_PREDICT_PREFILL].rows, o.engine->params.chunk);
    assert_int_equal(f->now.lacks, FL_LACKS_COMPUTE); /* all is resident: nothing moves */
    assert_int_equal(f->now.kind[FL_PREDICT_AR].pass_ns, 0);
    assert_int_equal(f->n_vram + f->n_ram, 0);
    assert_int_equal(f->in.ahead_permille, 1000);
    o.engine->params.no_prefetch = true;
    ASSERT_OK(fl_outlook_make(&k, o.engine, &o.model->index->clover, o.facts, &err));
    assert_int_equal(k.forecast.in.ahead_permille, 0);
    close_all(&o);
}

static void what_calibration_stored_is_taken(void **state)
{
    (void)state;
    opened o = open_all();
    char machine[FL_MACHINE_TEXT], setup_text[FL_MACHINE_SETUP];
    fl_outlook k;
    fl_err err = {0};
    const fl_rates r = {
        .n_rows = 1, .rows = {1}, .cpu_expert_ns = {1000}, .dense_pass_ns = {50000}};
    fl_machine_describe(machine, NULL, fl_files.gguf);
    fl_machine_setup(setup_text, o.engine);
    fl_json *measured = fl_json_new_object();
    fl_json_set(measured, "rates", fl_rates_to_json(&r));
    ASSERT_OK(fl_machine_store(o.facts, machine, setup_text, fl_json_new_object(), measured, &err));
    const char *text = "{\"modes\":{\"spec\":{\"tokens\":300,\"passes\":100,\"rows\":900}}}";
    fl_json *entry = NULL;
    ASSERT_OK(fl_json_parse(text, strlen(text), "test", &entry, &err));
    ASSERT_OK(fl_rates_store(o.facts, "of another budget", entry, &err));
    ASSERT_OK(fl_outlook_make(&k, o.engine, &o.model->index->clover, o.facts, &err));
    const fl_forecast *f = &k.forecast;
    assert_true(f->counted[FL_PREDICT_SPEC] && !f->counted[FL_PREDICT_BLOCK]);
    assert_int_equal(f->in.pass[FL_PREDICT_SPEC].rows, 9);
    assert_int_equal(f->in.pass[FL_PREDICT_SPEC].tokens_milli, 3000);
    assert_int_equal(f->now.lacks, 0);
    const fl_hparams *hp = &o.model->index->hp;
    const uint64_t uses = (uint64_t)(hp->n_layer * hp->top_k);
    assert_in_range(f->now.kind[FL_PREDICT_AR].pass_ns, 50000 + uses * 1000 - 5,
                    50000 + uses * 1000);
    close_all(&o);
}

/* Passes over masks used two experts of a layer, those that check four. */
static void the_profile_knows_how_many_experts_a_pass_uses(void **state)
{
    (void)state;
    opened o = open_all();
    fl_profile *p = o.engine->routing.profile;
    const int32_t experts[] = {0, 1, 2, 3};
    fl_outlook k;
    fl_err err = {0};
    for (int i = 0; i < FL_PROFILE_FEW; i++) {
        fl_profile_pass(p, FL_PASS_BLOCK, true, 0);
        fl_profile_layer(p, 0, 1, 2, experts);
        fl_profile_pass(p, FL_PASS_VERIFY, false, 0);
        fl_profile_layer(p, 0, 1, 4, experts);
    }
    ASSERT_OK(fl_outlook_make(&k, o.engine, &o.model->index->clover, o.facts, &err));
    const fl_hparams *hp = &o.model->index->hp;
    const fl_predict_pass *pass = k.forecast.in.pass;
    assert_int_equal(pass[FL_PREDICT_BLOCK].distinct_milli, 2000);
    assert_int_equal(pass[FL_PREDICT_SPEC].distinct_milli, 3000);
    assert_int_equal(pass[FL_PREDICT_AR].distinct_milli,
                     fl_predict_distinct(hp->n_expert, hp->top_k, 1));
    close_all(&o);
}

/* 100 us of copies beside 60 us of computing: a measured step of 130 us hides 30 of them. */
static void a_measured_step_says_what_is_read_ahead(void **state)
{
    (void)state;
    opened o = open_all();
    char key[FL_RATES_KEY], machine[FL_MACHINE_TEXT], setup_text[FL_MACHINE_SETUP], text[160];
    fl_engine *e = o.engine;
    const fl_hparams *hp = &o.model->index->hp;
    const uint64_t uses = (uint64_t)(hp->n_layer * hp->top_k), size = e->plan.in.expert_bytes[0];
    const fl_rates r = {.file_bytes_s = uses * size * 10000,
                        .link_bytes_s = uses * size * 20000,
                        .n_rows = 1,
                        .rows = {1},
                        .cpu_expert_ns = {10000 / uses},
                        .dense_pass_ns = {50000}};
    static const struct {
        int step_us, ahead;
    } is[] = {{130, 300}, {160, 0}, {190, 0}, {100, 1000}, {70, 1000}};
    memset(e->plan.tier, FL_TIER_FILE, (size_t)e->plan.n_total);
    e->plan.n_resident = 0;
    fl_machine_describe(machine, NULL, fl_files.gguf);
    fl_machine_setup(setup_text, e);
    fl_rates_key(key, e);
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        fl_outlook k;
        fl_err err = {0};
        fl_json *measured = fl_json_new_object(), *entry = NULL;
        fl_json_set(measured, "rates", fl_rates_to_json(&r));
        ASSERT_OK(
            fl_machine_store(o.facts, machine, setup_text, fl_json_new_object(), measured, &err));
        snprintf(text, sizeof text,
                 "{\"passes\":[{\"kind\":\"held\",\"seconds\":1},"
                 "{\"kind\":\"step\",\"seconds\":%d.0e-6}]}",
                 is[i].step_us);
        ASSERT_OK(fl_json_parse(text, strlen(text), "test", &entry, &err));
        ASSERT_OK(fl_rates_store(o.facts, key, entry, &err));
        ASSERT_OK(fl_outlook_make(&k, e, &o.model->index->clover, o.facts, &err));
        assert_in_range(k.forecast.in.ahead_permille + 2, is[i].ahead, is[i].ahead + 4);
    }
    close_all(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stored),
        cmocka_unit_test(what_calibration_stored_is_taken),
        cmocka_unit_test(a_measured_step_says_what_is_read_ahead),
        cmocka_unit_test(the_profile_knows_how_many_experts_a_pass_uses),
    };
    return cmocka_run_group_tests(tests, setup, fl_files_teardown);
}
