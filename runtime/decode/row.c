#include "runtime/decode/row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/decode/noise.h"

enum { GROUP = 64 };

static int64_t n_groups(const fl_row *r) { return (r->n + GROUP - 1) / GROUP; }

bool fl_row_create(fl_row *r, const fl_kernels *k, int64_t n)
{
    *r = (fl_row){.k = k, .n = n};
    r->l = malloc((size_t)n * sizeof(*r->l));
    r->top_of = malloc((size_t)n_groups(r) * sizeof(*r->top_of));
    r->kept = malloc((size_t)n * sizeof(*r->kept));
    r->spare = malloc((size_t)n * sizeof(*r->spare));
    r->e = malloc((size_t)n * sizeof(*r->e));
    return r->l && r->top_of && r->kept && r->spare && r->e;
}

void fl_row_destroy(fl_row *r)
{
    free(r->l);
    free(r->top_of);
    free(r->kept);
    free(r->spare);
    free(r->e);
    *r = (fl_row){0};
}

void fl_row_scale(fl_row *r, float temp)
{
    const float most = 3e38f;
    float *l = r->l;
    if (temp != 1.0f)
        for (int64_t i = 0; i < r->n; i++) l[i] /= temp;
    for (int64_t i = 0; i < r->n; i++) {
        const float v = l[i] > most ? most : l[i];
        l[i] = v < -most ? -most : v;
    }
}

static float largest(const float *l, int64_t n)
{
    float m[16], best = l[0];
    int64_t i = 0;
    if (n >= 16) {
        for (int j = 0; j < 16; j++) m[j] = l[j];
        for (i = 16; i + 16 <= n; i += 16)
            for (int j = 0; j < 16; j++) m[j] = l[i + j] > m[j] ? l[i + j] : m[j];
        for (int j = 0; j < 16; j++) best = m[j] > best ? m[j] : best;
    }
    for (; i < n; i++) best = l[i] > best ? l[i] : best;
    return best;
}

bool fl_row_rank(fl_row *r)
{
    int64_t best = 0;
    for (int64_t g = 0; g < n_groups(r); g++) {
        const int64_t i = g * GROUP;
        r->top_of[g] = largest(r->l + i, r->n - i < GROUP ? r->n - i : GROUP);
        if (r->top_of[g] > r->top_of[best]) best = g;
    }
    int64_t i = best * GROUP;
    r->max = r->top_of[best];
    if (r->max == -INFINITY) return false;
    while (r->l[i] != r->max) i++;
    r->top = (int32_t)i;
    return true;
}

/* ---- ids by falling logit, a band of logits at a time ---- */

