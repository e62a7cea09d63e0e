/* Memory as planned and as it is, of a loaded model. */
#include <stdlib.h>

#include "runtime/tools/memory_table.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/test.h"

static void planned_is_in_use(void **state)
{
    (void)state;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.vram = fl_vram_for(fl_files.gguf, &p, 40);
    p.ram = fl_ram_for(fl_files.gguf, &p, 50);
    fl_loaded l = fl_load(fl_files.gguf, &p);
    const fl_memory_use m = fl_memory_measure(l.engine, 1000);
    assert_true(m.device.used > 0 && m.device.planned == m.device.used);
    assert_true(m.host.used > 0 && m.host.planned == m.host.used);
    assert_true(m.process.planned == m.device.planned + m.host.planned + 1000);
    assert_in_range(m.process.used, m.device.used / 2, UINT64_MAX);
    fl_unload(&l);
}

static void lines(void **state)
{
    (void)state;
    const fl_memory_use m = {{3 << 19, 3 << 19}, {0, 1 << 20}, {5 << 20, 3 << 20}};
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    fl_memory_print(f, &m);
    fclose(f);
    assert_string_equal(text, "memory            planned         in use    unaccounted\n"
                              "  device          1.5 MiB        1.5 MiB       +0.0 MiB\n"
                              "  host            0.0 MiB        1.0 MiB       +1.0 MiB\n"
                              "  process         5.0 MiB        3.0 MiB       -2.0 MiB\n");
    free(text);
    fl_json *j = fl_memory_json(&m);
    assert_int_equal(fl_json_int(fl_json_get(fl_json_get(j, "host"), "used"), 0), 1 << 20);
    assert_int_equal(fl_json_int(fl_json_get(fl_json_get(j, "process"), "planned"), 0), 5 << 20);
    fl_json_free(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(planned_is_in_use),
                                       cmocka_unit_test(lines)};
    return cmocka_run_group_tests(tests, fl_files_setup_model, fl_files_teardown);
}
