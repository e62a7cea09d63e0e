/* Speed of the sampler, one thread. One JSON object a line:
 *   {"entry":"pick","kind":"greedy","logits":"peaked","vocab":248320,"ns":[...]}
 * ns: raw samples of the thread's CPU time, one row each; "read" is a plain sum over the same row,
 * to divide by.
 * logits: "peaked" has one token far above a bell of the others, as a sure model gives; "flat" is
 * the bell alone.
 * usage: build/release/bench/sampler [SAMPLES]   (default 15) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/decode/sampler.h"

enum { VOCAB = 248320, MAX_SAMPLES = 1000 };

static uint64_t state = 88172645463325252ull;
static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

/* A bell of deviation 3 around -10. */
static void fill(float *l)
{
    for (int i = 0; i < VOCAB; i++)
        l[i] = (float)(-10.0 + 3.0 * sqrt(-2.0 * log(uniform())) * cos(6.283185307 * uniform()));
}

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void report(const char *entry, const char *kind, const char *logits, const int64_t *ns,
                   int n)
{
    printf("{\"entry\":\"%s\",\"kind\":\"%s\",\"logits\":\"%s\",\"vocab\":%d,\"ns\":[", entry, kind,
           logits, VOCAB);
    for (int i = 0; i < n; i++) printf("%s%lld", i ? "," : "", (long long)ns[i]);
    printf("]}\n");
    fflush(stdout);
}

static volatile double sink;

static void read_row(const float *l)
{
    double s[8] = {0};
    for (int i = 0; i < VOCAB; i += 8)
        for (int j = 0; j < 8; j++) s[j] += (double)l[i + j];
    sink = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void bench_kind(fl_sampler *s, const char *kind, const fl_sampler_config *c, const float *l,
                       const char *logits, int n)
{
    int64_t ns[MAX_SAMPLES];
    fl_err err = {0};
    if (fl_sampler_configure(s, c, &err) != FL_OK) {
        fprintf(stderr, "bench: %s\n", err.msg);
        exit(1);
    }
    for (int i = 0; i < 200; i++) fl_sampler_count(s, i * 31, i);
    for (int i = 0; i < n; i++) {
        const int64_t t = cpu_ns();
        sink = fl_sampler_pick(s, l, i, 0).confidence;
        ns[i] = cpu_ns() - t;
    }
    report("pick", kind, logits, ns, n);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *kind;
        fl_sampler_config c;
    } t[] = {
        {"greedy", {.top_p = 1.0}},
        {"greedy, presence 1.5", {.top_p = 1.0, .presence = 1.5}},
        {"temp 0.8", {.temp = 0.8, .top_p = 1.0}},
        {"temp 0.7, top-k 20, top-p 0.8", {.temp = 0.7, .top_k = 20, .top_p = 0.8}},
        {"temp 1, top-p 0.95", {.temp = 1.0, .top_p = 0.95}},
        {"temp 1, min-p 0.05", {.temp = 1.0, .top_p = 1.0, .min_p = 0.05}},
    };
    fl_err err = {0};
    fl_kernels kernels;
    fl_sampler *s = NULL;
    int n = argc > 1 ? atoi(argv[1]) : 15;
    if (n < 1 || n > MAX_SAMPLES) n = 15;
    float *l = malloc(VOCAB * sizeof(*l));
    if (!l || !fl_kernels_init(&kernels, NULL) ||
        fl_sampler_create(&s, &kernels, VOCAB, 1, &err) != FL_OK) {
        fprintf(stderr, "bench: out of memory\n");
        return 1;
    }
    fill(l);
    for (int peaked = 0; peaked < 2; peaked++) {
        const char *logits = peaked ? "peaked" : "flat";
        if (peaked) l[VOCAB / 3] = 18.0f;
        int64_t ns[MAX_SAMPLES];
        for (int i = 0; i < n; i++) {
            const int64_t t0 = cpu_ns();
            read_row(l);
            ns[i] = cpu_ns() - t0;
        }
        report("read", "sum", logits, ns, n);
        for (size_t k = 0; k < sizeof t / sizeof *t; k++)
            bench_kind(s, t[k].kind, &t[k].c, l, logits, n);
    }
    fl_sampler_destroy(&s);
    free(l);
    return 0;
}
