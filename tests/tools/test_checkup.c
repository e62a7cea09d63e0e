/* What doctor finds, and what it warns of, on machines that are written down: each warning appears
 * where its cause is, with the line that mends it, and is gone when that is mended. */
#include "runtime/tools/checkup.h"

#include <string.h>

#include "tests/support/fake_root.h"
#include "tests/support/machine_xml.h"
#include "tests/support/test.h"

static fl_checkup c;

static void mount_at(const char *type, const char *source)
{
    char text[512];
    snprintf(text, sizeof text, "20 1 259:2 / / rw - %s %s rw\n", type, source);
    fl_fake_put("/proc/self/mountinfo", text);
}

#define PLACE "/sys/devices/pci0000:00/0000:00:01.0"

/* The drive of a good machine: NVMe, near node 0. */
static void put_nvme(const char *lanes, const char *speed)
{
    const fl_fake_pci d = {.address = "0000:02:00.0",
                           .class = "0x010802",
                           .vendor = "0x144d",
                           .driver = "nvme",
                           .node = 0,
                           .now = {speed, lanes},
                           .device = {"16.0 GT/s PCIe", "4"},
                           .slot = {"16.0 GT/s PCIe", "4"}};
    static const char folder[] = PLACE "/port-of-0000:02:00.0/0000:02:00.0/nvme/nvme0/nvme0n1";
    char path[256];
    fl_fake_pci_put(&d);
    snprintf(path, sizeof path, "%s/queue/rotational", folder);
    fl_fake_put(path, "0\n");
    snprintf(path, sizeof path, "%s/device/model", folder);
    fl_fake_put(path, "Fast 9000\n");
    mount_at("ext4", "/dev/nvme0n1");
    fl_fake_link("/sys/dev/block/259:2", folder);
}

static void put_card(const char *driver, int node, fl_fake_link_text now, fl_fake_link_text slot)
{
    const fl_fake_pci d = {.address = "0000:01:00.0",
                           .class = "0x030000",
                           .vendor = "0x10de",
                           .driver = driver,
                           .node = node,
                           .now = now,
                           .device = {"16.0 GT/s PCIe", "16"},
                           .slot = slot};
    fl_fake_pci_put(&d);
    fl_fake_put("/proc/driver/nvidia/gpus/0000:01:00.0/information",
                "Model: \t\t NVIDIA GeForce RTX 4080\n");
}

static const fl_fake_link_text full = {"16.0 GT/s PCIe", "16"};

static void put_memlock(const char *soft, const char *hard)
{
    char text[256];
    snprintf(text, sizeof text, "Max locked memory         %-20s %-20s bytes\n", soft, hard);
    fl_fake_put("/proc/self/limits", text);
}

/* A machine with nothing to warn of. */
static int setup(void **state)
{
    if (fl_fake_setup(state) != 0) return 1;
    fl_machine_set_words("numa:1(memory=34359738368) core:8 pu:2");
    fl_fake_put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Strong 9000\n");
    fl_fake_put("/proc/meminfo", "MemTotal: 32000000 kB\nMemAvailable: 30000000 kB\n");
    fl_fake_put("/proc/version", "Linux version 6.12.1 (x@y)\n");
    fl_fake_put("/proc/sys/kernel/osrelease", "6.12.1-arch1\n");
    fl_fake_put("/proc/self/cgroup", "0::/\n");
    put_memlock("unlimited", "unlimited");
    put_nvme("4", "16.0 GT/s PCIe");
    return 0;
}

static int teardown(void **state)
{
    fl_machine_reset();
    return fl_fake_teardown(state);
}

static void look(void)
{
    fl_checkup_look(&c, fl_fake.root, fl_fake.file);
    strcpy(c.tier, "avx2"); /* of this machine, not of the one written down */
}

static const fl_warning *find(const char *code)
{
    for (int i = 0; i < c.n_warnings; i++)
        if (strcmp(c.warning[i].code, code) == 0) return &c.warning[i];
    return NULL;
}

