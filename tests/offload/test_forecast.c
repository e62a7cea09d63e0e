/* What is printed of a prediction is what was predicted. */
#include <stdlib.h>

#include "offload/forecast.h"
#include "tests/support/test.h"

/* Twelve experts of 256 MiB in two layers, four of them on the device; a byte takes 1 ns over the
 * link and 2 ns from the file, what is computed 1 ms and 0.1 ms an expert. */
static uint64_t sizes[12];
static const fl_rates rates = {.link_bytes_s = 1000000000,
                               .file_bytes_s = 500000000,
                               .n_rows = 1,
                               .rows = {1},
                               .cpu_expert_ns = {100000},
                               .dense_pass_ns = {1000000}};

static void make(fl_forecast *f, fl_plan *plan, const fl_rates *r)
{
    for (int i = 0; i < 12; i++) sizes[i] = 1 << 28;
    const fl_plan_input in = {
        .device_cap = 6ull << 28, .n_layer = 2, .n_expert = 6, .top_k = 2, .expert_bytes = sizes};
    fl_err err = {0};
    ASSERT_OK(fl_plan_make(&in, plan, &err));
    *f = (fl_forecast){
        .in = {.rates = r,
               .pass = {[FL_PREDICT_AR] = {1, 1000, 2000}, [FL_PREDICT_BLOCK] = {1, 2500, 3000}},
               .shared_pool = true,
               .ahead_permille = 1000},
        .counted = {true}};
    ASSERT_OK(fl_forecast_make(f, plan, &in, &err));
}

static void check(char *text, const char *expected)
{
    assert_string_equal(text, expected);
    free(text);
}

static void text_and_line(void **state)
{
    (void)state;
    fl_forecast f;
    fl_plan plan;
    make(&f, &plan, &rates);
    /* 8 of 12 are in the file: 8/3 experts of a pass, 716 MB at 2 ns a byte. */
    check(fl_forecast_line(&f, &plan),
          "plan: 4 of 12 experts on the device, 8 in the file; 1536 MiB of device memory, 3072 MiB "
          "of host memory; expected tokens/s: ar 0.7, block 1.2");
    check(fl_forecast_text(&f, &plan, FL_PREDICT_AR),
          "Expected, per pass\n"
          "  mode     tokens/s    tokens   rows    device    host    file copy MiB read MiB   "
          "compute   pass ms\n"
          "  ar            0.7      1.00      1    33.3 %   0.0 %  66.7 %    682.7    682.7       "
          "1.4    1431.7\n"
          "  block         1.2      2.50*     1    33.3 %   0.0 %  66.7 %   1024.0   1024.0       "
          "1.6    2147.5\n"
          "  *: as published for models of this kind; fourleaf calibrate MODEL counts this one's\n"
          "With more memory\n"
          "  --vram   2560M      8 of 12 on the device, ar 1.4 tokens/s\n"
          "  --vram   3072M     12 of 12 on the device, ar 714.3 tokens/s\n");
    fl_plan_free(&plan);
}

static void what_is_not_known_is_said(void **state)
{
    (void)state;
    const fl_rates none = {0};
    fl_forecast f;
    fl_plan plan;
    make(&f, &plan, &none);
    check(fl_forecast_line(&f, &plan),
          "plan: 4 of 12 experts on the device, 8 in the file; 1536 MiB of device memory, 3072 MiB "
          "of host memory");
    char *text = fl_forecast_text(&f, &plan, FL_PREDICT_AR);
    assert_non_null(strstr(text, "  ar              ?      1.00      1    33.3 %"));
    assert_non_null(strstr(text, "\n  ?: not measured on this machine: what is computed, copies to "
                                 "the device, reads from the file; fourleaf calibrate"));
    assert_non_null(strstr(text, "  --vram   2560M      8 of 12 on the device, 66.7 % of ar uses"));
    free(text);
    fl_plan_free(&plan);
}

static const fl_json *at(const fl_json *j, const char *a, const char *b)
{
    return fl_json_get(fl_json_get(j, a), b);
}

static void json_has_the_same(void **state)
{
    (void)state;
    fl_forecast f;
    fl_plan plan;
    make(&f, &plan, &rates);
    fl_json *j = fl_forecast_json(&f);
    const fl_json *ar = at(j, "modes", "ar"), *block = at(j, "modes", "block");
    const fl_predicted_pass *p = &f.now.kind[FL_PREDICT_AR];
    assert_true(fl_json_num(fl_json_get(ar, "tokens_per_s"), 0) ==
                (double)p->tokens_per_s_milli / 1000.0);
    assert_true(fl_json_num(fl_json_get(ar, "pass_ns"), 0) == (double)p->pass_ns);
    assert_int_equal(fl_json_int(fl_json_get(ar, "read_bytes"), 0), p->read_bytes);
    assert_true(fl_json_num(at(ar, "hits", "file"), 0) > 0.66);
    assert_string_equal(fl_json_str(fl_json_get(ar, "passes"), ""), "counted");
    assert_string_equal(fl_json_str(fl_json_get(block, "passes"), ""), "published");
    assert_null(at(j, "modes", "spec"));
    assert_int_equal(fl_json_size(fl_json_get(j, "lacks")), 0);
    const fl_json *vram = fl_json_get(j, "vram");
    assert_int_equal(fl_json_size(vram), 2);
    assert_int_equal(fl_json_int(fl_json_get(fl_json_at(vram, 1), "resident"), 0), 12);
    assert_true(fl_json_num(at(fl_json_at(vram, 1), "tokens_per_s", "ar"), 0) > 714);
    fl_json_free(&j);
    fl_plan_free(&plan);

    const fl_rates none = {0};
    make(&f, &plan, &none);
    j = fl_forecast_json(&f);
    assert_int_equal(fl_json_size(fl_json_get(j, "lacks")), 3);
    assert_int_equal(fl_json_kind_of(fl_json_get(at(j, "modes", "ar"), "pass_ns")), FL_JSON_NULL);
    fl_json_free(&j);
    fl_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_line),
        cmocka_unit_test(what_is_not_known_is_said),
        cmocka_unit_test(json_has_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
