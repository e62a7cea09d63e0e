#include "runtime/decode/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/decode/row.h"

/* What is known of one row from neighbouring ids: enough for a pick where nothing is cut off. */
typedef struct part {
    float max;        /* of the processed logits; -INFINITY: nothing here can be picked */
    double sum;       /* of E(l - max) */
    fl_row_best best; /* what the noise picks of them, or (greedy) the largest */
    float l, logit;   /* of that, processed and as it came */
    float raw_max;    /* with raw_confidence: of the logits with the bans alone */
    double raw_sum;
} part;

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
    part *parts; /* [n_part_rows][n_parts] */
    int n_part_rows, n_parts;
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
    s->n_parts = (int)((n_vocab + FL_SAMPLER_PART - 1) / FL_SAMPLER_PART);
    bool ok = s->banned && s->bans && s->count && s->seen && s->rows;
    for (; ok && s->n_workers < n_workers; s->n_workers++)
        ok = fl_row_create(&s->rows[s->n_workers], k, n_vocab);
    if (!ok) {
        fl_sampler_destroy(&s);
        return FL_FAIL(err, FL_E_NOMEM, 0, "sampler: out of memory for %lld ids",
                       (long long)n_vocab);
    }
    const fl_status st = fl_sampler_reserve_rows(s, n_workers, err);
    if (st != FL_OK) fl_sampler_destroy(&s);
    *out = s;
    return st;
}

/* *p has room for *n rows and gets it for more. */
static fl_status grow(const fl_sampler *s, void *p, int *n, int rows, size_t row_bytes, fl_err *err)
{
    void *at, *more;
    if (rows <= *n) return FL_OK;
    memcpy(&at, p, sizeof at);
    more = realloc(at, (size_t)rows * row_bytes);
    if (!more)
        return FL_FAIL(err, FL_E_NOMEM, 0, "sampler: out of memory for %d rows of %lld ids", rows,
                       (long long)s->n_vocab);
    memcpy(p, &more, sizeof more);
    *n = rows;
    return FL_OK;
}

