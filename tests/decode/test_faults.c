/* Faults of the drive and of the file during whole answers: each ends in the right text or in one
 * clear line, nothing leaks, and the next request on the same engine is right as soon as the drive
 * is. FL_TEST_LONG=1: the drive stands still for two seconds at a time. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "offload/io_fake.h"
#include "tests/support/decoder.h"
#include "tests/support/heap.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_PROMPT = 12, N_OUT = 6, N_MODES = 2 };

static char *dir, *path;
static fl_loaded loaded;
static fl_generator *gen;
static int32_t prompt[N_PROMPT], want[N_MODES][N_OUT];

static fl_engine_params tight(const char *file, const char *io)
{
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = 128;
    p.vram = fl_vram_for(file, &p, 30);
    p.ram = 0;
    p.io = io;
    return p;
}

typedef enum mishap { CUT, OVERWRITTEN, REPLACED, REMOVED, N_MISHAPS } mishap;
static void befall(mishap what);
static mishap coming = N_MISHAPS; /* before the answer's first pass; N_MISHAPS: none */

static bool between_passes(void *arg, int64_t done, int64_t total)
{
    (void)arg;
    if (done == total && coming < N_MISHAPS) {
        befall(coming);
        coming = N_MISHAPS;
    }
    return true;
}

/* Mode 0 by tokens, 1 by blocks. Each from nothing: what is kept of the one before is no help. */
static fl_status ask(int mode, int32_t out[N_OUT], fl_err *err)
{
    fl_gen_result r;
    fl_gen_config c = fl_greedy_config(loaded.model, mode ? FL_GEN_BLOCK : FL_GEN_AR, N_OUT);
    c.on_progress = between_passes;
    fl_state_reset(&loaded.engine->state);
    *err = (fl_err){0};
    const fl_status st = fl_generate(gen, &c, prompt, N_PROMPT, &r, err);
    if (st == FL_OK) {
        assert_int_equal(r.n_generated, N_OUT);
        memcpy(out, r.ids, sizeof(want[0]));
    }
    /* Whatever happened: nothing is leased, nothing is lost. */
    assert_true(fl_store_is_sane(loaded.engine->store));
    assert_int_equal(fl_store_n_leased(loaded.engine->store), 0);
    assert_int_equal(fl_device_budget(loaded.engine->dev)->used, loaded.engine->plan.device_bytes);
    return st;
}

static void ask_right(int mode)
{
    fl_err err;
    int32_t got[N_OUT];
    ASSERT_OK(ask(mode, got, &err));
    assert_memory_equal(got, want[mode], sizeof(got));
}

static void faults(fl_io_fake_config c) { fl_io_fake_set(loaded.engine->io, &c); }

static void no_faults(void) { faults((fl_io_fake_config){.fail_at = -1}); }

/* A line for the user: it names the file and says what is wrong. */
static void assert_line(const fl_err *err, const char *words)
{
    assert_non_null(strstr(err->msg, "m.gguf: "));
    if (!strstr(err->msg, words)) fail_msg("'%s' is not in: %s", words, err->msg);
}

/* Read N fails, and goes on failing, for each N until the answer is through before it. */
static void an_error_at_each_read(void **state)
{
    (void)state;
    for (int mode = 0; mode < N_MODES; mode++) {
        int failed = 0, through = 0;
        int64_t at = 0;
        int64_t heap = 0;
        for (; !through; at += FL_SANITIZED_OR(5, 1)) {
            fl_err err;
            int32_t got[N_OUT];
            faults((fl_io_fake_config){.fail_at = at, .fail_errno = ENXIO, .fail_more = INT_MAX});
            const fl_status st = ask(mode, got, &err);
            if (st == FL_OK) {
                assert_memory_equal(got, want[mode], sizeof(got));
                /* Reads ahead may fail unseen: through it is when no read has failed. */
                through = fl_io_fake_failed(loaded.engine->io) == 0;
            } else {
                assert_int_equal(st, FL_E_IO);
                assert_int_equal(err.sys, ENXIO);
                assert_line(&err, "failed: No such device");
                failed++;
            }
            no_faults();
            if (at % 7 == 0) ask_right(mode);
            if (at == 20) heap = fl_heap_now();
        }
        if (at < 40) fail_msg("mode %d: only %d reads", mode, (int)at);
        assert_true(failed > (int)at / FL_SANITIZED_OR(10, 2));
        assert_int_equal(fl_heap_now(), heap);
        ask_right(mode);
    }
}

/* Errors that pass are not seen at all. */
static void errors_that_pass(void **state)
{
    (void)state;
    for (int i = 0; i < FL_SANITIZED_OR(4, 20); i++) {
        faults((fl_io_fake_config){.fail_at = i, .fail_more = i % 3, .fail_errno = EIO});
        ask_right(i % 2);
        assert_int_equal(fl_io_fake_failed(loaded.engine->io), 1 + i % 3);
    }
    no_faults();
}

/* Short reads, interrupted ones, any order, reads that wait: the text is the same. With errors on
 * top it is the same or there is a line. */
