/* calibrate measures and stores; run goes by what is stored and stores nothing. */
#include <stdlib.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/decode/rates.h"
#include "runtime/model/identity.h"
#include "runtime/model/machine.h"
#include "runtime/tools/calibrate.h"
#include "runtime/tools/plan.h"
#include "runtime/tools/run.h"
#include "tests/support/command.h"
#include "tests/support/files.h"
#include "tests/support/machine_xml.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

static int setup(void **state)
{
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.n_layer = m.interval = 2;
    if (fl_files_setup(state) != 0) return 1;
    fl_make_gguf(&m, fl_files.gguf);
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    return 0;
}

static const char *words(const char *command, const char *rest)
{
    static char text[512];
    snprintf(text, sizeof text, "%s %s --threads 1 %s", command, fl_files.gguf, rest);
    return text;
}

static fl_json *json(fl_command command, const char *line)
{
    fl_json *j = NULL;
    char *text = fl_command_output(command, line);
    ASSERT_OK(fl_json_parse(text, strlen(text), "stdout", &j, &err));
    free(text);
    return j;
}

static fl_json *run(const char *rest)
{
    char all[256];
    snprintf(all, sizeof all, "-p hello --max-tokens 3 --ignore-eos --json %s", rest);
    return json(fl_tool_run, words("run", all));
}

static const char *str(const fl_json *j, const char *key)
{
    return fl_json_str(fl_json_get(j, key), "");
}

/* The facts on the model; the caller closes them. */
static fl_facts *facts(void)
{
    fl_source *src = NULL;
    fl_facts *f = NULL;
    uint64_t id = 0;
    ASSERT_OK(fl_source_open(&src, fl_files.gguf, &err));
    ASSERT_OK(fl_model_identity(src, &id, &err));
    ASSERT_OK(fl_facts_open(&f, id, &err));
    fl_source_close(&src);
    return f;
}

static void set_earned(fl_facts *f)
{
    fl_json *probe = fl_json_new_object();
    fl_json_set_bool(probe, "earned", true);
    ASSERT_OK(fl_facts_put(f, "probe", probe, &err));
}

static void check_modes(const fl_json *rates, bool block)
{
    static const char *const modes[] = {"ar", "block", "spec"};
    for (int i = 0; i < 3; i++) {
        const bool want = i != 1 || block;
        const fl_json *m = fl_json_get(fl_json_get(rates, "modes"), modes[i]);
        const fl_json *per_s = fl_json_get(fl_json_get(rates, "tokens_per_s"), modes[i]);
        assert_int_equal(fl_json_int(fl_json_get(m, "tokens"), 0) > 0, want);
        assert_int_equal(fl_json_int(fl_json_get(m, "passes"), 0) > 0, want);
        assert_int_equal(fl_json_num(per_s, 0) > 0, want);
    }
}

static void check_passes(const fl_json *passes)
{
    static const char *const kinds[] = {"step", "block", "fused", "held",   "held",
                                        "held", "held",  "held",  "prefill"};
    static const int rows[] = {1, 32, 32, 2, 4, 8, 16, 32, 300};
    assert_int_equal(fl_json_size(passes), sizeof rows / sizeof *rows);
    for (size_t i = 0; i < fl_json_size(passes); i++) {
        const fl_json *p = fl_json_at(passes, i);
        assert_string_equal(str(p, "kind"), kinds[i]);
        assert_int_equal(fl_json_int(fl_json_get(p, "rows"), 0), rows[i]);
        assert_true(fl_json_num(fl_json_get(p, "seconds"), 0) > 0);
    }
}

/* How fast this machine is nobody knows: all is measured, in order, and within the plan's terms. */
static void check_rates(const fl_rates *r, int most)
{
    assert_true(r->link_bytes_s > 0 && r->link_pageable_bytes_s > 0 && r->file_bytes_s > 0);
    assert_true(r->device_bytes_s > 0 && r->host_bytes_s > 0);
    assert_int_equal(r->n_rows, 8);
    for (int i = 0; i < 7; i++) assert_int_equal(r->rows[i], 1 << i);
    assert_int_equal(r->rows[7], most);
    for (int i = 0; i < 8; i++) assert_true(r->cpu_expert_ns[i] > 0 && r->dense_pass_ns[i] > 0);
}

