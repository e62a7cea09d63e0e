#include "tests/support/test.h"

static void first_cause_is_kept(void **state)
{
    (void)state;
    fl_err err = {0};
    assert_int_equal(FL_FAIL(&err, FL_E_IO, 5, "disk %d", 1), FL_E_IO);
    assert_int_equal(FL_FAIL(&err, FL_E_NOMEM, 0, "later"), FL_E_NOMEM);
    assert_int_equal(err.code, FL_E_IO);
    assert_int_equal(err.sys, 5);
    assert_string_equal(err.msg, "disk 1");
    assert_int_equal(FL_FAIL(NULL, FL_E_ARG, 0, "no place to keep it"), FL_E_ARG);
}

static void message_is_one_printable_line(void **state)
{
    (void)state;
    fl_err err = {0};
    (void)FL_FAIL(&err, FL_E_FORMAT, 0, "name '%s'", "a\nb\x1b[2J");
    assert_string_equal(err.msg, "name 'a?b?[2J'");
    fl_err lng = {0};
    (void)FL_FAIL(&lng, FL_E_FORMAT, 0, "%01000d", 1);
    assert_int_equal(strlen(lng.msg), sizeof lng.msg - 1);
}

static void every_status_has_a_name(void **state)
{
    (void)state;
    for (int s = FL_E_NAN; s <= FL_OK; s++)
        assert_string_not_equal(fl_status_name((fl_status)s), "unknown");
    assert_string_equal(fl_status_name((fl_status)-99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_cause_is_kept),
        cmocka_unit_test(message_is_one_printable_line),
        cmocka_unit_test(every_status_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
