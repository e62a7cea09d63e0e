/* A NaN or an infinity in any matrix of any layer stops every kind of pass with an error that names
 * the layer where it first appeared. */
#include <math.h>
#include <stdlib.h>

#include "runtime/decode/generate.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/make_model.h"
#include "tests/support/poison.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { CLEAN, DENOISE, FUSED, HELD, N_PASSES };
static const char *const pass_name[] = {"clean", "denoise", "fused", "held"};

typedef struct part {
    const char *tensor; /* blk.N.TENSOR.weight */
    int layers;         /* bit i: layer i has it; layers 0 to 2 are GDN, 3 is attention */
    bool block_only;    /* read by block passes alone */
    bool per_expert;
} part;

static const part parts[] = {
    {"attn_qkv", 7, false, false},
    {"attn_gate", 7, false, false},
    {"ssm_alpha", 7, false, false},
    {"ssm_beta", 7, false, false},
    {"ssm_out", 7, false, false},
    {"ssm_bwd_alpha", 7, true, false},
    {"ssm_bwd_beta", 7, true, false},
    {"attn_q", 8, false, false},
    {"attn_k", 8, false, false},
    {"attn_v", 8, false, false},
    {"attn_output", 8, false, false},
    {"ffn_gate_inp", 15, false, false},
    {"ffn_gate_exps", 15, false, true},
    {"ffn_up_exps", 15, false, true},
    {"ffn_down_exps", 15, false, true},
    {"ffn_gate_shexp", 15, false, false},
    {"ffn_up_shexp", 15, false, false},
    {"ffn_down_shexp", 15, false, false},
    {"ffn_gate_inp_shexp", 15, false, false},
};

static fl_make make;

static int setup(void **state)
{
    make = fl_make_tiny();
    make.arch = "clover_moe";
    return fl_files_setup(state);
}

static fl_loaded load(void)
{
    fl_engine_params p = fl_engine_defaults();
    p.threads = 1;
    p.n_ctx = 64;
    p.held_rows = 8;
    return fl_load(fl_files.gguf, &p);
}

/* Runs a pass and, where it works, the LM head over its last row. */
static fl_status run_pass(fl_engine *e, int pass, fl_err *err)
{
    static const int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const fl_clover *sw = &e->model->index->clover;
    int32_t block[8];
    const int row = pass == FUSED ? 15 : 7;
    const float *logits = NULL;
    for (int i = 0; i < 8; i++) block[i] = i < 3 ? ids[i] : sw->mask_id;
    fl_state_reset(&e->state);
    switch (pass) {
    case CLEAN: FL_TRY(fl_forward_clean(e, ids, 8, err)); break;
    case DENOISE: FL_TRY(fl_forward_denoise(e, block, 8, sw, err)); break;
    case FUSED: FL_TRY(fl_forward_fused(e, ids, 8, block, 8, sw, err)); break;
    default: FL_TRY(fl_forward_held(e, ids, 8, err)); break;
    }
    return fl_forward_logits(e, &row, 1, &logits, err);
}

static void check_part(const part *p, int layer, float value)
{
    fl_err err = {0};
    char tensor[64], words[64];
    snprintf(tensor, sizeof tensor, "blk.%d.%s.weight", layer, p->tensor);
    snprintf(words, sizeof words, "layer %d, ", layer);
    fl_make_gguf(&make, fl_files.gguf);
    /* One weight; of every expert, since a row sees but a few. */
    const uint64_t expert_bytes = (uint64_t)make.d_model * (uint64_t)make.d_ff * sizeof(float);
    fl_poison(fl_files.gguf, tensor, 4, p->per_expert ? make.n_expert : 1, expert_bytes, value);
    fl_loaded l = load();
    for (int pass = 0; pass < N_PASSES; pass++) {
        err = (fl_err){0};
        const fl_status st = run_pass(l.engine, pass, &err);
        if (p->block_only && (pass == CLEAN || pass == HELD)) {
            assert_int_equal(st, FL_OK);
            continue;
        }
        if (st != FL_E_NAN || !strstr(err.msg, words))
            fail_msg("%s = %g, %s pass: %s (%s)", tensor, (double)value, pass_name[pass], err.msg,
                     fl_status_name(st));
    }
    fl_unload(&l);
}

static void the_layer_where_it_first_appeared_is_named(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    int tried = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int layer = 0; layer < 4; layer++)
            if (parts[i].layers >> layer & 1) check_part(&parts[i], layer, values[tried++ % 3]);
    assert_int_equal(tried, 7 * 3 + 4 + 8 * 4);
}

static void the_embedding_and_the_head_are_named_too(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_make_gguf(&make, fl_files.gguf);
    fl_poison(fl_files.gguf, "token_embd.weight", 3 * (uint64_t)make.d_model * 4, 1, 4, NAN);
    fl_loaded l = load();
    for (int pass = 0; pass < N_PASSES; pass++)
        ASSERT_FAILS(run_pass(l.engine, pass, &err), FL_E_NAN, "token embedding");
    fl_unload(&l);
    fl_make_gguf(&make, fl_files.gguf);
    fl_poison(fl_files.gguf, "output.weight", 17 * (uint64_t)make.d_model * 4, 1, 4, -INFINITY);
    l = load();
    for (int pass = 0; pass < N_PASSES; pass++)
        ASSERT_FAILS(run_pass(l.engine, pass, &err), FL_E_NAN, "LM head, token 17");
    fl_unload(&l);
}

static void every_mode_stops_with_that_error(void **state)
{
    (void)state;
    fl_err err = {0};
    const int32_t prompt[] = {1, 2, 3, 4, 5};
    fl_generator *g = NULL;
    fl_gen_result r;
    fl_make_gguf(&make, fl_files.gguf);
    fl_poison(fl_files.gguf, "blk.2.ffn_down_shexp.weight", 0, 1, 4, INFINITY);
    fl_loaded l = load();
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    for (int mode = FL_GEN_AR; mode <= FL_GEN_SPEC; mode++) {
        fl_gen_config c;
        fl_gen_config_init(&c, l.model);
        c.mode = (fl_gen_mode)mode;
        c.max_tokens = 8;
        for (int again = 0; again < 2; again++) {
            ASSERT_FAILS(fl_generate(g, &c, prompt, 5, &r, &err), FL_E_NAN, "layer 2, ");
            assert_int_equal(r.n_generated, 0);
        }
    }
    fl_generator_destroy(&g);
    fl_unload(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_layer_where_it_first_appeared_is_named),
        cmocka_unit_test(the_embedding_and_the_head_are_named_too),
        cmocka_unit_test(every_mode_stops_with_that_error),
    };
    return cmocka_run_group_tests(tests, setup, fl_files_teardown);
}
