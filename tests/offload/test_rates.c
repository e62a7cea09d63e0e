/* Rates as JSON: there and back, and everything that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "offload/rates.h"

static fl_status parse(const char *text, fl_rates *r, fl_err *err)
{
    fl_json *j = NULL;
    assert_int_equal(fl_json_parse_any(text, strlen(text), "test", &j, err), FL_OK);
    memset(r, 1, sizeof *r);
    const fl_status st = fl_rates_from_json(r, j, "facts.json", err);
    fl_json_free(&j);
    return st;
}

static void test_round_trip(void **state)
{
    (void)state;
    fl_rates a = {.link_bytes_s = 1,
                  .link_pageable_bytes_s = 2,
                  .link_start_ns = 3,
                  .device_bytes_s = 4,
                  .file_bytes_s = 5,
                  .host_bytes_s = INT64_MAX,
                  .n_rows = 8};
    for (int i = 0; i < a.n_rows; i++) {
        a.rows[i] = i < 7 ? 1 << i : 512;
        a.cpu_expert_ns[i] = 100 + (uint64_t)i;
        a.dense_pass_ns[i] = 200 + (uint64_t)i;
    }
    fl_rates b;
    fl_err err = {0};
    fl_json *j = fl_rates_to_json(&a);
    char *text = fl_json_dump(j, 0);
    assert_int_equal(parse(text, &b, &err), FL_OK);
    assert_memory_equal(&a, &b, sizeof a);
    free(text);
    fl_json_free(&j);
}

static void test_not_measured(void **state)
{
    (void)state;
    const fl_rates none = {0};
    fl_rates r;
    fl_err err = {0};
    assert_int_equal(parse("{}", &r, &err), FL_OK);
    assert_memory_equal(&r, &none, sizeof r);
    assert_int_equal(
        parse("{\"rows\":[1,4],\"dense_pass_ns\":[7,9],\"file_bytes_s\":12}", &r, &err), FL_OK);
    const fl_rates some = {
        .n_rows = 2, .rows = {1, 4}, .dense_pass_ns = {7, 9}, .file_bytes_s = 12};
    assert_memory_equal(&r, &some, sizeof r);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"7", "expected an object"},
        {"{\"link\":1}", "no \"link\""},
        {"{\"link_bytes_s\":-1}", "\"link_bytes_s\": expected a whole number from 0"},
        {"{\"link_bytes_s\":1.5}", "\"link_bytes_s\": expected a whole number"},
        {"{\"link_bytes_s\":\"1\"}", "\"link_bytes_s\": expected a whole number"},
        {"{\"rows\":1}", "\"rows\": expected an array"},
        {"{\"rows\":[1,2,3,4,5,6,7,8,9]}", "at most 8"},
        {"{\"rows\":[0]}", "\"rows\": expected a whole number from 1"},
        {"{\"rows\":[1,4,4]}", "\"rows\": expected a whole number from 5"},
        {"{\"rows\":[4294967296]}", "\"rows\""},
        {"{\"rows\":[1,2],\"cpu_expert_ns\":[1]}", "\"cpu_expert_ns\" has 1 numbers, \"rows\" 2"},
        {"{\"dense_pass_ns\":[1]}", "\"dense_pass_ns\" has 1 numbers, \"rows\" 0"},
        {"{\"rows\":[1],\"cpu_expert_ns\":[null]}", "\"cpu_expert_ns\": expected a whole number"},
    };
    const fl_rates none = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fl_rates r;
        fl_err err = {0};
        assert_int_equal(parse(bad[i].text, &r, &err), FL_E_FORMAT);
        assert_non_null(strstr(err.msg, bad[i].says));
        assert_non_null(strstr(err.msg, "facts.json"));
        assert_memory_equal(&r, &none, sizeof r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_not_measured),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
