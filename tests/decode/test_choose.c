/* Which mode auto takes, from which facts, and how they are stored. */
#include "runtime/decode/choose.h"

#include <stdlib.h>

#include "runtime/decode/rates.h"
#include "tests/support/decoder.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

typedef struct chosen {
    int verdict, earned; /* of the file, of the probe */
    double ar, block, spec;
    bool no_masks, no_drafts;
    fl_gen_mode want;
    const char *words;
} chosen;

static fl_choice choose(const chosen *c, fl_gen_mode asked)
{
    const fl_clover sw = {.has_blocks = !c->no_masks, .verdict = c->verdict};
    const fl_mode_facts facts = {
        c->earned, {[FL_GEN_AR] = c->ar, [FL_GEN_BLOCK] = c->block, [FL_GEN_SPEC] = c->spec}};
    return fl_gen_choose(asked, &sw, &facts, !c->no_drafts);
}

static const chosen cases[] = {
    /* nothing stored: AR with speculation, whatever the file says */
    {.verdict = 1, .earned = -1, .want = FL_GEN_SPEC, .words = "no rates are stored"},
    {.verdict = 0,
     .earned = -1,
     .want = FL_GEN_SPEC,
     .words = "the file says that block mode is not"},
    {.verdict = -1, .earned = -1, .want = FL_GEN_SPEC, .words = "fourleaf probe"},
    {.verdict = -1, .earned = -1, .no_masks = true, .want = FL_GEN_SPEC, .words = "no masks"},
    {.verdict = 1, .earned = -1, .no_drafts = true, .want = FL_GEN_AR, .words = "no rates"},
    /* rates: the fastest of what is allowed */
    {1, -1, 30, 90, 40, .want = FL_GEN_BLOCK, .words = "block 90.0, spec 40.0, ar 30.0 tokens/s"},
    {1, -1, 30, 39, 40, .want = FL_GEN_SPEC, .words = "the file says that block mode is earned"},
    {1, -1, 50, 39, 40, .want = FL_GEN_AR, .words = "ar 50.0"},
    {0, -1, 30, 90, 40, .want = FL_GEN_SPEC, .words = "not earned; stored rates: block 90.0"},
    {-1, -1, 30, 90, 20, .want = FL_GEN_AR, .words = "nothing says"},
    {1, -1, 30, 30, 30, .want = FL_GEN_AR, .words = "earned"},
    {1, -1, 30, 0, 40, .want = FL_GEN_SPEC, .words = "earned; stored rates: spec 40.0, ar 30.0"},
    {1, -1, 30, 0, 40, .no_drafts = true, .want = FL_GEN_AR, .words = "ar 30.0"},
    {1, -1, 0, 0, 0, .want = FL_GEN_SPEC, .words = "no rates"},
    {1, -1, -5, -1, -3, .want = FL_GEN_SPEC, .words = "no rates"},
    /* the probe's word goes before the file's */
    {0, 1, 30, 90, 40, .want = FL_GEN_BLOCK, .words = "the probe found that block mode is earned"},
    {1, 0, 30, 90, 40, .want = FL_GEN_SPEC, .words = "the probe found that block mode is not"},
    {1, 1, 30, 90, 40, .no_masks = true, .want = FL_GEN_SPEC, .words = "no masks; stored rates"},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fl_choice c = choose(&cases[i], FL_GEN_AUTO);
        if (c.mode != cases[i].want || !strstr(c.reason, cases[i].words))
            fail_msg("case %zu: %s: %s", i, fl_gen_mode_name(c.mode), c.reason);
    }
}

static void test_what_is_asked_for_is_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int m = FL_GEN_AR; m < FL_GEN_MODES; m++) {
            const fl_choice c = choose(&cases[i], (fl_gen_mode)m);
            assert_int_equal(c.mode, m);
            assert_string_equal(c.reason, "asked for");
        }
}

/* Rates beyond all bounds: the line is cut, nothing else. */
static void test_reason_is_bounded(void **state)
{
    (void)state;
    const chosen c = {1, 1, 1e300, 1e300, 1e300, .no_masks = false};
    assert_true(strlen(choose(&c, FL_GEN_AUTO).reason) == FL_REASON_BYTES - 1);
}

/* ---- stored ---- */

static fl_json *entry(double ar, double block, double spec)
{
    fl_json *e = fl_json_new_object(), *t = fl_json_new_object();
    fl_json_set_num(t, "ar", ar);
    fl_json_set_num(t, "block", block);
    fl_json_set_num(t, "spec", spec);
    fl_json_set(e, "tokens_per_s", t);
    return e;
}