static void check_parts(const fl_json *m)
{
    const fl_json *reads = fl_json_get(m, "reads"), *pinned = fl_json_get(m, "pinned");
    const fl_json *measured = fl_json_get(m, "measured");
    assert_int_equal(fl_json_size(fl_json_get(reads, "samples")), 7);
    assert_true(strcmp(str(reads, "keep"), "direct") == 0 ||
                strcmp(str(reads, "keep"), "buffered") == 0);
    assert_true(fl_json_int(fl_json_get(pinned, "wanted_bytes"), 0) > 0);
    assert_true(fl_json_int(fl_json_get(pinned, "bytes"), -1) >= 0);
    assert_int_equal(fl_json_size(fl_json_get(measured, "link")), 5);
    assert_int_equal(fl_json_size(fl_json_get(measured, "threads")), 2); /* rows: 1 and 32 */
}

static fl_rates stored_rates(const char *machine, const char *key, bool there)
{
    fl_rates r;
    fl_facts *f = facts();
    assert_int_equal(fl_machine_rates(f, machine, key, &r), there);
    fl_facts_close(&f);
    return r;
}

/* Measured on two nodes with cores of two kinds; another machine finds nothing. */
static void check_machine(const fl_json *m)
{
    char machine[FL_MACHINE_TEXT], other[FL_MACHINE_TEXT];
    fl_machine_describe(machine, NULL, fl_files.gguf);
    assert_non_null(strstr(machine, "12 cores, 2 nodes"));
    assert_string_equal(str(m, "machine"), machine);
    assert_non_null(strstr(str(m, "setup"), "1 threads, act law"));
    check_parts(m);
    const fl_rates rates = stored_rates(machine, str(m, "setup"), true);
    check_rates(&rates, 300);

    fl_machine_set(fl_machine_small_xml(true));
    fl_machine_describe(other, NULL, fl_files.gguf);
    assert_non_null(strstr(other, "4 cores, 1 nodes"));
    stored_rates(other, str(m, "setup"), false);
    fl_machine_reset();
}

/* Stored for one setup: run finds the rates there, does not elsewhere, and writes none. */
static void test_run_goes_by_what_calibrate_stores(void **state)
{
    (void)state;
    char *before = NULL, *after = NULL;
    fl_json *j = run("");
    assert_string_equal(str(j, "mode"), "spec");
    assert_null(strstr(str(j, "mode_reason"), "stored rates"));
    fl_json_free(&j);

    fl_machine_set(fl_machine_two_nodes_xml());
    j = json(fl_tool_calibrate, words("calibrate", "--json --ctx 300"));
    check_machine(fl_json_get(j, "machine"));
    assert_non_null(strstr(str(j, "setup"), "1 threads, kv f16"));
    assert_int_equal(fl_json_int(fl_json_get(fl_json_get(j, "rates"), "requests"), 0), 3);
    check_modes(fl_json_get(j, "rates"), false); /* nothing says that block mode is earned */
    check_passes(fl_json_get(fl_json_get(j, "rates"), "passes"));
    char *path = strdup(str(j, "path")), *mode = strdup(str(j, "auto"));
    fl_json_free(&j);

    ASSERT_OK(fl_file_load(path, 1 << 20, &before, NULL, &err));
    j = run("");
    assert_string_equal(str(j, "mode"), mode);
    assert_non_null(strstr(str(j, "mode_reason"), "nothing says"));
    assert_non_null(strstr(str(j, "mode_reason"), "stored rates: spec"));
    fl_json_free(&j);
    j = json(fl_tool_plan, words("plan", "--json"));
    assert_string_equal(str(j, "mode"), mode);
    fl_json_free(&j);
    j = run("--kv f32");
    assert_null(strstr(str(j, "mode_reason"), "stored rates"));
    fl_json_free(&j);
    ASSERT_OK(fl_file_load(path, 1 << 20, &after, NULL, &err));
    assert_string_equal(before, after);
    free(before);
    free(after);
    free(path);
    free(mode);
}

static void test_block_mode_is_measured_when_it_is_earned(void **state)
{
    (void)state;
    fl_facts *f = facts();
    set_earned(f);
    fl_facts_close(&f);
    fl_json *j = json(fl_tool_calibrate, words("calibrate", "--json --ctx 256"));
    check_modes(fl_json_get(j, "rates"), true);
    fl_json_free(&j);
}