static void a_storm(void **state)
{
    (void)state;
    int failed = 0;
    for (uint64_t s = 1; s <= FL_SANITIZED_OR(4, 20); s++) {
        fl_err err;
        int32_t got[N_OUT];
        const int mode = (int)(s % N_MODES);
        fl_io_fake_config c = {.seed = s,
                               .short_chance = 300,
                               .again_chance = 200,
                               .fail_at = -1,
                               .reorder = true,
                               .stall_chance = 200,
                               .stall_polls = 7};
        faults(c);
        ask_right(mode);
        c.fail_chance = 10;
        c.fail_errno = ENODEV;
        faults(c);
        if (ask(mode, got, &err) == FL_OK)
            assert_memory_equal(got, want[mode], sizeof(got));
        else
            assert_line(&err, "failed: No such device");
        failed += err.code != FL_OK;
        no_faults();
    }
    assert_true(failed > 0);
    ask_right(0);
}

/* ---- a drive that stands still ---- */

/* For a while: the answer takes longer. For good: the request ends, and says for what it waited; so
 * does the next one, until the drive moves again. */
static void a_drive_that_hangs(void **state)
{
    (void)state;
    static const uint64_t MS = 1000000;
    fl_io *io = loaded.engine->io;
    for (int mode = 0; mode < N_MODES; mode++) {
        fl_err err;
        int32_t got[N_OUT];
        const uint64_t nap = getenv("FL_TEST_LONG") ? 2000 * MS : 30 * MS;
        fl_io_set_limit(io, 60000 * MS);
        faults((fl_io_fake_config){.seed = 5, .fail_at = -1, .stall_chance = 100, .stall_ns = nap});
        ask_right(mode);
        fl_io_set_limit(io, 20 * MS);
        for (int chance = 1024; chance > 20; chance /= FL_SANITIZED_OR(8, 2)) {
            faults((fl_io_fake_config){
                .seed = 6, .fail_at = -1, .stall_chance = chance, .stall_ns = UINT64_MAX});
            for (int again = 0; again < 3; again++) {
                if (ask(mode, got, &err) == FL_OK) {
                    assert_memory_equal(got, want[mode], sizeof(got));
                    continue;
                }
                assert_int_equal(err.code, FL_E_STALLED);
                assert_line(&err, "the drive hangs");
                fl_text t = {0};
                fl_engine_describe(loaded.engine, &t);
                assert_non_null(memmem(t.p, t.n, "reads to come\n", 14));
                assert_non_null(memmem(t.p, t.n, "m.gguf: ", 8));
                fl_text_fini(&t);
            }
            no_faults();
            ask_right(mode);
        }
    }
}

static void unload(void)
{
    fl_generator_destroy(&gen);
    fl_unload(&loaded);
}

/* ---- the host tier ---- */

static const fl_lane_choice lanes[] = {FL_LANES_CPU, FL_LANES_DEVICE};
static void load_with_host_tier(fl_lane_choice choice);

/* What cannot be loaded to host memory is read when it is needed; if that fails, too, it is told.
 */
static void errors_while_the_host_tier_loads(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (uint64_t s = 1; s <= FL_SANITIZED_OR(2, 8); s++) {
            fl_err err;
            int32_t got[N_OUT];
            load_with_host_tier(lanes[i]);
            const fl_io_fake_config c = {.seed = s,
                                         .short_chance = 100,
                                         .fail_at = -1,
                                         .fail_chance = 200,
                                         .fail_errno = ENXIO,
                                         .reorder = true};
            fl_io_fake_set(loaded.engine->host_io, &c);
            for (int mode = 0; mode < N_MODES; mode++) ask_right(mode);
            assert_true(fl_io_fake_failed(loaded.engine->host_io) > 0);
            faults(c);
            if (ask(0, got, &err) == FL_OK)
                assert_memory_equal(got, want[0], sizeof(got));
            else
                assert_line(&err, "failed: No such device");
            no_faults();
            for (int mode = 0; mode < N_MODES; mode++) ask_right(mode);
            unload();
        }
}

static void a_drive_that_hangs_while_the_host_tier_loads(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        fl_err err;
        int32_t got[N_OUT];
        load_with_host_tier(lanes[i]);
        fl_io *io = loaded.engine->host_io;
        fl_io_set_limit(io, 20000000);
        fl_io_fake_set(
            io, &(fl_io_fake_config){.fail_at = -1, .stall_chance = 1024, .stall_ns = UINT64_MAX});
        for (int again = 0; again < 3; again++) {
            assert_int_equal(ask(i, got, &err), FL_E_STALLED);
            assert_line(&err, "the drive hangs");
        }
        fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = -1});
        for (int mode = 0; mode < N_MODES; mode++) ask_right(mode);
        unload();
    }
}

/* ---- the file ---- */

static void fill(const char *to, uint64_t seed)
{
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.seed = seed;
    m.n_layer = m.interval = 2;
    m.n_expert = 12;
    fl_make_gguf(&m, to);
}

static void load(const char *io)
{
    fl_err err;
    const fl_engine_params p = tight(path, io);
    loaded = fl_load(path, &p);
    assert_true(loaded.engine->plan.n_slots > 0);
    ASSERT_OK(fl_generator_create(&gen, loaded.engine, &err));
}

