/* The plan's table and its JSON say what the plan says. */
#include <stdlib.h>

#include "offload/plan_text.h"
#include "tests/support/test.h"

enum { LAYERS = 5, EXPERTS = 16 };

static uint64_t sizes[LAYERS * EXPERTS];

/* Layer 0 is dense; layers 1 to 2 have larger experts than 3 to 4. */
static fl_plan_input input(uint64_t cap)
{
    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        const int layer = i / EXPERTS;
        sizes[i] = layer == 0 ? 0 : layer < 3 ? 2 << 20 : 1 << 20;
    }
    return (fl_plan_input){.device_cap = cap,
                           .item = {{"dense weights", 10 << 20}, {"KV cache", 5 << 19}},
                           .n_items = 2,
                           .n_layer = LAYERS,
                           .n_expert = EXPERTS,
                           .top_k = 4,
                           .expert_bytes = sizes,
                           .host_bytes = sizes,
                           .file_bytes = 120 << 20,
                           .copy_bytes = 66 << 20,
                           .n_copies = 16};
}

static void check_text(uint64_t cap, uint64_t host_cap, const char *expected)
{
    fl_err err;
    fl_plan p;
    fl_plan_input in = input(cap);
    in.host_cap = host_cap;
    ASSERT_OK(fl_plan_make(&in, &p, &err));
    char *text = fl_plan_text(&p);
    assert_string_equal(text, expected);
    free(text);
    fl_plan_free(&p);
}

static void test_text(void **state)
{
    (void)state;
    check_text((60 << 20) + (1 << 19), 0,
               "Device memory\n"
               "  dense weights                        10.0 MiB\n"
               "  KV cache                              2.5 MiB\n"
               "  resident experts                     40.0 MiB  26 of 64\n"
               "    layers 1 to 2                  7 of 16 experts of 2.00 MiB\n"
               "    layers 3 to 4                  6 of 16 experts of 1.00 MiB\n"
               "  streaming slots                       8.0 MiB  4 of 2.00 MiB\n"
               "  total                                60.5 MiB  of 60.5 MiB, 0.0 MiB stay free\n"
               "Host memory\n"
               "  staging for reads                    32.4 MiB  16 of 2.02 MiB\n"
               "  checkpoints, at most               1056.0 MiB  16 of 66.00 MiB\n"
               "File\n"
               "  experts that stay there              56.0 MiB  38 of 64\n"
               "  whole model                         120.0 MiB\n"
               "26 of 64 experts (40.6 %) fit beside the fixed parts; the other 38 are read from "
               "the file when they are wanted. --vram 109M would hold everything.\n");
    check_text(UINT64_MAX, 0,
               "Device memory\n"
               "  dense weights                        10.0 MiB\n"
               "  KV cache                              2.5 MiB\n"
               "  resident experts                     96.0 MiB  64 of 64\n"
               "    layers 1 to 2                 16 of 16 experts of 2.00 MiB\n"
               "    layers 3 to 4                 16 of 16 experts of 1.00 MiB\n"
               "  total                               108.5 MiB\n"
               "Host memory\n"
               "  staging for reads                    32.4 MiB  16 of 2.02 MiB\n"
               "  checkpoints, at most               1056.0 MiB  16 of 66.00 MiB\n"
               "File\n"
               "  experts that stay there               0.0 MiB  0 of 64\n"
               "  whole model                         120.0 MiB\n"
               "All 64 experts fit: they stay in device memory and nothing is read "
               "from the file while it runs.\n");
    /* Too little for one token's experts at once. */
    check_text(16 << 20, 0,
               "Device memory\n"
               "  dense weights                        10.0 MiB\n"
               "  KV cache                              2.5 MiB\n"
               "  resident experts                      1.0 MiB  1 of 64\n"
               "    layers 1 to 2                  0 of 16 experts of 2.00 MiB\n"
               "    layer 3                        1 of 16 experts of 1.00 MiB\n"
               "    layer 4                        0 of 16 experts of 1.00 MiB\n"
               "  streaming slots                       2.0 MiB  1 of 2.00 MiB\n"
               "  total                                15.5 MiB  of 16.0 MiB, 0.5 MiB stay free\n"
               "Host memory\n"
               "  staging for reads                    32.4 MiB  16 of 2.02 MiB\n"
               "  checkpoints, at most               1056.0 MiB  16 of 66.00 MiB\n"
               "File\n"
               "  experts that stay there              95.0 MiB  63 of 64\n"
               "  whole model                         120.0 MiB\n"
               "1 of 64 experts (1.6 %) fit beside the fixed parts; the other 63 are read from the "
               "file when they are wanted. --vram 109M would hold everything. A token's 4 experts "
               "come in parts, 1 at a time; from --vram 21M on they fit at once.\n");
    fl_err err;
    fl_plan p;
    fl_plan_input in = input(21 << 20); /* and so it is */
    ASSERT_OK(fl_plan_make(&in, &p, &err));
    assert_int_equal(p.n_slots, 4);
    fl_plan_free(&p);
    in = input(109 << 20);
    ASSERT_OK(fl_plan_make(&in, &p, &err));
    assert_int_equal(p.n_resident, p.n_total);
    fl_plan_free(&p);
}

