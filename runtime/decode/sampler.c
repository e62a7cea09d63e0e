#include "runtime/decode/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/decode/row.h"

struct fl_sampler {
    fl_sampler_config c;
    int64_t n_vocab;
    int n_workers;
    bool penalize;
    uint8_t *banned; /* [n_vocab] */
    int32_t *bans;   /* [n_vocab] the banned ids */
    int64_t n_bans;
    int32_t *count; /* [n_vocab] in the text generated so far */
    int32_t *seen;  /* [n_vocab] the ids with a count */
    int64_t n_seen;
    fl_soft soft;
    bool soft_on;
    fl_row *rows; /* [n_workers] */
    float *q;     /* [n_q][n_vocab] distributions of drafts */
    int n_q;
};

fl_status fl_sampler_create(fl_sampler **out, const fl_kernels *k, int64_t n_vocab, int n_workers,
                            fl_err *err)
{
    const size_t n = (size_t)n_vocab;
    fl_sampler *s = calloc(1, sizeof(*s));
    if (!s) return FL_FAIL(err, FL_E_NOMEM, 0, "sampler: out of memory");
    s->n_vocab = n_vocab;
    s->c = (fl_sampler_config){.top_p = 1.0, .repetition = 1.0};
    s->banned = calloc(n, 1);
    s->bans = malloc(n * sizeof(*s->bans));
    s->count = calloc(n, sizeof(*s->count));
    s->seen = malloc(n * sizeof(*s->seen));
    s->rows = calloc((size_t)n_workers, sizeof(*s->rows));
    bool ok = s->banned && s->bans && s->count && s->seen && s->rows;
    for (; ok && s->n_workers < n_workers; s->n_workers++)
        ok = fl_row_create(&s->rows[s->n_workers], k, n_vocab);
    if (!ok) {
        fl_sampler_destroy(&s);
        return FL_FAIL(err, FL_E_NOMEM, 0, "sampler: out of memory for %lld ids",
                       (long long)n_vocab);
    }
    *out = s;
    return FL_OK;
}

void fl_sampler_destroy(fl_sampler **sampler)
{
    fl_sampler *s = *sampler;
    if (!s) return;
    for (int i = 0; i < s->n_workers; i++) fl_row_destroy(&s->rows[i]);
    free(s->rows);
    free(s->banned);
    free(s->bans);
    free(s->count);
    free(s->seen);
    free(s->q);
    free(s);
    *sampler = NULL;
}

static fl_status check_biases(const fl_sampler_config *c, int64_t n_vocab, fl_err *err)
{
    for (int i = 0; i < c->n_bias; i++) {
        const fl_logit_bias b = c->bias[i];
        if (b.id < 0 || b.id >= n_vocab)
            return FL_FAIL(err, FL_E_ARG, 0, "--logit-bias: token %d is outside 0 to %lld", b.id,
                           (long long)n_vocab - 1);
        if (b.value != -INFINITY && !(fabsf(b.value) <= FL_BIAS_LIMIT))
            return FL_FAIL(err, FL_E_ARG, 0, "--logit-bias %d:%g: expected -%d to %d or -inf", b.id,
                           (double)b.value, FL_BIAS_LIMIT, FL_BIAS_LIMIT);
    }
    if (c->soft.think < 0 || c->soft.answer < 0)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--soft-think %lld, --soft-answer %lld: expected 0 (off) or more",
                       (long long)c->soft.think, (long long)c->soft.answer);
    if (!(c->soft.slope >= 0.0 && c->soft.slope <= 10.0))
        return FL_FAIL(err, FL_E_ARG, 0, "--soft-slope %g: expected 0 (off) to 10", c->soft.slope);
    return FL_OK;
}

