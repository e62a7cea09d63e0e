#include "offload/predict.h"

#include <assert.h>

__extension__ typedef unsigned __int128 wide;

enum { PPM = 1000000, LANE_STEPS = 4096, COARSE = 64 };
static const uint64_t GiB = 1ull << 30;

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* a * b / c; the largest number where it is above that. */
static uint64_t scale(uint64_t a, uint64_t b, uint64_t c)
{
    const wide v = (wide)a * b / c;
    return v > UINT64_MAX ? UINT64_MAX : (uint64_t)v;
}

/* ---- which experts ---- */

int64_t fl_predict_distinct(int n_expert, int top_k, int rows)
{
    /* E (1 - ((E - k) / E)^r), the power in 32 binary places; r in 31sts would be between powers.
     */
    const uint64_t e = (uint64_t)n_expert;
    const int whole = (31 + (rows - 1) * 9) / 31, part = (31 + (rows - 1) * 9) % 31;
    uint64_t not_used = 1ull << 32;
    for (int i = 0; i < whole && not_used; i++) not_used = not_used * (e - (uint64_t)top_k) / e;
    const uint64_t next = not_used * (e - (uint64_t)top_k) / e;
    not_used -= (not_used - next) * (uint64_t)part / 31;
    return (int64_t)((((1ull << 32) - not_used) * e * 1000) >> 32);
}

/* The chance of each expert of a layer, in millionths, that add up to `distinct`. Where one would
 * be above 1 it is 1, and the others share what is left. */
static void chances(const uint32_t *heat, int n, int64_t distinct_milli, uint32_t *out)
{
    uint64_t want = min_u64((uint64_t)distinct_milli, (uint64_t)n * 1000) * (PPM / 1000);
    for (int e = 0; e < n; e++) out[e] = 0;
    for (bool more = true; more;) {
        uint64_t sum = 0;
        more = false;
        for (int e = 0; e < n; e++)
            if (out[e] < PPM) sum += heat ? (uint64_t)heat[e] + 1 : 1;
        const uint64_t share = want;
        for (int e = 0; e < n; e++) {
            if (out[e] == PPM) continue;
            out[e] = (uint32_t)min_u64(scale(share, heat ? (uint64_t)heat[e] + 1 : 1, sum), PPM);
            if (out[e] < PPM) continue;
            want -= PPM;
            more = true;
        }
    }
}

/* Expected uses and bytes of one pass. */
typedef struct traffic {
    uint64_t uses[FL_TIER_DEVICE + 1]; /* in millionths */
    uint64_t bytes[FL_TIER_DEVICE + 1];
} traffic;

static traffic expect(const fl_plan *p, const uint32_t *heat, int64_t distinct_milli)
{
    traffic t = {0};
    const int n = p->in.n_expert;
    uint32_t chance[65536];
    const bool still = p->n_total - p->n_resident <= p->n_slots;
    assert(n <= 65536);
    for (int layer = 0; layer < p->in.n_layer - p->in.last_is_mtp; layer++) {
        const size_t at = (size_t)layer * (size_t)n;
        chances(heat ? heat + at : NULL, n, distinct_milli, chance);
        for (int e = 0; e < n; e++) {
            const uint64_t b = p->in.expert_bytes[at + (size_t)e];
            const fl_tier tier = still ? FL_TIER_DEVICE : (fl_tier)p->tier[at + (size_t)e];
            if (!b) continue;
            t.uses[tier] += chance[e];
            t.bytes[tier] += scale(b, chance[e], PPM);
        }
    }
    return t;
}

/* ---- what it takes ---- */

/* On the line through the two nearest measured row counts; behind the last in proportion to the
 * rows. 0: not measured. */
