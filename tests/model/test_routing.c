/* What passes tell about their routing: kinds and experts in the trace are those that were run, and
 * the profile is kept and decides who stays in device memory. */
#include <stdlib.h>

#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *trace_path;

static int setup(void **state)
{
    if (fl_files_setup_model(state) != 0) return -1;
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    trace_path = fl_tmp_path(fl_files.dir, "run.trace");
    return 0;
}

static int teardown(void **state)
{
    free(trace_path);
    return fl_files_teardown(state);
}

static fl_engine_params params(const char *profile, const char *trace)
{
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.held_rows = 8;
    p.profile = profile;
    p.trace = trace;
    return p;
}

static void passes_are_in_the_trace_with_their_experts(void **state)
{
    (void)state;
    fl_err err = {0};
    const fl_engine_params p = params(NULL, trace_path);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    fl_engine *e = l.engine;
    const fl_clover *sw = &l.model->index->clover;
    const int top_k = l.model->index->hp.top_k, n_layer = l.model->index->hp.n_layer;
    int32_t ids[16], last[16 * 16]; /* of the last layer of the fused pass */
    for (int i = 0; i < 16; i++) ids[i] = 5 + i;
    ASSERT_OK(fl_forward_clean(e, ids, 5, &err));
    ASSERT_OK(fl_forward_clean(e, ids, 1, &err));
    ASSERT_OK(fl_forward_denoise(e, ids, 8, sw, &err));
    fl_routing_done(&e->routing, 3);
    ASSERT_OK(fl_forward_denoise(e, ids, 8, sw, &err));
    fl_routing_done(&e->routing, 5);
    ASSERT_OK(fl_forward_fused(e, ids, 8, ids, 8, sw, &err));
    memcpy(last, e->buf.route.expert, (size_t)(16 * top_k) * sizeof *last);
    ASSERT_OK(fl_forward_held(e, ids, 4, &err));
    fl_routing_done(&e->routing, 2);
    fl_forward_promote(e, 2);
    /* A pass that fails is none. */
    const int32_t foreign = 1 << 24;
    ASSERT_FAILS(fl_forward_denoise(e, &foreign, 1, sw, &err), FL_E_ARG, "outside the vocabulary");
    ASSERT_OK(fl_routing_save_trace(&e->routing, &err));
    ASSERT_OK(fl_routing_save_trace(&e->routing, &err)); /* there is none any more */
    fl_unload(&l);

    static const fl_trace_pass expected[] = {
        {FL_PASS_PREFILL, false, 5, 5, 5}, {FL_PASS_AR, false, 1, 1, 1},
        {FL_PASS_BLOCK, true, 8, 0, 3},    {FL_PASS_BLOCK, false, 8, 0, 5},
        {FL_PASS_BLOCK, true, 16, 8, 0},   {FL_PASS_VERIFY, false, 4, 0, 2},
    };
    fl_trace *t = NULL;
    ASSERT_OK(fl_trace_open(&t, trace_path, &err));
    assert_int_equal(fl_trace_get_shape(t)->n_layer, n_layer);
    assert_false(fl_trace_get_shape(t)->synthetic);
    assert_int_equal(fl_trace_n_passes(t), 6);
    for (int i = 0; i < 6; i++) {
        const fl_trace_pass *x = fl_trace_get_pass(t, i);
        assert_int_equal(x->kind, expected[i].kind);
        assert_int_equal(x->first, expected[i].first);
        assert_int_equal(x->rows, expected[i].rows);
        assert_int_equal(x->clean, expected[i].clean);
        assert_int_equal(x->done, expected[i].done);
    }
    for (int r = 0; r < 16; r++) {
        int32_t row[16];
        fl_trace_row(t, 4, n_layer - 1, r, row);
        assert_memory_equal(row, last + r * top_k, (size_t)top_k * sizeof *row);
    }
    fl_trace_close(&t);
}

/* ---- scripts ---- */

