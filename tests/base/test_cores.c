/* The order of processors on machines that are written down here: strong cores first, one processor
 * of each core before any second one, nothing that is not allowed. */
#include "runtime/base/cores.h"

#include <stdlib.h>

#include "tests/support/machine_xml.h"
#include "tests/support/test.h"

typedef struct text {
    char p[256];
    size_t n;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *f, ...)
{
    va_list a;
    va_start(a, f);
    t->n += (size_t)vsnprintf(t->p + t->n, sizeof t->p - t->n, f, a);
    va_end(a);
    assert_true(t->n < sizeof t->p);
}

/* On the small machine (machine_xml.h). `want`: "cpu/kind cpu/kind ...". */
static void expect(unsigned mask, bool kinds, const char *want, int n_cores, int n_kinds)
{
    cpu_set_t set;
    text got = {.n = 0};
    fl_cores c;
    CPU_ZERO(&set);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) CPU_SET(i, &set);
    char *xml = fl_machine_small_xml(kinds);
    fl_cores_list(&c, mask ? &set : NULL, xml);
    free(xml);
    for (int i = 0; i < c.n_cpus; i++)
        add(&got, "%s%d/%d", i ? " " : "", c.cpu[i].id, c.cpu[i].kind);
    assert_string_equal(got.p, want);
    assert_int_equal(c.n_cores, n_cores);
    assert_int_equal(c.n_kinds, n_kinds);
}

static void strong_cores_come_first_and_threads_of_a_core_apart(void **state)
{
    (void)state;
    expect(0, true, "2/0 4/0 0/1 1/1 3/0 5/0", 4, 2);
    expect(0, false, "0/0 1/0 2/0 4/0 3/0 5/0", 4, 1);
}

static void only_what_is_allowed_is_listed(void **state)
{
    (void)state;
    expect(0x0f, true, "2/0 0/1 1/1 3/0", 3, 2);
    expect(0x2a, true, "3/0 5/0 1/1", 3, 2);
    expect(0x38, true, "3/0 4/0 5/0", 2, 1);
    expect(0x02, false, "1/0", 1, 1);
}

static void a_machine_of_one_kind_has_no_second(void **state)
{
    (void)state;
    expect(0x03, true, "0/1 1/1", 2, 1);
}

static void what_nobody_knows_is_counted(void **state)
{
    (void)state;
    cpu_set_t set;
    fl_cores c;
    CPU_ZERO(&set);
    for (int i = 3; i < 8; i++) CPU_SET(i, &set);
    fl_cores_list(&c, &set, "this is no machine");
    assert_int_equal(c.n_cores, 5);
    assert_int_equal(c.n_cpus, 0);
    assert_int_equal(c.n_kinds, 1);
    fl_cores_list(&c, NULL, "this is no machine");
    assert_true(c.n_cores >= 1);
}

static void this_machine_lists_each_allowed_processor_once(void **state)
{
    (void)state;
    cpu_set_t set, listed;
    fl_cores c;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    fl_cores_list(&c, &set, NULL);
    assert_true(c.n_cores >= 1 && c.n_cores <= CPU_COUNT(&set));
    CPU_ZERO(&listed);
    for (int i = 0; i < c.n_cpus; i++) CPU_SET(c.cpu[i].id, &listed);
    assert_int_equal(CPU_COUNT(&listed), c.n_cpus);
    if (c.n_cpus > 0) assert_true(CPU_EQUAL(&listed, &set));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strong_cores_come_first_and_threads_of_a_core_apart),
        cmocka_unit_test(only_what_is_allowed_is_listed),
        cmocka_unit_test(a_machine_of_one_kind_has_no_second),
        cmocka_unit_test(what_nobody_knows_is_counted),
        cmocka_unit_test(this_machine_lists_each_allowed_processor_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
