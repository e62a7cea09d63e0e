/* Profiles of expert use: what is counted, how it fades, and that no run's counts are lost. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "offload/profile.h"
#include "runtime/base/file.h"
#include "tests/support/heap.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { LAYERS = 2, EXPERTS = 8, KEYS = LAYERS * EXPERTS, USE = FL_PROFILE_USE };

static char *dir, *path;

static int setup(void **state)
{
    (void)state;
    return fl_tmp_begin(&dir, &path, "model.profile");
}

static int teardown(void **state)
{
    (void)state;
    return fl_tmp_end(dir, path);
}

static fl_profile *create(void)
{
    fl_err err = {0};
    fl_profile *p = NULL;
    ASSERT_OK(fl_profile_create(&p, LAYERS, EXPERTS, &err));
    return p;
}

static fl_profile *load(void)
{
    fl_err err = {0};
    fl_profile *p = create();
    ASSERT_OK(fl_profile_load(p, path, &err));
    return p;
}

static void save(fl_profile *p)
{
    fl_err err = {0};
    ASSERT_OK(fl_profile_save(p, path, &err));
}

/* n passes of one row that uses experts a and b of both layers. */
static void count(fl_profile *p, fl_pass_kind kind, int n, int32_t a, int32_t b)
{
    const int32_t experts[] = {a, b};
    for (int i = 0; i < n; i++) {
        fl_profile_pass(p, kind, false, 0);
        for (int l = 0; l < LAYERS; l++) fl_profile_layer(p, l, 1, 2, experts);
    }
}

static void assert_flat(fl_profile *p)
{
    for (int k = 0; k < KEYS; k++) assert_int_equal(fl_profile_heat(p)[k], 0);
    for (int k = 0; k < FL_N_PASS_KINDS; k++)
        assert_int_equal(fl_profile_passes(p, (fl_pass_kind)k), 0);
}

static void it_is_flat_at_first(void **state)
{
    (void)state;
    fl_profile *p = load(); /* there is no file */
    assert_flat(p);
    assert_int_equal(fl_profile_together(p, 0, 1).a, 0);
    save(p); /* nothing was counted: nothing is written */
    assert_int_equal(fl_tmp_count(dir), 0);
    fl_profile_destroy(&p);
    assert_null(p);
}

static void distinct_experts_of_a_pass_are_known(void **state)
{
    (void)state;
    fl_profile *p = create();
    count(p, FL_PASS_VERIFY, FL_PROFILE_FEW / 2, 0, 1);
    assert_int_equal(fl_profile_distinct(p, FL_PASS_VERIFY), 0); /* too few */
    count(p, FL_PASS_VERIFY, FL_PROFILE_FEW / 2, 3, 3);
    assert_int_equal(fl_profile_distinct(p, FL_PASS_VERIFY), 1500);
    assert_int_equal(fl_profile_distinct(p, FL_PASS_BLOCK), 0);
    count(p, FL_PASS_PREFILL, 100, 3, 4);
    assert_int_equal(fl_profile_distinct(p, FL_PASS_PREFILL), 0);
    /* A layer that such passes do not run counts for nothing. */
    const int32_t experts[] = {5, 6, 7};
    for (int i = 0; i < FL_PROFILE_FEW; i++) {
        fl_profile_pass(p, FL_PASS_AR, false, 0);
        fl_profile_layer(p, 0, 1, 3, experts);
    }
    assert_int_equal(fl_profile_distinct(p, FL_PASS_AR), 3000);
    fl_profile_destroy(&p);
}

static void uses_are_counted_by_kind_and_layer(void **state)
{
    (void)state;
    fl_profile *p = create();
    const int32_t rows[] = {0, 1, 0, 2, 0, 3, 0, 1};
    const uint64_t calls = fl_heap_calls();
    fl_profile_pass(p, FL_PASS_BLOCK, true, 0);
    fl_profile_layer(p, 1, 4, 2, rows);
    fl_profile_pass(p, FL_PASS_VERIFY, false, 0);
    fl_profile_layer(p, 1, 1, 2, rows);
    const uint32_t *heat = fl_profile_heat(p);
    assert_int_equal(fl_heap_calls(), calls);
    static const uint32_t expected[EXPERTS] = {2, 2, 1, 1};
    for (int e = 0; e < EXPERTS; e++) {
        assert_int_equal(heat[e], 0);
        assert_int_equal(heat[EXPERTS + e], USE * expected[e]);
    }
    assert_int_equal(fl_profile_passes(p, FL_PASS_BLOCK), 1);
    assert_int_equal(fl_profile_passes(p, FL_PASS_VERIFY), 1);
    assert_int_equal(fl_profile_passes(p, FL_PASS_AR), 0);
    fl_profile_destroy(&p);
}

