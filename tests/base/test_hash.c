#include "runtime/base/hash.h"

#include "tests/support/test.h"

/* XXH3's published value for no bytes; another hash or seed would give another one. */
static void test_is_xxh3(void **state)
{
    (void)state;
    assert_true(fl_hash64("", 0) == 0x2d06800538d394c2u);
}

static void test_pieces_give_the_whole(void **state)
{
    (void)state;
    uint8_t data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7 + i / 256);
    const size_t cut[] = {0, 1, 16, 240, 241, 1024, 4999};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        fl_hasher *h = fl_hasher_create();
        assert_non_null(h);
        fl_hasher_add(h, data, cut[i]);
        assert_true(fl_hasher_value(h) == fl_hash64(data, cut[i]));
        fl_hasher_add(h, data + cut[i], sizeof data - cut[i]);
        assert_true(fl_hasher_value(h) == fl_hash64(data, sizeof data));
        fl_hasher_destroy(&h);
        assert_null(h);
    }
}

static void a_seed_gives_another_value(void **state)
{
    (void)state;
    assert_true(fl_hash64_seeded("abc", 3, 0) == fl_hash64("abc", 3));
    assert_true(fl_hash64_seeded("abc", 3, 1) != fl_hash64("abc", 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_xxh3),
        cmocka_unit_test(test_pieces_give_the_whole),
        cmocka_unit_test(a_seed_gives_another_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