static void test_text_of_host_tier(void **state)
{
    (void)state;
    check_text((60 << 20) + (1 << 19), 64 << 20,
               "Device memory\n"
               "  dense weights                        10.0 MiB\n"
               "  KV cache                              2.5 MiB\n"
               "  resident experts                     40.0 MiB  26 of 64\n"
               "    layers 1 to 2                  7 of 16 experts of 2.00 MiB, 5 in host memory\n"
               "    layer 3                        6 of 16 experts of 1.00 MiB, 6 in host memory\n"
               "    layer 4                        6 of 16 experts of 1.00 MiB, 5 in host memory\n"
               "  streaming slots                       8.0 MiB  4 of 2.00 MiB\n"
               "  total                                60.5 MiB  of 60.5 MiB, 0.0 MiB stay free\n"
               "Host memory\n"
               "  staging for reads                    32.4 MiB  16 of 2.02 MiB\n"
               "  experts                              31.0 MiB  21 of 64\n"
               "  checkpoints, at most               1056.0 MiB  16 of 66.00 MiB\n"
               "File\n"
               "  experts that stay there              25.0 MiB  17 of 64\n"
               "  whole model                         120.0 MiB\n"
               "26 of 64 experts (40.6 %) fit beside the fixed parts; 21 of the others stay in "
               "host memory, 17 are read from the file when they are wanted. --ram 89M would keep "
               "all of them. --vram 109M would hold everything.\n");
    fl_err err;
    fl_plan p;
    fl_plan_input in = input((60 << 20) + (1 << 19));
    in.host_cap = 89 << 20; /* and so it is */
    ASSERT_OK(fl_plan_make(&in, &p, &err));
    char *text = fl_plan_text(&p);
    assert_non_null(strstr(text, "the other 38 stay in host memory and nothing is read"));
    free(text);
    fl_plan_free(&p);
}

