#include <math.h>
#include <stdlib.h>

#include "runtime/decode/sampler.h"
#include "tests/support/test.h"

enum { V = 16 };

static const fl_kernels *kernels(const char *tier)
{
    static fl_kernels best, named;
    fl_kernels *k = tier ? &named : &best;
    assert_true(fl_kernels_init(k, tier));
    return k;
}

static fl_sampler *make(const fl_sampler_config *c)
{
    fl_err err = {0};
    fl_sampler *s = NULL;
    ASSERT_OK(fl_sampler_create(&s, kernels(NULL), V, 2, &err));
    ASSERT_OK(fl_sampler_configure(s, c, &err));
    return s;
}

static const fl_sampler_config greedy = {.top_p = 1.0};

static void fill(float *l, float v)
{
    for (int i = 0; i < V; i++) l[i] = v;
}

static void greedy_takes_the_largest_and_the_lowest_id_on_ties(void **state)
{
    (void)state;
    fl_sampler *s = make(&greedy);
    float l[V];
    fill(l, 0.0f);
    l[9] = l[5] = 3.0f;
    const fl_pick p = fl_sampler_pick(s, l, 0, 0);
    assert_int_equal(p.token, 5);
    const double e3 = exp(3.0);
    assert_true(fabs(p.confidence - e3 / (2 * e3 + 14)) < 1e-6);
    fl_sampler_destroy(&s);
    assert_null(s);
}

static void bans_come_before_the_softmax(void **state)
{
    (void)state;
    fl_sampler *s = make(&greedy);
    float l[V];
    fill(l, -1.0f);
    l[3] = 10.0f;
    l[7] = 2.0f;
    fl_sampler_ban(s, 3);
    fl_sampler_ban(s, -1); /* no id: nothing happens */
    fl_sampler_ban(s, V);
    assert_true(fl_sampler_banned(s, 3));
    const fl_pick p = fl_sampler_pick(s, l, 0, 1);
    assert_int_equal(p.token, 7);
    const double e = exp(3.0);
    assert_true(fabs(p.confidence - e / (e + 14)) < 1e-6);
    fl_sampler_destroy(&s);
}

/* How often each id is picked over many positions. */
static void histogram(fl_sampler *s, const float *l, int n, int count[V])
{
    memset(count, 0, V * sizeof(*count));
    for (int i = 0; i < n; i++) {
        const fl_pick p = fl_sampler_pick(s, l, i, 0);
        assert_in_range(p.token, 0, V - 1);
        count[p.token]++;
    }
}

static void noise_gives_the_softmax(void **state)
{
    (void)state;
    fl_sampler *s = make(&(fl_sampler_config){.temp = 2.0, .top_p = 1.0, .seed = 7});
    float l[V];
    int count[V];
    double sum = 0.0, chi = 0.0;
    for (int i = 0; i < V; i++) l[i] = 0.25f * (float)i;
    const int n = 40000;
    histogram(s, l, n, count);
    for (int i = 0; i < V; i++) sum += exp(l[i] / 2.0);
    for (int i = 0; i < V; i++) {
        const double want = n * exp(l[i] / 2.0) / sum;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi < 37.7); /* 15 degrees of freedom, 0.1 % */
    assert_true(chi > 3.0);  /* and not too good to be chance */
    fl_sampler_destroy(&s);
}

static double gumbel(uint64_t seed, int64_t pos, int32_t token)
{
    return fl_noise_gumbel(fl_noise_bits(fl_noise_key(seed, pos), token));
}

static void same_keys_give_the_same_noise(void **state)
{
    (void)state;
    assert_true(gumbel(1, 2, 3) == gumbel(1, 2, 3));
    assert_true(gumbel(1, 2, 3) != gumbel(2, 2, 3));
    assert_true(gumbel(1, 2, 3) != gumbel(1, 3, 3));
    assert_true(gumbel(1, 2, 3) != gumbel(1, 2, 4));
    assert_true(gumbel(1, 2, 3) != gumbel(1, 3, 2));
}

