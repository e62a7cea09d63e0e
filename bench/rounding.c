/* Loss and speed of the rounding to block formats, one thread. One JSON object a line:
 *   {"type":"q4_k","cols":512,"way":"feedback","loss":0.16,"ns":310.2}
 * way: "plain" (fl_type_info.quantize), "weighted" (the diagonal of the inputs' moment alone),
 * "moves" (weighted, then moves of single values), "feedback", "feedback, moves", "all" (and a
 * round of blocks and sub-blocks). loss: of (x - y) H (x - y)^T, as part of plain rounding's; ns:
 * CPU time a weight. {"cols":512,"factor_gmacs":2.1}: preparing the moment, cols^3 / 6
 * multiply-adds. Inputs have a quarter as many hidden causes as columns, of falling strength, and
 * uneven energies. usage: build/release/bench/rounding [ROWS]   (default 32) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "quant/format.h"
#include "quant/moment.h"

static uint64_t state = 88172645463325252ull;
static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

static float normal(void)
{
    return (float)(sqrt(-2.0 * log(uniform())) * cos(6.283185307 * uniform()));
}

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *get(size_t n)
{
    void *p = calloc(1, n);
    if (!p) exit(1);
    return p;
}

static float *make_moment(int n)
{
    float *h = get(sizeof *h * (size_t)n * (size_t)n), *v = get(sizeof *v * (size_t)n);
    float *energy = get(sizeof *energy * (size_t)n);
    for (int i = 0; i < n; i++) energy[i] = expf(0.5f * normal());
    for (int cause = 0; cause < n / 4; cause++) {
        for (int i = 0; i < n; i++) v[i] = normal() * energy[i] / sqrtf(1.0f + (float)cause);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) h[i * (int64_t)n + j] += v[i] * v[j];
    }
    for (int i = 0; i < n; i++) h[i * (int64_t)n + i] += 0.3f * energy[i] * energy[i];
    free(v);
    free(energy);
    return h;
}

typedef struct subject {
    const fl_guide *full, *diag;
    const float *x;
    float *y;
    void *bytes, *scratch;
    int rows, cols;
} subject;

/* Prints one line; returns the loss. */
static double one(const subject *s, uint32_t type, const char *way, const fl_guide *g,
                  fl_effort effort, double plain)
{
    const fl_type_info *t = fl_type_get(type);
    const double n = (double)s->rows * s->cols, begin = cpu_ns();
    fl_guide_round_with(g, type, s->x, s->rows, s->cols, s->bytes, s->scratch, effort);
    const double ns = (cpu_ns() - begin) / n;
    t->dequantize(s->bytes, s->y, (int64_t)n);
    const double loss = fl_guide_loss(s->full, s->x, s->y, s->rows);
    printf("{\"type\":\"%s\",\"cols\":%d,\"way\":\"%s\",\"loss\":%.4f,\"ns\":%.1f}\n", t->name,
           s->cols, way, loss / (plain > 0 ? plain : loss), ns);
    fflush(stdout);
    return loss;
}

static void bench_cols(int n, int rows)
{
    static const uint32_t types[] = {FL_TYPE_Q4_K,   FL_TYPE_Q5_K, FL_TYPE_Q6_K,
                                     FL_TYPE_IQ4_XS, FL_TYPE_Q4_0, FL_TYPE_Q8_0};
    const size_t all = (size_t)rows * (size_t)n * sizeof(float);
    float *h = make_moment(n), *d = get(sizeof *d * (size_t)n), *x = get(all);
    fl_guide *full = NULL, *diag = NULL;
    for (int i = 0; i < n; i++) d[i] = h[i * ((int64_t)n + 1)];
    for (int i = 0; i < rows * n; i++) x[i] = 0.02f * normal();
    const fl_moment m = {n, NULL, h}, md = {n, d, NULL};
    const double begin = cpu_ns();
    if (fl_guide_create(&full, &m, NULL) != FL_OK || fl_guide_create(&diag, &md, NULL) != FL_OK)
        exit(1);
    printf("{\"cols\":%d,\"factor_gmacs\":%.2f}\n", n, pow(n, 3) / 6 / (cpu_ns() - begin));
    subject s = {full, diag, x, get(all), get(all), NULL, rows, n};
    s.scratch = get(fl_guide_scratch_bytes(n, true));
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const fl_effort none = {false, 0, 0};
        const double plain = one(&s, types[t], "plain", NULL, none, 0);
        one(&s, types[t], "weighted", diag, none, plain);
        one(&s, types[t], "moves", full, (fl_effort){false, 8, 0}, plain);
        one(&s, types[t], "feedback", full, (fl_effort){true, 0, 0}, plain);
        one(&s, types[t], "feedback, moves", full, (fl_effort){true, 8, 0}, plain);
        one(&s, types[t], "all", full, (fl_effort){true, 8, 1}, plain);
    }
    fl_guide_destroy(&full);
    fl_guide_destroy(&diag);
    free(s.y);
    free(s.bytes);
    free(s.scratch);
    free(x);
    free(d);
    free(h);
}

int main(int argc, char **argv)
{
    const int rows = argc > 1 ? atoi(argv[1]) : 32;
    if (rows < 1) return 2;
    bench_cols(512, rows);
    bench_cols(2048, rows);
    return 0;
}