/* Rates written by hand: with the probe's word auto takes block, and makes no room for drafts. */
static void test_block_mode_when_it_is_earned_and_faster(void **state)
{
    (void)state;
    char key[FL_RATES_KEY];
    fl_engine_params p = fl_engine_defaults();
    fl_model *model = NULL;
    fl_engine *e = NULL;
    p.threads = 1;
    ASSERT_OK(fl_model_open(&model, fl_files.gguf, &err));
    ASSERT_OK(fl_engine_open(&e, model, &p, &err));
    fl_rates_key(key, e);
    fl_engine_close(&e);
    fl_model_close(&model);
    fl_json *entry = fl_json_new_object(), *per_s = fl_json_new_object();
    fl_json_set_num(per_s, "ar", 10);
    fl_json_set_num(per_s, "spec", 20);
    fl_json_set_num(per_s, "block", 30);
    fl_json_set(entry, "tokens_per_s", per_s);
    fl_facts *f = facts();
    ASSERT_OK(fl_rates_store(f, key, entry, &err));

    fl_json *j = run("");
    assert_string_equal(str(j, "mode"), "spec");
    const int64_t with_drafts = fl_json_int(fl_json_get(j, "device_used"), 0);
    fl_json_free(&j);
    set_earned(f);
    j = run("");
    assert_string_equal(str(j, "mode"), "block");
    assert_true(fl_json_int(fl_json_get(j, "device_used"), 0) < with_drafts);
    fl_json_free(&j);
    fl_facts_close(&f);
}

static void test_a_damaged_store_is_no_failure(void **state)
{
    (void)state;
    fl_facts *f = facts();
    set_earned(f);
    fl_tmp_write(fl_facts_path(f), "{\"schema\"", 9);
    fl_facts_close(&f);
    fl_json *j = run("");
    assert_string_equal(str(j, "mode"), "spec");
    fl_json_free(&j);
}

static void keep_reads(const char *keep)
{
    char machine[FL_MACHINE_TEXT];
    fl_json *parts = fl_json_new_object(), *reads = fl_json_new_object();
    fl_facts *f = facts();
    fl_machine_describe(machine, NULL, fl_files.gguf);
    fl_json_set_str(reads, "keep", keep);
    fl_json_set(parts, "reads", reads);
    ASSERT_OK(fl_machine_store(f, machine, "setup", parts, fl_json_new_object(), &err));
    fl_facts_close(&f);
}

static void test_reads_go_the_way_that_was_faster(void **state)
{
    (void)state;
    static const struct {
        const char *keep, *option, *io;
    } want[] = {{"buffered", "", "buffered"}, {"buffered", "--io pread", "pread"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        keep_reads(want[i].keep);
        fl_json *j = run(want[i].option);
        assert_string_equal(str(j, "io"), want[i].io);
        fl_json_free(&j);
    }
    keep_reads("direct");
    fl_json *j = run("");
    assert_string_not_equal(str(j, "io"), "buffered");
    fl_json_free(&j);
}

/* Without masks: no block passes; with an MTP block its steps are timed too. */
static void test_base_model(void **state)
{
    (void)state;
    static const char *const kinds[] = {"step", "held", "held",  "held",
                                        "held", "held", "draft", "prefill"};
    for (int mtp = 0; mtp < 2; mtp++) {
        fl_make m = fl_make_tiny();
        m.mtp = mtp;
        fl_make_gguf(&m, fl_files.gguf);
        fl_json *j = json(fl_tool_calibrate, words("calibrate", "--json --ctx 256"));
        const fl_json *passes = fl_json_get(fl_json_get(j, "rates"), "passes");
        check_modes(fl_json_get(j, "rates"), false);
        assert_int_equal(fl_json_size(passes), 7 + mtp);
        for (size_t i = 0; i < fl_json_size(passes); i++)
            assert_string_equal(str(fl_json_at(passes, i), "kind"), kinds[i + (!mtp && i == 6)]);
        fl_json_free(&j);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    ASSERT_FAILS(fl_command_call(fl_tool_calibrate, words("calibrate", "--ctx 255"), &err),
                 FL_E_ARG, "256 tokens");
    char *in_the_way = fl_tmp_path(fl_files.dir, "file");
    fl_tmp_write(in_the_way, "x", 1);
    setenv("XDG_CACHE_HOME", in_the_way, 1);
    ASSERT_FAILS(fl_command_call(fl_tool_calibrate, words("calibrate", ""), &err), FL_E_IO,
                 in_the_way);
    free(in_the_way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_run_goes_by_what_calibrate_stores, setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_block_mode_is_measured_when_it_is_earned, setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_block_mode_when_it_is_earned_and_faster, setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_a_damaged_store_is_no_failure, setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_reads_go_the_way_that_was_faster, setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_base_model, setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, fl_files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