static void noise_is_finite_and_rises_with_its_bits(void **state)
{
    (void)state;
    const uint64_t most = ((uint64_t)1 << 52) - 1;
    assert_true(fl_noise_uniform(0) == 0x1p-53);
    assert_true(fl_noise_uniform(most) == 1.0 - 0x1p-53);
    assert_true(fabs(fl_noise_gumbel(most) - 53.0 * log(2.0)) < 1e-12);
    assert_true(fabs(fl_noise_gumbel(0) + log(53.0 * log(2.0))) < 1e-12);
    double last = -100.0;
    for (int i = 0; i < 52; i++) {
        assert_true(fl_noise_gumbel(((uint64_t)1 << i) - 1) > last);
        last = fl_noise_gumbel(((uint64_t)1 << i) - 1);
    }
    for (int i = 0; i < 1000; i++) assert_true(fl_noise_bits(fl_noise_key(1, 2), i) <= most);
}

/* ---- the plain way, for comparison ---- */

enum { W = 3001 };
typedef struct plain_id {
    double l;
    int id;
} plain_id;

static int by_falling_logit(const void *a, const void *b)
{
    const plain_id *x = a, *y = b;
    if (x->l != y->l) return x->l < y->l ? 1 : -1;
    return x->id - y->id;
}

/* Process and pick by the definition: sort, cut, a look at every candidate. */
static fl_pick plain_pick(const fl_sampler_config *c, const float *l, const int *count, int banned,
                          int64_t pos)
{
    static plain_id p[W];
    int n = 0;
    for (int i = 0; i < W; i++) {
        float x = l[i];
        if (i % banned == 0) continue;
        if (count[i]) {
            x = x > 0.0f ? x / (float)c->repetition : x * (float)c->repetition;
            x = x - (float)c->presence - (float)c->frequency * (float)count[i];
        }
        p[n++] = (plain_id){c->temp > 0.0 ? x / (float)c->temp : x, i};
    }
    qsort(p, (size_t)n, sizeof(*p), by_falling_logit);
    if (c->temp > 0.0) {
        if (c->top_k > 0 && c->top_k < n) n = (int)c->top_k;
        double total = 0.0, sum = 0.0;
        for (int i = 0; i < n; i++) total += exp(p[i].l - p[0].l);
        int keep = 0;
        while (keep < n && (c->top_p >= 1.0 || sum < c->top_p * total) &&
               p[keep].l >= p[0].l + log(c->min_p))
            sum += exp(p[keep++].l - p[0].l);
        n = keep;
    }
    double total = 0.0, best = -INFINITY;
    int at = 0;
    for (int i = 0; i < n; i++) {
        total += exp(p[i].l - p[0].l);
        const double score = p[i].l + gumbel(c->seed, pos, p[i].id);
        if (c->temp <= 0.0 || score <= best) continue;
        best = score;
        at = i;
    }
    return (fl_pick){p[at].id, (float)(exp(p[at].l - p[0].l) / total), false};
}

static double uniform(void)
{
    static uint64_t x = 1;
    x = x * 6364136223846793005u + 1442695040888963407u;
    return ((double)(x >> 12) + 0.5) * 0x1p-52;
}

/* Every kind of cut, on flat, bell-shaped and peaked rows, on every tier: the pick is that of the
 * plain way, the confidence too, and the tiers agree to the bit. */
