/* The plan against the load, over random settings: device, host and pinned bytes equal to the byte,
 * never above a budget; what a refusal names is taken, and works. */
#include <stdlib.h>

#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/test.h"

static uint64_t seed = 7;
static uint64_t rnd(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

typedef enum mode { MODE_AR, MODE_BLOCK, MODE_SPEC, N_MODES } mode;

/* Context, cache, mode, chunk, threads, pins; not the budgets. */
static fl_engine_params draw(mode m)
{
    static const uint32_t kv[] = {FL_TYPE_F16, FL_TYPE_Q8_0, FL_TYPE_F32};
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = 8 + (int64_t)rnd(1000);
    p.chunk = 1 + (int64_t)rnd(rnd(2) ? 16 : 600);
    p.kv_type = kv[rnd(3)];
    p.threads = 1 + (int)rnd(2);
    p.lanes = (fl_lane_choice)rnd(3);
    p.act_f32 = rnd(4) == 0;
    p.io = rnd(4) ? "pread" : NULL;
    if (m == MODE_SPEC) p.held_rows = 2 + (int)rnd(7);
    if (rnd(4) == 0) p.gpu_layers = (int)rnd(3);
    if (rnd(4) == 0) p.gpu_experts = (int)rnd(5);
    return p;
}

/* Budgets of both tiers from the least that works to more than all. */
static void draw_budgets(fl_engine_params *p)
{
    const fl_plan all = fl_plan_of(fl_files.gguf, p);
    p->vram = all.min_device_cap +
              rnd(all.full_device_cap - all.min_device_cap + all.full_device_cap / 16);
    if (rnd(3)) p->ram = rnd(4) ? all.staging_bytes + rnd(all.expert_bytes * 2) : 0;
}

static void run_a_pass(fl_loaded *l, mode m)
{
    const int32_t ids[] = {1, 2, 3, 4, 5};
    fl_err err = {0};
    ASSERT_OK(fl_forward_clean(l->engine, ids, 5, &err));
    if (m == MODE_BLOCK)
        ASSERT_OK(fl_forward_denoise(l->engine, ids, 2, &l->model->index->clover, &err));
    if (m == MODE_SPEC) ASSERT_OK(fl_forward_held(l->engine, ids, 2, &err));
}

static void check_bytes(const fl_engine *e, const fl_plan *plan)
{
    const fl_budget *device = fl_device_budget(e->dev), *host = fl_store_host_memory(e->store);
    uint64_t bytes, pinned;
    fl_store_pinned(e->store, &bytes, &pinned);
    assert_true(device->used == plan->device_bytes && device->peak == plan->device_bytes);
    assert_true(device->peak <= device->cap);
    assert_true(host->used == plan->host_bytes && host->peak == plan->host_bytes);
    assert_true(bytes == plan->arena_bytes && pinned == plan->arena_bytes);
}

static void the_load_is_the_plan(void **state)
{
    (void)state;
    int with_host = 0, with_slots = 0;
    for (int i = 0; i < FL_SANITIZED_OR(20, 200); i++) {
        const mode m = (mode)(i % N_MODES);
        fl_engine_params p = draw(m);
        draw_budgets(&p);
        const fl_plan plan = fl_plan_of(fl_files.gguf, &p);
        fl_loaded l = fl_load(fl_files.gguf, &p);
        assert_true(plan.device_bytes <= p.vram);
        assert_true(p.ram == FL_RAM_FREE || !plan.n_host || plan.host_bytes <= p.ram);
        check_bytes(l.engine, &plan);
        run_a_pass(&l, m);
        check_bytes(l.engine, &plan);
        with_host += plan.n_host > 0;
        with_slots += plan.n_slots > 0;
        fl_unload(&l);
    }
    assert_true(with_host > 4 && with_slots > 4); /* the settings lead everywhere */
}

/* The number behind a word of a refusal; 0: the word is not there. */
static uint64_t named(const fl_err *err, const char *word)
{
    const char *at = strstr(err->msg, word);
    return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

static fl_status try(const fl_model *m, const fl_engine_params *p, fl_err *err)
{
    fl_engine *e = NULL;
    *err = (fl_err){0};
    const fl_status st = fl_engine_open(&e, m, p, err);
    fl_engine_close(&e);
    return st;
}

static void what_a_refusal_names_works(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_model *m = NULL;
    int of_pins = 0, of_ram = 0;
    ASSERT_OK(fl_model_open(&m, fl_files.gguf, &err));
    for (int i = 0; i < FL_SANITIZED_OR(24, 80); i++) {
        fl_engine_params p = draw((mode)(i % N_MODES));
        const uint64_t least = fl_plan_of(fl_files.gguf, &p).min_device_cap;
        p.vram = least - 1 - rnd(least / 8);
        ASSERT_FAILS(try(m, &p, &err), FL_E_ARG, "--vram ");
        fl_engine_params q = p;
        q.vram = named(&err, "--vram ") << 20;
        /* A number of pins stands behind the semicolon; its option's name before it, too. */
        fl_err pins = {0};
        const char *would = strrchr(err.msg, ';');
        snprintf(pins.msg, sizeof pins.msg, "%s", would ? would : "");
        ASSERT_OK(try(m, &q, &err));
        if (strstr(pins.msg, "; --gpu-")) {
            q = p;
            if (strstr(pins.msg, "--gpu-layers "))
                q.gpu_layers = (int)named(&pins, "--gpu-layers ");
            else
                q.gpu_experts = (int)named(&pins, "--gpu-experts ");
            ASSERT_OK(try(m, &q, &err));
            of_pins++;
        }
        q = p;
        q.vram = least;
        q.ram = 1 + rnd(4096);
        if (try(m, &q, &err) == FL_OK) continue; /* everything is resident */
        q.ram = named(&err, "--ram ") << 20;
        ASSERT_OK(try(m, &q, &err));
        of_ram++;
    }
    assert_true(of_pins > 0 && of_ram > 2);
    fl_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_load_is_the_plan),
        cmocka_unit_test(what_a_refusal_names_works),
    };
    return cmocka_run_group_tests(tests, fl_files_setup_model, fl_files_teardown);
}
