/* The command doctor, called as main.c calls it: on this machine and on another one's processors,
 * with a model and without. */
#include <stdlib.h>

#include "runtime/base/json.h"
#include "runtime/model/machine.h"
#include "runtime/tools/doctor.h"
#include "tests/support/command.h"
#include "tests/support/files.h"
#include "tests/support/machine_xml.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"

static fl_err err;

static int setup(void **state)
{
    fl_make m = fl_make_tiny();
    if (fl_files_setup(state) != 0) return 1;
    fl_make_gguf(&m, fl_files.gguf);
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    return 0;
}

static int teardown(void **state)
{
    fl_machine_reset();
    return fl_files_teardown(state);
}

static const char *words(const char *rest)
{
    static char text[512];
    snprintf(text, sizeof text, "doctor %s --threads 1 %s", fl_files.gguf, rest);
    return text;
}

static fl_json *json(const char *line)
{
    fl_json *j = NULL;
    char *text = fl_command_output(fl_tool_doctor, line);
    ASSERT_OK(fl_json_parse(text, strlen(text), "stdout", &j, &err));
    free(text);
    return j;
}

static const char *mend_of(const fl_json *j, const char *code)
{
    const fl_json *w = fl_json_get(j, "warnings");
    for (size_t i = 0; i < fl_json_size(w); i++)
        if (strcmp(fl_json_str(fl_json_get(fl_json_at(w, i), "code"), ""), code) == 0)
            return fl_json_str(fl_json_get(fl_json_at(w, i), "mend"), "");
    return NULL;
}

static int64_t number(const fl_json *j, const char *a, const char *b)
{
    return fl_json_int(fl_json_get(fl_json_get(j, a), b), -1);
}

static void test_two_nodes_with_hybrid_cores(void **state)
{
    (void)state;
    fl_machine_set(fl_machine_two_nodes_xml());
    fl_json *j = json("doctor --json");
    const fl_json *kinds = fl_json_get(fl_json_get(j, "cpu"), "cores_by_kind");
    const fl_json *nodes = fl_json_get(fl_json_get(j, "memory"), "nodes");
    assert_int_equal(number(j, "cpu", "cores"), 12);
    assert_int_equal(fl_json_size(kinds), 2);
    assert_int_equal(fl_json_int(fl_json_at(kinds, 0), 0), 4);
    assert_int_equal(fl_json_int(fl_json_at(kinds, 1), 0), 8);
    assert_int_equal(fl_json_size(nodes), 2);
    for (int i = 0; i < 2; i++) {
        const fl_json *n = fl_json_at(nodes, (size_t)i);
        assert_int_equal(fl_json_int(fl_json_get(n, "node"), -1), i);
        assert_int_equal(fl_json_int(fl_json_get(n, "bytes"), 0), INT64_C(16) << 30);
        assert_int_equal(fl_json_int(fl_json_get(n, "cores"), 0), 6);
    }
    assert_null(fl_json_get(j, "model"));
    fl_json_free(&j);

    char *text = fl_command_output(fl_tool_doctor, "doctor");
    assert_non_null(strstr(text, "12 cores (4 strong, 8 weaker)"));
    assert_non_null(strstr(text, "node 1"));
    assert_non_null(strstr(text, "16.00 GiB"));
    free(text);
}

static void test_a_model_that_fits_and_one_that_does_not(void **state)
{
    (void)state;
    fl_json *j = json(words("--json"));
    const fl_json *model = fl_json_get(j, "model");
    assert_non_null(
        strstr(fl_json_str(fl_json_get(model, "plan"), ""), "experts in device memory"));
    assert_int_equal(fl_json_kind_of(fl_json_get(model, "rates")), FL_JSON_NULL);
    assert_true(number(j, "model", "bytes") > 0);
    assert_non_null(strstr(mend_of(j, "not-calibrated"), fl_files.gguf));
    assert_null(mend_of(j, "plan"));
    fl_json_free(&j);

    char *text = fl_command_output(fl_tool_doctor, words("--vram 100K"));
    assert_non_null(strstr(text, "[plan]"));
    assert_non_null(strstr(text, "--vram")); /* a value that would do */
    free(text);
}

/* Rates that calibrate stored, for this machine and setup. */
static void store_rates(void)
{
    char machine[FL_MACHINE_TEXT], key[FL_MACHINE_SETUP];
    const fl_rates r = {.link_bytes_s = 12340000000, .n_rows = 1, .rows = {1}};
    fl_engine_params p = fl_engine_defaults();
    fl_model *model = NULL;
    fl_engine *e = NULL;
    fl_facts *f = NULL;
    fl_json *entry = fl_json_new_object();
    p.threads = 1;
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    ASSERT_OK(fl_engine_open(&e, model, &p, &err));
    ASSERT_OK(fl_facts_of(&f, model->src, &err));
    fl_machine_describe(machine, NULL, fl_files.gguf);
    fl_machine_setup(key, e);
    fl_json_set(entry, "rates", fl_rates_to_json(&r));
    fl_json *parts = fl_json_new_object(), *pinned = fl_json_new_object();
    fl_json_set_int(pinned, "bytes", 1 << 20);
    fl_json_set_int(pinned, "wanted_bytes", 3 << 20);
    fl_json_set_str(pinned, "end", "Invalid argument");
    fl_json_set(parts, "pinned", pinned);
    ASSERT_OK(fl_machine_store(f, machine, key, parts, entry, &err));
    fl_facts_close(&f);
    fl_engine_close(&e);
    fl_model_close(&model);
}

static void test_what_calibrate_stored_is_shown(void **state)
{
    (void)state;
    store_rates();
    char *text = fl_command_output(fl_tool_doctor, words(""));
    assert_non_null(strstr(text, "link 12.34 GB/s"));
    assert_null(strstr(text, "[not-calibrated]"));
    assert_non_null(strstr(text, "1.0 MiB of the 3.0 MiB"));
    assert_non_null(strstr(text, "[pin] "));
    free(text);
    fl_machine_set(fl_machine_two_nodes_xml()); /* another machine */
    text = fl_command_output(fl_tool_doctor, words(""));
    assert_non_null(strstr(text, "[not-calibrated]"));
    free(text);
}

static void test_a_model_that_cannot_be_read_is_a_failure(void **state)
{
    (void)state;
    ASSERT_FAILS(fl_command_call(fl_tool_doctor, "doctor /no/such.gguf", &err), FL_E_IO,
                 "/no/such.gguf");
}

#define WITH_A_MODEL(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_A_MODEL(test_two_nodes_with_hybrid_cores),
        WITH_A_MODEL(test_a_model_that_fits_and_one_that_does_not),
        WITH_A_MODEL(test_what_calibrate_stored_is_shown),
        WITH_A_MODEL(test_a_model_that_cannot_be_read_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
