/* The same greedy text wherever the experts lie and are computed: a list of runs in which any two
 * values of two settings meet (placements.py), ten prompts each, against a run with all experts in
 * device memory. With FL_TEST_LONG all of the list, else a part of it. */
#include <stdlib.h>

#include "offload/io_fake.h"
#include "runtime/decode/generate.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"

enum { N_PROMPTS = 10, LONGEST = 90, N_OUT = 12, KNOWN = 40 };

typedef struct placement {
    fl_gen_mode mode;
    int percent; /* of the experts in device memory */
    int host;    /* percent of the rest that the host tier keeps */
    fl_lane_choice lanes;
    fl_policy_kind policy;
    bool no_prefetch;
    const char *io; /* the fake one mixes its reads up and lets some wait */
    int threads;
    int64_t chunk;
    bool restored; /* the state holds the head of the prompt, from an earlier request */
} placement;

#include "tests/decode/placements.h"

typedef struct texts {
    int32_t ids[N_PROMPTS][N_OUT];
} texts;

static int setup(void **state)
{
    (void)state;
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    m.type = FL_TYPE_Q4_K;
    m.n_layer = m.interval = 2;
    m.n_vocab = 320;
    m.n_expert = 16;
    fl_files_setup(state);
    fl_make_gguf(&m, fl_files.gguf);
    return 0;
}

static int make_prompt(int which, int32_t *ids)
{
    const int n = LONGEST - 5 * which;
    for (int i = 0; i < n; i++) ids[i] = 'a' + (i * (7 + 2 * which) + i / (3 + which)) % 26;
    return n;
}

static fl_gen_config config_of(const fl_model *model, fl_gen_mode mode)
{
    fl_gen_config c;
    fl_gen_config_init(&c, model);
    c.mode = mode;
    c.sampler = (fl_sampler_config){.top_p = 1.0};
    c.clover.threshold = 0.02f;
    c.max_tokens = N_OUT;
    c.ignore_eos = true;
    return c;
}

/* Reads the head of the prompt and answers it, so that the state holds it; then all of it. */
static void answer(fl_generator *g, const fl_gen_config *c, bool restored, const int32_t *prompt,
                   int n, int32_t *out)
{
    fl_err err = {0};
    fl_gen_result r;
    if (restored) ASSERT_OK(fl_generate(g, c, prompt, KNOWN, &r, &err));
    ASSERT_OK(fl_generate(g, c, prompt, n, &r, &err));
    assert_int_equal(r.n_generated, N_OUT);
    if (restored) assert_true(r.n_reused > 0);
    memcpy(out, r.ids, N_OUT * sizeof *out);
}

static void run(const placement *p, int prompts, texts *t)
{
    fl_err err = {0};
    fl_generator *g = NULL;
    int32_t prompt[LONGEST];
    fl_engine_params e = fl_engine_defaults();
    e.n_ctx = 256;
    e.threads = p->threads;
    e.chunk = p->chunk;
    e.held_rows = 32;
    e.vram = p->percent < 100 ? fl_vram_for(fl_files.gguf, &e, p->percent) : 0;
    e.ram = fl_ram_for(fl_files.gguf, &e, p->host);
    e.lanes = p->lanes;
    e.policy = p->policy;
    e.no_prefetch = p->no_prefetch;
    e.io = p->io;
    fl_loaded l = fl_load(fl_files.gguf, &e);
    if (strcmp(p->io, "fake") == 0)
        fl_io_fake_set(
            l.engine->io,
            &(fl_io_fake_config){
                .seed = 7, .fail_at = -1, .reorder = true, .stall_chance = 300, .stall_polls = 3});
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    const fl_gen_config c = config_of(l.model, p->mode);
    for (int i = 0; i < prompts; i++) {
        const int n = make_prompt(i, prompt);
        answer(g, &c, p->restored, prompt, n, t->ids[i]);
    }
    fl_generator_destroy(&g);
    fl_unload(&l);
}

static void text_does_not_depend_on_placement(void **state)
{
    (void)state;
    static texts want[FL_GEN_MODES], got;
    const int prompts = FL_SANITIZED_OR(2, N_PROMPTS);
    const size_t step = getenv("FL_TEST_LONG") ? 1 : FL_SANITIZED_OR(16, 4);
    for (int m = FL_GEN_AR; m < FL_GEN_MODES; m++)
        run(
            &(placement){
                .mode = (fl_gen_mode)m, .percent = 100, .io = "pread", .threads = 1, .chunk = 512},
            prompts, &want[m]);
    assert_memory_not_equal(want[FL_GEN_AR].ids[0], want[FL_GEN_AR].ids[1], sizeof want->ids[0]);
    for (size_t i = 0; i < sizeof placements / sizeof *placements; i += step) {
        const placement *p = &placements[i];
        run(p, prompts, &got);
        for (int k = 0; k < prompts; k++)
            if (memcmp(want[p->mode].ids[k], got.ids[k], sizeof got.ids[k]) != 0)
                fail_msg("run %zu, prompt %d: the text differs", i, k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_does_not_depend_on_placement)};
    return cmocka_run_group_tests(tests, setup, fl_files_teardown);
}
