/* fourleaf sensitivity: what it measures, how it goes on, what it leaves. */
#include <stdlib.h>

#include "runtime/base/file.h"
#include "runtime/tools/sensitivity.h"
#include "runtime/tools/sensitivity_file.h"
#include "tests/support/command.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

typedef struct place {
    fl_workplace f;
    char *text, *out, words[800];
} place;

static place place_make(const char *arch)
{
    place p = {.f = fl_workplace_make()};
    fl_make m = fl_make_tiny();
    m.arch = arch;
    m.n_layer = m.interval = 2;
    m.type = FL_TYPE_BF16;
    fl_make_gguf(&m, p.f.gguf);
    p.text = fl_tmp_path(p.f.dir, "text.txt");
    p.out = fl_tmp_path(p.f.dir, "out.sens");
    char words[4000];
    for (size_t i = 0; i < sizeof words; i++) words[i] = "etaoin shrdlu,.\n"[i * i % 41 % 16];
    fl_tmp_write(p.text, words, sizeof words);
    snprintf(p.words, sizeof p.words, "sensitivity %s %s -o %s --threads 2 --windows 1", p.f.gguf,
             p.text, p.out);
    return p;
}

static void place_remove(place *p)
{
    free(p->text);
    free(p->out);
    fl_workplace_remove(&p->f);
}

static char *read_text(const char *path)
{
    char *text;
    ASSERT_OK(fl_file_load(path, 1 << 20, &text, NULL, &err));
    return text;
}

static void every_matrix_gets_a_number(void **state)
{
    (void)state;
    static const char *const arch[] = {"qwen35moe", "clover_moe"};
    for (int i = 0; i < 2; i++) {
        place p = place_make(arch[i]);
        fl_sensitivity s;
        ASSERT_OK(fl_quiet_call(fl_tool_sensitivity, p.words, &err));
        assert_int_equal(fl_tmp_count(p.f.dir), 3); /* model, text, output: no copy is left */
        char *text = read_text(p.out);
        assert_non_null(strstr(text, i ? "causal and block rows" : ", causal rows"));
        ASSERT_OK(fl_sensitivity_load(&s, p.out, &err));
        /* Two layers of one kind each; the branch's gates go with the others. */
        assert_int_equal(s.n, 2 + 5 + 4 + 2 * 6 + (i ? 2 : 0));
        for (int k = 0; k < s.n; k++) assert_true(s.line[k].nats > 0 && s.line[k].nats < 1);
        fl_sensitivity_fini(&s);

        /* A line that is there is not measured again; one that is missing is, to the same bytes. */
        char *cut = strdup(text);
        assert_non_null(cut);
        char *line = strstr(cut, "blk.1.attn_output.weight");
        assert_non_null(line);
        memmove(line, strchr(line, '\n') + 1, strlen(strchr(line, '\n')));
        fl_tmp_write(p.out, cut, strlen(cut));
        ASSERT_OK(fl_quiet_call(fl_tool_sensitivity, p.words, &err));
        char *again = read_text(p.out);
        assert_string_equal(text, again);
        free(text);
        free(cut);
        free(again);
        place_remove(&p);
    }
}

static void bad_requests_leave_nothing(void **state)
{
    (void)state;
    place p = place_make("qwen35moe");
    char words[800];
    fl_tmp_write(p.text, "short", 5);
    ASSERT_FAILS(fl_quiet_call(fl_tool_sensitivity, p.words, &err), FL_E_ARG, "no window of");
    assert_int_equal(fl_tmp_count(p.f.dir), 2);
    snprintf(words, sizeof words, "sensitivity %s %s -o %s", p.f.gguf, p.text, p.f.gguf);
    ASSERT_FAILS(fl_quiet_call(fl_tool_sensitivity, words, &err), FL_E_ARG,
                 "is a file of the model");
    snprintf(words, sizeof words, "sensitivity %s /no/such/text -o %s", p.f.gguf, p.out);
    ASSERT_FAILS(fl_quiet_call(fl_tool_sensitivity, words, &err), FL_E_IO, "/no/such/text");
    assert_int_equal(fl_tmp_count(p.f.dir), 2);
    fl_make m = fl_make_tiny();
    m.type = FL_TYPE_Q4_0;
    fl_make_gguf(&m, p.f.gguf);
    ASSERT_FAILS(fl_quiet_call(fl_tool_sensitivity, p.words, &err), FL_E_UNSUPPORTED,
                 "quantized already");
    assert_int_equal(fl_tmp_count(p.f.dir), 2);
    place_remove(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_matrix_gets_a_number),
        cmocka_unit_test(bad_requests_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