static void picks_are_those_of_the_plain_way_on_every_tier(void **state)
{
    (void)state;
    static const double temps[] = {0.0, 0.3, 1.0, 5.0}, top_ps[] = {1.0, 0.97, 0.5},
                        min_ps[] = {0.0, 0.02};
    static const int64_t top_ks[] = {0, 1, 40, 2900, 1000000};
    static float l[W];
    static int count[W];
    fl_err err = {0};
    int picked[W] = {0};
    for (int round = 0; round < 4 * 3 * 2 * 5 * 3; round++) {
        const int shape = round % 3;
        fl_sampler_config c = {.temp = temps[round / 3 % 4],
                               .top_p = top_ps[round / 12 % 3],
                               .min_p = min_ps[round / 36 % 2],
                               .top_k = top_ks[round / 72],
                               .seed = (uint64_t)round,
                               .presence = shape ? 0.5 : 0.0,
                               .frequency = shape ? 0.25 : 0.0,
                               .repetition = shape ? 1.25 : 1.0};
        const int banned = 7 + round % 5;
        for (int i = 0; i < W; i++) {
            count[i] = 0;
            l[i] = (float)(sqrt(-2.0 * log(uniform())) * cos(6.283 * uniform()));
            if (shape == 0) l[i] = (float)(i / 100); /* ties */
            if (shape == 2) l[i] *= 9.0f;
        }
        fl_sampler *s[2] = {NULL, NULL};
        for (int t = 0; t < 2; t++) {
            ASSERT_OK(fl_sampler_create(&s[t], kernels(t ? NULL : "reference"), W, 1, &err));
            for (int i = 0; i < W; i += banned) fl_sampler_ban(s[t], i);
            ASSERT_OK(fl_sampler_configure(s[t], &c, &err));
        }
        for (int i = 0; i < 300; i++) {
            const int id = (int)(uniform() * 100.0);
            count[id]++;
            for (int t = 0; t < 2; t++) fl_sampler_count(s[t], id, 0);
        }
        for (int64_t pos = 0; pos < 6; pos++) {
            const fl_pick want = plain_pick(&c, l, count, banned, pos);
            const fl_pick a = fl_sampler_pick(s[0], l, pos, 0);
            const fl_pick b = fl_sampler_pick(s[1], l, pos, 0);
            assert_int_equal(a.token, want.token);
            assert_int_equal(b.token, want.token);
            assert_true(fabsf(a.confidence - want.confidence) <= 2e-6f * want.confidence);
            assert_memory_equal(&a.confidence, &b.confidence, sizeof(float));
            picked[want.token]++;
        }
        for (int t = 0; t < 2; t++) fl_sampler_destroy(&s[t]);
    }
    int distinct = 0;
    for (int i = 0; i < W; i++) distinct += picked[i] > 0;
    assert_true(distinct > 200);
}

/* Temperatures and logits at the ends of what floats hold. */
static void extreme_rows_give_a_finite_confidence(void **state)
{
    (void)state;
    static const double temps[] = {0.0, 1e-6, 1e-3, 100.0};
    float l[V];
    for (size_t t = 0; t < sizeof temps / sizeof *temps; t++)
        for (int k = 0; k < 3; k++) {
            fl_sampler *s = make(&(fl_sampler_config){.temp = temps[t],
                                                      .top_p = k == 1 ? 0.9 : 1.0,
                                                      .top_k = k == 2 ? 5 : 0,
                                                      .repetition = 10.0});
            for (int i = 0; i < V; i++) l[i] = (float)i * 1e-3f;
            l[3] = -3.3e38f;
            l[4] = 3.3e38f;
            fl_sampler_count(s, 3, 0);
            const fl_pick p = fl_sampler_pick(s, l, 7, 0);
            assert_int_equal(p.token, 4);
            assert_true(p.confidence == 1.0f);
            fl_sampler_destroy(&s);
        }
}

/* Ids that can come out under a configuration, as a bit mask. */
static unsigned support(const fl_sampler_config *c, const float *l)
{
    fl_sampler *s = make(c);
    int count[V];
    unsigned bits = 0;
    histogram(s, l, 4000, count);
    for (int i = 0; i < V; i++)
        if (count[i]) bits |= 1u << i;
    fl_sampler_destroy(&s);
    return bits;
}

