#include "tests/support/decoder.h"

#include <stdlib.h>

#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

fl_tiny_model fl_tiny;

static int load_tiny(uint32_t kv_type)
{
    fl_err err = {0};
    fl_make make = fl_make_tiny();
    fl_engine_params p = fl_engine_defaults();
    make.arch = "clover_moe";
    fl_tiny.dir = fl_tmp_make();
    fl_tiny.path = fl_tmp_path(fl_tiny.dir, "m.gguf");
    fl_make_gguf(&make, fl_tiny.path);
    p.threads = 1;
    p.kv_type = kv_type;
    p.n_ctx = 256;
    p.held_rows = 32;
    fl_loaded m = fl_load(fl_tiny.path, &p);
    fl_tiny.model = m.model;
    fl_tiny.engine = m.engine;
    ASSERT_OK(fl_generator_create(&fl_tiny.gen, fl_tiny.engine, &err));
    return 0;
}

int fl_tiny_setup(void **state)
{
    (void)state;
    return load_tiny(fl_engine_defaults().kv_type);
}

int fl_tiny_setup_q8_0(void **state)
{
    (void)state;
    return load_tiny(FL_TYPE_Q8_0);
}

int fl_tiny_teardown(void **state)
{
    (void)state;
    fl_generator_destroy(&fl_tiny.gen);
    fl_loaded m = {fl_tiny.model, fl_tiny.engine};
    fl_unload(&m);
    free(fl_tiny.path);
    fl_tmp_remove(fl_tiny.dir);
    return 0;
}

static bool take(void *arg, const char *text, size_t n)
{
    fl_output *o = arg;
    assert_true(o->n_text + n < FL_OUTPUT_TEXT);
    memcpy(o->text + o->n_text, text, n);
    o->n_text += n;
    o->text[o->n_text] = 0;
    o->pieces++;
    return !o->cancel_after || o->pieces < o->cancel_after;
}

fl_gen_config fl_greedy_config(const fl_model *model, fl_gen_mode mode, int64_t max_tokens)
{
    fl_gen_config c;
    fl_gen_config_init(&c, model);
    c.mode = mode;
    c.sampler = (fl_sampler_config){.top_p = 1.0};
    c.clover.threshold = 0.05f;
    c.max_tokens = max_tokens;
    c.ignore_eos = true;
    return c;
}

fl_gen_config fl_tiny_config(fl_gen_mode mode)
{
    fl_gen_config c;
    fl_gen_config_init(&c, fl_tiny.model);
    c.mode = mode;
    c.ignore_eos = true;
    c.repeat_stop = false;
    c.clover.threshold = 0.02f;
    c.sampler = (fl_sampler_config){.top_p = 1.0};
    return c;
}

void fl_tiny_run(const fl_gen_config *config, const int32_t *prompt, int n, fl_output *o)
{
    fl_err err = {0};
    fl_gen_config c = *config;
    const int cancel_after = o->cancel_after;
    *o = (fl_output){.cancel_after = cancel_after};
    c.on_text = take;
    c.arg = o;
    ASSERT_OK(fl_generate(fl_tiny.gen, &c, prompt, n, &o->r, &err));
    assert_true(o->r.n_generated <= FL_OUTPUT_IDS);
    memcpy(o->ids, o->r.ids, (size_t)o->r.n_generated * sizeof(*o->ids));
}

void fl_tiny_prompt(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) ids[i] = 'a' + (i * 7 + i / 5) % 26;
}
