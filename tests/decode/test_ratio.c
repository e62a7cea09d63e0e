/* A8, speculation by the ratio of probabilities: its texts have the law of AR, told by chi-square
 * over a vocabulary of 16 tokens. Seeds are fixed: a run gives the same numbers every time. */
#include <math.h>
#include <stdlib.h>

#include "runtime/decode/draft.h"
#include "tests/support/engine.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { V = 16 };

/* ---- chi-square ---- */

/* Q(a, x), the upper incomplete gamma function over gamma(a), by series or continued fraction. */
static double upper_gamma(double a, double x)
{
    const double scale = exp(a * log(x) - x - lgamma(a));
    if (x < a + 1.0) {
        double term = 1.0 / a, sum = term;
        for (int n = 1; n < 10000; n++) sum += term *= x / (a + n);
        return 1.0 - scale * sum;
    }
    double b = x + 1.0 - a, c = 1e300, d = 1.0 / b, h = d;
    for (int n = 1; n < 10000; n++) {
        const double an = -n * (n - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        h *= d * c;
    }
    return scale * h;
}

/* p-value of counts against expected counts; cells that expect less than 5 share one. */
static double p_value(const int *count, const double *expected, int n, double *chi, int *freedom)
{
    double rest_count = 0.0, rest = 0.0;
    int cells = 0;
    *chi = 0.0;
    for (int i = 0; i < n; i++) {
        if (expected[i] < 5.0) {
            rest_count += count[i];
            rest += expected[i];
            continue;
        }
        *chi += (count[i] - expected[i]) * (count[i] - expected[i]) / expected[i];
        cells++;
    }
    if (rest > 0.0) {
        *chi += (rest_count - rest) * (rest_count - rest) / rest;
        cells++;
    }
    *freedom = cells - 1;
    return upper_gamma(0.5 * *freedom, 0.5 * *chi);
}

static void the_p_value_is_that_of_the_tables(void **state)
{
    (void)state;
    assert_true(fabs(upper_gamma(0.5, 0.5 * 3.841459) - 0.05) < 1e-6);
    assert_true(fabs(upper_gamma(7.5, 0.5 * 24.99579) - 0.05) < 1e-6);
    assert_true(fabs(upper_gamma(7.5, 0.5 * 7.260944) - 0.95) < 1e-6);
    assert_true(fabs(upper_gamma(7.5, 0.5 * 37.69730) - 0.001) < 1e-6);
}

/* ---- the arithmetic ---- */

typedef struct fixture {
    fl_kernels k;
    fl_sampler *s;
    fl_pool *pool;
    float p[V], q[V]; /* logits */
    double law[V];    /* of P, processed */
} fixture;

static void softmax(const float *l, double temp, int n, double *law)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += law[i] = exp(l[i] / temp);
    for (int i = 0; i < n; i++) law[i] /= sum;
}

static void open_fixture(fixture *f, const fl_sampler_config *c)
{
    fl_err err = {0};
    assert_true(fl_kernels_init(&f->k, NULL));
    ASSERT_OK(fl_sampler_create(&f->s, &f->k, V, 1, &err));
    ASSERT_OK(fl_sampler_configure(f->s, c, &err));
    ASSERT_OK(fl_sampler_reserve_drafts(f->s, 2, &err));
    ASSERT_OK(fl_pool_create(&f->pool, 1, &err));
    for (int i = 0; i < V; i++) {
        f->p[i] = (float)((i * 7) % 16) / 6.0f;
        f->q[i] = (float)((i * 11 + 3) % 16) / 5.0f;
    }
    softmax(f->p, c->temp, V, f->law);
}

static void close_fixture(fixture *f)
{
    fl_pool_destroy(&f->pool);
    fl_sampler_destroy(&f->s);
}

typedef enum way { RIGHT, ALWAYS, REDRAW, SAME_NOISE } way;

/* One token at `pos`: drawn from q, checked against P. Three wrong ways besides the right one:
 * every draft accepted; a refused one drawn anew from all of P; a refused one drawn anew with the
 * noise that drew the draft. */
static int32_t one_token(fixture *f, int64_t pos, way w, bool *accepted)
{
    float logits[2 * V];
    const int64_t at[2] = {pos, pos + 1};
    fl_pick draft, out[2];
    fl_sampler_draw_drafts(f->s, f->pool, f->q, &pos, 1, &draft);
    memcpy(logits, f->p, sizeof f->p);
    memcpy(logits + V, f->p, sizeof f->p);
    fl_sampler_check_drafts(f->s, f->pool, logits, at, &draft.token, 2, out);
    *accepted = out[0].token == draft.token;
    if (w == ALWAYS) return draft.token;
    if (*accepted || w == RIGHT) return out[0].token;
    fl_pick again;
    if (w == SAME_NOISE)
        fl_sampler_draw_drafts(f->s, f->pool, f->p, &pos, 1, &again);
    else
        again = fl_sampler_pick(f->s, f->p, pos, 0);
    return again.token;
}