/* There is this warning, with these words, and `mend` in the line that mends it. */
static void check_warning(const char *code, const char *words, const char *mend)
{
    const fl_warning *w = find(code);
    if (!w) fail_msg("no warning '%s'", code);
    if (!strstr(w->what, words)) fail_msg("'%s' is not in: %s", words, w->what);
    if (mend && !strstr(w->mend, mend)) fail_msg("'%s' is not in: %s", mend, w->mend);
    if (!mend) assert_string_equal(w->mend, "");
}

static void warns(const char *code, const char *words, const char *mend)
{
    look();
    fl_checkup_judge(&c);
    check_warning(code, words, mend);
}

static void warns_of_nothing(void)
{
    look();
    fl_checkup_judge(&c);
    if (c.n_warnings > 0) fail_msg("%s: %s", c.warning[0].code, c.warning[0].what);
}

/* ---- the machine as a whole ---- */

static void a_good_machine_has_no_warnings(void **state)
{
    (void)state;
    warns_of_nothing();
    assert_string_equal(c.cpu, "Strong 9000");
    assert_int_equal(c.topo.n_cores, 8);
    assert_string_equal(c.drive.name, "nvme0n1");
    assert_string_equal(c.controller.address, "0000:02:00.0");
    assert_null(fl_checkup_card(&c));
}

static void two_nodes_with_hybrid_cores(void **state)
{
    (void)state;
    fl_machine_set(fl_machine_two_nodes_xml());
    put_card("nvidia", 1, full, full);
    fl_fake_put("/sys/devices/system/node/node1/meminfo", "Node 1 MemFree: 2097152 kB\n");
    warns("nodes-apart", "the card is near node 1, the drive near node 0", "one socket");
    assert_int_equal(c.topo.n_nodes, 2);
    assert_int_equal(c.topo.n_kinds, 2);
    assert_int_equal(fl_checkup_strong_cores(&c), 4);
    assert_string_equal(fl_checkup_card(&c)->name, "NVIDIA GeForce RTX 4080");
    check_warning("node-full", "node 1, near the card, has 2.00 GiB", "numactl --membind");
    check_warning("nodes", "the card is near node 1", "--cpunodebind=1 --preferred=1");
    assert_null(find("few-cores"));

    fl_fake_put("/sys/devices/system/node/node1/meminfo", "Node 1 MemFree: 12582912 kB\n");
    put_card("nvidia", 0, full, full);
    warns("nodes", "near node 0", "--cpunodebind=0");
    assert_null(find("nodes-apart"));
    assert_null(find("node-full"));
}

static void without_a_card_the_drive_names_the_node(void **state)
{
    (void)state;
    fl_machine_set(fl_machine_two_nodes_xml());
    warns("nodes", "the drive is near node 0", "--cpunodebind=0");
    assert_int_equal(c.n_warnings, 1);
}

/* ---- cards and links ---- */

static void links_below_what_card_and_slot_can(void **state)
{
    (void)state;
    const fl_fake_link_text narrow = {"16.0 GT/s PCIe", "8"}, slow = {"2.5 GT/s PCIe", "16"};
    put_card("nvidia", -1, narrow, full);
    warns("link-narrow", "RTX 4080 at 0000:01:00.0 runs on 8 of the 16 lanes",
          "lspci -vv -s 0000:01:00.0");
    assert_null(find("link-slow"));
    put_card("nvidia", -1, slow, full);
    warns("link-slow", "runs as PCIe 1.0 x16, and could as PCIe 4.0 x16", "run doctor again");
    assert_null(find("link-narrow"));
    put_card("nvidia", -1, full, full);
    warns("card-unused", "not used", NULL);
    assert_int_equal(c.n_warnings, 1);
}