fl_status fl_sampler_check(const fl_sampler_config *c, int64_t n_vocab, fl_err *err)
{
    /* Written so that a NaN fails too. */
    if (!(c->temp == 0.0 || (c->temp >= 1e-6 && c->temp <= 100.0)))
        return FL_FAIL(err, FL_E_ARG, 0, "--temp %g: expected 0 (greedy), or 1e-6 to 100", c->temp);
    if (c->top_k < 0)
        return FL_FAIL(err, FL_E_ARG, 0, "--top-k %lld: expected 0 (off) or more",
                       (long long)c->top_k);
    if (!(c->top_p > 0.0 && c->top_p <= 1.0))
        return FL_FAIL(err, FL_E_ARG, 0, "--top-p %g: expected a value above 0, at most 1 (off)",
                       c->top_p);
    if (!(c->min_p >= 0.0 && c->min_p <= 1.0))
        return FL_FAIL(err, FL_E_ARG, 0, "--min-p %g: expected 0 (off) to 1", c->min_p);
    if (!(fabs(c->presence) <= 2.0))
        return FL_FAIL(err, FL_E_ARG, 0, "--presence %g: expected -2 to 2", c->presence);
    if (!(fabs(c->frequency) <= 2.0))
        return FL_FAIL(err, FL_E_ARG, 0, "--frequency %g: expected -2 to 2", c->frequency);
    if (!(c->repetition >= 0.0 && c->repetition <= 10.0))
        return FL_FAIL(err, FL_E_ARG, 0, "--repetition %g: expected above 0, at most 10 (1 is off)",
                       c->repetition);
    return check_biases(c, n_vocab, err);
}

/* -INFINITY takes an id away; false when none is left. */
static bool any_id_left(const fl_sampler *s, const fl_sampler_config *c)
{
    int64_t left = s->n_vocab - s->n_bans;
    for (int i = 0; i < c->n_bias; i++)
        left -= c->bias[i].value == -INFINITY && !s->banned[c->bias[i].id];
    return left > 0;
}

fl_status fl_sampler_configure(fl_sampler *s, const fl_sampler_config *c, fl_err *err)
{
    FL_TRY(fl_sampler_check(c, s->n_vocab, err));
    if (!any_id_left(s, c))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--logit-bias: all %lld tokens are banned; leave at least one",
                       (long long)s->n_vocab);
    s->c = *c;
    s->soft = (fl_soft){0};
    s->soft_on = true;
    if (s->c.repetition == 0.0) s->c.repetition = 1.0;
    s->penalize = c->presence != 0.0 || c->frequency != 0.0 || s->c.repetition != 1.0;
    for (int64_t i = 0; i < s->n_seen; i++) s->count[s->seen[i]] = 0;
    s->n_seen = 0;
    return FL_OK;
}

void fl_sampler_reseed(fl_sampler *s, uint64_t seed) { s->c.seed = seed; }

void fl_sampler_begin(fl_sampler *s, fl_soft_ids ids, const int32_t *prompt, int64_t n_prompt)
{
    fl_soft_begin(&s->soft, &s->c.soft, ids, prompt, n_prompt);
}

void fl_sampler_soft(fl_sampler *s, bool on) { s->soft_on = on; }

void fl_sampler_count(fl_sampler *s, int32_t id, int64_t pos)
{
    if (id < 0 || id >= s->n_vocab) return;
    fl_soft_take(&s->soft, id, pos);
    if (s->count[id]++ == 0) s->seen[s->n_seen++] = id;
}

void fl_sampler_ban(fl_sampler *s, int32_t id)
{
    if (id < 0 || id >= s->n_vocab || s->banned[id]) return;
    s->banned[id] = 1;
    s->bans[s->n_bans++] = id;
}

bool fl_sampler_banned(const fl_sampler *s, int32_t id) { return s->banned[id] != 0; }

/* ---- one row ---- */

static float penalized(const fl_sampler_config *c, float l, int32_t count)
{
    l = l > 0.0f ? l / (float)c->repetition : l * (float)c->repetition;
    return l - (float)c->presence - (float)c->frequency * (float)count;
}

/* `ahead`: n_ahead tokens that count as generated for this row alone. */
static void penalize(const fl_sampler *s, const float *logits, const int32_t *ahead, int n_ahead,
                     float *l)
{
    for (int64_t i = 0; i < s->n_seen; i++) {
        const int32_t id = s->seen[i];
        l[id] = penalized(&s->c, logits[id], s->count[id]);
    }
    for (int i = 0; i < n_ahead; i++) {
        const int32_t id = ahead[i];
        int32_t count = s->count[id];
        for (int j = 0; j < n_ahead; j++) count += ahead[j] == id;
        l[id] = penalized(&s->c, logits[id], count);
    }
}