/* Rises as the logit falls; equal logits have equal keys. */
static uint32_t falling_key(float l)
{
    uint32_t bits;
    l += 0.0f; /* one zero instead of two */
    memcpy(&bits, &l, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

/* Sorts ids that stand by rising id: by key, a byte at a time from the lowest one, each pass
 * keeping the order of the one before, so that equal logits stay by id. */
static void sort_falling(const fl_row *r, int32_t *ids, int64_t n)
{
    int32_t *from = ids, *to = r->spare;
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t at[257] = {0};
        for (int64_t i = 0; i < n; i++) at[1 + (falling_key(r->l[from[i]]) >> shift & 255)]++;
        for (int k = 0; k < 256; k++) at[k + 1] += at[k];
        for (int64_t i = 0; i < n; i++)
            to[at[falling_key(r->l[from[i]]) >> shift & 255]++] = from[i];
        int32_t *t = from;
        from = to;
        to = t;
    }
}

/* The row's ids from the first band on, sorted; all below `low` are still to be looked for. Bands
 * double in width: a few suffice for any spread. */
typedef struct falling {
    fl_row *r;
    int64_t n; /* sorted so far */
    float low, width;
} falling;

static void next_band(falling *f)
{
    fl_row *r = f->r;
    const float high = f->low;
    const int64_t start = f->n;
    f->low = f->width < 1e30f ? r->max - f->width : -INFINITY;
    f->width *= 2.0f;
    for (int64_t g = 0; g < n_groups(r); g++) {
        if (r->top_of[g] < f->low || r->top_of[g] == -INFINITY) continue;
        const int64_t end = (g + 1) * GROUP < r->n ? (g + 1) * GROUP : r->n;
        for (int64_t i = g * GROUP; i < end; i++)
            if (r->l[i] >= f->low && r->l[i] < high && r->l[i] > -INFINITY)
                r->kept[f->n++] = (int32_t)i;
    }
    if (f->n > start + 1) sort_falling(r, r->kept + start, f->n - start);
}

/* Makes sure that kept[i] is there; false when there are not so many candidates. */
static bool reach(falling *f, int64_t i)
{
    while (f->n <= i && f->low > -INFINITY) next_band(f);
    return f->n > i;
}

/* ---- what is kept ---- */

/* E(l - max); the same number either way. */
static float weight(const fl_row *r, int32_t id)
{
    return r->has_e ? r->e[id] : fl_law_exp(r->l[id] - r->max);
}

static double sum_all(fl_row *r)
{
    r->has_e = true;
    return r->k->exp_sum(r->l, r->n, r->max, r->e);
}

/* Keeps up to `limit` ids, until `goal` is reached, and none below `least`. */
static void keep(fl_row *r, falling *f, int64_t limit, double goal, float least)
{
    r->n_kept = 0;
    r->mass = 0.0;
    while (r->n_kept < limit && r->mass < goal && reach(f, r->n_kept)) {
        const int32_t id = r->kept[r->n_kept];
        if (r->l[id] < least) return;
        r->mass += (double)weight(r, id);
        r->n_kept++;
    }
}

void fl_row_keep(fl_row *r, int64_t top_k, double top_p, double min_p)
{
    const bool by_k = top_k > 0 && top_k < r->n, by_p = top_p < 1.0;
    r->n_kept = -1;
    r->has_e = false;
    if (!by_k && !by_p && min_p <= 0.0) {
        r->mass = sum_all(r);
        return;
    }
    const float least = min_p > 0.0 ? r->max + (float)fl_law_log64(min_p) : -INFINITY;
    const int64_t limit = by_k ? top_k : r->n;
    falling f = {r, 0, INFINITY, 2.0f};
    double goal = INFINITY;
    /* Top-p counts within what top-k keeps: with both, all k are taken first. */
    if (by_k && by_p) {
        keep(r, &f, limit, INFINITY, -INFINITY);
        goal = top_p * r->mass;
    } else if (by_p) {
        goal = top_p * sum_all(r);
    }
    keep(r, &f, limit, goal, least);
}

/* ---- the pick ---- */

static void race_one(fl_row_best *b, uint64_t key, int64_t id, float l)
{
    const double score = (double)l + fl_noise_gumbel(fl_noise_bits(key, (int32_t)id));
    if (score < b->score || (score == b->score && id >= b->id)) return;
    *b = (fl_row_best){id, score};
}

/* With u the uniform of an id, it wins only if -log(u) <= e^(l - best), and -log(u) > 1 - u: most
 * ids drop out before any logarithm. margin is e^(max - best) in units of 2^-52, with room for the
 * rounding of E, the weight of the id. */
static double margin(const fl_row *r, const fl_row_best *b)
{
    return fl_law_exp64((double)r->max - b->score) * (1.0 + 0x1p-12) * 0x1p52;
}

static bool can_win(uint64_t key, int64_t id, float id_weight, double most)
{
    const int64_t left = (int64_t)(((uint64_t)1 << 52) - fl_noise_bits(key, (int32_t)id));
    return (double)left - 0.5 <= (double)id_weight * most;
}

fl_row_best fl_row_race(const fl_row *r, uint64_t seed, int64_t pos)
{
    const uint64_t key = fl_noise_key(seed, pos);
    fl_row_best b = {INT64_MAX, -INFINITY};
    race_one(&b, key, r->first + r->top, r->max);
    double most = margin(r, &b);
    for (int64_t i = 1; i < r->n_kept; i++) {
        const int32_t at = r->kept[i];
        if (!can_win(key, r->first + at, weight(r, at), most)) continue;
        race_one(&b, key, r->first + at, r->l[at]);
        most = margin(r, &b);
    }
    if (r->n_kept >= 0) return b;
    for (int64_t i = 0; i < r->n; i++) {
        if (!can_win(key, r->first + i, r->e[i], most) || r->l[i] == -INFINITY) continue;
        race_one(&b, key, r->first + i, r->l[i]);
        most = margin(r, &b);
    }
    return b;
}

void fl_row_probabilities(fl_row *r)
{
    if (r->n_kept < 0) {
        for (int64_t i = 0; i < r->n; i++)
            r->l[i] = r->l[i] == -INFINITY ? 0.0f : (float)((double)r->e[i] / r->mass);
        return;
    }
    for (int64_t i = 0; i < r->n_kept; i++) r->e[r->kept[i]] = weight(r, r->kept[i]);
    memset(r->l, 0, (size_t)r->n * sizeof(*r->l));
    for (int64_t i = 0; i < r->n_kept; i++)
        r->l[r->kept[i]] = (float)((double)r->e[r->kept[i]] / r->mass);
}
