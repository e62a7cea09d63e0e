/* The same request gives the same tokens wherever the experts lie and are computed, whatever the
 * threads, the chunk size of prefill, the I/O backend, and whether it is the first request or a
 * later one; with each type of KV cache. */
#include <stdlib.h>

#include "runtime/decode/generate.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_PROMPT = 80, N_OUT = 16, N_KINDS = 6 };

static uint32_t kv_type;

static int setup_f16(void **state)
{
    kv_type = FL_TYPE_F16;
    return fl_files_setup_model(state);
}

static int setup_q8_0(void **state)
{
    kv_type = FL_TYPE_Q8_0;
    return fl_files_setup_model(state);
}

/* Kind 0 AR greedy, 1 AR sampled; 2, 3 the same by blocks; 4, 5 by speculation. */
static fl_gen_config config_of(const fl_model *model, int kind)
{
    fl_gen_config c;
    fl_gen_config_init(&c, model);
    c.mode = kind < 2 ? FL_GEN_AR : kind < 4 ? FL_GEN_BLOCK : FL_GEN_SPEC;
    c.sampler = (fl_sampler_config){.top_p = 1.0};
    if (kind % 2) c.sampler = (fl_sampler_config){.temp = 0.8, .top_p = 0.9, .seed = 11};
    c.clover.threshold = 0.05f;
    c.max_tokens = N_OUT;
    c.ignore_eos = true;
    return c;
}

/* All kinds on a fresh engine, in rising or falling order. */
static void run_all(const fl_engine_params *p, bool backwards, int32_t out[N_KINDS][N_OUT],
                    fl_store_stats *stats)
{
    fl_err err = {0};
    fl_generator *g = NULL;
    int32_t prompt[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = 'a' + (i * 7 + i / 9) % 26;
    fl_loaded l = fl_load(fl_files.gguf, p);
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    for (int i = 0; i < N_KINDS; i++) {
        const int kind = backwards ? N_KINDS - 1 - i : i;
        const fl_gen_config c = config_of(l.model, kind);
        fl_gen_result r;
        ASSERT_OK(fl_generate(g, &c, prompt, N_PROMPT - (kind / 2 == 1 ? 3 : 0), &r, &err));
        assert_int_equal(r.n_generated, N_OUT);
        memcpy(out[kind], r.ids, sizeof(out[kind]));
    }
    const fl_budget *b = fl_device_budget(l.engine->dev);
    assert_true(b->peak == l.engine->plan.device_bytes);
    if (p->vram) assert_true(b->peak <= p->vram);
    *stats = fl_store_get_stats(l.engine->store);
    fl_generator_destroy(&g);
    fl_unload(&l);
}

static fl_engine_params params_of(int threads, int64_t chunk)
{
    fl_engine_params p = fl_engine_defaults();
    p.kv_type = kv_type;
    p.n_ctx = 256;
    p.threads = threads;
    p.chunk = chunk;
    p.held_rows = 32;
    return p;
}

static void text_does_not_depend_on_budget_threads_or_chunks(void **state)
{
    (void)state;
    static const struct {
        int percent, threads;
        int64_t chunk;
        int host; /* percent of the rest that the host tier keeps */
        fl_lane_choice lanes;
        fl_policy_kind policy;
        bool no_prefetch;
        uint64_t link_bytes_s;
    } cases[] = {
        {80, 1, 64, 0, FL_LANES_AUTO, FL_POLICY_BLOCK, false, 0},
        {25, 2, 16, 0, FL_LANES_AUTO, FL_POLICY_LRU, false, 0},
        {10, 1, 512, 100, FL_LANES_CPU, FL_POLICY_BLOCK, false, 0},
        {0, 2, 64, 50, FL_LANES_AUTO, FL_POLICY_LRU, false, 0},
        {75, 2, 32, 100, FL_LANES_DEVICE, FL_POLICY_BLOCK, false, 1 << 30},
        {50, 1, 4096, 60, FL_LANES_DEVICE, FL_POLICY_LFU, false, 0},
        {0, 2, 32, 100, FL_LANES_DEVICE, FL_POLICY_LRU, true, 0},
    };
    int32_t want[N_KINDS][N_OUT], got[N_KINDS][N_OUT];
    fl_store_stats stats;
    fl_engine_params p = params_of(1, 512);
    run_all(&p, false, want, &stats);
    assert_true(stats.missed + stats.copied + stats.on_cpu == 0);
    assert_memory_not_equal(want[0], want[1], sizeof(want[0]));
    assert_memory_not_equal(want[0], want[2], sizeof(want[0]));
    assert_memory_equal(want[0], want[4], sizeof(want[0]));
    assert_memory_equal(want[1], want[5], sizeof(want[1]));
    const size_t n_cases = kv_type == FL_TYPE_F16 ? sizeof(cases) / sizeof(*cases) : 2;
    for (size_t i = 0; i < n_cases; i++) {
        p = params_of(cases[i].threads, cases[i].chunk);
        p.vram = fl_vram_for(fl_files.gguf, &p, cases[i].percent);
        p.ram = fl_ram_for(fl_files.gguf, &p, cases[i].host);
        p.lanes = cases[i].lanes;
        p.policy = cases[i].policy;
        p.no_prefetch = cases[i].no_prefetch;
        p.link_bytes_s = cases[i].link_bytes_s;
        p.io = i % 2 ? "pread" : NULL;
        run_all(&p, i % 2, got, &stats);
        assert_true((stats.missed > 0) == (cases[i].host < 100));
        if (p.no_prefetch || (cases[i].host == 100 && p.lanes != FL_LANES_DEVICE))
            assert_true(stats.prefetched == 0);
        assert_true((stats.on_cpu > 0) == (cases[i].host > 0 && p.lanes != FL_LANES_DEVICE));
        assert_true((stats.copied > 0) == (cases[i].host > 0 && p.lanes == FL_LANES_DEVICE));
        for (int k = 0; k < N_KINDS; k++)
            if (memcmp(want[k], got[k], sizeof(want[k])) != 0)
                fail_msg("case %zu, kind %d: the tokens differ", i, k);
    }
}

static void text_does_not_depend_on_the_cpu_tier(void **state)
{
    (void)state;
    int32_t want[N_KINDS][N_OUT], got[N_KINDS][N_OUT];
    fl_store_stats stats;
    fl_engine_params p = params_of(2, 512);
    run_all(&p, false, want, &stats);
    p.cpu_tier = "reference";
    run_all(&p, false, got, &stats);
    assert_memory_equal(want, got, sizeof(want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_does_not_depend_on_budget_threads_or_chunks),
        cmocka_unit_test(text_does_not_depend_on_the_cpu_tier),
    };
    return cmocka_run_group_tests(tests, setup_f16, fl_files_teardown) +
           cmocka_run_group_tests_name("q8_0", tests, setup_q8_0, fl_files_teardown);
}