static void ban(const fl_sampler *s, float *l)
{
    for (int64_t i = 0; i < s->n_bans; i++) l[s->bans[i]] = -INFINITY;
    for (int i = 0; i < s->c.n_bias; i++)
        if (s->c.bias[i].value == -INFINITY) l[s->c.bias[i].id] = -INFINITY;
}

/* The bias by length of a row that stands behind `ahead`. */
static fl_logit_bias soft_bias(const fl_sampler *s, int64_t pos, const int32_t *ahead, int n_ahead)
{
    fl_soft soft = s->soft;
    if (!s->soft_on) return (fl_logit_bias){-1, 0.0f};
    for (int i = 0; i < n_ahead; i++) fl_soft_take(&soft, ahead[i], pos - n_ahead + i);
    return fl_soft_at(&soft, pos);
}

/* From logits to the processed distribution and its candidates. */
static void process(const fl_sampler *s, fl_row *r, const float *logits, const int32_t *ahead,
                    int n_ahead, fl_logit_bias soft)
{
    const bool greedy = s->c.temp <= 0.0;
    memcpy(r->l, logits, (size_t)s->n_vocab * sizeof(*logits));
    if (s->penalize) penalize(s, logits, ahead, n_ahead, r->l);
    for (int i = 0; i < s->c.n_bias; i++) r->l[s->c.bias[i].id] += s->c.bias[i].value;
    if (soft.value > 0.0f) r->l[soft.id] += soft.value;
    fl_row_scale(r, greedy ? 1.0f : (float)s->c.temp);
    ban(s, r->l);
    fl_row_rank(r);
    if (greedy)
        fl_row_keep(r, 0, 1.0, 0.0);
    else
        fl_row_keep(r, s->c.top_k, s->c.top_p, s->c.min_p);
}

/* Softmax probability of one id among all that are not banned, at temperature 1. Takes the row. */
static float raw_probability(const fl_sampler *s, fl_row *r, const float *logits, int32_t id)
{
    memcpy(r->l, logits, (size_t)s->n_vocab * sizeof(*logits));
    ban(s, r->l);
    fl_row_rank(r);
    fl_row_keep(r, 0, 1.0, 0.0);
    return (float)((double)fl_law_exp(logits[id] - r->max) / r->mass);
}

static fl_pick pick(fl_sampler *s, const float *logits, int64_t pos, const int32_t *ahead,
                    int n_ahead, int worker)
{
    fl_row *r = &s->rows[worker];
    const fl_logit_bias soft = soft_bias(s, pos, ahead, n_ahead);
    process(s, r, logits, ahead, n_ahead, soft);
    const int32_t id = s->c.temp > 0.0 ? fl_row_race(r, s->c.seed, pos) : r->top;
    const bool biased = soft.value > 0.0f && soft.id == id;
    if (s->c.raw_confidence) return (fl_pick){id, raw_probability(s, r, logits, id), biased};
    return (fl_pick){id, (float)((double)fl_law_exp(r->l[id] - r->max) / r->mass), biased};
}

fl_pick fl_sampler_pick(fl_sampler *s, const float *logits, int64_t pos, int worker)
{
    return pick(s, logits, pos, NULL, 0, worker);
}

typedef struct rows_run {
    fl_sampler *s;
    const float *logits;
    const int64_t *pos;
    const int32_t *ahead;
    int n;
    fl_pick *out;
} rows_run;

static void row_task(void *arg, int i, int worker)
{
    const rows_run *r = arg;
    r->out[i] =
        pick(r->s, r->logits + i * r->s->n_vocab, r->pos[i], r->ahead, r->ahead ? i : 0, worker);
}

static void run_rows(fl_task_fn task, rows_run *r, fl_pool *pool, int n)
{
    assert(fl_pool_threads(pool) <= r->s->n_workers);
    fl_pool_run(pool, task, r, n);
}