/* In a prefill of 64 rows, chosen by 2 of them: as one of 32 rows would be. */
static void a_prefill_counts_by_rows(void **state)
{
    (void)state;
    fl_profile *p = create();
    int32_t rows[64];
    for (int i = 0; i < 64; i++) rows[i] = i < 2 ? 5 : 4;
    fl_profile_pass(p, FL_PASS_PREFILL, false, 0);
    fl_profile_layer(p, 0, 64, 1, rows);
    assert_int_equal(fl_profile_heat(p)[5], USE * 64 / (64 + 64));
    assert_int_equal(fl_profile_heat(p)[4], USE * (32 * 62) / (32 * 62 + 64));
    count(p, FL_PASS_AR, 1, 1, 2); /* beside passes that decode a prefill counts little */
    assert_int_equal(fl_profile_heat(p)[5], USE * 64 / (64 + 64) / 16);
    assert_int_equal(fl_profile_heat(p)[1], USE);
    fl_profile_destroy(&p);
}

static void blocks_remember_what_went_together(void **state)
{
    (void)state;
    fl_profile *p = create();
    static const int32_t first[] = {7, 0}, later[] = {1}, other[] = {0};
    fl_profile_pass(p, FL_PASS_BLOCK, true, 1); /* row 0 is the block's before */
    fl_profile_layer(p, 0, 2, 1, first);
    fl_profile_pass(p, FL_PASS_BLOCK, false, 0);
    fl_profile_layer(p, 0, 1, 1, later);
    assert_int_equal(fl_profile_together(p, 0, 1).both, 0); /* still under way */
    fl_profile_pass(p, FL_PASS_BLOCK, true, 0);
    fl_profile_layer(p, 0, 1, 1, other);
    fl_profile_pass(p, FL_PASS_AR, false, 0); /* ends the block, is none */
    fl_profile_layer(p, 0, 1, 1, later);
    for (int turn = 0; turn < 2; turn++) {
        const fl_profile_pair x = fl_profile_together(p, 0, 1);
        assert_int_equal(x.a, 2);
        assert_int_equal(x.b, 1);
        assert_int_equal(x.both, 1);
        assert_int_equal(fl_profile_together(p, 0, 7).b, 0);
        save(p);
        fl_profile_destroy(&p);
        p = load();
    }
    for (int i = 0; i < 63; i++) {
        fl_profile_pass(p, FL_PASS_BLOCK, true, 0);
        fl_profile_layer(p, 0, 1, 1, other);
    }
    save(p);
    assert_int_equal(fl_profile_together(p, 0, 1).a, 64);
    assert_int_equal(fl_profile_together(p, 0, 1).b, 0); /* 65 blocks ago */
    fl_profile_destroy(&p);
}

static void counts_last_from_run_to_run_and_fade(void **state)
{
    (void)state;
    fl_profile *p = create();
    count(p, FL_PASS_AR, 100, 0, 1);
    save(p);
    save(p); /* nothing new: nothing is counted twice */
    fl_profile_destroy(&p);
    p = load();
    assert_int_equal(fl_profile_heat(p)[0], 100 * USE);
    assert_int_equal(fl_profile_passes(p, FL_PASS_AR), 100);
    /* As many passes as FL_PROFILE_PASSES halve what was before them, seen or saved. */
    count(p, FL_PASS_BLOCK, FL_PROFILE_PASSES, 2, 3);
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(fl_profile_heat(p)[0], 50 * USE);
        assert_int_equal(fl_profile_heat(p)[EXPERTS + 3], FL_PROFILE_PASSES * USE);
        assert_int_equal(fl_profile_passes(p, FL_PASS_AR), 50);
        save(p);
    }
    fl_profile_destroy(&p);
    p = load();
    assert_int_equal(fl_profile_heat(p)[0], 50 * USE);
    assert_int_equal(fl_tmp_count(dir), 1);
    fl_profile_destroy(&p);
}

/* Code for long, then chat: after a while chat's experts are the hot ones. */
static void the_recent_hot_set_wins(void **state)
{
    (void)state;
    for (int run = 0; run < 60; run++) {
        fl_profile *p = load();
        const bool chat = run >= 40;
        count(p, FL_PASS_BLOCK, 300, chat ? 4 : 0, chat ? 5 : 1);
        save(p);
        const uint32_t *heat = fl_profile_heat(p);
        if (run == 39) assert_true(heat[0] > 0 && heat[4] == 0);
        if (run == 59) assert_true(heat[4] > 2 * heat[0]);
        fl_profile_destroy(&p);
    }
}

static void counts_do_not_overflow(void **state)
{
    (void)state;
    fl_profile *p = create();
    for (int i = 0; i < 40; i++) {
        count(p, FL_PASS_AR, 5000, 0, 1);
        save(p);
    }
    const uint32_t before = fl_profile_heat(p)[0];
    assert_in_range(before, 5000u * USE, 20000u * USE);
    fl_profile_destroy(&p);
}

static uint8_t *bytes_of(uint64_t *n)
{
    fl_err err = {0};
    char *data = NULL;
    ASSERT_OK(fl_file_load(path, 1 << 20, &data, n, &err));
    return (uint8_t *)data;
}

