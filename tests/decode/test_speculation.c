/* AR and speculation on the trained model: the same tokens, drafts that are worth something.
 * tests/eval/speculation does it for 1,000 tokens of 20 prompts. */
#include <stdlib.h>

#include "runtime/model/chat.h"
#include "tests/support/decoder.h"
#include "tests/support/test.h"

enum { TOKENS = 96 };

static fl_loaded trained;
static fl_generator *gen;

static int setup(void **state)
{
    (void)state;
    fl_err err;
    fl_engine_params p = fl_engine_defaults();
    p.threads = 2;
    p.n_ctx = 256;
    p.held_rows = 32;
    trained = fl_load("tests/clover_tiny/model", &p);
    ASSERT_OK(fl_generator_create(&gen, trained.engine, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fl_generator_destroy(&gen);
    fl_unload(&trained);
    return 0;
}

static const char *const questions[] = {
    "What are the capitals of France, Japan and Egypt?",
    "Dispatch: 1. turn on the fan; 2. call Anna; 3. close gate 7; 4. report to Elena at 08:30.",
};

static int64_t generate(const char *question, const fl_gen_config *c, int32_t ids[TOKENS],
                        fl_gen_result *r)
{
    fl_err err;
    char *text = NULL;
    size_t n_text = 0, n = 0;
    int32_t *prompt = NULL;
    ASSERT_OK(fl_chat_render_simple(NULL, question, true, &text, &n_text, &err));
    ASSERT_OK(fl_tokenizer_encode(trained.model->tokenizer, text, n_text, true, &prompt, &n, &err));
    ASSERT_OK(fl_generate(gen, c, prompt, (int64_t)n, r, &err));
    assert_true(r->n_generated <= TOKENS);
    memcpy(ids, r->ids, (size_t)r->n_generated * sizeof *ids);
    free(text);
    free(prompt);
    return r->n_generated;
}

/* Both modes; the counts of speculation are added to *sum. */
static void check_equal(const char *question, fl_gen_config c, fl_gen_result *sum)
{
    int32_t ar[TOKENS], spec[TOKENS];
    fl_gen_result r;
    c.mode = FL_GEN_AR;
    const int64_t n = generate(question, &c, ar, &r);
    c.mode = FL_GEN_SPEC;
    assert_int_equal(generate(question, &c, spec, &r), n);
    assert_memory_equal(ar, spec, (size_t)n * sizeof *ar);
    sum->n_generated += n;
    sum->drafted += r.drafted;
    sum->accepted += r.accepted;
    sum->clean_passes += r.clean_passes;
    sum->held_passes += r.held_passes;
    sum->denoise_passes += r.denoise_passes;
}

static fl_gen_config config(void)
{
    fl_gen_config c;
    fl_gen_config_init(&c, trained.model);
    c.sampler.temp = 0;
    c.max_tokens = TOKENS;
    c.draft_always = true;
    return c;
}

/* Whole answers in less than half as many passes as tokens. */
static void test_greedy(void **state)
{
    (void)state;
    fl_gen_result sum = {0};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        check_equal(questions[i], config(), &sum);
    assert_true(2 * (sum.clean_passes + sum.held_passes + sum.denoise_passes) < sum.n_generated);
    assert_int_equal(sum.clean_passes, 0);
}

/* More tokens than answers have, past their ends; sampled; with all that may differ in a draft. */
static void test_sampled_with_every_kind_of_draft(void **state)
{
    (void)state;
    int64_t accepted[2] = {0};
    for (int own = 0; own < 2; own++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            fl_gen_config c = config();
            fl_gen_result sum = {0};
            c.sampler.temp = seed == 3 ? 2.0 : 0.8;
            c.sampler.seed = seed;
            c.ignore_eos = true;
            c.draft_own_noise = own;
            c.draft_passes = seed == 2 ? 3 : 1;
            check_equal(questions[seed % 2], c, &sum);
            assert_int_equal(sum.n_generated, TOKENS);
            accepted[own] += sum.accepted;
        }
    /* The check's own noise picks what the check picks. */
    assert_true(accepted[0] > accepted[1]);
}

/* Whoever's turn it is: the clock decides, the text stays. */
static void test_turns(void **state)
{
    (void)state;
    fl_gen_result sum = {0};
    fl_gen_config c = config();
    c.draft_always = false;
    c.ignore_eos = true;
    check_equal(questions[0], c, &sum);
    assert_true(sum.clean_passes >= 2);
}

/* Accepted by ratio the text is not AR's, so AR gets no turn, whatever the clock says. */
static void test_drafts_by_ratio_take_no_turns(void **state)
{
    (void)state;
    int32_t free_to[TOKENS], always[TOKENS];
    fl_gen_result r;
    fl_gen_config c = config();
    c.mode = FL_GEN_SPEC;
    c.sampler.temp = 0.8;
    c.ignore_eos = c.draft_ratio = true;
    generate(questions[0], &c, always, &r);
    c.draft_always = false;
    generate(questions[0], &c, free_to, &r);
    assert_int_equal(r.clean_passes, 0);
    assert_memory_equal(free_to, always, sizeof always);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_sampled_with_every_kind_of_draft),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_drafts_by_ratio_take_no_turns),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
