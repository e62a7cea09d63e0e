#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/law.h"
#include "runtime/tools/quantize.h"
#include "tests/eval/common.h"

enum { BLOCK_MAX = 64 };

uint64_t ev_hash(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void ev_quantize(const char *in, const char *out, const char *type)
{
    fl_err err = {0};
    const char *args[2] = {in, out};
    const fl_options o = {.command = "quantize", .args = args, .n_args = 2, .type = type};
    if (fl_tool_quantize(&o, &err) != FL_OK) ev_die("%s", err.msg);
}

static void take_rows(ev_rows *r, fl_engine *e, const int *row, int n)
{
    fl_err err = {0};
    const float *l;
    if (n > r->cap - r->n) n = (int)(r->cap - r->n);
    if (n <= 0) return;
    if (fl_forward_logits(e, row, n, &l, &err) != FL_OK) ev_die("%s", err.msg);
    memcpy(r->logits + r->n * r->vocab, l, (size_t)n * (size_t)r->vocab * sizeof *l);
    r->n += n;
}

/* Both kinds of rows of one text, block by block. */
static void one_text(ev_measured *out, const ev_model *m, const int32_t *ids, size_t n_ids,
                     uint64_t key)
{
    fl_err err = {0};
    fl_engine *e = m->engine;
    const fl_clover *c = &m->model->index->clover;
    const int block = e->params.block_size;
    fl_state_reset(&e->state);
    for (size_t at = 0; at < n_ids; at += (size_t)block) {
        const int n = n_ids - at < (size_t)block ? (int)(n_ids - at) : block;
        int32_t masked[BLOCK_MAX];
        int row[BLOCK_MAX], n_masked = 0;
        for (int i = 0; i < n; i++) {
            const bool mask = ev_hash(key ^ ev_hash(at + (size_t)i)) & 1;
            masked[i] = mask ? c->mask_id : ids[at + (size_t)i];
            if (mask) row[n_masked++] = i;
        }
        if (c->has_blocks && n_masked) {
            if (fl_forward_denoise(e, masked, n, c, &err) != FL_OK) ev_die("%s", err.msg);
            take_rows(&out->block, e, row, n_masked);
        }
        if (fl_forward_clean(e, ids + at, n, &err) != FL_OK) ev_die("%s", err.msg);
        for (int i = 0; i < n; i++) row[i] = i;
        take_rows(&out->causal, e, row, n);
    }
}

void ev_measure(ev_measured *out, const char *path, const ev_set *set, int64_t positions,
                bool act_f32, bool h, uint32_t kv_type)
{
    fl_engine_params p = fl_engine_defaults();
    ev_model m;
    fl_law_option_h = h;
    p.act_f32 = act_f32;
    p.kv_type = kv_type;
    ev_open(&m, path, &p);
    if (m.engine->params.block_size > BLOCK_MAX) ev_die("blocks of more than %d rows", BLOCK_MAX);
    ev_rows *r[2] = {&out->causal, &out->block};
    for (int i = 0; i < 2; i++) {
        r[i]->vocab = m.model->index->hp.n_vocab;
        r[i]->cap = positions;
        r[i]->n = 0;
        r[i]->logits = ev_alloc((size_t)positions * (size_t)r[i]->vocab * sizeof(float));
    }
    const int64_t need_blocks = m.model->index->clover.has_blocks ? positions : 0;
    const int stride = 7; /* texts of every task */
    for (int k = 0; k < set->n * stride; k++) {
        if (out->causal.n >= positions && out->block.n >= need_blocks) break;
        const int i = (int)((int64_t)k * stride % set->n);
        size_t n = 0;
        int32_t *ids = ev_encode(&m, set->item[i].whole, &n);
        if ((int64_t)n > m.engine->params.n_ctx) n = (size_t)m.engine->params.n_ctx;
        one_text(out, &m, ids, n, (uint64_t)i);
        free(ids);
    }
    ev_close(&m);
}

void ev_forget(ev_measured *m)
{
    free(m->causal.logits);
    free(m->block.logits);
}

/* KL(p || q) of two rows of logits, in double. */
static double divergence(const float *p, const float *q, int64_t n)
{
    double mp = -INFINITY, mq = -INFINITY, sp = 0, sq = 0, kl = 0;
    for (int64_t i = 0; i < n; i++) {
        mp = fmax(mp, (double)p[i]);
        mq = fmax(mq, (double)q[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        sp += exp((double)p[i] - mp);
        sq += exp((double)q[i] - mq);
    }
    for (int64_t i = 0; i < n; i++) {
        const double lp = (double)p[i] - mp - log(sp), lq = (double)q[i] - mq - log(sq);
        kl += exp(lp) * (lp - lq);
    }
    return kl;
}

static int64_t argmax(const float *v, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return best;
}

ev_figure ev_compare(const ev_rows *ref, const ev_rows *got)
{
    ev_figure f = {0, 0};
    if (ref->n != got->n) ev_die("%lld rows against %lld", (long long)ref->n, (long long)got->n);
    for (int64_t i = 0; i < ref->n; i++) {
        const float *p = ref->logits + i * ref->vocab, *q = got->logits + i * ref->vocab;
        f.kl += divergence(p, q, ref->vocab);
        f.top1 += argmax(p, ref->vocab) == argmax(q, ref->vocab);
    }
    if (ref->n) {
        f.kl /= (double)ref->n;
        f.top1 *= 100.0 / (double)ref->n;
    }
    return f;
}