static void filters_keep_what_they_should(void **state)
{
    (void)state;
    float l[V];
    /* Probabilities 0.4, 0.3, 0.2, 0.1 on ids 2, 11, 6, 0; the rest impossible in practice. */
    fill(l, -60.0f);
    l[2] = logf(0.4f);
    l[11] = logf(0.3f);
    l[6] = logf(0.2f);
    l[0] = logf(0.1f);
    const unsigned a = 1u << 2, b = 1u << 11, c = 1u << 6, d = 1u << 0;
    const fl_sampler_config all = {.temp = 1.0, .top_p = 1.0};
    fl_sampler_config x = all;
    assert_int_equal(support(&x, l), a | b | c | d);
    x.top_k = 2;
    assert_int_equal(support(&x, l), a | b);
    x.top_k = 1000;
    assert_int_equal(support(&x, l), a | b | c | d);
    x = all;
    x.top_p = 0.65; /* 0.4 is not enough, 0.4 + 0.3 is */
    assert_int_equal(support(&x, l), a | b);
    x.top_p = 0.05;
    assert_int_equal(support(&x, l), a);
    x.top_p = 0.95;
    assert_int_equal(support(&x, l), a | b | c | d);
    /* Within the top 3 the shares are 4/9, 3/9, 2/9: 0.75 needs two of them. */
    x.top_k = 3;
    x.top_p = 0.75;
    assert_int_equal(support(&x, l), a | b);
    x.top_p = 0.80;
    assert_int_equal(support(&x, l), a | b | c);
    x = all;
    x.min_p = 0.45; /* at least 0.18 */
    assert_int_equal(support(&x, l), a | b | c);
    x.min_p = 1.0;
    assert_int_equal(support(&x, l), a);
    x = all;
    x.top_k = 1;
    assert_int_equal(support(&x, l), a);
}

static void confidence_is_that_of_the_processed_or_the_raw_distribution(void **state)
{
    (void)state;
    float l[V];
    fill(l, -60.0f);
    l[2] = logf(0.6f);
    l[11] = logf(0.4f);
    fl_sampler *s = make(&(fl_sampler_config){.temp = 1.0, .top_p = 1.0, .top_k = 1});
    assert_true(fabsf(fl_sampler_pick(s, l, 0, 0).confidence - 1.0f) < 1e-6f);
    fl_sampler_destroy(&s);
    s = make(&(fl_sampler_config){.temp = 1.0, .top_p = 1.0, .top_k = 1, .raw_confidence = true});
    assert_true(fabsf(fl_sampler_pick(s, l, 0, 0).confidence - 0.6f) < 1e-6f);
    fl_sampler_destroy(&s);
    /* Temperature 0.5 squares the odds: 0.36 to 0.16. */
    s = make(&(fl_sampler_config){.temp = 0.5, .top_p = 1.0});
    const fl_pick p = fl_sampler_pick(s, l, 0, 0);
    assert_true(fabsf(p.confidence - (p.token == 2 ? 0.36f : 0.16f) / 0.52f) < 1e-6f);
    fl_sampler_destroy(&s);
}

static void penalties_follow_their_formula(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_sampler_config c = greedy;
    float l[V];
    fill(l, -3.0f);
    l[2] = 4.0f;
    l[5] = 3.0f;
    l[9] = -1.0f;
    /* presence 1.5 once, whatever the count: 4 - 1.5 < 3. */
    c.presence = 1.5;
    fl_sampler *s = make(&c);
    assert_int_equal(fl_sampler_pick(s, l, 0, 0).token, 2);
    fl_sampler_count(s, 2, 0);
    fl_sampler_count(s, 2, 0);
    const fl_pick p = fl_sampler_pick(s, l, 0, 0);
    assert_int_equal(p.token, 5);
    /* and the confidence is that of the penalized distribution */
    const double sum = exp(3.0) + exp(2.5) + exp(-1.0) + 13 * exp(-3.0);
    assert_true(fabs(p.confidence - exp(3.0) / sum) < 1e-6);
    /* A new configuration forgets the counts. */
    c.presence = 0.0;
    c.frequency = 0.4;
    ASSERT_OK(fl_sampler_configure(s, &c, &err));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fl_sampler_pick(s, l, 0, 0).token, 2);
        fl_sampler_count(s, 2, 0);
    }
    assert_int_equal(fl_sampler_pick(s, l, 0, 0).token, 5); /* 4 - 1.2 < 3 */
    /* repetition divides what is positive and multiplies what is negative. */
    c.frequency = 0.0;
    c.repetition = 2.0;
    ASSERT_OK(fl_sampler_configure(s, &c, &err));
    fl_sampler_count(s, 2, 0);
    fl_sampler_count(s, 5, 0);
    assert_int_equal(fl_sampler_pick(s, l, 0, 0).token, 2); /* 2 against 1.5 */
    fill(l, -3.0f);
    l[9] = -2.0f;
    assert_int_equal(fl_sampler_pick(s, l, 0, 0).token, 9);
    fl_sampler_count(s, 9, 0);
    assert_int_equal(fl_sampler_pick(s, l, 0, 0).token, 0); /* -4 against -3 */
    fl_sampler_destroy(&s);
}

