/* What calibrate says of what it measured, to people and to the stored facts. */
#include "runtime/tools/survey_text.h"

#include <errno.h>
#include <stdlib.h>

#include "runtime/base/options.h"
#include "tests/support/command.h"
#include "tests/support/test.h"

static fl_survey s;

static int setup(void **state)
{
    (void)state;
    s = (fl_survey){.pin_wanted = 3 << 20, .n_threads = 3, .threads = {1, 2, 4}};
    s.rates = (fl_rates){.link_bytes_s = 16000000000,
                         .device_bytes_s = 7000000000,
                         .host_bytes_s = 5500000000,
                         .file_bytes_s = 2000000000,
                         .n_rows = 2,
                         .rows = {1, 32},
                         .cpu_expert_ns = {123400, 900000},
                         .dense_pass_ns = {5000000, 9000000}};
    s.link = (fl_link_rates){.n = 1,
                             .sample = {{65536, 12, 11}},
                             .bytes_s = 16000000000,
                             .pageable_bytes_s = 9000000000,
                             .start_ns = 8100,
                             .pinned = true};
    s.reads = (fl_read_rates){.backend = "uring", .depth = 8, .bytes_s = 2000000000};
    s.pinned = (fl_pinnable){.bytes = 1 << 20, .end = FL_PIN_REFUSED, .sys = EINVAL};
    s.thread_rows[0] = 1;
    s.thread_rows[1] = 32;
    for (int i = 0; i < 3; i++) {
        s.expert_ns[i][0] = 100000;
        s.expert_ns[i][1] = 4000000u >> i;
    }
    return 0;
}

static fl_status print(const fl_options *o, fl_err *err)
{
    (void)o;
    (void)err;
    fl_survey_print(&s);
    return FL_OK;
}

static void says(const char *words, bool yes)
{
    char *text = fl_command_output(print, "doctor");
    if ((strstr(text, words) != NULL) != yes)
        fail_msg("'%s' is %s: %s", words, yes ? "not in" : "in", text);
    free(text);
}

static void the_table(void **state)
{
    (void)state;
    says("16.00 GB/s from pinned memory, 9.00 GB/s from pageable; 8.1 us to begin one", true);
    says("2.00 GB/s by uring, 8 at once\n", true);
    says("1.0 MiB of 3.0 MiB (Invalid argument)", true);
    says("7.00 GB/s in products, host memory 5.50 GB/s read by 4 threads", true);
    says("an expert, us          123.4     900.0", true);
    says("rest of a pass, us      5000      9000", true);
    says("an expert of 32 rows on 1: 4000.0 us, 2: 2000.0 us, 4: 1000.0 us", true);
    says("is faster here", false);
}

static void what_is_otherwise(void **state)
{
    (void)state;
    s.link.pinned = false;
    s.reads.buffered_depth = 4;
    s.reads.buffered_bytes_s = 2500000000;
    s.reads.buffered_wins = true;
    s.pinned.end = FL_PIN_STALLED;
    says("from memory that could not be pinned; 8.1 us", true);
    says("2.50 GB/s through a cold page cache, 4 at once: kept", true);
    says("(no more within the time limit)", true);
    s.reads.buffered_wins = false;
    strcpy(s.reads.note, "parts stay in the page cache");
    says(": kept", false);
    says("    parts stay in the page cache", true);
}

static void fewer_threads_have_to_be_faster_by_five_percent(void **state)
{
    (void)state;
    assert_int_equal(fl_survey_better_threads(&s), 0);
    s.expert_ns[1][1] = 951000;
    assert_int_equal(fl_survey_better_threads(&s), 0);
    s.expert_ns[1][1] = 940000;
    assert_int_equal(fl_survey_better_threads(&s), 2);
    says("--threads 2 is faster here", true);
    s.expert_ns[0][1] = 930000;
    assert_int_equal(fl_survey_better_threads(&s), 1);
    s.expert_ns[0][1] = s.expert_ns[1][1] = 2000000;
    s.expert_ns[1][0] = 50000; /* rows as in a block decide first, then a single one */
    assert_int_equal(fl_survey_better_threads(&s), 2);
    s.n_threads = 0;
    assert_int_equal(fl_survey_better_threads(&s), 0);
}

static void what_is_stored(void **state)
{
    (void)state;
    fl_rates r;
    fl_err err;
    fl_json *entry = fl_survey_entry(&s), *parts = fl_survey_parts(&s);
    const fl_json *reads = fl_json_get(parts, "reads"), *pinned = fl_json_get(parts, "pinned");
    ASSERT_OK(fl_rates_from_json(&r, fl_json_get(entry, "rates"), "x", &err));
    assert_memory_equal(&r, &s.rates, sizeof r);
    assert_int_equal(fl_json_size(fl_json_get(entry, "link")), 1);
    assert_int_equal(fl_json_size(fl_json_get(entry, "threads")), 6);
    assert_string_equal(fl_json_str(fl_json_get(reads, "keep"), ""), "direct");
    assert_int_equal(fl_json_int(fl_json_get(pinned, "bytes"), 0), 1 << 20);
    assert_string_equal(fl_json_str(fl_json_get(pinned, "end"), ""), "Invalid argument");
    fl_json_free(&parts);
    s.reads.buffered_wins = true;
    parts = fl_survey_parts(&s);
    reads = fl_json_get(parts, "reads");
    assert_string_equal(fl_json_str(fl_json_get(reads, "keep"), ""), "buffered");
    fl_json_free(&parts);
    fl_json_free(&entry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_table, setup),
        cmocka_unit_test_setup(what_is_otherwise, setup),
        cmocka_unit_test_setup(fewer_threads_have_to_be_faster_by_five_percent, setup),
        cmocka_unit_test_setup(what_is_stored, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