fl_status fl_sampler_reserve_rows(fl_sampler *s, int rows, fl_err *err)
{
    return grow(s, &s->parts, &s->n_part_rows, rows, (size_t)s->n_parts * sizeof(*s->parts), err);
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
    free(s->parts);
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

static bool is_in(const fl_row *r, int32_t id) { return id >= r->first && id < r->first + r->n; }

/* `ahead`: n_ahead tokens that count as generated for this row alone. */
static void penalize(const fl_sampler *s, const float *logits, const int32_t *ahead, int n_ahead,
                     fl_row *r)
{
    for (int64_t i = 0; i < s->n_seen; i++) {
        const int32_t id = s->seen[i];
        if (is_in(r, id))
            r->l[id - r->first] = penalized(&s->c, logits[id - r->first], s->count[id]);
    }
    for (int i = 0; i < n_ahead; i++) {
        const int32_t id = ahead[i];
        int32_t count = s->count[id];
        for (int j = 0; j < n_ahead; j++) count += ahead[j] == id;
        if (is_in(r, id)) r->l[id - r->first] = penalized(&s->c, logits[id - r->first], count);
    }
}

static void ban_one(fl_row *r, int32_t id)
{
    if (is_in(r, id)) r->l[id - r->first] = -INFINITY;
}

static void ban(const fl_sampler *s, fl_row *r)
{
    for (int64_t i = 0; i < s->n_bans; i++) ban_one(r, s->bans[i]);
    for (int i = 0; i < s->c.n_bias; i++)
        if (s->c.bias[i].value == -INFINITY) ban_one(r, s->c.bias[i].id);
}

static void add_bias(fl_row *r, fl_logit_bias b)
{
    if (is_in(r, b.id)) r->l[b.id - r->first] += b.value;
}

/* The bias by length of a row that stands behind `ahead`. */
static fl_logit_bias soft_bias(const fl_sampler *s, int64_t pos, const int32_t *ahead, int n_ahead)
{
    fl_soft soft = s->soft;
    if (!s->soft_on) return (fl_logit_bias){-1, 0.0f};
    for (int i = 0; i < n_ahead; i++) fl_soft_take(&soft, ahead[i], pos - n_ahead + i);
    return fl_soft_at(&soft, pos);
}

static bool is_greedy(const fl_sampler *s) { return s->c.temp <= 0.0; }

/* From the logits of a row's ids to their processed distribution; false when none is left. */
static bool process_ids(const fl_sampler *s, fl_row *r, const float *logits, const int32_t *ahead,
                        int n_ahead, fl_logit_bias soft)
{
    memcpy(r->l, logits, (size_t)r->n * sizeof(*logits));
    if (s->penalize) penalize(s, logits, ahead, n_ahead, r);
    for (int i = 0; i < s->c.n_bias; i++) add_bias(r, s->c.bias[i]);
    if (soft.value > 0.0f) add_bias(r, soft);
    fl_row_scale(r, is_greedy(s) ? 1.0f : (float)s->c.temp);
    ban(s, r);
    return fl_row_rank(r);
}

/* All ids of a row, and its candidates. */
static void process(const fl_sampler *s, fl_row *r, const float *logits, const int32_t *ahead,
                    int n_ahead, fl_logit_bias soft)
{
    const bool any = process_ids(s, r, logits, ahead, n_ahead, soft);
    assert(any);
    (void)any;
    fl_row_keep(r, s->c.top_k, s->c.top_p, s->c.min_p);
}

/* ---- picks from parts of the vocabulary ---- */

bool fl_sampler_by_parts(const fl_sampler *s)
{
    const bool by_k = s->c.top_k > 0 && s->c.top_k < s->n_vocab;
    return is_greedy(s) || (!by_k && s->c.top_p >= 1.0 && s->c.min_p <= 0.0);
}

/* The largest logit that is not banned, and the sum beside it. */
static void read_raw(const fl_sampler *s, fl_row *r, const float *logits, part *out)
{
    memcpy(r->l, logits, (size_t)r->n * sizeof(*logits));
    ban(s, r);
    out->raw_max = -INFINITY;
    if (!fl_row_rank(r)) return;
    fl_row_keep(r, 0, 1.0, 0.0);
    out->raw_max = r->max;
    out->raw_sum = r->mass;
}

/* Ids [first, first + n) of a row for position `pos`. */
static part read_part(const fl_sampler *s, const fl_sampler_rows *rows, int i, int64_t first,
                      int64_t n, const float *logits, int worker)
{
    const int n_ahead = rows->ahead ? i : 0;
    const int64_t pos = rows->pos[i];
    fl_row r = s->rows[worker];
    part p = {.max = -INFINITY};
    r.first = first;
    r.n = n;
    if (s->c.raw_confidence) read_raw(s, &r, logits, &p);
    if (!process_ids(s, &r, logits, rows->ahead, n_ahead, soft_bias(s, pos, rows->ahead, n_ahead)))
        return p;
    fl_row_keep(&r, 0, 1.0, 0.0);
    p.max = r.max;
    p.sum = r.mass;
    p.best = (fl_row_best){first + r.top, (double)r.max};
    if (!is_greedy(s)) p.best = fl_row_race(&r, s->c.seed, pos);
    p.l = r.l[p.best.id - first];
    p.logit = logits[p.best.id - first];
    return p;
}

/* Sum of E(x - max) over all parts, in their order. `sum` belongs to the part's own maximum. */
static void add_sum(double *total, float max, float part_max, double sum)
{
    if (part_max > -INFINITY) *total += sum * fl_law_exp64((double)part_max - (double)max);
}

/* At least one part has an id that can be picked. */
static fl_pick join_parts(const fl_sampler *s, const part *parts, fl_logit_bias soft)
{
    const part *best = NULL;
    float max = -INFINITY, raw_max = -INFINITY;
    double sum = 0.0, raw_sum = 0.0;
    for (const part *p = parts; p < parts + s->n_parts; p++) {
        max = p->max > max ? p->max : max;
        raw_max = p->raw_max > raw_max ? p->raw_max : raw_max;
        if (p->max > -INFINITY && (!best || p->best.score > best->best.score)) best = p;
    }
    assert(best);
    for (const part *p = parts; p < parts + s->n_parts; p++) {
        add_sum(&sum, max, p->max, p->sum);
        if (s->c.raw_confidence) add_sum(&raw_sum, raw_max, p->raw_max, p->raw_sum);
    }
    const int32_t id = (int32_t)best->best.id;
    const bool biased = soft.value > 0.0f && soft.id == id;
    const double confidence = s->c.raw_confidence
                                  ? (double)fl_law_exp(best->logit - raw_max) / raw_sum
                                  : (double)fl_law_exp(best->l - max) / sum;
    return (fl_pick){id, (float)confidence, biased};
}

void fl_sampler_part(const fl_sampler *s, const fl_sampler_rows *rows, int row, int64_t first,
                     int64_t n, const float *logits, int worker)
{
    assert(row < s->n_part_rows && first % FL_SAMPLER_PART == 0 && n <= FL_SAMPLER_PART);
    s->parts[(int64_t)row * s->n_parts + first / FL_SAMPLER_PART] =
        read_part(s, rows, row, first, n, logits, worker);
}

void fl_sampler_join(const fl_sampler *s, const fl_sampler_rows *rows, fl_pick *out)
{
    for (int i = 0; i < rows->n; i++)
        out[i] = join_parts(s, s->parts + (int64_t)i * s->n_parts,
                            soft_bias(s, rows->pos[i], rows->ahead, rows->ahead ? i : 0));
}

/* ---- picks from whole rows ---- */

/* Softmax probability of one id among all that are not banned, at temperature 1. Takes the row. */
static float raw_probability(const fl_sampler *s, fl_row *r, const float *logits, int32_t id)
{
    part p = {0};
    read_raw(s, r, logits, &p);
    return (float)((double)fl_law_exp(logits[id] - p.raw_max) / p.raw_sum);
}

/* Row i of `rows`, whose parts take the place of row `worker`. */
static fl_pick pick_by_parts(const fl_sampler *s, const fl_sampler_rows *rows, int i,
                             const float *logits, int worker)
{
    part *parts = s->parts + (int64_t)worker * s->n_parts;
    for (int c = 0; c < s->n_parts; c++) {
        const int64_t first = (int64_t)c * FL_SAMPLER_PART, left = s->n_vocab - first;
        parts[c] = read_part(s, rows, i, first, left < FL_SAMPLER_PART ? left : FL_SAMPLER_PART,
                             logits + first, worker);
    }
    return join_parts(s, parts, soft_bias(s, rows->pos[i], rows->ahead, rows->ahead ? i : 0));
}

static fl_pick pick(const fl_sampler *s, const fl_sampler_rows *rows, int i, const float *logits,
                    int worker)
{
    if (fl_sampler_by_parts(s)) return pick_by_parts(s, rows, i, logits, worker);
    fl_row *r = &s->rows[worker];
    const int n_ahead = rows->ahead ? i : 0;
    const fl_logit_bias soft = soft_bias(s, rows->pos[i], rows->ahead, n_ahead);
    process(s, r, logits, rows->ahead, n_ahead, soft);
    const int32_t id = (int32_t)fl_row_race(r, s->c.seed, rows->pos[i]).id;
    const bool biased = soft.value > 0.0f && soft.id == id;
    if (s->c.raw_confidence) return (fl_pick){id, raw_probability(s, r, logits, id), biased};
    return (fl_pick){id, (float)((double)fl_law_exp(r->l[id] - r->max) / r->mass), biased};
}

fl_pick fl_sampler_pick(fl_sampler *s, const float *logits, int64_t pos, int worker)
{
    return pick(s, &(fl_sampler_rows){.pos = &pos, .n = 1}, 0, logits, worker);
}

typedef struct rows_run {
    fl_sampler *s;
    const float *logits;
    fl_sampler_rows rows;
    fl_pick *out;
} rows_run;

static void row_task(void *arg, int i, int worker)
{
    const rows_run *r = arg;
    r->out[i] = pick(r->s, &r->rows, i, r->logits + i * r->s->n_vocab, worker);
}

static void run_rows(fl_task_fn task, rows_run *r, fl_pool *pool, int n)
{
    assert(fl_pool_threads(pool) <= r->s->n_workers);
    fl_pool_run(pool, task, r, n);
}

void fl_sampler_pick_rows(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                          const int32_t *ahead, int n, fl_pick *out)
{
    rows_run r = {s, logits, {pos, ahead, n}, out};
    run_rows(row_task, &r, pool, n);
}

/* ---- drafts by ratio ---- */

/* Streams of noise besides the plain pick's. */
static uint64_t draw_seed(const fl_sampler *s) { return fl_noise_mix(s->c.seed ^ 0x64726177); }
static uint64_t check_seed(const fl_sampler *s) { return fl_noise_mix(s->c.seed ^ 0x63686563); }

fl_status fl_sampler_reserve_drafts(fl_sampler *s, int rows, fl_err *err)
{
    return grow(s, &s->q, &s->n_q, rows, (size_t)s->n_vocab * sizeof(*s->q), err);
}

static void draw_task(void *arg, int i, int worker)
{
    const rows_run *t = arg;
    const fl_sampler *s = t->s;
    fl_row *r = &s->rows[worker];
    const fl_logit_bias soft = soft_bias(s, t->rows.pos[i], NULL, 0);
    process(s, r, t->logits + i * s->n_vocab, NULL, 0, soft);
    const int32_t id = (int32_t)fl_row_race(r, draw_seed(s), t->rows.pos[i]).id, top = r->top;
    fl_row_probabilities(r);
    memcpy(s->q + i * s->n_vocab, r->l, (size_t)s->n_vocab * sizeof(*s->q));
    t->out[i] = (fl_pick){id, r->l[top], false};
}

void fl_sampler_draw_drafts(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                            int n, fl_pick *out)
{
    rows_run r = {s, logits, {pos, NULL, n}, out};
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
    if (i == t->rows.n - 1) {
        row_task(arg, i, worker);
        return;
    }
    fl_row *r = &s->rows[worker];
    const float *q = s->q + i * s->n_vocab;
    const int32_t x = t->rows.ahead[i];
    const fl_logit_bias soft = soft_bias(s, t->rows.pos[i], t->rows.ahead, i);
    process(s, r, t->logits + i * s->n_vocab, t->rows.ahead, i, soft);
    fl_row_probabilities(r);
    const uint64_t key = fl_noise_key(check_seed(s), t->rows.pos[i]);
    const double u = fl_noise_uniform(fl_noise_bits(key, 0));
    const double v = fl_noise_uniform(fl_noise_bits(key, 1));
    const bool accepted = u * (double)q[x] < (double)r->l[x];
    const int32_t id = accepted ? x : draw_rest(r->l, q, s->n_vocab, v, x);
    t->out[i] = (fl_pick){id, r->l[id], soft.value > 0.0f && soft.id == id};
}

void fl_sampler_check_drafts(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                             const int32_t *drafts, int n, fl_pick *out)
{
    rows_run r = {s, logits, {pos, drafts, n}, out};
    assert(n - 1 <= s->n_q && s->c.temp > 0.0);
    run_rows(check_task, &r, pool, n);
}
