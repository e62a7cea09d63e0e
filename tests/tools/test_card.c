/* Model cards: what the front matter of README.md says of licence and parents. */
#include <stdlib.h>

#include "runtime/tools/card.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static void a_card_is_read(void **state)
{
    (void)state;
    fl_card c;
    fl_card_parse(&c, "---\r\nlanguage:\r\n- en\r\nlicense: 'other' # see below\r\n"
                      "license_name: \"acme#1\"\r\nlicense_link: https://acme.example/l\r\n"
                      "base_model:\r\n  - acme/one\r\n  - acme/two\r\ntags:\r\n- x\r\n---\r\n"
                      "license: mit\r\n");
    assert_string_equal(c.license, "other");
    assert_string_equal(c.license_name, "acme#1");
    assert_string_equal(c.license_link, "https://acme.example/l");
    assert_int_equal(c.n_base, 2);
    assert_string_equal(c.base[0], "acme/one");
    assert_string_equal(c.base[1], "acme/two");
    fl_card_parse(&c, "---\nbase_model: [a/b, \"c/d\"]\nlicense: mit\n---");
    assert_int_equal(c.n_base, 2);
    assert_string_equal(c.base[1], "c/d");
    assert_string_equal(c.license, "mit");
    fl_card_parse(&c, "---\nbase_model: a/b\n---\n");
    assert_int_equal(c.n_base, 1);
    assert_string_equal(c.license, "");
}

/* Nothing is taken from a text without front matter, or from a value that is none. */
static void what_is_not_stated_stays_empty(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "---",
                                        "---\n",
                                        "license: mit\n",
                                        "# Title\n---\nlicense: mit\n---\n",
                                        "---\nlicense: mit\n",
                                        "---\nlicense:\n---\n",
                                        "---\nlicense: null\n---\n",
                                        "---\nlicense: |\n  mit\n---\n",
                                        "---\nlicense: \"mit\n---\n",
                                        "---\nlicense: m\xc3\xaft\n---\n",
                                        "---\nlicense: a\x01z\n---\n",
                                        "---\n  license: mit\n---\n",
                                        "---\nmodel:\n  license: mit\n---\n",
                                        "---\n- mit\n---\nlicense: mit\n",
                                        "---\nlicense: # mit\n---\n",
                                        "----\nlicense: mit\n---\n"};
    fl_card c;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fl_card_parse(&c, texts[i]);
        if (c.license[0] || c.n_base) fail_msg("text %zu gives '%s'", i, c.license);
    }
    char big[2000] = "---\nbase_model:\n", *at = big + strlen(big);
    for (int i = 0; i < 40; i++) at += sprintf(at, "- a/b%d\n", i);
    at += sprintf(at, "license: ");
    memset(at, 'x', FL_CARD_VALUE);
    strcpy(at + FL_CARD_VALUE, "\n---\n");
    fl_card_parse(&c, big);
    assert_string_equal(c.license, "");
    assert_int_equal(c.n_base, FL_CARD_BASES);
}

static void a_folder_may_have_none(void **state)
{
    (void)state;
    fl_err err;
    fl_card c;
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "README.md");
    ASSERT_OK(fl_card_read(&c, dir, &err));
    assert_string_equal(c.license, "");
    fl_tmp_write(path, "---\nlicense: mit\n---\n", 21);
    ASSERT_OK(fl_card_read(&c, dir, &err));
    assert_string_equal(c.license, "mit");
    free(path);
    fl_tmp_remove(dir);
}

static void base_models_are_split(void **state)
{
    (void)state;
    static const char *const t[][4] = {
        {"Qwen/Qwen3.6-35B-A3B", "Qwen3.6 35B A3B", "Qwen",
         "https://huggingface.co/Qwen/Qwen3.6-35B-A3B"},
        {"acme-labs/tiny-moe-v2.1-7b-a3b", "Tiny Moe v2.1 7b A3B", "Acme Labs",
         "https://huggingface.co/acme-labs/tiny-moe-v2.1-7b-a3b"},
        {"https://huggingface.co/acme/one", "One", "Acme", "https://huggingface.co/acme/one"},
        {"https://other.example/acme/one", "", "", "https://other.example/acme/one"},
        {"one", "One", "", ""},
        {"a/b/c", "", "", ""},
        {"/b", "", "", ""},
        {"a/", "", "", ""}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fl_card_base b;
        fl_card_split_base(&b, t[i][0]);
        assert_string_equal(b.name, t[i][1]);
        assert_string_equal(b.organization, t[i][2]);
        assert_string_equal(b.repo_url, t[i][3]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_is_read),
        cmocka_unit_test(what_is_not_stated_stays_empty),
        cmocka_unit_test(a_folder_may_have_none),
        cmocka_unit_test(base_models_are_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
