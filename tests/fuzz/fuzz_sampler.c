/* Sampler options. First byte below 128: the rest is the text of --logit-bias. Else: eight bytes a
 * setting, raw doubles where the sampler takes doubles, then biases and logits. What the check lets
 * through must give picks that are ids, not banned, with a confidence in (0, 1], the same on both
 * tiers and again. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/decode/sampler.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { V = 80, ROWS = 3 };

static void need(bool ok)
{
    if (!ok) abort();
}

static void try_text(const uint8_t *p, size_t n)
{
    fl_logit_bias b[FL_MAX_BIASES];
    fl_err err = {0};
    int count = 0;
    char *text = malloc(n + 1);
    need(text != NULL);
    memcpy(text, p, n);
    text[n] = 0;
    if (fl_logit_bias_parse(text, b, &count, &err) == FL_OK) {
        need(count > 0 && count <= FL_MAX_BIASES);
        for (int i = 0; i < count; i++)
            need(b[i].id >= 0 && (b[i].value == -INFINITY || fabsf(b[i].value) <= FL_BIAS_LIMIT));
    } else {
        need(err.msg[0] && !strchr(err.msg, '\n'));
    }
    free(text);
}

typedef struct bytes {
    const uint8_t *p;
    size_t n;
} bytes;

/* The next k bytes, zeros behind the end. */
static void take(bytes *b, void *out, size_t k)
{
    const size_t have = k < b->n ? k : b->n;
    memset(out, 0, k);
    memcpy(out, b->p, have);
    b->p += have;
    b->n -= have;
}

static fl_sampler_config read_config(bytes *b)
{
    fl_sampler_config c = {0};
    double *const reals[] = {&c.temp,      &c.top_p,      &c.min_p,     &c.presence,
                             &c.frequency, &c.repetition, &c.soft.slope};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) take(b, reals[i], sizeof(double));
    take(b, &c.top_k, sizeof c.top_k);
    take(b, &c.seed, sizeof c.seed);
    take(b, &c.soft.think, 1);
    take(b, &c.soft.answer, 1);
    uint8_t few = 0;
    take(b, &few, 1);
    c.raw_confidence = few & 1;
    c.n_bias = few >> 1 & 15;
    for (int i = 0; i < c.n_bias; i++) {
        int8_t pair[2];
        take(b, pair, 2);
        c.bias[i] = (fl_logit_bias){pair[0], pair[1] == -128 ? -INFINITY : (float)pair[1]};
    }
    return c;
}

/* Finite logits: what is not becomes a small number. */
static void read_logits(bytes *b, float *l)
{
    for (int i = 0; i < ROWS * V; i++) {
        take(b, &l[i], sizeof *l);
        if (!isfinite(l[i])) l[i] = (float)(i % 7);
    }
}

static void pick_all(fl_sampler *s, const fl_sampler_config *c, fl_pool *pool, const float *l,
                     fl_pick out[ROWS])
{
    static const int32_t prompt[] = {1, 2, 3};
    static const int32_t ahead[ROWS - 1] = {5, 4};
    const int64_t pos[ROWS] = {40, 41, 42};
    fl_err err = {0};
    need(fl_sampler_configure(s, c, &err) == FL_OK);
    fl_sampler_begin(s, (fl_soft_ids){3, 4, 5}, prompt, 3);
    for (int i = 0; i < 30; i++) fl_sampler_count(s, i % 11 + 6, 3 + i);
    fl_sampler_pick_rows(s, pool, l, pos, ahead, ROWS, out);
    for (int i = 0; i < ROWS; i++) {
        need(out[i].token >= 0 && out[i].token < V && !fl_sampler_banned(s, out[i].token));
        need(out[i].confidence >= 0.0f && out[i].confidence <= 1.0f);
        for (int k = 0; k < c->n_bias; k++)
            need(c->bias[k].value > -INFINITY || c->bias[k].id != out[i].token);
    }
    if (c->temp <= 0.0) return;
    /* Drafts by ratio: the same promises. */
    fl_pick drafts[ROWS - 1], checked[ROWS];
    int32_t ids[ROWS - 1];
    need(fl_sampler_reserve_drafts(s, ROWS - 1, &err) == FL_OK);
    fl_sampler_draw_drafts(s, pool, l, pos, ROWS - 1, drafts);
    for (int i = 0; i < ROWS - 1; i++) ids[i] = drafts[i].token;
    fl_sampler_check_drafts(s, pool, l, pos, ids, ROWS, checked);
    for (int i = 0; i < ROWS; i++)
        need(checked[i].token >= 0 && checked[i].token < V &&
             !fl_sampler_banned(s, checked[i].token));
}

static void try_config(const uint8_t *p, size_t n)
{
    static fl_sampler *s[2];
    static fl_kernels k[2];
    static fl_pool *pool;
    fl_err err = {0};
    for (int t = 0; t < 2 && !s[1]; t++) {
        need(fl_kernels_init(&k[t], t ? NULL : "reference"));
        need(fl_sampler_create(&s[t], &k[t], V, 1, &err) == FL_OK);
        fl_sampler_ban(s[t], 7);
        fl_sampler_ban(s[t], V - 1);
        if (t) need(fl_pool_create(&pool, 1, &err) == FL_OK);
    }
    float l[ROWS * V];
    fl_pick a[ROWS], b[ROWS];
    bytes in = {p, n};
    const fl_sampler_config c = read_config(&in);
    read_logits(&in, l);
    if (fl_sampler_configure(s[0], &c, &err) != FL_OK) {
        need(err.msg[0] && !strchr(err.msg, '\n'));
        return;
    }
    for (int again = 0; again < 2; again++) {
        pick_all(s[0], &c, pool, l, a);
        pick_all(s[1], &c, pool, l, b);
        for (int i = 0; i < ROWS; i++)
            need(a[i].token == b[i].token && a[i].biased == b[i].biased &&
                 memcmp(&a[i].confidence, &b[i].confidence, sizeof(float)) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    if (n && p[0] < 128)
        try_text(p + 1, n - 1);
    else if (n)
        try_config(p + 1, n - 1);
    return 0;
}
