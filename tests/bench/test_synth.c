/* The synthetic models of bench/synth: they load, compute the same whatever the threads, and route
 * as they promise. */
#include <stdlib.h>

#include "bench/support/reuse.h"
#include "bench/support/synth.h"
#include "bench/support/traffic.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/kern.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static const char trace_path[] = "tests/clover_tiny/traces/128e/experts.npy";

static bench_synth tiny(const char *arch)
{
    fl_err err = {0};
    bench_synth s = {0};
    ASSERT_OK(bench_synth_shape(&s.shape, "tiny", arch, &err));
    return s;
}

static bench_reuse measure(int passes, const bench_array *trace)
{
    fl_err err = {0};
    fl_model *model = NULL;
    bench_reuse r;
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    ASSERT_OK(bench_reuse_measure(&r, model, 32, passes, trace, 2, &err));
    fl_model_close(&model);
    return r;
}

static void passes_touch_what_is_promised(void **state)
{
    (void)state;
    fl_err err = {0};
    const bench_synth s = tiny("qwen35moe");
    ASSERT_OK(bench_synth_write(&s, fl_files.gguf, NULL, NULL, &err));
    const bench_reuse r = measure(16, NULL);
    if (r.distinct < 65 || r.distinct > 75 || r.reuse < 0.76 || r.reuse > 0.82)
        fail_msg("%.1f experts, %.1f %% again", r.distinct, 100 * r.reuse);
    assert_true(r.least >= 65 && r.most <= 75);
}

static void rows_go_where_the_trace_went(void **state)
{
    (void)state;
    fl_err err = {0};
    bench_array trace;
    bench_synth s = tiny("qwen35moe");
    ASSERT_OK(bench_trace_load(&trace, trace_path, &err));
    s.trace = &trace;
    s.shape.n_expert = 128;
    ASSERT_OK(bench_synth_write(&s, fl_files.gguf, NULL, NULL, &err));
    const bench_reuse r = measure(7, &trace);
    if (r.followed < 0.99) fail_msg("%.2f %% as in the trace", 100 * r.followed);
    s.shape.n_expert = 64;
    ASSERT_FAILS(bench_synth_check(&s, &err), FL_E_ARG, "the trace names expert");
    bench_array_free(&trace);
}

/* A routing trace of the project's own format gives the same rows as the array it was made of. */
static void both_formats_of_traces_are_one(void **state)
{
    (void)state;
    fl_err err = {0};
    bench_array array, trace;
    char *path = fl_tmp_path(fl_files.dir, "tiny.trace");
    ASSERT_OK(bench_traffic_import("tests/clover_tiny/traces/128e", path, &err));
    ASSERT_OK(bench_trace_load(&array, trace_path, &err));
    ASSERT_OK(bench_trace_load(&trace, path, &err));
    assert_memory_equal(array.dim, trace.dim, sizeof array.dim);
    assert_int_equal(array.bytes, trace.bytes);
    assert_memory_equal(array.data, trace.data, array.bytes);
    bench_array_free(&array);
    bench_array_free(&trace);
    free(path);
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    enum { N = 40 };
    fl_err err = {0};
    bench_synth s = tiny("clover_moe");
    s.shape.n_expert = 32;
    ASSERT_OK(bench_synth_write(&s, fl_files.gguf, NULL, NULL, &err));
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = i * 37 % s.shape.n_vocab;
    float *rows[2], *block[2];
    for (int i = 0; i < 2; i++) {
        fl_engine_params p = fl_engine_defaults();
        p.threads = 1 + 2 * i;
        fl_loaded l = fl_load(fl_files.gguf, &p);
        rows[i] = fl_clean_logits(l.engine, ids, N);
        block[i] = fl_block_logits(l.engine, ids, 32, FL_GDN_BIDIR);
        fl_unload(&l);
    }
    fl_same_bits(rows[0], rows[1], N * (int64_t)s.shape.n_vocab, "1 and 3 threads", "clean");
    fl_same_bits(block[0], block[1], 32 * (int64_t)s.shape.n_vocab, "1 and 3 threads", "block");
    double sum = 0;
    for (int64_t i = 0; i < N * (int64_t)s.shape.n_vocab; i++) sum += rows[0][i] * rows[0][i];
    const double power = sum / (N * (double)s.shape.n_vocab); /* N(0, 2^2) by its output matrix */
    assert_true(power > 2 && power < 8);
    for (int i = 0; i < 2; i++) free(rows[i]), free(block[i]);
}

static void random_blocks_have_the_spread(void **state)
{
    (void)state;
    static const uint32_t types[] = {FL_TYPE_Q4_K, FL_TYPE_Q5_K, FL_TYPE_Q6_K};
    enum { N = 256 * 64 };
    static float v[N];
    static uint8_t blocks[N];
    for (int i = 0; i < 3; i++) {
        uint64_t seed = 5;
        double sum = 0, squares = 0;
        bench_fill_blocks(types[i], blocks, N, 0.02, &seed);
        fl_type_get(types[i])->dequantize(blocks, v, N);
        for (int j = 0; j < N; j++) sum += v[j], squares += (double)v[j] * v[j];
        assert_true(sum / N > -0.002 && sum / N < 0.002);
        assert_true(squares / N > 0.019 * 0.019 && squares / N < 0.021 * 0.021);
    }
    bench_fill_pattern(blocks, 256, 0);
    fl_type_get(FL_TYPE_Q4_K)->dequantize(blocks, v, 256);
    for (int j = 0; j < 256; j++) assert_true(v[j] * (j & 1 ? -1 : 1) > 0.99f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_touch_what_is_promised),
        cmocka_unit_test(rows_go_where_the_trace_went),
        cmocka_unit_test(both_formats_of_traces_are_one),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(random_blocks_have_the_spread),
    };
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