static void load_with_host_tier(fl_lane_choice choice)
{
    fl_err err;
    fl_engine_params p = tight(path, "fake");
    p.ram = 1 << 30;
    p.lanes = choice;
    loaded = fl_load(path, &p);
    assert_true(loaded.engine->plan.n_host > 0);
    ASSERT_OK(fl_generator_create(&gen, loaded.engine, &err));
}

static void befall(mishap what)
{
    char *other = fl_tmp_path(dir, "other.gguf");
    if (what == CUT) assert_int_equal(truncate(path, 200000), 0);
    if (what == OVERWRITTEN) fill(path, 77);
    if (what == REPLACED) {
        fill(other, 77);
        assert_int_equal(rename(other, path), 0);
    }
    if (what == REMOVED) assert_int_equal(unlink(path), 0);
    free(other);
}

static const char *const told[N_MISHAPS] = {"the file ends at 200000", "was written to",
                                            "was replaced by another", "was removed"};
static const char *const backends[] = {NULL, "pread", "fake"};

/* Before a request it is told at once; in the middle of one, bytes that are still those of the file
 * that was opened are used, others end it. And it is told for good: what is in memory would not go
 * with what is read. */
static void a_file_that_changes(void **state)
{
    (void)state;
    for (int b = 0; b < 3; b++)
        for (mishap what = CUT; what < N_MISHAPS; what++)
            for (int middle = 0; middle < 2; middle++) {
                fl_err err;
                int32_t got[N_OUT];
                const int mode = (b + middle) % N_MODES;
                fill(path, 1);
                load(backends[b]);
                ask_right(mode);
                if (middle)
                    coming = what;
                else
                    befall(what);
                const fl_status st = ask(mode, got, &err);
                assert_int_equal(st, middle && what >= REPLACED ? FL_OK : FL_E_IO);
                if (st == FL_OK)
                    assert_memory_equal(got, want[mode], sizeof(got));
                else
                    assert_line(&err, told[what]);
                for (int again = 0; again < 2; again++) {
                    assert_int_equal(ask(again, got, &err), FL_E_IO);
                    assert_line(&err, told[what]);
                }
                unload();
            }
}

/* What needs no file does not mind. */
static void a_file_that_is_not_needed(void **state)
{
    (void)state;
    for (mishap what = CUT; what < N_MISHAPS; what++) {
        fl_err err;
        fill(path, 1);
        fl_engine_params p = tight(path, NULL);
        p.vram = 0;
        loaded = fl_load(path, &p);
        ASSERT_OK(fl_generator_create(&gen, loaded.engine, &err));
        befall(what);
        for (int mode = 0; mode < N_MODES; mode++) ask_right(mode);
        unload();
    }
}

/* Its head was read, then came another file. */
static void a_file_that_changes_before_it_is_loaded(void **state)
{
    (void)state;
    for (mishap what = OVERWRITTEN; what < N_MISHAPS; what++) {
        fl_err err;
        fl_model *m = NULL;
        fl_engine *e = NULL;
        fill(path, 1);
        const fl_engine_params p = tight(path, NULL);
        ASSERT_OK(fl_model_open(&m, path, &err));
        ASSERT_OK(fl_engine_open(&e, m, &p, &err));
        befall(what);
        ASSERT_FAILS(fl_engine_load(e, NULL, NULL, &err), FL_E_IO, "m.gguf: ");
        fl_engine_close(&e);
        fl_model_close(&m);
    }
}

static int setup_file(void **state)
{
    (void)state;
    fill(path, 1);
    return 0;
}

static int setup_fake(void **state)
{
    setup_file(state);
    load("fake");
    return 0;
}

static int teardown_fake(void **state)
{
    (void)state;
    unload();
    return 0;
}

static int setup(void **state)
{
    fl_err err;
    (void)state;
    fl_heap_watch();
    /* In memory where that exists: thousands of tiny direct reads would measure the drive. */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    fl_tmp_begin(&dir, &path, "m.gguf");
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = 'a' + (i * 7 + i / 5) % 26;
    setup_fake(state);
    for (int mode = 0; mode < N_MODES; mode++) ASSERT_OK(ask(mode, want[mode], &err));
    unload();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return fl_tmp_end(dir, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_error_at_each_read, setup_fake, teardown_fake),
        cmocka_unit_test_setup_teardown(errors_that_pass, setup_fake, teardown_fake),
        cmocka_unit_test_setup_teardown(a_storm, setup_fake, teardown_fake),
        cmocka_unit_test_setup_teardown(a_drive_that_hangs, setup_fake, teardown_fake),
        cmocka_unit_test_setup(errors_while_the_host_tier_loads, setup_file),
        cmocka_unit_test_setup(a_drive_that_hangs_while_the_host_tier_loads, setup_file),
        cmocka_unit_test(a_file_that_changes),
        cmocka_unit_test_setup(a_file_that_is_not_needed, setup_file),
        cmocka_unit_test_setup(a_file_that_changes_before_it_is_loaded, setup_file),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