/* Expert i of a row in a pass of the script. */
static int32_t scripted(int n_expert, int pass, int layer, int row, int i)
{
    return (pass * 3 + layer + row + i) % n_expert;
}

static const fl_trace_pass script[] = {
    {FL_PASS_BLOCK, true, 8, 0, 5},
    {FL_PASS_BLOCK, false, 8, 0, 3},
    {FL_PASS_VERIFY, false, 4, 0, 2},
    {FL_PASS_BLOCK, true, 16, 8, 8},
};
enum { N_SCRIPT = sizeof script / sizeof *script };

static void write_script(int n_expert, int top_k)
{
    fl_err err = {0};
    fl_trace_writer *w = NULL;
    const fl_trace_shape shape = {1, n_expert, top_k, 8, true, "script"};
    ASSERT_OK(fl_trace_writer_open(&w, trace_path, &shape, 16, &err));
    for (int p = 0; p < N_SCRIPT; p++) {
        int32_t ids[16 * 16];
        for (int r = 0; r < script[p].rows; r++)
            for (int i = 0; i < top_k; i++) ids[r * top_k + i] = scripted(n_expert, p, 0, r, i);
        fl_trace_writer_layer(w, 0, script[p].rows, ids);
        ASSERT_OK(fl_trace_writer_pass(w, &script[p], &err));
    }
    ASSERT_OK(fl_trace_writer_commit(&w, &err));
}

/* Rows [from, to) of the last pass went where rows of the script's pass went, from `row` on. */
static void assert_followed(const fl_loaded *l, int from, int to, int pass, int row)
{
    const fl_hparams *hp = &l->model->index->hp;
    for (int r = from; r < to; r++)
        for (int i = 0; i < hp->top_k; i++)
            assert_int_equal(l->engine->buf.route.expert[r * hp->top_k + i],
                             scripted(hp->n_expert, pass, 0, row + r - from, i));
}

static void passes_follow_a_script(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_model *m = NULL;
    ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
    const fl_clover *sw = &m->index->clover;
    write_script(m->index->hp.n_expert, m->index->hp.top_k);
    fl_engine_params p = params(NULL, NULL);
    p.script = trace_path;
    fl_loaded l = fl_load(fl_files.gguf, &p);
    fl_engine *e = l.engine;
    int32_t ids[16];
    for (int i = 0; i < 16; i++) ids[i] = 5 + i;
    ASSERT_OK(fl_forward_clean(e, ids, 5, &err)); /* not in the script */
    assert_int_equal(fl_routing_scripted(&e->routing), 0);
    ASSERT_OK(fl_forward_denoise(e, ids, 8, sw, &err));
    assert_followed(&l, 0, 8, 0, 0);
    assert_int_equal(fl_routing_scripted(&e->routing), 5);
    ASSERT_OK(fl_forward_denoise(e, ids, 8, sw, &err));
    assert_followed(&l, 0, 8, 1, 0);
    ASSERT_OK(fl_forward_denoise(e, ids, 8, sw, &err)); /* the script's block is over: its last */
    assert_followed(&l, 0, 8, 1, 0);
    assert_int_equal(fl_routing_scripted(&e->routing), 3);
    ASSERT_OK(fl_forward_fused(e, ids, 8, ids, 8, sw, &err));
    assert_followed(&l, 0, 8, 1, 0);
    assert_followed(&l, 8, 16, 3, 8);
    ASSERT_OK(fl_forward_held(e, ids, 6, &err)); /* more rows than there: they wrap around */
    assert_followed(&l, 0, 4, 2, 0);
    assert_followed(&l, 4, 6, 2, 0);
    assert_int_equal(fl_routing_scripted(&e->routing), 2);
    fl_forward_promote(e, 2);
    ASSERT_OK(fl_forward_denoise(e, ids, 8, sw, &err)); /* from the beginning again */
    assert_followed(&l, 0, 8, 0, 0);
    /* A guess is right but for every fifth row. */
    ASSERT_OK(fl_forward_denoise(e, ids, 8, sw, &err));
    int32_t *guess = e->buf.route.expert;
    assert_true(fl_routing_follow(&e->routing, 1, 8, true, guess));
    assert_followed(&l, 0, 4, 1, 0);
    assert_followed(&l, 4, 5, 0, 4);
    assert_followed(&l, 5, 8, 1, 5);
    fl_unload(&l);
    write_script(m->index->hp.n_expert + 1, m->index->hp.top_k);
    e = NULL;
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "the model takes");
    assert_null(e);
    fl_model_close(&m);
}

