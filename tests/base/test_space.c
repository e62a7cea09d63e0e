/* Room on a file system, before something long is written. */
#include "runtime/base/space.h"
#include "tests/support/test.h"

static fl_err err;

static void room_is_found(void **state)
{
    (void)state;
    ASSERT_OK(fl_space_check("/tmp/not_there", 1, "x", &err));
}

static void too_little_names_both_sizes(void **state)
{
    (void)state;
    ASSERT_FAILS(fl_space_check("/tmp/not_there", 1ull << 60, "x.gguf", &err), FL_E_IO,
                 "x.gguf: needs 1073741824.00 GiB on disk, /tmp has ");
}

static void a_missing_folder_is_named(void **state)
{
    (void)state;
    ASSERT_FAILS(fl_space_check("/nowhere/at/all", 1, "x", &err), FL_E_IO,
                 "x: cannot look at the folder /nowhere/at: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_found),
        cmocka_unit_test(too_little_names_both_sizes),
        cmocka_unit_test(a_missing_folder_is_named),
    };
    return cmocka_run_group_tests_name("space", tests, NULL, NULL);
}
