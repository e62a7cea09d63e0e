#include <stdlib.h>

#include "runtime/base/utf8.h"
#include "tests/support/test.h"

static fl_err err;

/* Every scalar value survives put and next; put's length is next's. */
static void every_code_point_round_trips(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xD800 && cp < 0xE000) continue;
        char b[4];
        uint32_t got;
        const int n = fl_utf8_put(b, cp);
        assert_int_equal(fl_utf8_next(b, b + n, &got), n);
        assert_int_equal(got, cp);
        for (int cut = 1; cut < n; cut++) {
            assert_int_equal(fl_utf8_next(b, b + cut, &got), cut);
            assert_int_equal(got, FL_UTF8_CUT);
        }
    }
}

static void repaired_is(const char *text, size_t n, const char *want)
{
    char *fixed;
    size_t n_fixed;
    ASSERT_OK(fl_utf8_repair(text, n, &fixed, &n_fixed, &err));
    assert_non_null(fixed);
    assert_int_equal(n_fixed, strlen(want));
    assert_memory_equal(fixed, want, n_fixed + 1);
    free(fixed);
}
#define REPAIRED(text, want) repaired_is(text, sizeof(text) - 1, want)

/* One U+FFFD per maximal subpart, as Unicode's chapter 3 shows it (tables 3-8 to 3-11). */
static void ill_formed_parts_become_replacements(void **state)
{
    (void)state;
    REPAIRED("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41",
             "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
    REPAIRED("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41",
             "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
    REPAIRED("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42",
             "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
    REPAIRED("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFDA");
    REPAIRED("eight by\xC3", "eight by\uFFFD");
    REPAIRED("\xF0\x9F\x9A", "\uFFFD");
}

static void valid_text_is_left_alone(void **state)
{
    (void)state;
    static const char *const text[] = {"", "plain, and longer than eight bytes", "\u00E9\u4F60x",
                                       "seven..\U0001F680"};
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        char *fixed;
        size_t n;
        ASSERT_OK(fl_utf8_repair(text[i], strlen(text[i]), &fixed, &n, &err));
        assert_null(fixed);
        assert_int_equal(n, strlen(text[i]));
        assert_int_equal(fl_utf8_valid_prefix(text[i], n), n);
    }
    assert_int_equal(fl_utf8_valid_prefix("0123456789\xFFz", 12), 10);
    assert_int_equal(fl_utf8_valid_prefix("ab\xE4\xBD", 4), 2);
}

static void white_space_is_unicodes(void **state)
{
    (void)state;
    int n = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) n += fl_utf8_is_space(cp);
    assert_int_equal(n, 25);
    assert_true(fl_utf8_is_space(0x85) && fl_utf8_is_space(0x3000));
    assert_false(fl_utf8_is_space(0x180E) || fl_utf8_is_space(0x200B) || fl_utf8_is_space(0x1C));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_round_trips),
        cmocka_unit_test(ill_formed_parts_become_replacements),
        cmocka_unit_test(valid_text_is_left_alone),
        cmocka_unit_test(white_space_is_unicodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