static uint64_t by_rows(const fl_rates *r, const uint64_t *ns, uint64_t rows_milli)
{
    int i = 0;
    if (r->n_rows == 0) return 0;
    while (i < r->n_rows && (uint64_t)r->rows[i] * 1000 < rows_milli) i++;
    if (i == 0) return ns[0];
    const uint64_t r0 = (uint64_t)r->rows[i - 1] * 1000, t0 = ns[i - 1];
    if (i == r->n_rows) return scale(t0, rows_milli, r0);
    const uint64_t r1 = (uint64_t)r->rows[i] * 1000, t1 = ns[i];
    return t1 >= t0 ? t0 + scale(t1 - t0, rows_milli - r0, r1 - r0)
                    : t0 - scale(t0 - t1, rows_milli - r0, r1 - r0);
}

/* Times that do not depend on the lane. */
typedef struct costs {
    uint64_t dense_ns;
    uint64_t cpu_ns, device_ns; /* of one expert */
} costs;

static uint64_t moved_ns(uint64_t bytes, uint64_t per_s)
{
    return per_s ? scale(bytes, 1000000000, per_s) : 0;
}

/* The pass when `copied` of the host tier's 4,096ths are copied. */
static void time_pass(const fl_predict_input *in, const costs *c, const traffic *t, uint64_t copied,
                      fl_predicted_pass *out)
{
    const fl_rates *r = in->rates;
    const uint64_t host = t->uses[FL_TIER_HOST];
    const uint64_t over = scale(host, copied, LANE_STEPS);
    const uint64_t moved = t->uses[FL_TIER_FILE] + over;
    const uint64_t device = c->dense_ns + scale(t->uses[FL_TIER_DEVICE] + moved, c->device_ns, PPM);
    const uint64_t cpu = scale(host - over, c->cpu_ns, PPM);
    out->compute_ns = in->shared_pool ? device + cpu : max_u64(device, cpu);
    out->read_bytes = t->bytes[FL_TIER_FILE];
    out->copy_bytes = out->read_bytes + scale(t->bytes[FL_TIER_HOST], copied, LANE_STEPS);
    out->read_ns = moved_ns(out->read_bytes, r->file_bytes_s);
    out->copy_ns = moved_ns(out->copy_bytes, r->link_bytes_s) + scale(moved, r->link_start_ns, PPM);
    const uint64_t move = max_u64(out->read_ns, out->copy_ns);
    const uint64_t ahead = scale(move, (uint64_t)in->ahead_permille, 1000);
    out->pass_ns = move - ahead + max_u64(out->compute_ns, ahead);
}

/* The best share of [from, to], looked at in such steps; *at gets the share. */
static fl_predicted_pass scan(const fl_predict_input *in, const costs *c, const traffic *t,
                              uint64_t from, uint64_t to, uint64_t step, uint64_t *at)
{
    fl_predicted_pass best = {0}, now = {0};
    for (uint64_t copied = from; copied <= to; copied += step) {
        time_pass(in, c, t, copied, &now);
        if (copied > from && now.pass_ns >= best.pass_ns) continue;
        best = now;
        *at = copied;
    }
    return best;
}

/* The time falls to one lowest place and rises behind it, but for what is rounded. */
static fl_predicted_pass fastest(const fl_predict_input *in, const costs *c, const traffic *t)
{
    uint64_t at = in->lane == FL_LANES_DEVICE ? LANE_STEPS : 0;
    if (in->lane != FL_LANES_AUTO || !t->uses[FL_TIER_HOST]) return scan(in, c, t, at, at, 1, &at);
    scan(in, c, t, 0, LANE_STEPS, COARSE, &at);
    const uint64_t from = at < COARSE ? 0 : at - COARSE;
    return scan(in, c, t, from, min_u64(at + COARSE, LANE_STEPS), 1, &at);
}

static unsigned lacking(const fl_predict_input *in, const costs *c, const fl_predicted_pass *p)
{
    return (c->dense_ns && c->cpu_ns && c->device_ns ? 0 : FL_LACKS_COMPUTE) |
           (in->rates->link_bytes_s || !p->copy_bytes ? 0 : FL_LACKS_LINK) |
           (in->rates->file_bytes_s || !p->read_bytes ? 0 : FL_LACKS_FILE);
}

