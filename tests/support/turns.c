#include "tests/support/turns.h"

#include <stdlib.h>

#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

fl_tiny_model fl_long;

int fl_turns_setup(void **state)
{
    fl_make make = fl_make_tiny();
    make.arch = "clover_moe";
    make.n_ctx = FL_TURNS_CONTEXT;
    if (fl_tiny_setup(state) != 0) return -1;
    fl_long.path = fl_tmp_path(fl_tiny.dir, "long.gguf");
    fl_make_gguf(&make, fl_long.path);
    return 0;
}

int fl_turns_teardown(void **state)
{
    free(fl_long.path);
    return fl_tiny_teardown(state);
}

void fl_long_open(uint32_t kv_type, uint64_t budget)
{
    fl_err err = {0};
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = FL_TURNS_CONTEXT;
    p.held_rows = 32;
    p.kv_type = kv_type;
    p.state_budget = budget;
    fl_loaded m = fl_load(fl_long.path, &p);
    fl_long.model = m.model;
    fl_long.engine = m.engine;
    ASSERT_OK(fl_generator_create(&fl_long.gen, m.engine, &err));
}

void fl_long_close(void)
{
    fl_loaded m = {fl_long.model, fl_long.engine};
    fl_generator_destroy(&fl_long.gen);
    fl_unload(&m);
}

const fl_gen_mode fl_turns_modes[3] = {FL_GEN_AR, FL_GEN_BLOCK, FL_GEN_SPEC};

void fl_turns_begin(fl_turns *c, int n, uint32_t seed)
{
    c->n = c->n_starts = 0;
    fl_turns_add(c, n, seed);
}

void fl_turns_add(fl_turns *c, int n, uint32_t seed)
{
    c->start[c->n_starts++] = c->n;
    c->ids[c->n++] = FL_TURNS_START;
    for (int i = 1; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        c->ids[c->n++] = 'a' + (int32_t)((seed >> 20) % 26);
    }
}

void fl_turns_cut(fl_turns *c, int64_t messages)
{
    c->n = c->start[messages];
    c->n_starts = messages;
}

fl_gen_config fl_turns_config(fl_gen_mode mode, bool sampled)
{
    fl_gen_config c = fl_tiny_config(mode);
    if (sampled) c.sampler = (fl_sampler_config){.temp = 1.0, .top_p = 0.95, .seed = 5};
    c.max_tokens = FL_TURNS_OUT;
    return c;
}

void fl_outcome_of(const fl_tiny_model *m, fl_gen_config *c, const fl_turns *p, fl_outcome *o)
{
    fl_err err = {0};
    const int row = -1;
    const float *logits = NULL;
    c->roles = (fl_roles){p->start, p->n_starts, true};
    memset(o, 0, sizeof(*o));
    ASSERT_OK(fl_generate(m->gen, c, p->ids, p->n, &o->r, &err));
    assert_true(o->r.n_generated <= 512);
    memcpy(o->ids, o->r.ids, (size_t)o->r.n_generated * sizeof(*o->ids));
    o->state = fl_state_hash(&m->engine->state);
    if (m->engine->state.n == 0) return;
    ASSERT_OK(fl_forward_logits(m->engine, &row, 1, &logits, &err));
    assert_true(m->model->index->hp.n_vocab <= 1024);
    memcpy(o->logits, logits, (size_t)m->model->index->hp.n_vocab * sizeof(float));
}

void fl_assert_as_fresh(const fl_tiny_model *m, fl_gen_config *c, const fl_turns *p,
                        const fl_outcome *got)
{
    static fl_outcome fresh;
    fl_state_reset(&m->engine->state);
    fl_outcome_of(m, c, p, &fresh);
    assert_int_equal(fresh.r.n_reused, 0);
    assert_int_equal(got->r.n_generated, fresh.r.n_generated);
    assert_memory_equal(got->ids, fresh.ids, sizeof(fresh.ids));
    if (fresh.r.choice.mode == FL_GEN_BLOCK) /* speculation's passes go by the clock */
        assert_int_equal(got->r.denoise_passes, fresh.r.denoise_passes);
    assert_true(got->state == fresh.state);
    assert_memory_equal(got->logits, fresh.logits, sizeof(fresh.logits));
}

void fl_turns_make(fl_turns *c)
{
    static const int sizes[] = {23, 10, 100, 2, 45, 64, 31};
    fl_turns_begin(c, sizes[0], 77);
    for (int i = 1; i < 7; i++) fl_turns_add(c, sizes[i], 77 + (uint32_t)i);
}

int64_t fl_turns_answer(fl_gen_mode mode, int64_t n)
{
    return mode == FL_GEN_BLOCK ? n / 32 * 32 : n;
}

void fl_turns_append(fl_turns *c, const int32_t *ids, int64_t n)
{
    memcpy(c->ids + c->n, ids, (size_t)n * sizeof(*ids));
    c->n += n;
}
