#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/synth.h"

/* log of the rarest expert's popularity over the commonest one's. */
static const double FALL = -11.2;
/* Logit of a pattern's first expert, and how much less each of the next ones gets. */
static const float FIRST_LOGIT = 6.0f, STEP = 0.2f;

static void drawn_routes(const fl_make *m, int layer, int32_t *out)
{
    const int n = m->n_expert, k = m->top_k;
    uint64_t s = (m->seed + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)(layer + 1) << 32;
    int *place = malloc(sizeof *place * (size_t)n);
    double *key = malloc(sizeof *key * (size_t)k);
    if (!place || !key) abort();
    for (int i = 0; i < 8; i++) bench_random(&s);
    for (int e = 0; e < n; e++) {
        const int j = (int)(bench_random(&s) >> 33) % (e + 1);
        place[e] = place[j];
        place[j] = e;
    }
    for (int p = 0; p < bench_n_patterns(m->d_model); p++, out += k) {
        /* The k largest of log popularity + Gumbel noise: k draws without putting back. */
        int got = 0;
        for (int e = 0; e < n; e++) {
            const double v = FALL * (place[e] + 0.5) / n - log(-log(bench_uniform(&s)));
            if (got == k && v <= key[k - 1]) continue;
            int at = got < k ? got++ : k - 1;
            for (; at > 0 && key[at - 1] < v; at--) key[at] = key[at - 1], out[at] = out[at - 1];
            key[at] = v;
            out[at] = e;
        }
    }
    free(place);
    free(key);
}

void bench_routes(const bench_synth *s, int layer, int32_t *out)
{
    const bench_array *t = s->trace;
    if (!t) {
        drawn_routes(&s->shape, layer, out);
        return;
    }
    const int64_t k = t->dim[2];
    for (int p = 0; p < bench_n_patterns(s->shape.d_model); p++) {
        const uint8_t *row = t->data + (p % t->dim[0] * t->dim[1] + layer % t->dim[1]) * k;
        for (int64_t i = 0; i < k; i++) out[p * k + i] = row[i];
    }
}

void bench_router(const fl_make *m, const int32_t *routes, float *out)
{
    const int64_t d = m->d_model;
    memset(out, 0, (size_t)(m->n_expert * d) * sizeof *out);
    for (int p = 0; p < bench_n_patterns(d); p++)
        for (int i = 0; i < m->top_k; i++) {
            const float v = (FIRST_LOGIT - STEP * (float)i) / (float)d;
            float *row = out + routes[p * m->top_k + i] * d;
            for (int64_t c = 0; c < d; c++) row[c] += bench_pattern(p, c) ? -v : v;
        }
}