/* ---- the profile ---- */

/* Runs a few tokens and keeps the profile; the experts of layer 0 that they used. */
static int use_and_keep(const char *name, int32_t *used)
{
    fl_err err = {0};
    const int32_t ids[] = {7, 7, 7};
    const fl_engine_params p = params(name, NULL);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    for (int i = 0; i < 3; i++) ASSERT_OK(fl_forward_clean(l.engine, ids + i, 1, &err));
    ASSERT_OK(fl_routing_save_profile(&l.engine->routing, l.model, &err));
    const uint32_t *heat = fl_profile_heat(l.engine->routing.profile);
    int n = 0;
    for (int e = 0; e < l.model->index->hp.n_expert; e++)
        if (heat[e] > 0) used[n++] = e;
    fl_unload(&l);
    return n;
}

static void what_was_used_stays_in_device_memory(void **state)
{
    (void)state;
    int32_t used[256];
    const int n = use_and_keep("code", used);
    fl_engine_params p = params("code", NULL);
    p.vram = fl_vram_for(fl_files.gguf, &p, 50);
    for (int turn = 0; turn < 2; turn++) {
        fl_loaded l = fl_load(fl_files.gguf, &p);
        const int half = l.model->index->hp.n_expert / 2;
        bool all = true;
        assert_in_range(n, 1, half);
        for (int i = 0; i < n; i++) all &= l.engine->plan.tier[used[i]] == FL_TIER_DEVICE;
        /* Another kind of text knows nothing of it: the first experts are as good as any. */
        bool first = true;
        for (int e = 0; e < n; e++) first &= l.engine->plan.tier[e] == FL_TIER_DEVICE;
        assert_true(turn == 0 ? all : first);
        assert_null(l.engine->routing.profile_note);
        fl_unload(&l);
        p.profile = "chat";
    }
}

static void names_and_damage_are_told(void **state)
{
    (void)state;
    static const char *const bad[] = {"", ".hidden", "a/b", "a b",
                                      "a-name-of-more-than-thirty-two-characters"};
    fl_err err = {0};
    int32_t used[256];
    fl_model *m = NULL;
    fl_engine *e = NULL;
    fl_engine_params p = params(NULL, NULL);
    ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p.profile = bad[i];
        ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "--profile");
        assert_null(e);
    }
    use_and_keep("code", used);
    p.profile = "code";
    ASSERT_OK(fl_engine_open(&e, m, &p, &err));
    char *path = strdup(e->routing.profile_path);
    assert_non_null(strstr(path, ".code.profile"));
    fl_engine_close(&e);
    fl_tmp_write(path, "damaged", 7);
    ASSERT_OK(fl_engine_open(&e, m, &p, &err));
    assert_non_null(strstr(e->routing.profile_note, "is not a profile"));
    fl_engine_close(&e);
    free(path);
    fl_model_close(&m);
}

/* Nowhere to keep it: runs go on, with a profile of their own. */
static void no_home_is_no_failure(void **state)
{
    (void)state;
    fl_err err = {0};
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    const fl_engine_params p = params("code", NULL);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    assert_non_null(l.engine->routing.profile);
    assert_null(l.engine->routing.profile_path);
    ASSERT_OK(fl_routing_save_profile(&l.engine->routing, l.model, &err));
    fl_unload(&l);
    if (home) setenv("HOME", home, 1);
    free(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(passes_are_in_the_trace_with_their_experts, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(passes_follow_a_script, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_used_stays_in_device_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(names_and_damage_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(no_home_is_no_failure, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