static void slots_that_give_less_than_half(void **state)
{
    (void)state;
    const fl_fake_link_text chipset = {"16.0 GT/s PCIe", "4"}, older = {"8.0 GT/s PCIe", "16"},
                            oldest = {"5.0 GT/s PCIe", "16"};
    put_card("nvidia", -1, chipset, chipset);
    warns("slot", "in a slot of PCIe 4.0 x4 and could use PCIe 4.0 x16: at most 7.9 of 31.5 GB/s",
          "next to the CPU");
    assert_null(find("link-narrow")); /* it uses what the slot has */
    put_card("nvidia", -1, oldest, oldest);
    warns("slot", "PCIe 2.0 x16", "next to the CPU");
    put_card("nvidia", -1, older, older);
    look();
    fl_checkup_judge(&c);
    assert_null(find("slot"));
}

static void cards_without_their_driver(void **state)
{
    (void)state;
    put_card(NULL, -1, full, full);
    warns("driver", "has no NVIDIA driver (none is loaded)", "apt install nvidia-driver");
    put_card("nouveau", -1, full, full);
    warns("driver", "(nouveau)", "apt install nvidia-driver");
}

static void the_drives_link(void **state)
{
    (void)state;
    put_nvme("2", "16.0 GT/s PCIe");
    warns("link-narrow", "nvme0n1 at 0000:02:00.0 runs on 2 of the 4 lanes", "lspci");
    put_nvme("4", "8.0 GT/s PCIe");
    warns("link-slow", "nvme0n1 at 0000:02:00.0 runs as PCIe 3.0 x4", "firmware");
}

/* ---- where the model lies ---- */

static void put_block(const char *name)
{
    char path[256], folder[128];
    snprintf(folder, sizeof folder, "/sys/devices/virtual/block/%s", name);
    snprintf(path, sizeof path, "%s/queue/rotational", folder);
    fl_fake_put(path, "1\n");
    fl_fake_link("/sys/dev/block/259:2", folder);
}

static void rotating_drives(void **state)
{
    (void)state;
    put_block("sda");
    warns("rotational", "sda is a rotating disk", "move the model to an NVMe drive");
    put_block("vda");
    warns("rotational", "virtual machines", "fourleaf calibrate");
}

static void file_systems_without_a_drive_of_their_own(void **state)
{
    (void)state;
    mount_at("nfs4", "server:/models");
    warns("network-drive", "(nfs4)", "local NVMe");
    mount_at("tmpfs", "tmpfs");
    warns("memory-drive", "(tmpfs)", "copy the model to a drive");
    mount_at("9p", "C:\\134");
    look();
    fl_checkup_judge(&c);
    assert_null(find("windows-drive")); /* a virtual machine shares folders so as well */
    fl_fake_put("/proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2 (x@y)\n");
    warns("windows-drive", "a Windows drive (9p)", "cp MODEL ~/");
}

