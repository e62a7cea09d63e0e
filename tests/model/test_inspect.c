#include "runtime/tools/inspect.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* Runs the tool with standard output in a file; *text is what it printed. */
static fl_status run(const char *path, bool json, bool all, char **text, fl_err *err)
{
    fl_err ignored = {0};
    const char *args[] = {path};
    fl_options o = {.command = "inspect", .args = args, .n_args = path != NULL};
    o.json = json;
    o.all = all;
    char *out = fl_tmp_path(fl_files.dir, "out");
    fflush(stdout);
    const int saved = dup(1), fd = open(out, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && fd >= 0 && dup2(fd, 1) == 1);
    const fl_status st = fl_tool_inspect(&o, err);
    fflush(stdout);
    assert_int_equal(dup2(saved, 1), 1);
    close(fd);
    close(saved);
    uint64_t n;
    assert_int_equal(fl_file_load(out, 1 << 24, text, &n, &ignored), FL_OK);
    free(out);
    return st;
}

static void has(const char *text, const char *words)
{
    if (!strstr(text, words)) fail_msg("'%s' is not in:\n%s", words, text);
}

static void a_model_is_described(void **state)
{
    (void)state;
    fl_err err;
    char *text;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.no_shared_count = m.norms_zero_centred = true;
    m.mtp = true;
    m.type = FL_TYPE_F16;
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(run(fl_files.gguf, false, true, &text, &err));
    has(text, "GGUF version 3, 1 file,");
    has(text, "architecture      clover_moe");
    has(text, "name              made for a test");
    has(text, "4: 3 Gated DeltaNet, 1 attention; width 64");
    has(text, "4 per layer, 2 used; width 32; one shared expert of 32");
    has(text, "context           1024 tokens");
    has(text, "blocks of 32, mask token 273, threshold 0.95, Gated DeltaNet in a block: bidir");
    has(text, "MTP blocks        1");
    has(text, "  experts              192.0 KiB   32.8 %");
    has(text, "expert_shared_count is missing");
    has(text, "zero-centred");
    has(text, "missing: chat template");
    has(text, "  blk.3.attn_q.weight f16 64x128 0 ");
    free(text);
}

static const fl_json *at(const fl_json *j, const char *a, const char *b)
{
    const fl_json *v = fl_json_get(j, a);
    if (b) v = fl_json_get(v, b);
    if (!v) fail_msg("%s.%s is missing", a, b ? b : "");
    return v;
}

static void json_has_the_same_in_exact_numbers(void **state)
{
    (void)state;
    fl_err err;
    char *text;
    fl_make m = fl_make_tiny();
    m.type = FL_TYPE_F16;
    fl_make_gguf(&m, fl_files.gguf);
    fl_make_safetensors(&m, fl_files.folder);
    for (int hf = 0; hf < 2; hf++) {
        fl_json *j;
        ASSERT_OK(run(hf ? fl_files.folder : fl_files.gguf, true, true, &text, &err));
        ASSERT_OK(fl_json_parse(text, strlen(text), "out", &j, &err));
        assert_true(fl_json_bool(at(j, "ok", NULL), false));
        assert_string_equal(fl_json_str(at(j, "container", NULL), ""), hf ? "safetensors" : "gguf");
        assert_string_equal(fl_json_str(at(j, "architecture", NULL), ""), "qwen35moe");
        assert_string_equal(fl_json_str(at(j, "architecture_stored", NULL), ""),
                            hf ? "qwen3_5_moe" : "qwen35moe");
        assert_int_equal(fl_json_int(at(j, "settings", "experts"), 0), 4);
        assert_int_equal(fl_json_int(at(j, "components", "experts"), 0), 4 * 4 * 3 * 64 * 32 * 2);
        assert_int_equal(fl_json_int(at(j, "components", "other"), 1), 0);
        assert_int_equal(fl_json_bool(at(j, "settings", "value_heads_grouped"), !hf), hf);
        const fl_json *types = at(j, "types", NULL);
        int64_t sum = 0, tensors = 0;
        for (size_t i = 0; i < fl_json_size(types); i++) {
            sum += fl_json_int(fl_json_get(fl_json_at(types, i), "bytes"), 0);
            tensors += fl_json_int(fl_json_get(fl_json_at(types, i), "tensors"), 0);
        }
        assert_int_equal(sum, fl_json_int(at(j, "tensor_bytes", NULL), 0));
        assert_int_equal(tensors, fl_json_int(at(j, "tensors", NULL), 0));
        assert_int_equal(fl_json_size(at(j, "tensor_list", NULL)), tensors);
        fl_json_free(&j);
        free(text);
    }
}

static void what_does_not_run_is_described_too(void **state)
{
    (void)state;
    fl_err err = {0};
    char *text;
    fl_json *j;
    fl_make m = fl_make_tiny();
    m.arch = "llama";
    fl_make_gguf(&m, fl_files.gguf);
    assert_int_equal(run(fl_files.gguf, false, false, &text, &err), FL_E_UNSUPPORTED);
    has(text, "architecture      llama");
    has(text, "types\n");
    has(text, "  f32 ");
    has(text, "does not run: ");
    has(err.msg, "architecture 'llama' does not run here");
    free(text);
    err = (fl_err){0};
    assert_int_equal(run(fl_files.gguf, true, false, &text, &err), FL_E_UNSUPPORTED);
    ASSERT_OK(fl_json_parse(text, strlen(text), "out", &j, &err));
    assert_false(fl_json_bool(at(j, "ok", NULL), true));
    has(fl_json_str(at(j, "error", NULL), ""), "architecture 'llama'");
    assert_int_equal(fl_json_size(at(j, "types", NULL)), 1);
    fl_json_free(&j);
    free(text);
    ASSERT_FAILS(run(fl_files.dir, true, false, &text, &err), FL_E_ARG,
                 "is a folder with GGUF files");
    assert_string_equal(text, "");
    free(text);
    ASSERT_FAILS(run(NULL, true, false, &text, &err), FL_E_ARG, "which model");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_model_is_described, fl_files_setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(json_has_the_same_in_exact_numbers, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(what_does_not_run_is_described_too, fl_files_setup,
                                        fl_files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