static fl_predicted_pass predict_pass(const fl_plan *plan, const fl_predict_input *in,
                                      const fl_predict_pass *pass, unsigned *lacks)
{
    fl_predicted_pass best = {0};
    if (!pass->rows || pass->distinct_milli <= 0 || !plan->n_total) return best;
    const traffic t = expect(plan, in->heat, pass->distinct_milli);
    const uint64_t rows_milli =
        scale((uint64_t)pass->rows * (uint64_t)plan->in.top_k, PPM, (uint64_t)pass->distinct_milli);
    costs c = {.dense_ns =
                   by_rows(in->rates, in->rates->dense_pass_ns, (uint64_t)pass->rows * 1000),
               .cpu_ns = by_rows(in->rates, in->rates->cpu_expert_ns, rows_milli)};
    c.device_ns = in->shared_pool ? c.cpu_ns
                                  : moved_ns(plan->expert_bytes / (uint64_t)plan->n_total,
                                             in->rates->device_bytes_s);
    best = fastest(in, &c, &t);
    for (int i = 0; i <= FL_TIER_DEVICE; i++) best.uses_milli[i] = t.uses[i] / 1000;
    const unsigned lack = lacking(in, &c, &best);
    *lacks |= lack;
    if (lack) best.pass_ns = 0;
    if (best.pass_ns)
        best.tokens_per_s_milli = scale((uint64_t)pass->tokens_milli, 1000000000, best.pass_ns);
    return best;
}

void fl_predict(const fl_plan *plan, const fl_predict_input *in, fl_prediction *out)
{
    fl_predict_input own = *in;
    assert(in->ahead_permille >= 0 && in->ahead_permille <= 1000);
    assert(in->prefill_ahead_permille >= 0 && in->prefill_ahead_permille <= 1000);
    out->lacks = 0;
    for (int k = 0; k < FL_PREDICT_KINDS; k++) {
        if (k == FL_PREDICT_PREFILL) own.ahead_permille = in->prefill_ahead_permille;
        out->kind[k] = predict_pass(plan, &own, &in->pass[k], &out->lacks);
    }
}

/* ---- the curve ---- */

static fl_status predict_point(const fl_plan_input *in, const fl_predict_input *p,
                               fl_predict_point *out, fl_err *err)
{
    fl_plan plan;
    FL_TRY(fl_plan_make(in, &plan, err));
    *out = (fl_predict_point){.device_cap = in->device_cap,
                              .host_cap = in->host_cap,
                              .n_resident = plan.n_resident,
                              .n_host = plan.n_host};
    fl_predict(&plan, p, &out->result);
    fl_plan_free(&plan);
    return FL_OK;
}

fl_status fl_predict_curve(const fl_plan_input *in, bool host, const fl_predict_input *p,
                           fl_predict_point out[FL_PREDICT_MAX_POINTS], int *n, fl_err *err)
{
    fl_plan_input more = *in;
    fl_plan plan;
    *n = 0;
    if (host && !in->host_bytes) return FL_OK;
    if (host)
        more.host_asked = true; /* the cap is what is looked at, not what happens to be free */
    FL_TRY(fl_plan_make(in, &plan, err));
    const uint64_t full = host ? plan.full_host_cap : plan.full_device_cap;
    fl_plan_free(&plan);
    uint64_t *cap = host ? &more.host_cap : &more.device_cap;
    while (*cap < full && *n < FL_PREDICT_MAX_POINTS) {
        const bool last = *n == FL_PREDICT_MAX_POINTS - 1 || full - *cap <= GiB;
        *cap = last ? full : *cap + GiB;
        FL_TRY(predict_point(&more, p, &out[(*n)++], err));
    }
    return FL_OK;
}
