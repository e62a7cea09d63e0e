#include <stdlib.h>

#include "runtime/base/text.h"
#include "tests/support/test.h"

static fl_err err;

static void text_grows_and_is_taken(void **state)
{
    (void)state;
    fl_text t = {0};
    char *p;
    size_t n;
    for (int i = 0; i < 1000; i++) {
        fl_text_puts(&t, "ab");
        fl_text_add(&t, (fl_str){"\0c", 2});
        fl_text_add(&t, (fl_str){NULL, 0});
    }
    assert_int_equal(t.n, 4000);
    ASSERT_OK(fl_text_take(&t, "a text", &p, &n, &err));
    assert_int_equal(n, 4000);
    for (size_t i = 0; i < n; i++) assert_int_equal(p[i], "ab\0c"[i % 4]);
    assert_int_equal(p[n], 0);
    assert_null(t.p);
    assert_int_equal(t.n, 0);
    free(p);
}

static void empty_text_is_a_string(void **state)
{
    (void)state;
    fl_text t = {0};
    char *p;
    ASSERT_OK(fl_text_take(&t, "a text", &p, NULL, &err));
    assert_string_equal(p, "");
    free(p);
}

static void reserved_room_is_written_directly(void **state)
{
    (void)state;
    fl_text t = {0};
    fl_text_puts(&t, "x");
    char *room = fl_text_reserve(&t, 3);
    memcpy(room, "yz", 2);
    t.n += 2;
    fl_text_puts(&t, "!");
    assert_int_equal(t.n, 4);
    assert_memory_equal(t.p, "xyz!", 4);
    fl_text_fini(&t);
    assert_null(t.p);
}

/* A failed allocation is remembered: later additions do nothing, taking reports it. */
static void lack_of_memory_is_reported_once(void **state)
{
    (void)state;
    fl_text t = {0};
    char *p;
    size_t n;
    fl_text_puts(&t, "abc");
    assert_null(fl_text_reserve(&t, SIZE_MAX / 2));
    fl_text_puts(&t, "d");
    assert_int_equal(t.n, 3);
    ASSERT_FAILS(fl_text_take(&t, "the reply", &p, &n, &err), FL_E_NOMEM, "the reply");
    assert_null(p);
    assert_int_equal(n, 0);
    assert_null(t.p);
    assert_false(t.failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows_and_is_taken),
        cmocka_unit_test(empty_text_is_a_string),
        cmocka_unit_test(reserved_room_is_written_directly),
        cmocka_unit_test(lack_of_memory_is_reported_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
