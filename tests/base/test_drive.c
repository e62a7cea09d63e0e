/* Which drive a file lies on, on machines that are written down: the file is this machine's, what
 * is mounted where it lies is theirs. */
#include "runtime/base/drive.h"

#include <string.h>

#include "tests/support/fake_root.h"
#include "tests/support/test.h"

/* A file system with the file below it, as a line of mountinfo behind that of "/". */
static void mount_at(const char *numbers, const char *type, const char *source)
{
    char text[1024];
    snprintf(text, sizeof text,
             "20 1 0:99 / / rw - overlay overlay rw\n"
             "21 20 0:98 / /nowhere/else rw - tmpfs tmpfs rw\n"
             "22 20 %s /@home %.*s rw,noatime shared:7 master:2 - %s %s rw\n",
             numbers, (int)(strrchr(fl_fake.file, '/') - fl_fake.file), fl_fake.file, type, source);
    fl_fake_put("/proc/self/mountinfo", text);
}

#define NVME "/sys/devices/pci0000:00/0000:00:01.2/0000:02:00.0/nvme/nvme0/nvme0n1"

static void put_nvme(const char *folder)
{
    char path[256];
    static const char *const text[][2] = {{"queue/rotational", "0\n"},
                                          {"device/model", "Fast 9000 2TB      \n"},
                                          {"nvme0n1p2/partition", "2\n"}};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, text[i][0]);
        fl_fake_put(path, text[i][1]);
    }
}

static void is_the_nvme_drive(const char *file_system)
{
    fl_drive d;
    assert_true(fl_drive_under(fl_fake.root, fl_fake.file, &d));
    assert_string_equal(d.file_system, file_system);
    assert_string_equal(d.name, "nvme0n1");
    assert_string_equal(d.model, "Fast 9000 2TB");
    assert_string_equal(d.pci, "0000:02:00.0");
    assert_int_equal(d.rotational, 0);
    assert_true(d.nvme && !d.virtual);
}

static void a_partition_of_an_nvme_drive(void **state)
{
    (void)state;
    put_nvme(NVME);
    mount_at("259:2", "ext4", "/dev/nvme0n1p2");
    fl_fake_link("/sys/dev/block/259:2", NVME "/nvme0n1p2");
    is_the_nvme_drive("ext4");
}

/* btrfs has a number of its own: the name of the source leads to the drive. */
static void a_file_system_with_a_number_of_its_own(void **state)
{
    (void)state;
    put_nvme(NVME);
    mount_at("0:45", "btrfs", "/dev/nvme0n1p2");
    fl_fake_link("/sys/class/block/nvme0n1p2", NVME "/nvme0n1p2");
    is_the_nvme_drive("btrfs");
}

static void a_mapped_drive_on_a_partition(void **state)
{
    (void)state;
    put_nvme(NVME);
    mount_at("253:1", "xfs", "/dev/mapper/vg-home");
    fl_fake_put("/sys/devices/virtual/block/dm-1/queue/rotational", "1\n");
    fl_fake_put("/sys/devices/virtual/block/dm-1/slaves/dm-0/x", "");
    fl_fake_put("/sys/devices/virtual/block/dm-0/slaves/nvme0n1p2/x", "");
    fl_fake_link("/sys/dev/block/253:1", "/sys/devices/virtual/block/dm-1");
    fl_fake_link("/sys/class/block/dm-0", "/sys/devices/virtual/block/dm-0");
    fl_fake_link("/sys/class/block/nvme0n1p2", NVME "/nvme0n1p2");
    is_the_nvme_drive("xfs");
}

static void a_namespace_with_multipath(void **state)
{
    (void)state;
    static const char folder[] = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1";
    put_nvme(folder);
    fl_fake_put("/sys/class/nvme/nvme0/address", "0000:02:00.0\n");
    mount_at("259:0", "ext4", "/dev/nvme0n1");
    fl_fake_link("/sys/dev/block/259:0", folder);
    is_the_nvme_drive("ext4");
}

static void a_rotating_drive_and_a_virtual_one(void **state)
{
    (void)state;
    fl_drive d;
    mount_at("8:1", "ext4", "/dev/sda1");
    fl_fake_put("/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/block/sda/queue/rotational",
                "1\n");
    fl_fake_put("/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/block/sda/sda1/partition", "1\n");
    fl_fake_link("/sys/dev/block/8:1",
                 "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/block/sda/sda1");
    assert_true(fl_drive_under(fl_fake.root, fl_fake.file, &d));
    assert_string_equal(d.name, "sda");
    assert_string_equal(d.pci, "0000:00:17.0");
    assert_int_equal(d.rotational, 1);
    assert_true(!d.nvme && !d.virtual);

    mount_at("254:0", "ext4", "/dev/vda");
    fl_fake_put("/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda/queue/rotational", "1\n");
    fl_fake_link("/sys/dev/block/254:0", "/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda");
    assert_true(fl_drive_under(fl_fake.root, fl_fake.file, &d));
    assert_string_equal(d.name, "vda");
    assert_true(d.virtual);
}

static void without_a_drive(void **state)
{
    (void)state;
    fl_drive d;
    assert_false(fl_drive_under(fl_fake.root, fl_fake.file, &d)); /* no mounts at all */
    mount_at("0:50", "nfs4", "server:/models");
    assert_true(fl_drive_under(fl_fake.root, fl_fake.file, &d));
    assert_string_equal(d.file_system, "nfs4");
    assert_string_equal(d.name, "");
    assert_string_equal(d.pci, "");
    assert_int_equal(d.rotational, -1);
    assert_false(fl_drive_under(fl_fake.root, "/no/such/file", &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FL_FAKE_TEST(a_partition_of_an_nvme_drive),
        FL_FAKE_TEST(a_file_system_with_a_number_of_its_own),
        FL_FAKE_TEST(a_mapped_drive_on_a_partition),
        FL_FAKE_TEST(a_namespace_with_multipath),
        FL_FAKE_TEST(a_rotating_drive_and_a_virtual_one),
        FL_FAKE_TEST(without_a_drive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
