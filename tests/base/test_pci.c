/* Links of cards and drives, on machines that are written down. */
#include "runtime/base/pci.h"

#include "tests/support/fake_root.h"
#include "tests/support/test.h"

static void link_is(fl_link l, int mt_s, int lanes)
{
    assert_int_equal(l.mt_s, mt_s);
    assert_int_equal(l.lanes, lanes);
}

static void a_card_below_a_port(void **state)
{
    (void)state;
    static const fl_fake_pci card = {.address = "0000:01:00.0",
                                     .class = "0x030000",
                                     .vendor = "0x10de",
                                     .driver = "nvidia",
                                     .node = 1,
                                     .now = {"2.5 GT/s PCIe", "8"},
                                     .device = {"16.0 GT/s PCIe", "16"},
                                     .slot = {"8.0 GT/s PCIe", "16"}};
    fl_pci p;
    fl_fake_pci_put(&card);
    assert_true(fl_pci_read(fl_fake.root, "0000:01:00.0", &p));
    assert_string_equal(p.address, "0000:01:00.0");
    assert_int_equal(p.class, 0x030000);
    assert_int_equal(p.vendor, FL_PCI_NVIDIA);
    assert_int_equal(p.node, 1);
    assert_string_equal(p.driver, "nvidia");
    link_is(p.now, 2500, 8);
    link_is(p.device, 16000, 16);
    link_is(p.slot, 8000, 16);
    link_is(fl_link_least(p.device, p.slot), 8000, 16);
}

static void what_is_not_said_is_unknown(void **state)
{
    (void)state;
    static const fl_fake_pci card = {.address = "0000:02:00.0",
                                     .class = "0x030200",
                                     .vendor = "0x1002",
                                     .node = -1,
                                     .now = {"Unknown", "63"},
                                     .slot = {"8.0 GT/s PCIe", "16"}};
    fl_pci p;
    fl_fake_pci_put(&card);
    assert_true(fl_pci_read(fl_fake.root, "0000:02:00.0", &p));
    assert_string_equal(p.driver, "");
    assert_int_equal(p.node, -1);
    link_is(p.now, 0, 0);
    link_is(p.device, 0, 0);
    link_is(fl_link_least(p.device, p.slot), 0, 0);
    assert_false(fl_pci_read(fl_fake.root, "0000:03:00.0", &p));
}

static void a_list_has_one_class_in_order(void **state)
{
    (void)state;
    static const char *const address[] = {"0000:0a:00.0", "0000:01:00.0", "0000:05:00.0",
                                          "0000:03:00.0"};
    static const char *const class[] = {"0x030000", "0x030200", "0x010802", "0x038000"};
    fl_pci p[8];
    assert_int_equal(fl_pci_list(fl_fake.root, FL_PCI_DISPLAY, p, 8), 0);
    for (int i = 0; i < 4; i++) {
        const fl_fake_pci d = {
            .address = address[i], .class = class[i], .vendor = "0x1", .node = -1};
        fl_fake_pci_put(&d);
    }
    assert_int_equal(fl_pci_list(fl_fake.root, FL_PCI_DISPLAY, p, 8), 3);
    assert_string_equal(p[0].address, "0000:01:00.0");
    assert_string_equal(p[1].address, "0000:03:00.0");
    assert_string_equal(p[2].address, "0000:0a:00.0");
    assert_int_equal(fl_pci_list(fl_fake.root, FL_PCI_STORAGE, p, 8), 1);
    assert_int_equal(fl_pci_list(fl_fake.root, FL_PCI_DISPLAY, p, 2), 2);
}

static void rates_and_names_of_links(void **state)
{
    (void)state;
    static const struct {
        fl_link l;
        uint64_t mb_s;
        const char *name;
    } want[] = {{{2500, 16}, 4000, "PCIe 1.0 x16"},   {{5000, 4}, 2000, "PCIe 2.0 x4"},
                {{8000, 16}, 15753, "PCIe 3.0 x16"},  {{16000, 4}, 7876, "PCIe 4.0 x4"},
                {{32000, 16}, 63015, "PCIe 5.0 x16"}, {{64000, 1}, 7876, "PCIe 6.0 x1"},
                {{0, 0}, 0, "an unknown link"}};
    char buf[32];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(fl_link_bytes_s(want[i].l) / 1000000, want[i].mb_s);
        assert_string_equal(fl_link_format(buf, want[i].l), want[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FL_FAKE_TEST(a_card_below_a_port),
        FL_FAKE_TEST(what_is_not_said_is_unknown),
        FL_FAKE_TEST(a_list_has_one_class_in_order),
        cmocka_unit_test(rates_and_names_of_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
