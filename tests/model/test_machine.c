/* Measurements of the machine are found again on that machine alone. */
#include "runtime/model/machine.h"

#include <stdlib.h>

#include "tests/support/fake_root.h"
#include "tests/support/files.h"
#include "tests/support/machine_xml.h"
#include "tests/support/test.h"

enum { ID = 0x77 };
static fl_err err;

static int setup(void **state)
{
    fl_files_setup(state);
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    return 0;
}

static fl_facts *facts(void)
{
    fl_facts *f = NULL;
    ASSERT_OK(fl_facts_open(&f, ID, &err));
    return f;
}

static fl_json *entry(uint64_t file_bytes_s)
{
    const fl_rates r = {.file_bytes_s = file_bytes_s, .n_rows = 1, .rows = {1}};
    fl_json *j = fl_json_new_object();
    fl_json_set(j, "rates", fl_rates_to_json(&r));
    return j;
}

static fl_json *parts(const char *keep)
{
    fl_json *j = fl_json_new_object(), *reads = fl_json_new_object();
    fl_json_set_str(reads, "keep", keep);
    fl_json_set(j, "reads", reads);
    return j;
}

static uint64_t stored(const char *machine, const char *key)
{
    fl_rates r;
    fl_facts *f = facts();
    const bool found = fl_machine_rates(f, machine, key, &r);
    fl_facts_close(&f);
    assert_int_equal(found, r.file_bytes_s > 0);
    return r.file_bytes_s;
}

static void store(const char *machine, const char *key, const char *keep, uint64_t rate)
{
    fl_facts *f = facts();
    ASSERT_OK(fl_machine_store(f, machine, key, parts(keep), entry(rate), &err));
    fl_facts_close(&f);
}

static void another_machine_finds_nothing_and_takes_over(void **state)
{
    (void)state;
    assert_int_equal(stored("A", "x"), 0);
    store("A", "x", "direct", 5);
    store("A", "y", "buffered", 6);
    assert_int_equal(stored("A", "x"), 5);
    assert_int_equal(stored("A", "y"), 6);
    assert_int_equal(stored("A", "z"), 0);
    assert_int_equal(stored("A, newer driver", "x"), 0);
    fl_facts *f = facts();
    const fl_json *keep = fl_json_get(fl_machine_part(f, "A", "reads"), "keep");
    assert_string_equal(fl_json_str(keep, ""), "buffered");
    assert_null(fl_machine_part(f, "B", "reads"));
    fl_facts_close(&f);
    store("B", "x", "direct", 7);
    assert_int_equal(stored("B", "x"), 7);
    assert_int_equal(stored("B", "y"), 0);
    assert_int_equal(stored("A", "x"), 0);
}

static void damaged_rates_are_none(void **state)
{
    (void)state;
    fl_json *j = fl_json_new_object(), *rates = fl_json_new_object();
    fl_json_set_str(rates, "file_bytes_s", "fast");
    fl_json_set(j, "rates", rates);
    fl_facts *f = facts();
    ASSERT_OK(fl_machine_store(f, "A", "x", fl_json_new_object(), j, &err));
    fl_facts_close(&f);
    assert_int_equal(stored("A", "x"), 0);
}

/* Each thing that speeds depend on changes the line, and nothing else does. */
static void the_line_names_what_speeds_depend_on(void **state)
{
    (void)state;
    static const struct {
        const char *path, *text, *word;
    } change[] = {
        {"/proc/cpuinfo", "processor\t: 0\nmodel name\t: Strong 9000\n", "Strong 9000, 12 cores"},
        {"/proc/meminfo", "MemTotal: 32700000 kB\n", "31 GiB"},
        {"/proc/sys/kernel/osrelease", "6.12.1\n", "kernel 6.12.1"},
        {"/proc/driver/nvidia/version", "NVRM version: x  580.65.06  y\n", "driver 580.65.06"},
        {"/sys/fs/cgroup/memory.max", "2147483648\n", "2048 MiB for the group"},
        {"/sys/fs/cgroup/cpu.max", "400000 100000\n", "4 processors for the group"},
        {"/proc/self/mountinfo", "20 1 0:9 / / rw - xfs /dev/none rw\n", "xfs on no drive"},
    };
    char before[FL_MACHINE_TEXT], after[FL_MACHINE_TEXT];
    fl_machine_set(fl_machine_two_nodes_xml());
    fl_fake_put("/proc/self/cgroup", "0::/\n");
    fl_fake_put("/sys/fs/cgroup/memory.current", "1000\n");
    fl_machine_describe(before, fl_fake.root, fl_fake.file);
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        fl_fake_put(change[i].path, change[i].text);
        fl_machine_describe(after, fl_fake.root, fl_fake.file);
        assert_string_not_equal(before, after);
        if (!strstr(after, change[i].word)) fail_msg("'%s' is not in: %s", change[i].word, after);
        strcpy(before, after);
    }
    fl_fake_put("/sys/fs/cgroup/memory.current", "900000\n");
    fl_fake_put("/proc/loadavg", "5 5 5\n");
    fl_machine_describe(after, fl_fake.root, fl_fake.file);
    assert_string_equal(before, after);
    fl_machine_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(another_machine_finds_nothing_and_takes_over, setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(damaged_rates_are_none, setup, fl_files_teardown),
        FL_FAKE_TEST(the_line_names_what_speeds_depend_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