static void damage_is_told_and_mended(void **state)
{
    (void)state;
    fl_err err = {0};
    uint64_t n;
    fl_profile *p = create(), *q = create();
    count(p, FL_PASS_AR, 3, 0, 1);
    save(p);
    uint8_t *data = bytes_of(&n);
    for (uint64_t i = 0; i < n; i++) {
        data[i] ^= 1;
        ASSERT_FAILS(fl_profile_parse(q, data, n, "x", &err), FL_E_FORMAT, "x: ");
        assert_flat(q);
        data[i] ^= 1;
        uint8_t *cut = malloc(i ? i : 1);
        assert_non_null(cut);
        memcpy(cut, data, i);
        ASSERT_FAILS(fl_profile_parse(q, cut, i, "x", &err), FL_E_FORMAT, "x: ");
        free(cut);
    }
    ASSERT_OK(fl_profile_parse(q, data, n, "x", &err));
    assert_int_equal(fl_profile_heat(q)[1], 3 * USE);
    /* Of another model. */
    fl_profile *other = NULL;
    ASSERT_OK(fl_profile_create(&other, LAYERS, EXPERTS + 1, &err));
    ASSERT_FAILS(fl_profile_load(other, path, &err), FL_E_FORMAT,
                 "2 layers with 8 experts, not 2 w");
    fl_profile_destroy(&other);
    /* A run over a damaged file writes a whole one. */
    data[n - 1] ^= 1;
    fl_tmp_write(path, data, n);
    ASSERT_FAILS(fl_profile_load(q, path, &err), FL_E_FORMAT, "damaged");
    count(q, FL_PASS_AR, 2, 3, 4);
    save(q);
    fl_profile_destroy(&p);
    p = load();
    assert_int_equal(fl_profile_heat(p)[3], 2 * USE);
    assert_int_equal(fl_profile_heat(p)[1], 0);
    free(data);
    fl_profile_destroy(&p);
    fl_profile_destroy(&q);
}

/* Six processes that save at the same time, several times each. */
static void two_runs_at_once_lose_nothing(void **state)
{
    (void)state;
    enum { RUNS = 6, SAVES = FL_SANITIZED_OR(3, 8) };
    pid_t pid[RUNS];
    for (int r = 0; r < RUNS; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] > 0) continue;
        fl_profile *p = NULL;
        bool ok = fl_profile_create(&p, LAYERS, EXPERTS, NULL) == FL_OK;
        for (int i = 0; ok && i < SAVES; i++) {
            count(p, FL_PASS_AR, 1, (int32_t)r, 7);
            ok = fl_profile_save(p, path, NULL) == FL_OK;
        }
        fl_profile_destroy(&p);
        _exit(ok ? 0 : 1);
    }
    for (int r = 0; r < RUNS; r++) {
        int status = 1;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        assert_int_equal(status, 0);
    }
    fl_profile *p = load();
    /* Each save takes off the others' share of 1 / 4,097 at most, rounded down. */
    const uint64_t all = (uint64_t)RUNS * SAVES * USE, lost = RUNS * SAVES * (1 + all / 4097);
    assert_in_range(fl_profile_heat(p)[7], all - lost, all);
    for (int r = 0; r < RUNS; r++)
        assert_in_range(fl_profile_heat(p)[r], (uint64_t)SAVES * USE - lost, SAVES * USE);
    fl_profile_destroy(&p);
    assert_int_equal(fl_tmp_count(dir), 1);
}

static void what_cannot_be_saved_is_kept(void **state)
{
    (void)state;
    fl_err err = {0};
    char *missing = fl_tmp_path(dir, "no/where.profile");
    fl_profile *p = create();
    count(p, FL_PASS_AR, 2, 0, 1);
    ASSERT_FAILS(fl_profile_save(p, missing, &err), FL_E_IO, "no/where.profile");
    assert_int_equal(fl_profile_heat(p)[0], 2 * USE);
    save(p);
    assert_int_equal(fl_profile_heat(p)[0], 2 * USE);
    free(missing);
    fl_profile_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_is_flat_at_first, setup, teardown),
        cmocka_unit_test_setup_teardown(distinct_experts_of_a_pass_are_known, setup, teardown),
        cmocka_unit_test_setup_teardown(uses_are_counted_by_kind_and_layer, setup, teardown),
        cmocka_unit_test_setup_teardown(a_prefill_counts_by_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(blocks_remember_what_went_together, setup, teardown),
        cmocka_unit_test_setup_teardown(counts_last_from_run_to_run_and_fade, setup, teardown),
        cmocka_unit_test_setup_teardown(the_recent_hot_set_wins, setup, teardown),
        cmocka_unit_test_setup_teardown(counts_do_not_overflow, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_told_and_mended, setup, teardown),
        cmocka_unit_test_setup_teardown(two_runs_at_once_lose_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_saved_is_kept, setup, teardown),
    };
    fl_heap_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
