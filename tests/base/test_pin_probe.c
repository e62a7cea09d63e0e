/* The probe of memory that can be pinned: where it ends and why, and that nothing is left of it. */
#include "runtime/base/pin_probe.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { CHUNK = 1 << 20 };

/* How a chunk fares; in the child, which counts for itself. */
typedef struct driver {
    int n, refuse_at, stall_at, die_at; /* 1: the first chunk; 0: never */
} driver;

static int pin(void *arg, void *base, uint64_t bytes)
{
    driver *d = arg;
    memset(base, 1, bytes); /* it is memory of this size */
    d->n++;
    if (d->n == d->stall_at) pause();
    if (d->n == d->die_at) raise(SIGKILL);
    return d->n == d->refuse_at ? EINVAL : 0;
}

static fl_pinnable probe(driver *d, uint64_t want, int timeout_ms)
{
    fl_err err;
    fl_pinnable got;
    const fl_pin_probe p = {
        .want = want, .chunk_bytes = CHUNK, .timeout_ms = timeout_ms, .pin = pin, .arg = d};
    const int before = fl_tmp_count("/proc/self/fd");
    ASSERT_OK(fl_pin_probe_run(&p, &got, &err));
    assert_int_equal(fl_tmp_count("/proc/self/fd"), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    assert_int_equal(errno, ECHILD);
    assert_int_equal(d->n, 0); /* nor anything it did */
    return got;
}

static void all_that_is_wanted(void **state)
{
    (void)state;
    driver d = {0};
    fl_pinnable got = probe(&d, 3 * CHUNK + 4096, 0);
    assert_int_equal(got.end, FL_PIN_ALL);
    assert_int_equal(got.bytes, 3 * CHUNK + 4096);
    got = probe(&d, 0, 0);
    assert_int_equal(got.end, FL_PIN_ALL);
    assert_int_equal(got.bytes, 0);
}

static void each_chunk_may_be_refused(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        driver d = {.refuse_at = n};
        const fl_pinnable got = probe(&d, 4 * CHUNK, 0);
        assert_int_equal(got.end, FL_PIN_REFUSED);
        assert_int_equal(got.sys, EINVAL);
        assert_int_equal(got.bytes, (n - 1) * CHUNK);
    }
}

static void a_driver_that_stalls_is_left(void **state)
{
    (void)state;
    driver d = {.stall_at = 2};
    const fl_pinnable got = probe(&d, 4 * CHUNK, FL_SANITIZED_OR(1500, 200));
    assert_int_equal(got.end, FL_PIN_STALLED);
    assert_int_equal(got.bytes, CHUNK);
}

static void a_kill_for_memory_ends_the_child_alone(void **state)
{
    (void)state;
    driver d = {.die_at = 3};
    const fl_pinnable got = probe(&d, 4 * CHUNK, 0);
    assert_int_equal(got.end, FL_PIN_KILLED);
    assert_int_equal(got.bytes, 2 * CHUNK);
}

/* 16 KiB are within every default of the lock limit. */
static void pages_are_locked_without_a_driver(void **state)
{
    (void)state;
    fl_err err;
    fl_pinnable got;
    const fl_pin_probe p = {.want = 16384};
    ASSERT_OK(fl_pin_probe_run(&p, &got, &err));
    assert_int_equal(got.end, FL_PIN_ALL);
    assert_int_equal(got.bytes, 16384);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_is_wanted),
        cmocka_unit_test(each_chunk_may_be_refused),
        cmocka_unit_test(a_driver_that_stalls_is_left),
        cmocka_unit_test(a_kill_for_memory_ends_the_child_alone),
        cmocka_unit_test(pages_are_locked_without_a_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
