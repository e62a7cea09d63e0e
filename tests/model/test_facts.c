#include "runtime/model/facts.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/files.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { ID = 0xab };
#define NAME "fourleaf/00000000000000ab.json"

/* A fresh folder as the user's cache. */
static int setup(void **state)
{
    fl_files_setup(state);
    setenv("XDG_CACHE_HOME", fl_files.dir, 1);
    unsetenv("HOME");
    return 0;
}

static fl_facts *facts(void)
{
    fl_err err;
    fl_facts *f = NULL;
    ASSERT_OK(fl_facts_open(&f, ID, &err));
    return f;
}

static fl_json *object(const char *key, int64_t v)
{
    fl_json *j = fl_json_new_object();
    fl_json_set_int(j, key, v);
    return j;
}

static int64_t value(const fl_facts *f, const char *section, const char *key)
{
    return fl_json_int(fl_json_get(fl_facts_section(f, section), key), -1);
}

static void write_facts(const char *text)
{
    char *folder = fl_tmp_path(fl_files.dir, "fourleaf"), *path = fl_tmp_path(fl_files.dir, NAME);
    mkdir(folder, 0700);
    fl_tmp_write(path, text, strlen(text));
    free(folder);
    free(path);
}

static void test_nothing_known(void **state)
{
    (void)state;
    fl_facts *f = facts();
    assert_null(fl_facts_note(f));
    assert_null(fl_facts_section(f, "rates"));
    assert_int_equal(fl_tmp_count(fl_files.dir), 0); /* looking creates nothing */
    fl_facts_close(&f);
    assert_null(f);
}

static void test_put_and_read(void **state)
{
    (void)state;
    fl_err err;
    fl_facts *f = facts(), *g = facts();
    ASSERT_OK(fl_facts_put(f, "rates", object("a", 1), &err));
    assert_int_equal(value(f, "rates", "a"), 1);
    /* g does not know of it: the other section stays all the same. */
    ASSERT_OK(fl_facts_put(g, "probe", object("b", 2), &err));
    ASSERT_OK(fl_facts_put(g, "probe", object("b", 3), &err));
    fl_facts_close(&f);
    fl_facts_close(&g);

    f = facts();
    assert_null(fl_facts_note(f));
    assert_int_equal(value(f, "rates", "a"), 1);
    assert_int_equal(value(f, "probe", "b"), 3);
    assert_null(fl_facts_section(f, "schema")); /* no object */
    char *path = fl_tmp_path(fl_files.dir, NAME), *folder = fl_tmp_path(fl_files.dir, "fourleaf");
    assert_string_equal(fl_facts_path(f), path);
    assert_int_equal(fl_tmp_count(folder), 1); /* no temporary is left */
    fl_facts_close(&f);

    ASSERT_OK(fl_facts_open(&f, ID + 1, &err)); /* another model's */
    assert_null(fl_facts_section(f, "rates"));
    fl_facts_close(&f);
    free(path);
    free(folder);
}

static void test_damaged(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "not valid JSON"},
        {"{\"schema\": 1, \"ident", "not valid JSON"},
        {"[]", "schema -1, expected 1"},
        {"{\"schema\": 2, \"identity\": \"00000000000000ab\", \"rates\": {\"a\": 1}}",
         "schema 2, expected 1"},
        {"{\"schema\": 1, \"identity\": \"00000000000000ac\", \"rates\": {\"a\": 1}}",
         "is about model '00000000000000ac'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_err err;
        write_facts(bad[i].text);
        fl_facts *f = facts();
        assert_non_null(fl_facts_note(f));
        assert_non_null(strstr(fl_facts_note(f), bad[i].words));
        assert_non_null(strstr(fl_facts_note(f), NAME));
        assert_non_null(strstr(fl_facts_note(f), "fourleaf calibrate"));
        assert_null(fl_facts_section(f, "rates"));
        ASSERT_OK(fl_facts_put(f, "rates", object("a", 5), &err));
        assert_null(fl_facts_note(f));
        fl_facts_close(&f);
        f = facts();
        assert_null(fl_facts_note(f));
        assert_int_equal(value(f, "rates", "a"), 5);
        fl_facts_close(&f);
    }
}

static void test_too_large(void **state)
{
    (void)state;
    char *path = fl_tmp_path(fl_files.dir, NAME);
    write_facts("{}");
    assert_int_equal(truncate(path, 5 << 20), 0);
    fl_facts *f = facts();
    assert_non_null(strstr(fl_facts_note(f), "at most"));
    fl_facts_close(&f);
    free(path);
}

static void test_home(void **state)
{
    (void)state;
    fl_err err;
    char *home = fl_tmp_path(fl_files.dir, "home"), *path = fl_tmp_path(home, ".cache/" NAME);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", home, 1);
    fl_facts *f = facts();
    assert_string_equal(fl_facts_path(f), path);
    ASSERT_OK(fl_facts_put(f, "rates", object("a", 1), &err));
    assert_int_equal(access(path, R_OK), 0);
    fl_facts_close(&f);
    free(home);
    free(path);
}

static void test_no_home(void **state)
{
    (void)state;
    fl_err err;
    unsetenv("XDG_CACHE_HOME");
    fl_facts *f = facts();
    assert_null(fl_facts_path(f));
    assert_null(fl_facts_note(f));
    ASSERT_FAILS(fl_facts_put(f, "rates", object("a", 1), &err), FL_E_IO, "set XDG_CACHE_HOME");
    fl_facts_close(&f);
}

/* A file where the folder should be: an error names it, and what is known stays. */
static void test_cannot_write(void **state)
{
    (void)state;
    fl_err err;
    char *in_the_way = fl_tmp_path(fl_files.dir, "fourleaf");
    fl_tmp_write(in_the_way, "x", 1);
    fl_facts *f = facts();
    ASSERT_FAILS(fl_facts_put(f, "rates", object("a", 1), &err), FL_E_IO, in_the_way);
    assert_null(fl_facts_section(f, "rates"));
    fl_facts_close(&f);
    free(in_the_way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_known, setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_put_and_read, setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_damaged, setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_too_large, setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_home, setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_no_home, setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(test_cannot_write, setup, fl_files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