void fl_sampler_pick_rows(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                          const int32_t *ahead, int n, fl_pick *out)
{
    rows_run r = {s, logits, pos, ahead, n, out};
    run_rows(row_task, &r, pool, n);
}

/* ---- drafts by ratio ---- */

/* Streams of noise besides the plain pick's. */
static uint64_t draw_seed(const fl_sampler *s) { return fl_noise_mix(s->c.seed ^ 0x64726177); }
static uint64_t check_seed(const fl_sampler *s) { return fl_noise_mix(s->c.seed ^ 0x63686563); }

fl_status fl_sampler_reserve_drafts(fl_sampler *s, int rows, fl_err *err)
{
    if (rows <= s->n_q) return FL_OK;
    float *q = realloc(s->q, (size_t)rows * (size_t)s->n_vocab * sizeof(*q));
    if (!q)
        return FL_FAIL(err, FL_E_NOMEM, 0, "sampler: out of memory for %d drafts of %lld ids", rows,
                       (long long)s->n_vocab);
    s->q = q;
    s->n_q = rows;
    return FL_OK;
}

static void draw_task(void *arg, int i, int worker)
{
    const rows_run *t = arg;
    const fl_sampler *s = t->s;
    fl_row *r = &s->rows[worker];
    const fl_logit_bias soft = soft_bias(s, t->pos[i], NULL, 0);
    process(s, r, t->logits + i * s->n_vocab, NULL, 0, soft);
    const int32_t id = fl_row_race(r, draw_seed(s), t->pos[i]), top = r->top;
    fl_row_probabilities(r);
    memcpy(s->q + i * s->n_vocab, r->l, (size_t)s->n_vocab * sizeof(*s->q));
    t->out[i] = (fl_pick){id, r->l[top], false};
}

void fl_sampler_draw_drafts(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                            int n, fl_pick *out)
{
    rows_run r = {s, logits, pos, NULL, n, out};
    assert(n <= s->n_q && s->c.temp > 0.0);
    run_rows(draw_task, &r, pool, n);
}

static float above(float p, float q) { return p > q ? p - q : 0.0f; }

/* A draw from max(0, p - q), normed; `otherwise` where the two are one but for rounding. */
static int32_t draw_rest(const float *p, const float *q, int64_t n, double u, int32_t otherwise)
{
    double total = 0.0, sum = 0.0;
    for (int64_t i = 0; i < n; i++) total += (double)above(p[i], q[i]);
    int32_t last = otherwise;
    for (int64_t i = 0; i < n; i++) {
        if (above(p[i], q[i]) == 0.0f) continue;
        last = (int32_t)i;
        sum += (double)above(p[i], q[i]);
        if (sum > u * total) break;
    }
    return last;
}

static void check_task(void *arg, int i, int worker)
{
    const rows_run *t = arg;
    const fl_sampler *s = t->s;
    if (i == t->n - 1) {
        row_task(arg, i, worker);
        return;
    }
    fl_row *r = &s->rows[worker];
    const float *q = s->q + i * s->n_vocab;
    const int32_t x = t->ahead[i];
    const fl_logit_bias soft = soft_bias(s, t->pos[i], t->ahead, i);
    process(s, r, t->logits + i * s->n_vocab, t->ahead, i, soft);
    fl_row_probabilities(r);
    const uint64_t key = fl_noise_key(check_seed(s), t->pos[i]);
    const double u = fl_noise_uniform(fl_noise_bits(key, 0));
    const double v = fl_noise_uniform(fl_noise_bits(key, 1));
    const bool accepted = u * (double)q[x] < (double)r->l[x];
    const int32_t id = accepted ? x : draw_rest(r->l, q, s->n_vocab, v, x);
    t->out[i] = (fl_pick){id, r->l[id], soft.value > 0.0f && soft.id == id};
}

void fl_sampler_check_drafts(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                             const int32_t *drafts, int n, fl_pick *out)
{
    rows_run r = {s, logits, pos, drafts, n, out};
    assert(n - 1 <= s->n_q && s->c.temp > 0.0);
    run_rows(check_task, &r, pool, n);
}
