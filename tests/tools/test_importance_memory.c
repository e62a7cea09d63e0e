/* What fourleaf importance takes of memory does not grow with the model: layers and experts come
 * and go. FL_TEST_LONG=1: a model of 190 MB instead of 9. */
#include <stdlib.h>

#include "runtime/model/model.h"
#include "runtime/tools/importance_layer.h"
#include "runtime/tools/importance_run.h"
#include "runtime/tools/importance_text.h"
#include "tests/support/files.h"
#include "tests/support/heap.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { TEXT = 2000, SLACK = 12 << 20 /* buffers of files, the tokenizer, tables */ };

static fl_make model_of(int n_layer, int n_expert)
{
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.type = FL_TYPE_BF16;
    m.n_layer = n_layer;
    m.n_expert = n_expert;
    m.d_model = 256;
    m.d_ff = 128;
    return m;
}

static void memory_is_that_of_one_layer(void **state)
{
    (void)state;
    const bool longer = getenv("FL_TEST_LONG") != NULL;
    const fl_make m = model_of(longer ? 12 : 4, longer ? 80 : 10);
    fl_err err = {0};
    fl_model *model = NULL;
    fl_importance_text t;
    fl_importance_result r;
    char text[TEXT];
    char *path = fl_tmp_path(fl_files.dir, "text.txt");
    char *out = fl_tmp_path(fl_files.dir, "out.gguf");
    const char *const paths[] = {path};
    for (int i = 0; i < TEXT; i++) text[i] = "the ant in a tin. "[(i + i / 41) % 18];
    fl_tmp_write(path, text, TEXT);
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    const int64_t size = (int64_t)fl_source_file_bytes(model->src, 0);
    const fl_clover sw = model->index->clover;
    ASSERT_OK(fl_importance_text_open(&t, model, &sw, paths, 1, 256, 0, &err));
    const int64_t planned =
        (int64_t)(fl_sweep_bytes(model, &t.sweep, 1) + fl_layer_moments_bytes(model->index, 1));
    fl_importance_text_close(&t);
    const fl_importance_job job = {.model = model,
                                   .sw = &sw,
                                   .paths = paths,
                                   .n_paths = 1,
                                   .ctx = 256,
                                   .out = out,
                                   .sweep = {.threads = 1, .kv_type = FL_TYPE_F32},
                                   .save_seconds = 1e9};
    const int64_t before = fl_heap_now();
    fl_heap_mark();
    ASSERT_OK(fl_importance_run(&job, &r, &err));
    const int64_t took = fl_heap_peak() - before;
    if (took > planned + SLACK || (longer && took > size / 3))
        fail_msg("%lld bytes were taken, %lld planned, for a model of %lld", (long long)took,
                 (long long)planned, (long long)size);
    assert_true((int64_t)r.bytes_read <= size); /* every weight once at most */
    fl_model_close(&model);
    free(path);
    free(out);
}

int main(void)
{
    fl_heap_watch();
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_that_of_one_layer)};
    return cmocka_run_group_tests(tests, fl_files_setup, fl_files_teardown);
}
