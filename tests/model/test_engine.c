/* The plan is the load: device memory in use after a load is the planned number, to the byte, and
 * the cap holds all the time. */
#include <stdlib.h>

#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* The plan without loading. */
static fl_plan open_plan(const fl_engine_params *p)
{
    fl_err err = {0};
    fl_model *m = NULL;
    fl_engine *e = NULL;
    ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
    ASSERT_OK(fl_engine_open(&e, m, p, &err));
    assert_true(fl_device_budget(e->dev)->used == 0);
    fl_plan copy = e->plan;
    fl_engine_close(&e);
    fl_model_close(&m);
    return copy; /* numbers only */
}

static void check_load(const fl_engine_params *p)
{
    const fl_plan plan = open_plan(p);
    fl_loaded l = fl_load(fl_files.gguf, p);
    const fl_budget *b = fl_device_budget(l.engine->dev);
    const int32_t ids[] = {1, 2, 3, 4, 5};
    fl_err err = {0};
    assert_true(plan.device_bytes == l.engine->plan.device_bytes);
    assert_true(b->used == plan.device_bytes);
    assert_true(plan.host_bytes == l.engine->plan.host_bytes);
    assert_true(fl_store_host_memory(l.engine->store)->used == plan.host_bytes);
    if (plan.in.host_asked && plan.n_host) assert_true(plan.host_bytes <= p->ram);
    ASSERT_OK(fl_forward_clean(l.engine, ids, 5, &err));
    ASSERT_OK(fl_forward_denoise(l.engine, ids, 5, &l.model->index->clover, &err));
    assert_true(b->used == plan.device_bytes);
    assert_true(b->peak == plan.device_bytes);
    assert_true(b->peak <= b->cap);
    fl_unload(&l);
}

static void device_memory_in_use_equals_the_plan(void **state)
{
    (void)state;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 2;
    check_load(&p);
    p.kv_type = FL_TYPE_F32;
    p.n_ctx = 77;
    p.chunk = 5;
    check_load(&p);
    p.kv_type = FL_TYPE_Q8_0;
    p.act_f32 = true;
    p.threads = 1;
    p.held_rows = 7;
    check_load(&p);
}

static void the_plan_holds_for_every_budget(void **state)
{
    (void)state;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = 64;
    p.chunk = 8;
    const fl_plan all = open_plan(&p);
    assert_true(all.n_resident == all.n_total && all.n_slots == 0);
    for (int percent = 100; percent >= 10; percent -= 30) {
        p.vram = all.fixed_bytes + all.expert_bytes * (uint64_t)percent / 100;
        for (int host = 0; host <= 100; host += 40) {
            p.ram = fl_ram_for(fl_files.gguf, &p, host);
            check_load(&p);
            assert_true((open_plan(&p).n_host > 0) == (host > 0 && percent < 100));
        }
        p.ram = FL_RAM_FREE;
        check_load(&p);
        const fl_plan free = open_plan(&p);
        assert_true(free.n_host + free.n_resident == free.n_total);
    }
    p.vram = all.min_device_cap;
    check_load(&p);
    const fl_plan least = open_plan(&p);
    assert_true(least.n_slots > 0 && least.n_resident < all.n_total);
}

static void a_budget_that_is_too_small_names_one_that_works(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_model *m = NULL;
    fl_engine *e = NULL;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.vram = open_plan(&p).min_device_cap - 1;
    ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "--vram");
    assert_null(e);
    p.vram++;
    p.ram = 1;
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "--ram");
    p.ram = (uint64_t)atoll(strstr(err.msg, "--ram ") + 6) << 20;
    ASSERT_OK(fl_engine_open(&e, m, &p, &err)); /* what it names works */
    fl_engine_close(&e);
    fl_model_close(&m);
}

static void more_context_takes_the_bytes_it_should(void **state)
{
    (void)state;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = 128;
    const uint64_t small = open_plan(&p).device_bytes;
    p.n_ctx = 1024;
    /* One attention layer, keys and values, 2 kv heads of 64, F16. */
    const uint64_t want = (1024 - 128) * 2 * 2 * 64 * 2;
    p.chunk = 128;
    const uint64_t large = open_plan(&p).device_bytes;
    assert_true(large - small == want);
    p.kv_type = FL_TYPE_Q8_0;
    assert_true(large - open_plan(&p).device_bytes == 1024 * 2 * 2 * 64 / 32 * (64 - 34));
}

static void settings_out_of_range_are_refused(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_model *m = NULL;
    fl_engine *e = NULL;
    ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = 1025; /* the model's context is 1,024 */
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "1024");
    p = fl_engine_defaults();
    p.n_ctx = -1;
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "--ctx");
    p = fl_engine_defaults();
    p.chunk = -1;
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "--chunk");
    p = fl_engine_defaults();
    p.held_rows = 33;
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "held passes of 33");
    p = fl_engine_defaults();
    p.kv_type = FL_TYPE_Q4_0;
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "--kv");
    p = fl_engine_defaults();
    p.cpu_tier = "abacus";
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_UNSUPPORTED, "abacus");
    p = fl_engine_defaults();
    p.block_size = 1000;
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_UNSUPPORTED, "block size 1000");
    assert_null(e);
    fl_model_close(&m);
    fl_make odd = fl_make_tiny();
    odd.head_dim = 48;
    char *odd_path = fl_tmp_path(fl_files.dir, "odd.gguf");
    fl_make_gguf(&odd, odd_path);
    p = fl_engine_defaults();
    p.kv_type = FL_TYPE_Q8_0;
    ASSERT_OK(fl_model_open(&m, odd_path, &err));
    ASSERT_FAILS(fl_engine_open(&e, m, &p, &err), FL_E_ARG, "heads of 48 values");
    fl_model_close(&m);
    free(odd_path);
    ASSERT_FAILS(fl_model_open(&m, "/nonexistent/m.gguf", &err), FL_E_IO, "m.gguf");
    assert_null(m);
}

typedef struct progress_log {
    uint64_t calls, done, total;
} progress_log;

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    progress_log *p = arg;
    assert_true(done >= p->done && done <= total);
    assert_true(p->calls == 0 || total == p->total);
    *p = (progress_log){p->calls + 1, done, total};
}

/* Dense weights and experts are one load. */
static void progress_counts_all_that_is_read(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_engine_params params = fl_engine_defaults();
    params.threads = 1;
    for (int small = 0; small < 2; small++) {
        progress_log p = {0};
        fl_model *m = NULL;
        fl_engine *e = NULL;
        if (small) params.vram = fl_vram_for(fl_files.gguf, &params, 0);
        ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
        ASSERT_OK(fl_engine_open(&e, m, &params, &err));
        ASSERT_OK(fl_engine_load(e, on_progress, &p, &err));
        const int n_experts = e->plan.n_resident, n_dense = (int)p.calls - n_experts;
        assert_true(n_dense > 20); /* tensor by tensor */
        assert_int_equal(p.done, p.total);
        assert_int_equal(p.total, fl_weights_bytes(m->index) + e->plan.resident_bytes);
        fl_engine_close(&e);
        fl_model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_memory_in_use_equals_the_plan),
        cmocka_unit_test(the_plan_holds_for_every_budget),
        cmocka_unit_test(a_budget_that_is_too_small_names_one_that_works),
        cmocka_unit_test(more_context_takes_the_bytes_it_should),
        cmocka_unit_test(settings_out_of_range_are_refused),
        cmocka_unit_test(progress_counts_all_that_is_read),
    };
    return cmocka_run_group_tests(tests, fl_files_setup_model, fl_files_teardown);
}
