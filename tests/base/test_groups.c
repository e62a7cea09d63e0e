/* What control groups leave a process, version 2, version 1 and both. */
#include "runtime/base/groups.h"

#include "tests/support/fake_root.h"
#include "tests/support/test.h"

static void put_limit(const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "/sys/fs/cgroup/%s", file);
    fl_fake_put(path, text);
}

static void put_groups(const char *text) { fl_fake_put("/proc/self/cgroup", text); }

#define leaves_cpus(n) assert_int_equal(fl_groups_cpus(fl_fake.root), n)

static void leaves_memory(uint64_t limit, uint64_t left)
{
    uint64_t got_limit = 0, got_left = 0;
    assert_int_equal(fl_groups_memory(fl_fake.root, &got_limit, &got_left), limit > 0);
    assert_int_equal(got_limit, limit);
    assert_int_equal(got_left, left);
}

static void the_smallest_quota_of_all_groups_counts(void **state)
{
    (void)state;
    leaves_cpus(0); /* no groups at all */
    put_groups("7:pids:/elsewhere\n0::/a/b\n");
    leaves_cpus(0);
    put_limit("a/b/cpu.max", "max 100000\n");
    leaves_cpus(0);
    put_limit("a/cpu.max", "250000 100000\n");
    leaves_cpus(3);
    put_limit("a/b/cpu.max", "100000 100000\n");
    leaves_cpus(1);
    put_limit("a/b/cpu.max", "400000 100000\n");
    leaves_cpus(3);
    put_limit("cpu.max", "150000 100000\n");
    leaves_cpus(2);
    put_groups("0::/\n");
    leaves_cpus(2);
    put_groups("3:cpu:/a\n");
    leaves_cpus(0);
}

static void nonsense_is_no_limit(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "x y", "-5 100000", "1000 0", "99999999999999 1", "5"};
    put_groups("0::/\n");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_limit("cpu.max", bad[i]);
        leaves_cpus(0);
    }
    put_groups("no groups\n0:\n0::relative\n");
    leaves_cpus(0);
}

static void quotas_of_version_1(void **state)
{
    (void)state;
    put_groups("4:cpu,cpuacct:/box\n2:cpuset:/\n");
    put_limit("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put_limit("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    leaves_cpus(0);
    put_limit("cpu,cpuacct/box/cpu.cfs_quota_us", "350000\n");
    put_limit("cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
    leaves_cpus(4);
    put_groups("4:cpuset,cpuacct:/box\n"); /* another word that begins alike */
    leaves_cpus(0);
}

static void memory_of_version_2(void **state)
{
    (void)state;
    put_groups("0::/a/b\n");
    put_limit("a/b/memory.max", "max\n");
    put_limit("a/b/memory.current", "700\n");
    leaves_memory(0, 0);
    put_limit("a/memory.max", "1000\n");
    put_limit("a/memory.current", "900\n");
    leaves_memory(1000, 100);
    put_limit("a/memory.stat", "anon 500\ninactive_file 300\nactive_file 100\n");
    leaves_memory(1000, 400);
    /* The tightest limit need not be that of the group with the least left. */
    put_limit("a/b/memory.max", "1200\n");
    put_limit("a/b/memory.current", "1300\n");
    leaves_memory(1000, 0);
}

static void memory_of_version_1(void **state)
{
    (void)state;
    put_groups("8:memory:/x\n0::/\n");
    put_limit("memory/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    put_limit("memory/memory.usage_in_bytes", "5\n");
    leaves_memory(0, 0);
    put_limit("memory/x/memory.limit_in_bytes", "2000\n");
    put_limit("memory/x/memory.usage_in_bytes", "1500\n");
    put_limit("memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 250\n");
    leaves_memory(2000, 750);
    /* A container does not see the folder it is in: its own group is the mount's root. */
    put_groups("8:memory:/docker/0123\n");
    put_limit("memory/memory.limit_in_bytes", "3000\n");
    leaves_memory(3000, 2995);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FL_FAKE_TEST(the_smallest_quota_of_all_groups_counts),
        FL_FAKE_TEST(nonsense_is_no_limit),
        FL_FAKE_TEST(quotas_of_version_1),
        FL_FAKE_TEST(memory_of_version_2),
        FL_FAKE_TEST(memory_of_version_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
