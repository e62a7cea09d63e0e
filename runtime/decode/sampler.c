#include "runtime/decode/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/law.h"

typedef struct candidate {
    float l; /* processed logit */
    int32_t id;
} candidate;

struct fl_sampler {
    fl_sampler_config c;
    int64_t n_vocab;
    int n_workers;
    bool penalize;
    uint8_t *banned;       /* [n_vocab] */
    int32_t *count;        /* [n_vocab] in the text generated so far */
    int32_t *ahead;        /* [n_workers][n_vocab] zeros between calls */
    candidate *candidates; /* [n_workers][n_vocab] */
};

fl_status fl_sampler_create(fl_sampler **out, int64_t n_vocab, int n_workers, fl_err *err)
{
    fl_sampler *s = calloc(1, sizeof(*s));
    if (!s) return FL_FAIL(err, FL_E_NOMEM, 0, "sampler: out of memory");
    s->n_vocab = n_vocab;
    s->n_workers = n_workers;
    s->c = (fl_sampler_config){.top_p = 1.0, .repetition = 1.0};
    s->banned = calloc((size_t)n_vocab, 1);
    s->count = calloc((size_t)n_vocab, sizeof(*s->count));
    s->ahead = calloc((size_t)n_vocab * (size_t)n_workers, sizeof(*s->ahead));
    s->candidates = malloc((size_t)n_vocab * (size_t)n_workers * sizeof(candidate));
    if (!s->banned || !s->count || !s->ahead || !s->candidates) {
        fl_sampler_destroy(&s);
        return FL_FAIL(err, FL_E_NOMEM, 0, "sampler: out of memory for %lld ids",
                       (long long)n_vocab);
    }
    *out = s;
    return FL_OK;
}

void fl_sampler_destroy(fl_sampler **s)
{
    if (!*s) return;
    free((*s)->banned);
    free((*s)->count);
    free((*s)->ahead);
    free((*s)->candidates);
    free(*s);
    *s = NULL;
}

fl_status fl_sampler_check(const fl_sampler_config *c, fl_err *err)
{
    /* Written so that a NaN fails too. */
    if (!(c->temp >= 0.0 && c->temp <= 100.0))
        return FL_FAIL(err, FL_E_ARG, 0, "--temp %g: expected 0 (greedy) to 100", c->temp);
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
    return FL_OK;
}

fl_status fl_sampler_configure(fl_sampler *s, const fl_sampler_config *c, fl_err *err)
{
    FL_TRY(fl_sampler_check(c, err));
    s->c = *c;
    if (s->c.repetition == 0.0) s->c.repetition = 1.0;
    s->penalize = c->presence != 0.0 || c->frequency != 0.0 || s->c.repetition != 1.0;
    memset(s->count, 0, (size_t)s->n_vocab * sizeof(*s->count));
    return FL_OK;
}

void fl_sampler_reseed(fl_sampler *s, uint64_t seed) { s->c.seed = seed; }

void fl_sampler_count(fl_sampler *s, int32_t id)
{
    if (id >= 0 && id < s->n_vocab) s->count[id]++;
}

void fl_sampler_ban(fl_sampler *s, int32_t id)
{
    if (id >= 0 && id < s->n_vocab) s->banned[id] = 1;
}

bool fl_sampler_banned(const fl_sampler *s, int32_t id) { return s->banned[id] != 0; }

/* ---- noise ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double fl_gumbel_noise(uint64_t seed, int64_t pos, int32_t token)
{
    const uint64_t step = 0x9e3779b97f4a7c15u;
    uint64_t h = mix(seed + step);
    h = mix((h ^ (uint64_t)pos) + step);
    h = mix((h ^ (uint32_t)token) + step);
    const double u = ((double)(h >> 11) + 0.5) * 0x1p-53;
    return -fl_law_log64(-fl_law_log64(u));
}

/* ---- candidates ---- */

/* a before b: larger logit, lower id on ties. */
static bool before(candidate a, candidate b) { return a.l > b.l || (a.l == b.l && a.id < b.id); }

static void sift(candidate *h, int64_t n, int64_t i)
{
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= n) return;
        if (c + 1 < n && before(h[c + 1], h[c])) c++;
        if (!before(h[c], h[i])) return;
        const candidate t = h[i];
        h[i] = h[c];
        h[c] = t;
        i = c;
    }
}

/* Moves the best of the heap h[0 .. n) to h[n - 1]. */
static void pop(candidate *h, int64_t n)
{
    const candidate t = h[0];
    h[0] = h[n - 1];
    h[n - 1] = t;
    sift(h, n - 1, 0);
}

/* sum of E(l - max) in a fixed order. */
static double mass(const candidate *c, int64_t n, float max)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += fl_law_exp(c[i].l - max);
    return sum;
}

