/* Costs of a pass's parts: all that can be asked for is measured, on any pool, and the engine then
 * computes what it computed before. */
#include "runtime/model/costs.h"

#include <stdlib.h>

#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"

static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7};
enum { N_IDS = sizeof ids / sizeof *ids };

static void measure_rows(fl_costs *c, fl_pool *pool, int rows)
{
    fl_err err;
    uint64_t ns = 0;
    ASSERT_OK(fl_costs_expert(c, pool, rows, &ns, &err));
    assert_true(ns > 0);
    ns = 0;
    ASSERT_OK(fl_costs_dense(c, rows, &ns, &err));
    assert_true(ns > 0);
}

static void measure_all(fl_engine *e)
{
    fl_err err;
    fl_costs *c = NULL;
    fl_pool *one = NULL;
    uint64_t rate = 0;
    ASSERT_OK(fl_costs_open(&c, e, &err));
    const int most = fl_costs_max_rows(c);
    assert_int_equal(most, 40);
    measure_rows(c, e->exec.pool, 1);
    measure_rows(c, e->exec.pool, 33);
    measure_rows(c, e->exec.pool, most);
    ASSERT_OK(fl_pool_create(&one, 1, &err));
    measure_rows(c, one, 4);
    fl_pool_destroy(&one);
    ASSERT_OK(fl_costs_device(c, &rate, &err));
    assert_true(rate > 0);
    fl_costs_close(&c);
    assert_null(c);
    assert_int_equal(e->state.n, 0);
}

/* Some experts resident, others streaming: none of that is touched. */
static void check(const fl_make *m, bool act_f32)
{
    fl_make_gguf(m, fl_files.gguf);
    fl_engine_params p = fl_engine_defaults();
    p.threads = 2;
    p.chunk = 40;
    p.block_size = 16;
    p.act_f32 = act_f32;
    p.vram = fl_vram_for(fl_files.gguf, &p, 50);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    const size_t bytes = (size_t)m->n_vocab * N_IDS * sizeof(float);
    float *before = fl_clean_logits(l.engine, ids, N_IDS);
    const uint64_t used = fl_device_budget(l.engine->dev)->used;
    measure_all(l.engine);
    assert_int_equal(fl_device_budget(l.engine->dev)->used, used);
    float *after = fl_clean_logits(l.engine, ids, N_IDS);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
    fl_unload(&l);
}

static void a_model_under_the_law(void **state)
{
    (void)state;
    fl_make m = fl_make_default();
    m.arch = "clover_moe";
    m.n_layer = m.interval = 2;
    m.type = FL_TYPE_Q8_0;
    check(&m, false);
    check(&m, true);
}

static void a_fused_model_of_small_rows(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.fused = true;
    check(&m, false);
}

static void host_memory_is_read(void **state)
{
    (void)state;
    fl_err err;
    fl_pool *pool = NULL;
    uint64_t rate = 0;
    ASSERT_OK(fl_pool_create(&pool, 2, &err));
    ASSERT_OK(fl_costs_host(pool, (3 << 20) + 64, &rate, &err));
    assert_true(rate > 0);
    fl_pool_destroy(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_model_under_the_law, fl_files_setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(a_fused_model_of_small_rows, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test(host_memory_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