static void reads_that_fall_back(void **state)
{
    (void)state;
    static const struct {
        const char *text, *mend;
    } want[] = {
        {"io_uring refused: Operation not permitted; reading with pread threads", "seccomp"},
        {"io_uring refused: Cannot allocate memory; reading with pread threads", "ulimit -l"},
        {"/m: O_DIRECT refused (Invalid argument), reading through the page cache", "ext4"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        look();
        strcpy(c.io_fallback, want[i].text);
        fl_checkup_judge(&c);
        check_warning("io", want[i].text, want[i].mend);
    }
    fl_fake_put("/proc/sys/kernel/io_uring_disabled", "2\n");
    look();
    strcpy(c.io_fallback, want[0].text);
    fl_checkup_judge(&c);
    check_warning("io", "not permitted", "sysctl kernel.io_uring_disabled=0");
}

/* ---- limits ---- */

static void the_lock_limit(void **state)
{
    (void)state;
    put_memlock("8388608", "unlimited");
    warns("memlock", "only 8.0 MiB", "ulimit -l unlimited");
    put_memlock("8388608", "8388608");
    warns("memlock", "only 8.0 MiB", "limits.d");
    look();
    c.has_model = c.calibrated = true;
    c.model_bytes = 8388608; /* a model that fits is none to warn of */
    fl_checkup_judge(&c);
    assert_null(find("memlock"));
    fl_fake_put("/proc/self/status", "CapEff:\t000001ffffffffff\n");
    warns_of_nothing();
}

static void control_groups(void **state)
{
    (void)state;
    fl_fake_put("/sys/fs/cgroup/memory.max", "8589934592\n");
    fl_fake_put("/sys/fs/cgroup/memory.current", "1000\n");
    warns("group-memory", "8.00 GiB of the machine's 30.52 GiB", "MemoryMax=");
    fl_fake_put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    warns("group-cpus", "3 processors' time of 8 cores", "CPUQuota=");
    fl_fake_put("/sys/fs/cgroup/cpu.max", "800000 100000\n");
    fl_fake_put("/sys/fs/cgroup/memory.max", "max\n");
    warns_of_nothing();
}

static void windows(void **state)
{
    (void)state;
    fl_fake_put("/proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2 (x@y)\n");
    warns("wsl", "gives it 30.52 GiB", "%UserProfile%\\.wslconfig");
}

static void processors_and_kernels_that_are_too_weak(void **state)
{
    (void)state;
    fl_machine_set_words("core:3 pu:2");
    warns("few-cores", "only 3 cores", NULL);
    fl_machine_set(fl_machine_small_xml(true));
    warns("few-cores", "only 2 performance cores", NULL);
    look();
    strcpy(c.tier, "reference");
    fl_checkup_judge(&c);
    check_warning("no-avx2", "AVX2", NULL);
    fl_fake_put("/proc/sys/kernel/osrelease", "5.10.0-28-amd64\n");
    warns("kernel", "kernel 5.10", "5.12");
    fl_fake_put("/proc/sys/kernel/osrelease", "5.12.0\n");
    look();
    fl_checkup_judge(&c);
    assert_null(find("kernel"));
}

static void the_model(void **state)
{
    (void)state;
    look();
    c.has_model = true;
    strcpy(c.plan_error, "12 GiB are needed: --vram 13G would do");
    fl_checkup_judge(&c);
    check_warning("plan", "--vram 13G", NULL);
    check_warning("not-calibrated", "not known", "fourleaf calibrate /");
    c.calibrated = true;
    c.plan_error[0] = '\0';
    fl_checkup_judge(&c);
    assert_int_equal(c.n_warnings, 0);
}

static void less_memory_pins_than_was_tried(void **state)
{
    (void)state;
    look();
    c.has_model = c.calibrated = true;
    c.pinned_bytes = 768u << 20;
    c.pin_wanted = UINT64_C(10) << 30;
    strcpy(c.pin_end, "Invalid argument");
    fl_checkup_judge(&c);
    check_warning("pin", "only 768.0 MiB of 10.00 GiB could be pinned (Invalid argument)", "WSL2");
    c.pinned_bytes = c.pin_wanted;
    fl_checkup_judge(&c);
    assert_int_equal(c.n_warnings, 0);
}

#define ON_A_MACHINE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_MACHINE(a_good_machine_has_no_warnings),
        ON_A_MACHINE(two_nodes_with_hybrid_cores),
        ON_A_MACHINE(without_a_card_the_drive_names_the_node),
        ON_A_MACHINE(links_below_what_card_and_slot_can),
        ON_A_MACHINE(slots_that_give_less_than_half),
        ON_A_MACHINE(cards_without_their_driver),
        ON_A_MACHINE(the_drives_link),
        ON_A_MACHINE(rotating_drives),
        ON_A_MACHINE(file_systems_without_a_drive_of_their_own),
        ON_A_MACHINE(reads_that_fall_back),
        ON_A_MACHINE(the_lock_limit),
        ON_A_MACHINE(control_groups),
        ON_A_MACHINE(windows),
        ON_A_MACHINE(processors_and_kernels_that_are_too_weak),
        ON_A_MACHINE(the_model),
        ON_A_MACHINE(less_memory_pins_than_was_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