static double try_way(fixture *f, way w, int n, double *accepted)
{
    int count[V] = {0}, right = 0, freedom = 0;
    double expected[V], chi = 0.0;
    for (int i = 0; i < n; i++) {
        bool ok = false;
        count[one_token(f, i, w, &ok)]++;
        right += ok;
    }
    for (int i = 0; i < V; i++) expected[i] = n * f->law[i];
    const double p = p_value(count, expected, V, &chi, &freedom);
    *accepted = (double)right / n;
    printf("chi-square %.2f, %d degrees of freedom, p = %.4g, %.1f %% accepted\n", chi, freedom, p,
           100.0 * *accepted);
    return p;
}

static void A8_chi_square_of_p_over_q_and_of_what_looks_like_it(void **state)
{
    (void)state;
    enum { N = 15000 };
    for (int seed = 1; seed <= 2; seed++) {
        fixture f;
        double accepted = 0.0, want = 0.0, q[V];
        open_fixture(&f, &(fl_sampler_config){.temp = 0.8, .top_p = 1.0, .seed = (uint64_t)seed});
        const double p = try_way(&f, RIGHT, N, &accepted);
        assert_true(p > 0.01 && p < 0.999);
        /* One draft in sum(min(P, q)) is accepted. */
        softmax(f.q, 0.8, V, q);
        for (int i = 0; i < V; i++) want += q[i] < f.law[i] ? q[i] : f.law[i];
        assert_true(fabs(accepted - want) < 4.0 * sqrt(want * (1.0 - want) / N));
        for (way w = ALWAYS; w <= SAME_NOISE; w++) assert_true(try_way(&f, w, N, &accepted) < 1e-6);
        close_fixture(&f);
    }
}

static void cut_distributions_keep_their_law(void **state)
{
    (void)state;
    enum { N = 15000, K = 5 };
    fixture f;
    double accepted = 0.0, kept[K];
    float best[K];
    open_fixture(&f, &(fl_sampler_config){.temp = 1.0, .top_p = 1.0, .top_k = K, .seed = 4});
    /* P's five best; drafts come from q's. */
    for (int i = 0; i < K; i++) best[i] = (float)(15 - i) / 6.0f;
    softmax(best, 1.0, K, kept);
    for (int i = 0; i < V; i++) {
        const int rank = 15 - (i * 7) % 16;
        f.law[i] = rank < K ? kept[rank] : 0.0;
    }
    assert_true(try_way(&f, RIGHT, N, &accepted) > 0.01);
    close_fixture(&f);
    /* The same distribution twice: all is accepted. */
    open_fixture(&f, &(fl_sampler_config){.temp = 1.0, .top_p = 0.9, .seed = 5});
    memcpy(f.q, f.p, sizeof f.p);
    for (int i = 0; i < 1000; i++) {
        bool ok = false;
        one_token(&f, i, RIGHT, &ok);
        assert_true(ok);
    }
    close_fixture(&f);
}

static void a_draft_says_how_sure_its_row_is_and_not_its_draw(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, &(fl_sampler_config){.temp = 1.0, .top_p = 1.0, .seed = 6});
    double q[V], top = 0.0;
    softmax(f.q, 1.0, V, q);
    for (int i = 0; i < V; i++) top = q[i] > top ? q[i] : top;
    unsigned seen = 0;
    for (int64_t pos = 0; pos < 500; pos++) {
        fl_pick d;
        fl_sampler_draw_drafts(f.s, f.pool, f.q, &pos, 1, &d);
        assert_true(fabs(d.confidence - top) < 1e-6);
        seen |= 1u << d.token;
    }
    assert_int_equal(seen, 0xffff);
    close_fixture(&f);
}

/* ---- in the decoder ---- */

enum { PROMPT = 5, LENGTH = 3, CELLS = V * V };

/* AR's law of the token behind ids. */
static void next_law(fl_generator *g, const int32_t *ids, int n, double temp, double *law)
{
    fl_err err = {0};
    const int last = -1;
    const float *logits = NULL;
    float l[V];
    fl_state_reset(&g->engine->state);
    ASSERT_OK(fl_forward_clean(g->engine, ids, n, &err));
    ASSERT_OK(fl_forward_logits(g->engine, &last, 1, &logits, &err));
    for (int i = 0; i < V; i++) l[i] = fl_sampler_banned(g->sampler, i) ? -1e30f : logits[i];
    softmax(l, temp, V, law);
}

