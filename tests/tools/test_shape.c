/* Plans from a model's name alone: the real model's counts, and two published placements. */
#include "runtime/model/engine.h"
#include "runtime/tools/shape.h"
#include "tests/support/test.h"

static const uint64_t MiB = 1 << 20;

static fl_model *open_shape(const char *name)
{
    const fl_wiring asked = fl_wiring_none();
    fl_model *m = NULL;
    fl_err err = {0};
    ASSERT_OK(fl_shape_open(&m, name, &asked, &err));
    return m;
}

/* base-model sizes as the published files have them; every tensor plays a role. */
static void counts_are_those_of_the_real_model(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3.6-35b-a3b", "clover-35b-a3b"};
    for (int i = 0; i < 2; i++) {
        fl_model *m = open_shape(names[i]);
        fl_index_sizes s;
        fl_index_measure(m->index, &s);
        /* Two gates, a convolution and three vectors of 32 in each of 30 GDN layers. */
        const uint64_t bwd = i * 30ull * (2 * 32 * 2048 + 8192 * 4 + 3 * 32);
        assert_int_equal(s.params_total, 34660610688 + bwd);
        assert_int_equal(s.experts, 40ull * 256 * 1769472);
        /* No setting is missing; norms of zeros look like those that lack their 1. */
        assert_int_equal(m->index->n_notes, 1);
        assert_non_null(strstr(m->index->note[0], "norm weights are zero-centred"));
        assert_int_equal(m->index->n_extra, 0);
        assert_int_equal(m->index->clover.has_blocks, i);
        assert_int_equal(m->index->clover.has_bwd, i);
        fl_model_close(&m);
    }
}

static fl_plan plan(const fl_model *m, uint64_t vram, int64_t n_ctx)
{
    fl_engine_params p = fl_engine_defaults();
    fl_engine *e = NULL;
    fl_err err = {0};
    p.vram = vram;
    p.n_ctx = n_ctx;
    p.threads = 2;
    ASSERT_OK(fl_engine_open(&e, m, &p, &err));
    const fl_plan copy = e->plan;
    fl_engine_close(&e);
    return copy; /* numbers only */
}

static uint64_t item(const fl_plan *p, const char *name)
{
    for (int i = 0; i < p->in.n_items; i++)
        if (strcmp(p->in.item[i].name, name) == 0) return p->in.item[i].bytes;
    fail_msg("the plan has no item %s", name);
    return 0;
}

static void everything_and_128k_fit_in_24_gib(void **state)
{
    (void)state;
    fl_model *m = open_shape("clover-35b-a3b");
    const fl_plan p = plan(m, 24576 * MiB, 131072);
    assert_int_equal(item(&p, "KV cache"), 131072 * 20480ull);
    assert_int_equal(p.n_total, 10240);
    assert_int_equal(p.n_resident, 10240);
    fl_model_close(&m);
}

static void thirty_layers_and_8k_fit_in_15456_mib(void **state)
{
    (void)state;
    fl_model *m = open_shape("clover-35b-a3b");
    const fl_plan p = plan(m, 15456 * MiB, 8192);
    const uint64_t layers_30 = 30ull * 256 * 1769472;
    assert_int_equal(item(&p, "KV cache"), 8192 * 20480ull);
    assert_in_range(item(&p, "GDN state"), 65863680, 65863680 + 8192); /* and a hidden row */
    assert_true(item(&p, "dense weights") + item(&p, "KV cache") + item(&p, "GDN state") +
                    layers_30 <=
                15456 * MiB);
    /* What passes compute in, and slots for the rest, take the place of three experts in a
     * hundred. */
    assert_in_range(p.n_resident, 7680 * 97 / 100, 7680);
    fl_model_close(&m);
}

static void another_name_is_refused(void **state)
{
    (void)state;
    const fl_wiring asked = fl_wiring_none();
    fl_model *m = NULL;
    fl_err err = {0};
    ASSERT_FAILS(fl_shape_open(&m, "clover", &asked, &err), FL_E_ARG, "clover-35b-a3b");
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_those_of_the_real_model),
        cmocka_unit_test(everything_and_128k_fit_in_24_gib),
        cmocka_unit_test(thirty_layers_and_8k_fit_in_15456_mib),
        cmocka_unit_test(another_name_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
