/* Damaged weights in a model that loads: the passes give finite numbers or an error line, never a
 * crash and never a NaN that is taken for an answer. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/model/forward.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* A clean pass, a block pass and their logits. */
static fl_status passes(fl_engine *e, fl_err *err)
{
    static const int32_t ids[] = {1, 17, 260, 99, 3, 200};
    const int rows[] = {0, 3};
    const float *logits;
    const int n_vocab = (int)e->model->index->hp.n_vocab;
    for (int i = 0; i < 6; i++)
        if (ids[i] >= n_vocab)
            return FL_FAIL(err, FL_E_ARG, 0, "%s: small vocabulary", fl_files.gguf);
    FL_TRY(fl_forward_clean(e, ids, 6, err));
    FL_TRY(fl_forward_logits(e, rows, 2, &logits, err));
    for (int i = 0; i < 2 * n_vocab; i++) assert_true(isfinite(logits[i]));
    FL_TRY(fl_forward_denoise(e, ids, 4, &e->model->index->clover, err));
    FL_TRY(fl_forward_logits(e, rows, 2, &logits, err));
    for (int i = 0; i < 2 * n_vocab; i++) assert_true(isfinite(logits[i]));
    return FL_OK;
}

static fl_status run(fl_err *err)
{
    *err = (fl_err){0};
    fl_model *m = NULL;
    fl_engine *e = NULL;
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = 64;
    p.threads = 1;
    p.io = "pread";
    alarm(120);
    fl_status st = fl_model_open(&m, fl_files.gguf, err);
    if (st == FL_OK) st = fl_engine_open(&e, m, &p, err);
    if (st == FL_OK) st = fl_engine_load(e, NULL, NULL, err);
    if (st == FL_OK) st = passes(e, err);
    fl_engine_close(&e);
    fl_model_close(&m);
    alarm(0);
    if (st != FL_OK && (st != err->code || !*err->msg || strchr(err->msg, '\n')))
        fail_msg("status %s, message '%s'", fl_status_name(st), err->msg);
    return st;
}

static fl_tensor find(const char *name)
{
    fl_err err;
    fl_source *src;
    ASSERT_OK(fl_source_open(&src, fl_files.gguf, &err));
    const fl_tensor *t = fl_source_find(src, name);
    if (!t) fail_msg("no tensor %s", name);
    const fl_tensor copy = *t;
    fl_source_close(&src);
    return copy;
}

/* Puts `value` at n places of a tensor, the first element among them. */
static void plant(const char *name, float value, int n)
{
    const fl_tensor t = find(name);
    assert_int_equal(t.type, FL_TYPE_F32);
    const int64_t elems = (int64_t)(t.bytes / 4);
    const int fd = open(fl_files.gguf, O_WRONLY);
    assert_true(fd >= 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(pwrite(fd, &value, 4, (off_t)(t.offset + (uint64_t)(elems * i / n * 4))),
                         4);
    close(fd);
}

static void a_sound_model_runs(void **state)
{
    (void)state;
    fl_err err;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    fl_make_gguf(&m, fl_files.gguf);
    ASSERT_OK(run(&err));
}

static void nan_and_infinity_are_errors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int places; /* enough that the six tokens meet one */
    } where[] = {
        {"token_embd.weight", 320},
        {"blk.0.attn_norm.weight", 1},
        {"blk.0.attn_qkv.weight", 1},
        {"blk.1.ssm_conv1d.weight", 1},
        {"blk.1.ssm_a", 1},
        {"blk.2.ssm_dt.bias", 1},
        {"blk.2.ssm_norm.weight", 1},
        {"blk.0.ssm_out.weight", 1},
        {"blk.2.ssm_alpha.weight", 1},
        {"blk.2.ssm_beta.weight", 1},
        {"blk.1.ssm_bwd_alpha.weight", 1},
        {"blk.1.ssm_bwd_beta.weight", 1},
        {"blk.0.ssm_bwd_mix", 1},
        {"blk.3.attn_k.weight", 1},
        {"blk.3.attn_output.weight", 1},
        {"blk.3.attn_q.weight", 2},
        {"blk.3.attn_q.weight", 1},
        {"blk.3.attn_k_norm.weight", 1},
        {"blk.3.attn_v.weight", 1},
        {"blk.1.ffn_gate_inp.weight", 1},
        {"blk.1.ffn_up_exps.weight", 4},
        {"blk.2.ffn_down_exps.weight", 4},
        {"blk.2.ffn_gate_inp_shexp.weight", 1},
        {"blk.3.ffn_down_shexp.weight", 1},
        {"output_norm.weight", 1},
        {"output.weight", 1},
    };
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        fl_err err;
        fl_make_gguf(&m, fl_files.gguf);
        plant(where[i].name, i % 2 ? NAN : INFINITY, where[i].places);
        const fl_status st = run(&err);
        if (st != FL_E_NAN)
            fail_msg("%s: expected an error for what is not finite, got %s: %s", where[i].name,
                     fl_status_name(st), err.msg);
    }
}

static uint64_t rnd = 0x2545f4914f6cdd1dull;

static uint64_t next(void)
{
    rnd ^= rnd >> 12;
    rnd ^= rnd << 25;
    rnd ^= rnd >> 27;
    return rnd * 0x9e3779b97f4a7c15ull;
}

static void flips_run_or_fail_in_one_line(void **state)
{
    (void)state;
    fl_err err;
    const int n = getenv("FL_TEST_LONG") ? 1000 : 40;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.type = FL_TYPE_Q8_0;
    m.mix[0].part = "ssm_out", m.mix[0].type = FL_TYPE_F16;
    m.mix[1].part = "attn_output", m.mix[1].type = FL_TYPE_BF16;
    fl_make_gguf(&m, fl_files.gguf);
    const uint64_t data = find("token_embd.weight").offset;
    const uint64_t end = find("output_norm.weight").offset + 64 * 4;
    const int fd = open(fl_files.gguf, O_RDWR);
    for (int i = 0; i < n; i++) {
        /* Three in data, one in the header. */
        const uint64_t at = i % 4 ? data + next() % (end - data) : next() % data;
        uint8_t was, now;
        assert_int_equal(pread(fd, &was, 1, (off_t)at), 1);
        now = was ^ (uint8_t)(1 + next() % 255);
        assert_int_equal(pwrite(fd, &now, 1, (off_t)at), 1);
        (void)!run(&err);
        assert_int_equal(pwrite(fd, &was, 1, (off_t)at), 1);
    }
    close(fd);
    ASSERT_OK(run(&err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sound_model_runs, fl_files_setup, fl_files_teardown),
        cmocka_unit_test_setup_teardown(nan_and_infinity_are_errors, fl_files_setup,
                                        fl_files_teardown),
        cmocka_unit_test_setup_teardown(flips_run_or_fail_in_one_line, fl_files_setup,
                                        fl_files_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