static void rows_ahead_count_the_tokens_before_them(void **state)
{
    (void)state;
    enum { N = 6 };
    static const int32_t ahead[N - 1] = {3, 3, 7, 3, 1};
    fl_err err = {0};
    fl_pool *pool = NULL;
    fl_sampler_config c = greedy;
    float l[N * V];
    int64_t pos[N] = {0};
    fl_pick got[N];
    for (int i = 0; i < N * V; i++) l[i] = (float)((i * 7919) % 101) / 25.0f;
    c.frequency = 0.7;
    c.repetition = 1.3;
    fl_sampler *s = make(&c);
    fl_sampler_count(s, 3, 0);
    ASSERT_OK(fl_pool_create(&pool, 2, &err));
    fl_sampler_pick_rows(s, pool, l, pos, ahead, N, got);
    for (int i = 0; i < N; i++) {
        const fl_pick want = fl_sampler_pick(s, l + i * V, pos[i], 0);
        assert_int_equal(got[i].token, want.token);
        assert_true(got[i].confidence == want.confidence);
        if (i < N - 1) fl_sampler_count(s, ahead[i], 0);
    }
    fl_pool_destroy(&pool);
    fl_sampler_destroy(&s);
}

static void rows_on_the_pool_equal_rows_alone(void **state)
{
    (void)state;
    enum { N = 33 };
    fl_err err = {0};
    fl_pool *pool = NULL;
    fl_sampler *s = make(&(fl_sampler_config){.temp = 1.0, .top_p = 0.9, .top_k = 9, .seed = 5});
    float l[N * V];
    int64_t pos[N];
    fl_pick got[N];
    for (int i = 0; i < N * V; i++) l[i] = (float)((i * 7919) % 101) / 25.0f;
    for (int i = 0; i < N; i++) pos[i] = 1000 + 3 * i;
    ASSERT_OK(fl_pool_create(&pool, 2, &err));
    fl_sampler_pick_rows(s, pool, l, pos, NULL, N, got);
    for (int i = 0; i < N; i++) {
        const fl_pick want = fl_sampler_pick(s, l + i * V, pos[i], 0);
        assert_int_equal(got[i].token, want.token);
        assert_true(got[i].confidence == want.confidence);
    }
    fl_pool_destroy(&pool);
    fl_sampler_destroy(&s);
}

enum { LONG = 2 * FL_SAMPLER_PART + 777, LONG_ROWS = 3 };

/* Parts shown in a shuffled order, by two workers in turn. */
static void pick_by_parts(fl_sampler *s, const fl_sampler_rows *rows, const float *l, fl_pick *got)
{
    static const int order[] = {2, 0, 1};
    for (int i = 0; i < rows->n; i++)
        for (int c = 0; c < 3; c++) {
            const int64_t first = (int64_t)order[(i + c) % 3] * FL_SAMPLER_PART;
            const int64_t n = first + FL_SAMPLER_PART < LONG ? FL_SAMPLER_PART : LONG - first;
            fl_sampler_part(s, rows, i, first, n, l + i * LONG + first, (i + c) % 2);
        }
    fl_sampler_join(s, rows, got);
}