static fl_facts *facts(void)
{
    fl_err err;
    fl_facts *f = NULL;
    ASSERT_OK(fl_facts_open(&f, 5, &err));
    return f;
}

static void test_rates_are_kept_by_setup(void **state)
{
    (void)state;
    fl_err err;
    fl_facts *f = facts();
    fl_mode_facts m = fl_rates_read(f, "one");
    assert_int_equal(m.earned, -1);
    for (int i = 0; i < FL_GEN_MODES; i++) assert_true(m.per_s[i] == 0.0);
    ASSERT_OK(fl_rates_store(f, "one", entry(1, 2, 3), &err));
    ASSERT_OK(fl_rates_store(f, "two", entry(4, 5, 6), &err));
    ASSERT_OK(fl_rates_store(f, "one", entry(7, 8.5, 9), &err));
    fl_json *probe = fl_json_new_object();
    fl_json_set_bool(probe, "earned", true);
    ASSERT_OK(fl_facts_put(f, "probe", probe, &err));
    fl_facts_close(&f);

    f = facts();
    m = fl_rates_read(f, "one");
    assert_int_equal(m.earned, 1);
    assert_true(m.per_s[FL_GEN_AR] == 7 && m.per_s[FL_GEN_BLOCK] == 8.5 &&
                m.per_s[FL_GEN_SPEC] == 9 && m.per_s[FL_GEN_AUTO] == 0);
    assert_true(fl_rates_read(f, "two").per_s[FL_GEN_AR] == 4);
    assert_true(fl_rates_read(f, "three").per_s[FL_GEN_AR] == 0);
    fl_facts_close(&f);
}

/* What changes speed changes the key; what does not, does not. */
static void test_key(void **state)
{
    (void)state;
    char key[FL_RATES_KEY], other[FL_RATES_KEY];
    fl_engine e = *fl_tiny.engine;
    fl_rates_key(key, &e);
    assert_non_null(strstr(key, "host"));
    assert_non_null(strstr(key, "1 threads"));
    assert_non_null(strstr(key, "100 % of experts resident"));
    e.params.n_ctx++;
    e.params.held_rows = 0;
    fl_rates_key(other, &e);
    assert_string_equal(key, other);
    e.params.kv_type = FL_TYPE_F32;
    fl_rates_key(other, &e);
    assert_string_not_equal(key, other);
    e = *fl_tiny.engine;
    e.plan.n_resident /= 2;
    fl_rates_key(other, &e);
    assert_non_null(strstr(other, "50 % of experts resident"));
    e = *fl_tiny.engine;
    e.exec.act_f32 = true;
    fl_rates_key(other, &e);
    assert_string_not_equal(key, other);
}

/* The generator goes by the facts in its configuration. */
static void test_generation_says_what_was_taken(void **state)
{
    (void)state;
    int32_t ids[5];
    fl_output o = {0};
    fl_tiny_prompt(ids, 5);
    fl_gen_config c = fl_tiny_config(FL_GEN_AUTO);
    c.max_tokens = 2;
    fl_tiny_run(&c, ids, 5, &o);
    assert_int_equal(o.r.choice.mode, FL_GEN_SPEC);
    c.facts.earned = 1;
    c.facts.per_s[FL_GEN_BLOCK] = 2;
    c.facts.per_s[FL_GEN_AR] = 1;
    fl_tiny_run(&c, ids, 5, &o);
    assert_int_equal(o.r.choice.mode, FL_GEN_BLOCK);
    assert_int_equal(o.r.blocks, 1);
    assert_non_null(strstr(o.r.choice.reason, "block 2.0, ar 1.0"));
    /* An engine without room for held rows takes AR. */
    const int held = fl_tiny.engine->params.held_rows;
    fl_tiny.engine->params.held_rows = 0;
    c.facts = fl_mode_facts_none();
    fl_tiny_run(&c, ids, 5, &o);
    assert_int_equal(o.r.choice.mode, FL_GEN_AR);
    fl_tiny.engine->params.held_rows = held;
}

static int setup(void **state)
{
    fl_tiny_setup(state);
    setenv("XDG_CACHE_HOME", fl_tiny.dir, 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_what_is_asked_for_is_taken),
        cmocka_unit_test(test_reason_is_bounded),
        cmocka_unit_test(test_rates_are_kept_by_setup),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_generation_says_what_was_taken),
    };
    return cmocka_run_group_tests(tests, setup, fl_tiny_teardown);
}
