/* What a process may take, on machines that are written down. */
#include "runtime/base/limits.h"

#include "tests/support/fake_root.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static char *root;
static fl_limits l;

static int setup(void **state)
{
    (void)state;
    root = fl_tmp_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fl_tmp_remove(root);
    return 0;
}

static void put(const char *path, const char *text) { fl_fake_put(root, path, text); }

static void put_memlock(const char *soft, const char *hard)
{
    char text[512];
    snprintf(text, sizeof text,
             "Limit                     Soft Limit           Hard Limit           Units\n"
             "Max cpu time              unlimited            unlimited            seconds\n"
             "Max locked memory         %-20s %-20s bytes\n",
             soft, hard);
    put("/proc/self/limits", text);
}

static void nothing_known_is_no_limit(void **state)
{
    (void)state;
    fl_limits_read(&l, root);
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
    put("/proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2 (root@x) #1 SMP\n");
    put("/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n");
    fl_limits_read(&l, root);
    assert_true(l.wsl);
    assert_string_equal(l.kernel, "6.6.87.2-microsoft-standard-WSL2");
    put("/proc/version", "Linux version 4.4.0-Microsoft (x@y) #1\n");
    fl_limits_read(&l, root);
    assert_true(l.wsl);
    put("/proc/version", "Linux version 6.12.1-arch1 (x@y) #1\n");
    fl_limits_read(&l, root);
    assert_false(l.wsl);
}

static void the_least_limit_bounds_what_can_be_pinned(void **state)
{
    (void)state;
    put("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n");
    fl_limits_read(&l, root);
    assert_int_equal(l.memory, 1024000);
    assert_int_equal(fl_limits_pinnable(&l), 614400);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "500000\n");
    put("/sys/fs/cgroup/memory.current", "100000\n");
    fl_limits_read(&l, root);
    assert_int_equal(l.group_memory, 500000);
    assert_int_equal(fl_limits_pinnable(&l), 400000);
    put_memlock("65536", "131072");
    fl_limits_read(&l, root);
    assert_int_equal(l.memlock, 65536);
    assert_int_equal(l.memlock_hard, 131072);
    assert_int_equal(fl_limits_pinnable(&l), 65536);
    put_memlock("unlimited", "unlimited");
    fl_limits_read(&l, root);
    assert_int_equal(fl_limits_pinnable(&l), 400000);
}

/* CAP_IPC_LOCK lifts the limit, other capabilities do not. */
static void the_right_to_lock_lifts_the_limit(void **state)
{
    (void)state;
    put_memlock("65536", "65536");
    put("/proc/self/status", "Name:\tx\nCapEff:\t00000000a80425fb\n");
    fl_limits_read(&l, root);
    assert_int_equal(l.memlock, 65536);
    put("/proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
    fl_limits_read(&l, root);
    assert_true(l.memlock == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_known_is_no_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(windows_is_recognised, setup, teardown),
        cmocka_unit_test_setup_teardown(the_least_limit_bounds_what_can_be_pinned, setup, teardown),
        cmocka_unit_test_setup_teardown(the_right_to_lock_lifts_the_limit, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