static void check_parts(const fl_sampler_config *c, const float *l, bool by_parts)
{
    static const int32_t ahead[] = {LONG - 2, 5};
    static const int64_t pos[] = {100, 101, 102};
    const fl_sampler_rows rows = {pos, ahead, LONG_ROWS};
    fl_err err = {0};
    fl_sampler *s = NULL;
    fl_pool *pool = NULL;
    fl_pick got[LONG_ROWS], want[LONG_ROWS];
    ASSERT_OK(fl_sampler_create(&s, kernels(NULL), LONG, 2, &err));
    ASSERT_OK(fl_sampler_reserve_rows(s, LONG_ROWS, &err));
    for (int id = 0; id < FL_SAMPLER_PART; id++) fl_sampler_ban(s, id); /* all of a part */
    fl_sampler_ban(s, LONG - 1);
    ASSERT_OK(fl_sampler_configure(s, c, &err));
    fl_sampler_count(s, FL_SAMPLER_PART + 3, 0);
    assert_true(fl_sampler_by_parts(s) == by_parts);
    if (by_parts) {
        ASSERT_OK(fl_pool_create(&pool, 2, &err));
        pick_by_parts(s, &rows, l, got);
        fl_sampler_pick_rows(s, pool, l, pos, ahead, LONG_ROWS, want);
        fl_pool_destroy(&pool);
        for (int i = 0; i < LONG_ROWS; i++) {
            assert_int_equal(got[i].token, want[i].token);
            assert_memory_equal(&got[i].confidence, &want[i].confidence, sizeof(float));
        }
    }
    fl_sampler_destroy(&s);
}

static void parts_of_the_vocabulary_give_the_pick_of_the_whole(void **state)
{
    (void)state;
    static float l[LONG_ROWS * LONG];
    for (int i = 0; i < LONG_ROWS * LONG; i++)
        l[i] = (float)(4.0 * uniform()) + (float)(i % 97 == 0);
    for (int raw = 0; raw < 2; raw++) {
        fl_sampler_config c = {.top_p = 1.0, .frequency = 1.5, .raw_confidence = raw, .n_bias = 2};
        c.bias[0] = (fl_logit_bias){LONG - 3, 1.0f};
        c.bias[1] = (fl_logit_bias){FL_SAMPLER_PART + 4, -INFINITY};
        check_parts(&c, l, true);
        for (c.seed = 0; c.seed < 20; c.seed++) {
            c.temp = 0.5 + (double)c.seed / 10.0;
            check_parts(&c, l, true);
        }
        c.top_k = LONG;
        check_parts(&c, l, true);
        c.top_k = 5;
        check_parts(&c, l, false);
        c.top_k = 0;
        c.top_p = 0.9;
        check_parts(&c, l, false);
        c.top_p = 1.0;
        c.min_p = 0.1;
        check_parts(&c, l, false);
    }
}

static void settings_out_of_range_are_named(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_sampler *s = make(&greedy);
    fl_sampler_config c = greedy;
    c.temp = -1.0;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--temp");
    c.temp = 1e-7;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "or 1e-6 to 100");
    c.temp = NAN;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--temp");
    c = greedy;
    c.top_k = -3;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--top-k");
    c = greedy;
    c.top_p = 0.0;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--top-p");
    c.top_p = 1.5;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--top-p");
    c = greedy;
    c.min_p = -0.1;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--min-p");
    c = greedy;
    c.presence = 2.5;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--presence");
    c = greedy;
    c.frequency = NAN;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--frequency");
    c = greedy;
    c.repetition = -1.0;
    ASSERT_FAILS(fl_sampler_configure(s, &c, &err), FL_E_ARG, "--repetition");
    fl_sampler_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_on_ties),
        cmocka_unit_test(bans_come_before_the_softmax),
        cmocka_unit_test(noise_gives_the_softmax),
        cmocka_unit_test(same_keys_give_the_same_noise),
        cmocka_unit_test(noise_is_finite_and_rises_with_its_bits),
        cmocka_unit_test(picks_are_those_of_the_plain_way_on_every_tier),
        cmocka_unit_test(extreme_rows_give_a_finite_confidence),
        cmocka_unit_test(filters_keep_what_they_should),
        cmocka_unit_test(confidence_is_that_of_the_processed_or_the_raw_distribution),
        cmocka_unit_test(penalties_follow_their_formula),
        cmocka_unit_test(rows_ahead_count_the_tokens_before_them),
        cmocka_unit_test(rows_on_the_pool_equal_rows_alone),
        cmocka_unit_test(parts_of_the_vocabulary_give_the_pick_of_the_whole),
        cmocka_unit_test(settings_out_of_range_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