static float penalized(const fl_sampler_config *c, float l, int32_t count)
{
    if (count == 0) return l;
    l = l > 0.0f ? l / (float)c->repetition : l * (float)c->repetition;
    return l - (float)c->presence - (float)c->frequency * (float)count;
}

/* All ids that may be picked, with penalties and temperature applied. */
static int64_t collect(const fl_sampler *s, const float *logits, const int32_t *ahead, candidate *c)
{
    const float t = s->c.temp > 0.0 ? (float)s->c.temp : 1.0f;
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_vocab; i++) {
        if (s->banned[i]) continue;
        float l = logits[i];
        if (s->penalize) l = penalized(&s->c, l, s->count[i] + ahead[i]);
        c[n++] = (candidate){l / t, (int32_t)i};
    }
    return n;
}

/* Reduces c[0 .. n) to what top-k, top-p and min-p keep. *kept points to them. */
static int64_t reduce(const fl_sampler *s, candidate *c, int64_t n, candidate **kept)
{
    const bool by_k = s->c.top_k > 0 && s->c.top_k < n;
    const bool by_p = s->c.top_p < 1.0;
    *kept = c;
    if (!by_k && !by_p && s->c.min_p <= 0.0) return n;

    for (int64_t i = n / 2; i-- > 0;) sift(c, n, i);
    const float max = c[0].l;
    const float floor_l = s->c.min_p > 0.0 ? max + (float)fl_law_log64(s->c.min_p) : -INFINITY;
    const int64_t limit = by_k ? s->c.top_k : n;
    /* top-p counts within what top-k keeps; so with both, the top k are taken out first. */
    double total = 0.0;
    int64_t out = 0;
    if (by_p && by_k) {
        for (; out < limit; out++) pop(c, n - out);
        total = mass(c + n - out, out, max);
    } else if (by_p) {
        total = mass(c, n, max);
    }
    /* Popped candidates lie at the end, best last. */
    double sum = 0.0;
    int64_t keep = 0;
    while (keep < limit && !(by_p && keep > 0 && sum >= s->c.top_p * total)) {
        if (keep == out) pop(c, n - out++);
        const candidate x = c[n - 1 - keep];
        if (x.l < floor_l) break;
        sum += fl_law_exp(x.l - max);
        keep++;
    }
    *kept = c + n - keep;
    return keep;
}

/* Softmax probability of one id among all that are not banned, at temperature 1. */
static float raw_probability(const fl_sampler *s, const float *logits, int32_t id)
{
    float max = -INFINITY;
    for (int64_t i = 0; i < s->n_vocab; i++)
        if (!s->banned[i] && logits[i] > max) max = logits[i];
    double sum = 0.0;
    for (int64_t i = 0; i < s->n_vocab; i++)
        if (!s->banned[i]) sum += fl_law_exp(logits[i] - max);
    return (float)((double)fl_law_exp(logits[id] - max) / sum);
}

/* `ahead`: n_ahead tokens that count as generated for this pick alone. */
static fl_pick pick(fl_sampler *s, const float *logits, int64_t pos, const int32_t *ahead,
                    int n_ahead, int worker)
{
    candidate *c = s->candidates + worker * s->n_vocab, *kept = c;
    int32_t *count = s->ahead + worker * s->n_vocab;
    for (int i = 0; i < n_ahead; i++) count[ahead[i]]++;
    int64_t n = collect(s, logits, count, c);
    for (int i = 0; i < n_ahead; i++) count[ahead[i]]--;
    assert(n > 0);
    if (s->c.temp > 0.0) n = reduce(s, c, n, &kept);

    candidate top = kept[0], best = kept[0];
    double best_score = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        const candidate x = kept[i];
        if (before(x, top)) top = x;
        if (s->c.temp <= 0.0) continue;
        const double score = (double)x.l + fl_gumbel_noise(s->c.seed, pos, x.id);
        if (score > best_score || (score == best_score && x.id < best.id)) {
            best_score = score;
            best = x;
        }
    }
    if (s->c.temp <= 0.0) best = top;
    if (s->c.raw_confidence) return (fl_pick){best.id, raw_probability(s, logits, best.id)};
    const double p = (double)fl_law_exp(best.l - top.l) / mass(kept, n, top.l);
    return (fl_pick){best.id, (float)p};
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
    fl_pick *out;
} rows_run;

static void row_task(void *arg, int i, int worker)
{
    const rows_run *r = arg;
    r->out[i] =
        pick(r->s, r->logits + i * r->s->n_vocab, r->pos[i], r->ahead, r->ahead ? i : 0, worker);
}

void fl_sampler_pick_rows(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                          const int32_t *ahead, int n, fl_pick *out)
{
    rows_run r = {s, logits, pos, ahead, out};
    assert(fl_pool_threads(pool) <= s->n_workers);
    fl_pool_run(pool, row_task, &r, n);
}