/* The law of AR's second and third token together, summed over the first. */
static void pair_law(fl_generator *g, const int32_t *prompt, double temp, double *law)
{
    int32_t ids[PROMPT + 2];
    double first[V], second[V], third[V];
    memcpy(ids, prompt, PROMPT * sizeof(*ids));
    memset(law, 0, CELLS * sizeof(*law));
    next_law(g, ids, PROMPT, temp, first);
    for (int a = 0; a < V; a++) {
        ids[PROMPT] = a;
        next_law(g, ids, PROMPT + 1, temp, second);
        for (int b = 0; b < V; b++) {
            ids[PROMPT + 1] = b;
            next_law(g, ids, PROMPT + 2, temp, third);
            for (int t = 0; t < V; t++) law[b * V + t] += first[a] * second[b] * third[t];
        }
    }
}

static void A8_texts_by_ratio_have_the_law_of_ar(void **state)
{
    (void)state;
    enum { RUNS = 1500 };
    fl_err err = {0};
    char *dir = fl_tmp_make(), *path = fl_tmp_path(dir, "m.gguf");
    static const int32_t prompt[PROMPT] = {3, 9, 4, 11, 0};
    static double law[CELLS], expected[CELLS];
    static int count[CELLS];
    fl_generator *g = NULL;
    fl_make make = fl_make_tiny();
    fl_engine_params p = fl_engine_defaults();
    make.arch = "clover_moe";
    make.n_vocab = V;
    make.no_tokenizer = true;
    make.n_layer = make.interval = 2;
    fl_make_gguf(&make, path);
    p.threads = 1;
    p.n_ctx = 64;
    p.held_rows = 8;
    fl_loaded l = fl_load(path, &p);
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));

    fl_gen_config c;
    fl_gen_config_init(&c, l.model);
    c.mode = FL_GEN_SPEC;
    c.sampler = (fl_sampler_config){.temp = 1.5, .top_p = 1.0};
    c.ignore_eos = true;
    c.max_tokens = LENGTH;
    c.draft_min = 0.0f;
    c.draft_always = true;
    pair_law(g, prompt, c.sampler.temp, law);
    for (int ratio = 0; ratio < 2; ratio++) {
        int64_t drafted = 0, accepted = 0;
        fl_gen_result r;
        double chi = 0.0;
        int freedom = 0;
        c.draft_ratio = ratio;
        memset(count, 0, sizeof count);
        for (int i = 0; i < RUNS; i++) {
            c.sampler.seed = 1000u + (unsigned)i;
            ASSERT_OK(fl_generate(g, &c, prompt, PROMPT, &r, &err));
            assert_int_equal(r.n_generated, LENGTH);
            count[r.ids[1] * V + r.ids[2]]++;
            drafted += r.drafted;
            accepted += r.accepted;
        }
        for (int i = 0; i < CELLS; i++) expected[i] = RUNS * law[i];
        const double value = p_value(count, expected, CELLS, &chi, &freedom);
        printf("%s: chi-square %.2f, %d degrees of freedom, p = %.4g; %lld of %lld drafts right\n",
               ratio ? "p/q" : "sample and match", chi, freedom, value, (long long)accepted,
               (long long)drafted);
        assert_true(freedom > 30);
        assert_true(value > 0.01 && value < 0.999);
        assert_true(accepted > RUNS / 20);
    }
    /* The same seed gives the same text. */
    int32_t again[LENGTH];
    fl_gen_result r;
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(fl_generate(g, &c, prompt, PROMPT, &r, &err));
        if (i == 1) assert_memory_equal(again, r.ids, sizeof again);
        memcpy(again, r.ids, sizeof again);
    }
    /* Greedy it is the text of AR. */
    c.sampler.temp = 0.0;
    ASSERT_OK(fl_generate(g, &c, prompt, PROMPT, &r, &err));
    memcpy(again, r.ids, sizeof again);
    c.mode = FL_GEN_AR;
    ASSERT_OK(fl_generate(g, &c, prompt, PROMPT, &r, &err));
    assert_memory_equal(again, r.ids, sizeof again);
    /* A draft of several passes has rows that depend on drafted tokens: refused. */
    c.mode = FL_GEN_SPEC;
    c.draft_passes = 2;
    ASSERT_FAILS(fl_generate(g, &c, prompt, PROMPT, &r, &err), FL_E_ARG, "found 2 passes");
    c.draft_passes = 1;
    c.clover.has_blocks = false;
    ASSERT_FAILS(fl_generate(g, &c, prompt, PROMPT, &r, &err), FL_E_ARG, "a model without masks");
    fl_generator_destroy(&g);
    fl_unload(&l);
    free(path);
    fl_tmp_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_p_value_is_that_of_the_tables),
        cmocka_unit_test(A8_chi_square_of_p_over_q_and_of_what_looks_like_it),
        cmocka_unit_test(cut_distributions_keep_their_law),
        cmocka_unit_test(a_draft_says_how_sure_its_row_is_and_not_its_draw),
        cmocka_unit_test(A8_texts_by_ratio_have_the_law_of_ar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
