#include "runtime/tools/logit_row.h"

#include <math.h>
#include <string.h>

#include "runtime/base/hash.h"

enum { EXACT = 65535, CODES = 65534 };
static const double range = 40.0;

/* Behind it: id[top], logit[top], code[vocab]. */
typedef struct row_head {
    uint64_t hash;
    double nll;
    float high, step;
} row_head;

typedef struct parts {
    int top;
    const row_head *head;
    const int32_t *id;
    const float *logit;
    const uint16_t *code;
} parts;

static int top_of(int64_t vocab) { return vocab < FL_LOGIT_TOP ? (int)vocab : FL_LOGIT_TOP; }

static uint64_t code_offset(int64_t vocab)
{
    return sizeof(row_head) + (uint64_t)top_of(vocab) * (sizeof(int32_t) + sizeof(float));
}

uint64_t fl_logit_row_bytes(int64_t vocab)
{
    return (code_offset(vocab) + 2 * (uint64_t)vocab + 7) & ~(uint64_t)7;
}

static parts parts_of(const void *row, int64_t vocab)
{
    const int top = top_of(vocab);
    const int32_t *id = (const int32_t *)((const row_head *)row + 1);
    return (parts){.top = top,
                   .head = row,
                   .id = id,
                   .logit = (const float *)(id + top),
                   .code = (const uint16_t *)((const char *)row + code_offset(vocab))};
}

/* ---- packing ---- */

static void find_top(const float *logits, int64_t vocab, int top, int32_t *id, float *value)
{
    int n = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (n == top && logits[i] <= value[n - 1]) continue;
        int at = n < top ? n++ : top - 1;
        for (; at > 0 && value[at - 1] < logits[i]; at--) {
            id[at] = id[at - 1];
            value[at] = value[at - 1];
        }
        id[at] = (int32_t)i;
        value[at] = logits[i];
    }
}

/* The line through the logits whose code is not EXACT. */
static void find_line(const float *logits, const uint16_t *code, int64_t vocab, row_head *h)
{
    float high = -INFINITY, low = INFINITY;
    for (int64_t i = 0; i < vocab; i++) {
        if (code[i] == EXACT) continue;
        high = logits[i] > high ? logits[i] : high;
        low = logits[i] < low ? logits[i] : low;
    }
    h->high = h->step = 0;
    if (high < low) return;
    const double width = fmin((double)high - (double)low, range);
    h->high = high;
    h->step = (float)(width / CODES);
    if ((double)h->step * CODES < width) h->step = nextafterf(h->step, INFINITY);
}

void fl_logit_row_pack(void *dst, const float *logits, int64_t vocab, double nll)
{
    row_head h = {.hash = fl_hash64(logits, (size_t)vocab * sizeof *logits), .nll = nll};
    const int top = top_of(vocab);
    memset(dst, 0, fl_logit_row_bytes(vocab));
    int32_t *id = (int32_t *)((row_head *)dst + 1);
    uint16_t *code = (uint16_t *)((char *)dst + code_offset(vocab));
    find_top(logits, vocab, top, id, (float *)(id + top));
    for (int i = 0; i < top; i++) code[id[i]] = EXACT;
    find_line(logits, code, vocab, &h);
    memcpy(dst, &h, sizeof h);
    if (h.step == 0.0f) return; /* what is not exact is all the same: code 0 */
    for (int64_t i = 0; i < vocab; i++)
        if (code[i] != EXACT)
            code[i] =
                (uint16_t)fmin(rint(((double)h.high - (double)logits[i]) / (double)h.step), CODES);
}

/* ---- reading ---- */

static bool top_valid(const parts *p, int64_t vocab)
{
    for (int i = 0; i < p->top; i++) {
        if (p->id[i] < 0 || p->id[i] >= vocab || p->code[p->id[i]] != EXACT) return false;
        if (!isfinite(p->logit[i])) return false;
        if (i > 0 && p->logit[i] > p->logit[i - 1]) return false;
        for (int k = 0; k < i; k++)
            if (p->id[k] == p->id[i]) return false;
    }
    return true;
}

bool fl_logit_row_valid(const void *row, int64_t vocab)
{
    const parts p = parts_of(row, vocab);
    int64_t exact = 0;
    for (int64_t i = 0; i < vocab; i++) exact += p.code[i] == EXACT;
    return exact == p.top && isfinite(p.head->nll) && isfinite(p.head->high) &&
           p.head->step >= 0.0f && (double)p.head->step <= range / CODES * 1.001 &&
           top_valid(&p, vocab) && (p.top == vocab || p.head->high <= p.logit[p.top - 1]);
}

double fl_logit_row_nll(const void *row) { return ((const row_head *)row)->nll; }

int32_t fl_logit_row_best(const void *row) { return *(const int32_t *)((const row_head *)row + 1); }

static double log_sum_exp(const float *x, int64_t n)
{
    float max = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
    return (double)max + log(sum);
}

/* Sums over ids of w = exp(l - largest l) and of d = l - the other row's logit. */
typedef struct sums {
    double w, wd, wdd;
} sums;

static void add(sums *s, double w, double d)
{
    s->w += w;
    s->wd += w * d;
    s->wdd += w * d * d;
}

/* Let p be the stored distribution, q the other, L = log(p / q), e_i the rounding of a logit, at
 * most h and 0 for the exact ones. On the way from p to the true distribution, p exp(-t e) / Z,
 * the derivative of KL is -Cov(e, L): at most h times the mean of |L - KL| over the rounded ids.
 * On the way their weights grow by at most e^2h and L moves by at most 2h. */
static double rounding_error(const sums *rest, double all, double mean, double h)
{
    const double mass = rest->w / all;
    const double spread = (rest->wdd - 2 * mean * rest->wd + mean * mean * rest->w) / all;
    return h * (1 + 4 * h) * (sqrt(mass * fmax(spread, 0)) + 2 * h * mass);
}

fl_divergence fl_logit_row_compare(const void *row, const float *logits, int64_t vocab)
{
    const parts p = parts_of(row, vocab);
    if (p.head->hash == fl_hash64(logits, (size_t)vocab * sizeof *logits))
        return (fl_divergence){0, 0};
    const double max = (double)p.logit[0], high = (double)p.head->high, step = (double)p.head->step;
    sums top = {0}, rest = {0};
    for (int i = 0; i < p.top; i++)
        add(&top, exp((double)p.logit[i] - max), (double)p.logit[i] - (double)logits[p.id[i]]);
    for (int64_t i = 0; i < vocab; i++) {
        if (p.code[i] == EXACT) continue;
        const double l = high - step * p.code[i];
        add(&rest, exp(l - max), l - (double)logits[i]);
    }
    const double all = top.w + rest.w, mean = (top.wd + rest.wd) / all;
    const double kl = mean - (max + log(all)) + log_sum_exp(logits, vocab);
    return (fl_divergence){fmax(kl, 0), rounding_error(&rest, all, mean, step / 2)};
}
