#include <math.h>
#include <stdlib.h>

#include "runtime/base/json.h"
#include "tests/support/test.h"

static void values_are_read_by_kind(void **state)
{
    (void)state;
    fl_err err;
    fl_json *j;
    const char *t = "{\"b\":[1,2.5,true,null,\"x\"],\"a\":{\"k\":-3}}";
    ASSERT_OK(fl_json_parse(t, strlen(t), "t", &j, &err));
    const fl_json *b = fl_json_get(j, "b");
    assert_int_equal(fl_json_size(b), 5);
    assert_int_equal(fl_json_int(fl_json_at(b, 0), 9), 1);
    assert_int_equal(fl_json_int(fl_json_at(b, 1), 9), 9);
    assert_true(fl_json_num(fl_json_at(b, 1), 0) == 2.5);
    assert_true(fl_json_num(fl_json_at(b, 0), 0) == 1);
    assert_true(fl_json_bool(fl_json_at(b, 2), false));
    assert_int_equal(fl_json_kind_of(fl_json_at(b, 3)), FL_JSON_NULL);
    assert_string_equal(fl_json_str(fl_json_at(b, 4), ""), "x");
    assert_null(fl_json_at(b, 5));
    assert_null(fl_json_get(b, "no object"));
    assert_int_equal(fl_json_int(fl_json_get(fl_json_get(j, "a"), "k"), 0), -3);

    void *it = NULL;
    const char *key;
    const fl_json *v;
    assert_true(fl_json_next(j, &it, &key, &v));
    assert_string_equal(key, "b"); /* file order, not sorted */
    assert_true(fl_json_next(j, &it, &key, &v));
    assert_string_equal(key, "a");
    assert_false(fl_json_next(j, &it, &key, &v));
    fl_json_free(&j);
    assert_null(j);
}

static void bad_text_names_line_and_column(void **state)
{
    (void)state;
    fl_err err;
    fl_json *j;
    ASSERT_FAILS(fl_json_parse("{\n\"a\":}", 7, "cfg.json", &j, &err), FL_E_FORMAT,
                 "cfg.json: not valid JSON at line 2");
    ASSERT_FAILS(fl_json_parse("{\"a\":1,\"a\":2}", 13, "d", &j, &err), FL_E_FORMAT, "duplicate");
    ASSERT_FAILS(fl_json_parse("", 0, "e", &j, &err), FL_E_FORMAT, "e: not valid JSON");
    char deep[8000];
    memset(deep, '[', sizeof deep);
    ASSERT_FAILS(fl_json_parse(deep, sizeof deep, "deep", &j, &err), FL_E_FORMAT, "deep");
    assert_null(j);
}

static void built_text_is_read_back(void **state)
{
    (void)state;
    fl_err err;
    fl_json *o = fl_json_new_object(), *a = fl_json_new_array();
    fl_json_set_int(o, "big", INT64_MAX);
    fl_json_set_num(o, "nan", NAN);
    fl_json_set_str(o, "bad", "\xff!");
    fl_json_set_bool(o, "yes", true);
    fl_json_append(a, fl_json_new_str("q\"\n"));
    fl_json_set(o, "list", a);
    char *text = fl_json_dump(o, 2);
    fl_json *back;
    ASSERT_OK(fl_json_parse(text, strlen(text), "dump", &back, &err));
    assert_true(fl_json_int(fl_json_get(back, "big"), 0) == INT64_MAX);
    assert_int_equal(fl_json_kind_of(fl_json_get(back, "nan")), FL_JSON_NULL);
    assert_string_equal(fl_json_str(fl_json_get(back, "bad"), ""), "?!");
    assert_string_equal(fl_json_str(fl_json_at(fl_json_get(back, "list"), 0), ""), "q\"\n");
    assert_int_equal(fl_json_str_len(fl_json_at(fl_json_get(back, "list"), 0)), 3);
    free(text);
    fl_json_free(&o);
    fl_json_free(&back);
}

/* Bare values, and strings that hold NUL. */
static void any_value_parses_alone(void **state)
{
    (void)state;
    fl_err err;
    fl_json *j;
    ASSERT_FAILS(fl_json_parse("7", 1, "n", &j, &err), FL_E_FORMAT, "n: ");
    ASSERT_OK(fl_json_parse_any(" -7 ", 4, "n", &j, &err));
    assert_int_equal(fl_json_int(j, 0), -7);
    fl_json_free(&j);
    ASSERT_OK(fl_json_parse_any("null", 4, "n", &j, &err));
    assert_int_equal(fl_json_kind_of(j), FL_JSON_NULL);
    fl_json_free(&j);
    ASSERT_OK(fl_json_parse_any("\"a\\u0000b\"", 10, "n", &j, &err));
    assert_int_equal(fl_json_str_len(j), 3);
    fl_json_free(&j);
    ASSERT_FAILS(fl_json_parse_any("7 8", 3, "n", &j, &err), FL_E_FORMAT, "n: ");
    ASSERT_FAILS(fl_json_parse_any("", 0, "n", &j, &err), FL_E_FORMAT, "n: ");
    ASSERT_FAILS(fl_json_parse_any("123456789012345678901", 21, "n", &j, &err), FL_E_FORMAT, "n: ");
    assert_null(j);
    j = fl_json_new_strn("a\0b", 3);
    assert_memory_equal(fl_json_str(j, ""), "a\0b", 3);
    assert_int_equal(fl_json_str_len(j), 3);
    fl_json_free(&j);
    assert_null(fl_json_new_strn("\xff", 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_by_kind),
        cmocka_unit_test(bad_text_names_line_and_column),
        cmocka_unit_test(built_text_is_read_back),
        cmocka_unit_test(any_value_parses_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
