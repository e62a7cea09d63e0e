/* A sequence in a file: what is restored goes on with the same bits, and a file that is damaged,
 * cut short, of another model or made by hand is refused with one line and left alone. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/base/file.h"
#include "runtime/decode/loop.h"
#include "runtime/decode/session.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"
#include "tests/support/turns.h"

enum { IDENTITY = 4711, HEAD = 96 };

static char *path;

static int setup(void **state)
{
    if (fl_turns_setup(state) != 0) return -1;
    path = fl_tmp_path(fl_tiny.dir, "chat.session");
    return 0;
}

static int teardown(void **state)
{
    free(path);
    return fl_turns_teardown(state);
}

static uint64_t save(fl_generator *g, const char *note)
{
    fl_err err = {0};
    uint64_t bytes = 0;
    ASSERT_OK(fl_session_save(g, IDENTITY, path, note, strlen(note), &bytes, &err));
    return bytes;
}

/* Opens and restores; the status of what fails first. */
static fl_status restore(fl_generator *g, fl_err *err)
{
    fl_session *s = NULL;
    fl_status st = fl_session_open(&s, path, err);
    if (st == FL_OK) st = fl_session_restore(s, g, IDENTITY, err);
    fl_session_close(&s);
    return st;
}

/* ---- what is restored ---- */

static void M6_a_restored_session_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t kv[] = {FL_TYPE_F16, FL_TYPE_F32, FL_TYPE_Q8_0};
    static fl_turns c, next;
    static fl_outcome o;
    fl_err err = {0};
    for (int i = 0; i < 9; i++) {
        const fl_gen_mode mode = fl_turns_modes[i % 3];
        fl_gen_config cfg = fl_turns_config(mode, i % 2);
        fl_turns_make(&c);
        fl_long_open(kv[i / 3], 0);
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        next = c;
        fl_turns_append(&next, o.ids, o.r.n_generated);
        fl_turns_add(&next, 9, 99);
        const int64_t held = fl_long.engine->state.n;
        save(fl_long.gen, "");
        fl_long_close();

        /* The last answer again. */
        fl_long_open(kv[i / 3], 0);
        ASSERT_OK(restore(fl_long.gen, &err));
        assert_int_equal(fl_long.engine->state.n, held);
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        assert_int_equal(o.r.n_reused, fl_turns_answer(mode, c.n));
        assert_int_equal(o.r.prefill_passes, 0);
        fl_assert_as_fresh(&fl_long, &cfg, &c, &o);

        /* The next turn. */
        ASSERT_OK(restore(fl_long.gen, &err));
        fl_outcome_of(&fl_long, &cfg, &next, &o);
        assert_int_equal(o.r.n_reused, held);
        fl_assert_as_fresh(&fl_long, &cfg, &next, &o);

        /* An earlier message edited. */
        ASSERT_OK(restore(fl_long.gen, &err));
        fl_turns_cut(&next, 3);
        fl_turns_add(&next, 40, 5);
        fl_outcome_of(&fl_long, &cfg, &next, &o);
        assert_int_equal(o.r.n_reused, c.start[3]);
        fl_assert_as_fresh(&fl_long, &cfg, &next, &o);
        fl_long_close();
    }
}

static void the_note_and_the_tokens_come_back(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_err err = {0};
    fl_session *s = NULL;
    size_t n = 0;
    fl_gen_config cfg = fl_turns_config(FL_GEN_AR, false);
    cfg.max_tokens = 3;
    fl_turns_begin(&c, 20, 1);
    fl_outcome_of(&fl_tiny, &cfg, &c, &o);
    const uint64_t bytes = save(fl_tiny.gen, "[{\"role\": \"user\"}]");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, bytes);
    ASSERT_OK(fl_session_open(&s, path, &err));
    assert_string_equal(fl_session_note(s, &n), "[{\"role\": \"user\"}]");
    assert_int_equal(n, 18);
    assert_int_equal(fl_session_tokens(s), 22);
    fl_session_close(&s);
    assert_null(s);
    /* An empty sequence can be saved too. */
    fl_state_reset(&fl_tiny.engine->state);
    save(fl_tiny.gen, "");
    ASSERT_OK(restore(fl_tiny.gen, &err));
    assert_int_equal(fl_tiny.engine->state.n, 0);
}

/* A smaller budget keeps fewer checkpoints, and no bit changes. */
static void a_session_fits_a_smaller_budget(void **state)
{
    (void)state;
    static fl_turns c;
    static fl_outcome o;
    fl_err err = {0};
    fl_gen_config cfg = fl_turns_config(FL_GEN_AR, true);
    const uint64_t copy = (fl_tiny.engine->state.gdn_bytes + 4095) / 4096 * 4096;
    fl_turns_make(&c);
    fl_long_open(FL_TYPE_F16, 0);
    fl_outcome_of(&fl_long, &cfg, &c, &o);
    assert_int_equal(fl_long.gen->ladder->n, 7); /* six messages and the answer */
    save(fl_long.gen, "");
    fl_long_close();
    for (int n_max = 3; n_max >= 0; n_max--) {
        fl_long_open(FL_TYPE_F16, n_max ? (uint64_t)n_max * copy : copy);
        fl_long.gen->ladder->n_max = n_max;
        ASSERT_OK(restore(fl_long.gen, &err));
        assert_int_equal(fl_long.gen->ladder->n, n_max);
        fl_outcome_of(&fl_long, &cfg, &c, &o);
        assert_int_equal(o.r.n_reused, n_max ? c.n : 0);
        fl_assert_as_fresh(&fl_long, &cfg, &c, &o);
        fl_long_close();
    }
}

