/* What a process may take, on machines that are written down. */
#include "runtime/base/limits.h"

#include "tests/support/fake_root.h"
#include "tests/support/test.h"

static fl_limits l;

static void put_memlock(const char *soft, const char *hard)
{
    char text[512];
    snprintf(text, sizeof text,
             "Limit                     Soft Limit           Hard Limit           Units\n"
             "Max cpu time              unlimited            unlimited            seconds\n"
             "Max locked memory         %-20s %-20s bytes\n",
             soft, hard);
    fl_fake_put("/proc/self/limits", text);
}

static void nothing_known_is_no_limit(void **state)
{
    (void)state;
    fl_limits_read(&l, fl_fake.root);
    assert_string_equal(l.kernel, "");
    assert_false(l.wsl);
    assert_int_equal(l.memory, 0);
    assert_true(l.memlock == UINT64_MAX);
    assert_int_equal(l.group_cpus, 0);
    assert_int_equal(l.group_memory, 0);
}

static void windows_is_recognised(void **state)
{
    (void)state;
    fl_fake_put("/proc/version",
                "Linux version 6.6.87.2-microsoft-standard-WSL2 (root@x) #1 SMP\n");
    fl_fake_put("/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n");
    fl_limits_read(&l, fl_fake.root);
    assert_true(l.wsl);
    assert_string_equal(l.kernel, "6.6.87.2-microsoft-standard-WSL2");
    fl_fake_put("/proc/version", "Linux version 4.4.0-Microsoft (x@y) #1\n");
    fl_limits_read(&l, fl_fake.root);
    assert_true(l.wsl);
    fl_fake_put("/proc/version", "Linux version 6.12.1-arch1 (x@y) #1\n");
    fl_limits_read(&l, fl_fake.root);
    assert_false(l.wsl);
}

static void the_least_limit_bounds_what_can_be_pinned(void **state)
{
    (void)state;
    fl_fake_put("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n");
    fl_limits_read(&l, fl_fake.root);
    assert_int_equal(l.memory, 1024000);
    assert_int_equal(fl_limits_pinnable(&l), 614400);
    fl_fake_put("/proc/self/cgroup", "0::/\n");
    fl_fake_put("/sys/fs/cgroup/memory.max", "500000\n");
    fl_fake_put("/sys/fs/cgroup/memory.current", "100000\n");
    fl_limits_read(&l, fl_fake.root);
    assert_int_equal(l.group_memory, 500000);
    assert_int_equal(fl_limits_pinnable(&l), 400000);
    put_memlock("65536", "131072");
    fl_limits_read(&l, fl_fake.root);
    assert_int_equal(l.memlock, 65536);
    assert_int_equal(l.memlock_hard, 131072);
    assert_int_equal(fl_limits_pinnable(&l), 65536);
    put_memlock("unlimited", "unlimited");
    fl_limits_read(&l, fl_fake.root);
    assert_int_equal(fl_limits_pinnable(&l), 400000);
}

/* CAP_IPC_LOCK lifts the limit, other capabilities do not. */
static void the_right_to_lock_lifts_the_limit(void **state)
{
    (void)state;
    put_memlock("65536", "65536");
    fl_fake_put("/proc/self/status", "Name:\tx\nCapEff:\t00000000a80425fb\n");
    fl_limits_read(&l, fl_fake.root);
    assert_int_equal(l.memlock, 65536);
    fl_fake_put("/proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
    fl_limits_read(&l, fl_fake.root);
    assert_true(l.memlock == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FL_FAKE_TEST(nothing_known_is_no_limit),
        FL_FAKE_TEST(windows_is_recognised),
        FL_FAKE_TEST(the_least_limit_bounds_what_can_be_pinned),
        FL_FAKE_TEST(the_right_to_lock_lifts_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