/* The MTP block's layer stands alone, under its name. */
static void test_mtp(void **state)
{
    (void)state;
    fl_err err;
    fl_plan p;
    fl_plan_input in = input(UINT64_MAX);
    in.last_is_mtp = true;
    ASSERT_OK(fl_plan_make(&in, &p, &err));
    char *text = fl_plan_text(&p);
    assert_non_null(strstr(text,
                           "    layers 1 to 2                 16 of 16 experts of 2.00 MiB\n"
                           "    layer 3                       16 of 16 experts of 1.00 MiB\n"
                           "    MTP block                     16 of 16 experts of 1.00 MiB\n"));
    free(text);
    fl_json *j = fl_plan_json(&p);
    const fl_json *layers = fl_json_get(fl_json_get(j, "experts"), "layers");
    assert_int_equal(fl_json_size(layers), 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(fl_json_bool(fl_json_get(fl_json_at(layers, i), "mtp"), false), i == 3);
    fl_json_free(&j);
    fl_plan_free(&p);
}

static const fl_json *at(const fl_json *j, const char *a, const char *b)
{
    const fl_json *v = fl_json_get(j, a);
    if (b) v = fl_json_get(v, b);
    if (!v) fail_msg("no %s %s", a, b ? b : "");
    return v;
}

static uint64_t number(const fl_json *j, const char *a, const char *b)
{
    return (uint64_t)fl_json_int(at(j, a, b), -1);
}

static void test_json(void **state)
{
    (void)state;
    const uint64_t caps[] = {(60 << 20) + 12345, UINT64_MAX, 15 << 20};
    for (int c = 0; c < 3; c++) {
        fl_err err;
        fl_plan p;
        fl_plan_input in = input(caps[c]);
        in.host_cap = c ? 0 : 50 << 20;
        ASSERT_OK(fl_plan_make(&in, &p, &err));
        assert_int_equal(p.n_host > 0, c == 0);
        fl_json *j = fl_plan_json(&p);
        assert_int_equal(number(j, "device", "bytes"), p.device_bytes);
        assert_int_equal(number(j, "device", "fixed_bytes"), p.fixed_bytes);
        assert_int_equal(number(j, "device", "resident_bytes"), p.resident_bytes);
        const fl_json *slots = at(j, "device", "slots");
        assert_int_equal(fl_json_size(slots), p.n_classes);
        for (int k = 0; k < p.n_classes; k++) {
            const fl_json *class = fl_json_at(slots, (size_t)k);
            assert_int_equal(number(class, "count", NULL), p.slot_class[k].count);
            assert_int_equal(number(class, "bytes", NULL), p.slot_class[k].bytes);
        }
        if (caps[c] == UINT64_MAX) {
            assert_int_equal(fl_json_kind_of(at(j, "device", "cap")), FL_JSON_NULL);
            assert_int_equal(fl_json_kind_of(at(j, "device", "free")), FL_JSON_NULL);
        } else {
            assert_int_equal(number(j, "device", "cap"), caps[c]);
            assert_int_equal(number(j, "device", "free"), caps[c] - p.device_bytes);
        }
        const fl_json *items = at(j, "device", "items");
        assert_int_equal(fl_json_size(items), 2);
        assert_string_equal(fl_json_str(fl_json_get(fl_json_at(items, 1), "name"), ""), "KV cache");
        assert_int_equal(fl_json_int(fl_json_get(fl_json_at(items, 1), "bytes"), 0), 5 << 19);
        assert_int_equal(number(j, "experts", "total"), 64);
        assert_int_equal(number(j, "experts", "resident"), p.n_resident);
        assert_int_equal(number(j, "experts", "host"), p.n_host);
        assert_int_equal(number(j, "experts", "file"), 64 - p.n_resident - p.n_host);
        assert_int_equal(number(j, "experts", "streaming_bytes") + p.resident_bytes,
                         number(j, "experts", "bytes"));
        assert_int_equal(number(j, "experts", "bytes"), 96 << 20);
        /* The layers add up. */
        const fl_json *layers = at(j, "experts", "layers");
        int64_t next = 0, resident = 0, host = 0, experts = 0;
        for (size_t i = 0; i < fl_json_size(layers); i++) {
            const fl_json *l = fl_json_at(layers, i);
            const int64_t first = fl_json_int(fl_json_get(l, "first"), -1);
            const int64_t last = fl_json_int(fl_json_get(l, "last"), -1);
            assert_int_equal(first, next);
            resident += (last - first + 1) * fl_json_int(fl_json_get(l, "resident"), -1);
            host += (last - first + 1) * fl_json_int(fl_json_get(l, "host"), -1);
            experts += (last - first + 1) * fl_json_int(fl_json_get(l, "experts"), -1);
            next = last + 1;
        }
        assert_int_equal(next, LAYERS);
        assert_int_equal(resident, p.n_resident);
        assert_int_equal(host, p.n_host);
        assert_int_equal(experts, 64);
        assert_int_equal(number(j, "host", "bytes"), p.host_bytes);
        assert_int_equal(number(j, "host", "staging_bytes"), p.staging_bytes);
        assert_int_equal(number(j, "host", "arena_bytes"), p.arena_bytes);
        assert_int_equal(number(j, "full_host_cap", NULL), p.full_host_cap);
        assert_int_equal(number(j, "host", "checkpoint_bytes"), 16ll * (66 << 20));
        assert_int_equal(number(j, "host", "n_checkpoints"), 16);
        assert_int_equal(number(j, "file_bytes", NULL), 120 << 20);
        assert_int_equal(number(j, "min_device_cap", NULL), p.min_device_cap);
        assert_int_equal(number(j, "full_device_cap", NULL), p.full_device_cap);
        assert_true(strlen(fl_json_str(at(j, "reason", NULL), "")) > 20);
        fl_json_free(&j);
        fl_plan_free(&p);
    }
}

/* Both counts in words (C011). */
static void test_pins(void **state)
{
    (void)state;
    fl_err err;
    fl_plan p;
    fl_plan_input in = input(80 << 20);
    in.pin_layers = 2;
    in.pin_experts = 4;
    ASSERT_OK(fl_plan_make(&in, &p, &err));
    char *text = fl_plan_text(&p);
    assert_non_null(strstr(text,
                           "\n--gpu-layers keeps all experts of 2 layers in device memory; those "
                           "of the other 3 layers are not pinned.\n"));
    assert_non_null(strstr(text,
                           "\n--gpu-experts keeps 4 experts of each layer in device memory; the "
                           "other 12 of each are not pinned.\n"));
    free(text);
    fl_plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_text_of_host_tier),
        cmocka_unit_test(test_mtp),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
