/* Graphics cards, on machines that are written down. */
#include "runtime/base/cards.h"

#include "tests/support/fake_root.h"
#include "tests/support/test.h"

static fl_cards c;

static void put_card(const char *address, const char *vendor)
{
    const fl_fake_pci d = {.address = address, .class = "0x030000", .vendor = vendor, .node = -1};
    fl_fake_pci_put(&d);
}

static void cards_with_names_and_a_screen(void **state)
{
    (void)state;
    put_card("0000:01:00.0", "0x10de");
    put_card("0000:0b:00.0", "0x1002");
    fl_fake_put("/proc/driver/nvidia/gpus/0000:01:00.0/information",
                "Model: \t\t NVIDIA GeForce RTX 5070 Ti\nIRQ:   \t\t 145\n");
    fl_fake_put("/sys/bus/pci/devices/0000:01:00.0/drm/card0/card0-DP-1/status", "disconnected\n");
    fl_fake_put("/sys/bus/pci/devices/0000:0b:00.0/drm/card1/card1-DP-1/status", "disconnected\n");
    fl_fake_put("/sys/bus/pci/devices/0000:0b:00.0/drm/card1/card1-HDMI-A-1/status", "connected\n");
    fl_cards_list(&c, fl_fake.root);
    assert_int_equal(c.n, 2);
    assert_string_equal(c.driver, "");
    assert_string_equal(c.card[0].name, "NVIDIA GeForce RTX 5070 Ti");
    assert_false(c.card[0].display);
    assert_string_equal(c.card[1].name, "");
    assert_true(c.card[1].display);
}

static void versions_of_both_modules(void **state)
{
    (void)state;
    static const char *const line[] = {
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu Jan 23 04:50:20 UTC 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (x)\n"};
    for (int i = 0; i < 2; i++) {
        fl_fake_put("/proc/driver/nvidia/version", line[i]);
        fl_cards_list(&c, fl_fake.root);
        assert_string_equal(c.driver, "570.86.10");
        assert_int_equal(c.n, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FL_FAKE_TEST(cards_with_names_and_a_screen),
        FL_FAKE_TEST(versions_of_both_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