/* ---- files that are refused ---- */

static uint8_t *file;
static uint64_t n_file;

/* A small session in the file and in memory. */
static void make_file(void)
{
    static fl_turns c;
    static fl_outcome o;
    fl_err err = {0};
    fl_gen_config cfg = fl_turns_config(FL_GEN_AR, false);
    cfg.max_tokens = 3;
    fl_turns_begin(&c, 9, 1);
    fl_turns_add(&c, 9, 2);
    fl_outcome_of(&fl_tiny, &cfg, &c, &o);
    save(fl_tiny.gen, "note");
    free(file);
    ASSERT_OK(fl_file_load(path, 64 << 20, (char **)&file, &n_file, &err));
}

/* Writes n bytes of the (changed) file in memory; the restore fails with one line, the file stays
 * as it was and the generator is usable. */
static void refused(uint64_t n, const char *words)
{
    fl_err err = {0};
    fl_tmp_write(path, file, n);
    const fl_status st = restore(fl_tiny.gen, &err);
    if (st != FL_E_FORMAT) fail_msg("%llu bytes, %s: status %d", (unsigned long long)n, words, st);
    if (!strstr(err.msg, words)) fail_msg("'%s' is not in: %s", words, err.msg);
    assert_null(strchr(err.msg, '\n'));
    char *now = NULL;
    uint64_t n_now = 0;
    err = (fl_err){0};
    ASSERT_OK(fl_file_load(path, 64 << 20, &now, &n_now, &err));
    assert_int_equal(n_now, n);
    assert_memory_equal(now, file, n);
    free(now);
    assert_false(fl_tiny.engine->state.broken);
    assert_true(fl_ladder_top(fl_tiny.gen->ladder) <= fl_tiny.engine->state.n);
}

static void M6_a_truncated_file_is_refused(void **state)
{
    (void)state;
    make_file();
    for (uint64_t n = 0; n < 300; n++) refused(n, path);
    for (uint64_t i = 1; i <= 20; i++) refused(n_file - 1 - (n_file / 21) * (i - 1), "cut short");
    /* And one that is too long. */
    file = realloc(file, n_file + 1);
    assert_non_null(file);
    file[n_file] = 0;
    refused(n_file + 1, "cut short");
}

static void M6_every_flipped_bit_is_found(void **state)
{
    (void)state;
    make_file();
    const uint64_t front = HEAD + 20 * 4 + 2 * 16 + 4;
    const uint64_t step = (n_file - front) / 61;
    for (uint64_t at = 0; at < n_file; at += at < front ? 1 : step) {
        const uint8_t bit = (uint8_t)(1u << (at % 8));
        file[at] ^= bit;
        refused(n_file, path);
        file[at] ^= bit;
    }
    for (uint64_t at = 8; at < HEAD; at++)
        for (int bit = 0; bit < 8; bit++) {
            file[at] ^= (uint8_t)(1u << bit);
            refused(n_file, path);
            file[at] ^= (uint8_t)(1u << bit);
        }
    fl_err err = {0};
    fl_tmp_write(path, file, n_file);
    ASSERT_OK(restore(fl_tiny.gen, &err));
    file[n_file - 1] ^= 1;
    refused(n_file, "damaged: the checksum of its state is wrong");
    assert_int_equal(fl_tiny.engine->state.n, 0);
}

/* Puts right the checksum of the front, as somebody who makes a file by hand would. */
static void sign(void)
{
    uint64_t n_note, n_rungs;
    int64_t n;
    memset(file + HEAD - 8, 0, 8);
    memcpy(&n, file + 32, 8);
    memcpy(&n_rungs, file + 40, 8);
    memcpy(&n_note, file + 48, 8);
    const uint64_t front = (uint64_t)n * 4 + n_rungs * 16 + n_note;
    const uint64_t h = XXH3_64bits_withSeed(file + HEAD, front, XXH3_64bits(file, HEAD));
    memcpy(file + HEAD - 8, &h, 8);
}

static void put64(uint64_t at, uint64_t v) { memcpy(file + at, &v, 8); }

static void a_file_made_by_hand_is_refused(void **state)
{
    (void)state;
    const uint64_t tokens = HEAD, rungs = HEAD + 20 * 4;
    make_file();
    sign();
    fl_err err = {0};
    fl_tmp_write(path, file, n_file);
    ASSERT_OK(restore(fl_tiny.gen, &err)); /* the signature is right */

    file[tokens + 3] = 0x7f;
    sign();
    refused(n_file, "a token is outside the vocabulary");
    make_file();
    put64(rungs, 10); /* 10, then 18 */
    put64(rungs + 16, 10);
    sign();
    refused(n_file, "checkpoints are out of order");
    put64(rungs, 0);
    sign();
    refused(n_file, "checkpoints are out of order");
    put64(rungs, 9);
    put64(rungs + 16, 21);
    sign();
    refused(n_file, "checkpoints are out of order");
    put64(rungs + 16, 18);
    put64(rungs + 24, 8);
    sign();
    refused(n_file, "checkpoints are out of order");
    /* Sizes that add up and are not the model's: K and V rows twice as long, half the layers. */
    make_file();
    uint32_t layers;
    uint64_t row;
    memcpy(&layers, file + 28, 4);
    memcpy(&row, file + 56, 8);
    assert_true(layers > 0);
    layers *= 2;
    memcpy(file + 28, &layers, 4);
    put64(56, row / 2);
    sign();
    refused(n_file, "its sizes are not this model's");
}

static void M6_a_foreign_file_is_refused(void **state)
{
    (void)state;
    static const char text[] = "This is a letter and no session, and it is long enough to hold the "
                               "head of one twice over, so that only its first bytes tell.";
    fl_err err = {0};
    fl_session *s = NULL;
    make_file();
    fl_tmp_write(path, file, n_file);
    ASSERT_OK(fl_session_open(&s, path, &err));
    ASSERT_FAILS(fl_session_check(s, fl_tiny.engine, IDENTITY + 1, &err), FL_E_FORMAT,
                 "of another model");
    fl_engine other = *fl_tiny.engine;
    other.params.kv_type = FL_TYPE_F32;
    ASSERT_FAILS(fl_session_check(s, &other, IDENTITY, &err), FL_E_FORMAT,
                 "has a KV cache in f16, this run in f32");
    fl_model model = *fl_tiny.model;
    fl_index index = *model.index;
    index.hp.v_grouped = !index.hp.v_grouped;
    model.index = &index;
    other = *fl_tiny.engine;
    other.model = &model;
    ASSERT_FAILS(fl_session_check(s, &other, IDENTITY, &err), FL_E_FORMAT,
                 "read another way (a probe, --map or --v-heads changed that); name a new file");
    other = *fl_tiny.engine;
    other.params.act_f32 = true;
    ASSERT_FAILS(fl_session_check(s, &other, IDENTITY, &err), FL_E_FORMAT, "made with --act law");
    other = *fl_tiny.engine;
    other.params.n_ctx = 19;
    ASSERT_FAILS(fl_session_check(s, &other, IDENTITY, &err), FL_E_FORMAT,
                 "has 20 tokens, the context 19; raise --ctx");
    other.params.n_ctx = 20;
    ASSERT_OK(fl_session_check(s, &other, IDENTITY, &err));
    fl_session_close(&s);

    fl_tmp_write(path, text, sizeof(text));
    ASSERT_FAILS(fl_session_open(&s, path, &err), FL_E_FORMAT, "is not a session file");
    fl_tmp_write(path, "", 0);
    ASSERT_FAILS(fl_session_open(&s, path, &err), FL_E_FORMAT, "is not a session file (0 bytes)");
    ASSERT_FAILS(fl_session_open(&s, fl_tiny.dir, &err), FL_E_FORMAT, "is a folder");
    unlink(path);
    ASSERT_FAILS(fl_session_open(&s, path, &err), FL_E_IO, "cannot be opened");
    assert_null(s);
}

static void a_save_that_fails_leaves_the_old_file(void **state)
{
    (void)state;
    fl_err err = {0};
    uint64_t bytes = 0;
    make_file();
    const int files = fl_tmp_count(fl_tiny.dir);
    fl_tmp_write(path, "old", 3);
    ASSERT_FAILS(fl_session_save(fl_tiny.gen, IDENTITY, path, "x", (64 << 20) + 1, &bytes, &err),
                 FL_E_ARG, "at most 67108864 are kept");
    ASSERT_FAILS(fl_session_save(fl_tiny.gen, IDENTITY, fl_tiny.dir, "x", 1, &bytes, &err),
                 FL_E_ARG, "is a folder");
    char *now = NULL;
    ASSERT_OK(fl_file_load(path, 100, &now, NULL, &err));
    assert_string_equal(now, "old");
    free(now);
    assert_int_equal(fl_tmp_count(fl_tiny.dir), files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(M6_a_restored_session_goes_on_with_the_same_bits),
        cmocka_unit_test(the_note_and_the_tokens_come_back),
        cmocka_unit_test(a_session_fits_a_smaller_budget),
        cmocka_unit_test(M6_a_truncated_file_is_refused),
        cmocka_unit_test(M6_every_flipped_bit_is_found),
        cmocka_unit_test(a_file_made_by_hand_is_refused),
        cmocka_unit_test(M6_a_foreign_file_is_refused),
        cmocka_unit_test(a_save_that_fails_leaves_the_old_file),
    };
    const int failed = cmocka_run_group_tests(tests, setup, teardown);
    free(file);
    return failed;
}
