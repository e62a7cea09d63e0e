#include "bench/support/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/support/random.h"
#include "bench/support/report.h"

/* A sample is as many calls as take so long, where the memory may be read again. */
static const int64_t LEAST_NS = 50000;

void *bench_take(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (p) return p;
    fprintf(stderr, "bench: out of memory for %zu bytes\n", bytes);
    exit(1);
}

float *bench_floats(int64_t n, float scale, uint64_t *state)
{
    float *p = bench_take((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(2 * bench_uniform(state) - 1) * scale;
    return p;
}

bool bench_wanted(const bench_tiers *t, const char *entry)
{
    return !t->only || strstr(entry, t->only);
}

typedef struct samples {
    int calls; /* in a sample */
    bench_peak peak;
    int64_t ns[BENCH_MAX_SAMPLES], read_ns[BENCH_MAX_SAMPLES], peak_ns[BENCH_MAX_SAMPLES];
} samples;

/* CPU time: other processes do not count. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t time_calls(const bench_case *c, const fl_kernels *k, int calls, int sample)
{
    const int64_t t = cpu_ns();
    for (int i = 0; i < calls; i++) c->call(k, c->arg, sample);
    return cpu_ns() - t;
}

static int64_t time_reads(const bench_case *c, int calls, int sample)
{
    const int64_t t = cpu_ns();
    for (int i = 0; i < calls; i++) c->read(c->arg, sample);
    return cpu_ns() - t;
}

static int64_t time_peak(const bench_peak *p)
{
    const int64_t t = cpu_ns();
    p->run();
    return cpu_ns() - t;
}

static void report(const bench_case *c, const char *tier, const samples *s, int n)
{
    const double call = (double)bench_median(s->ns, n) / s->calls;
    const double read = (double)bench_median(s->read_ns, n) / s->calls;
    const double peak = (double)s->peak.ops / (double)bench_median(s->peak_ns, n);
    printf("{\"entry\":\"%s\",\"type\":\"%s\",\"tier\":\"%s\",\"rows\":%d,\"memory\":\"%s\","
           "\"bytes\":%lld,\"ops\":%lld,\"calls\":%d,\"peak_ops\":%lld,",
           c->entry, c->type, tier, c->rows, c->memory, (long long)c->bytes, (long long)c->ops,
           s->calls, (long long)s->peak.ops);
    bench_print_list("read_ns", s->read_ns, n);
    bench_print_list("peak_ns", s->peak_ns, n);
    bench_print_samples(s->ns, n);
    fprintf(stderr,
            "%-13s %-6s %3d rows %s %-10s %10.2f us %6.1f GB/s (%3.0f %% of a read) %6.1f Gmac/s "
            "(%3.0f %% of %s)\n",
            c->entry, c->type, c->rows, c->memory, tier, call * 1e-3, (double)c->bytes / call,
            100 * read / call, (double)c->ops / call, 100 * (double)c->ops / call / peak,
            c->on_bytes ? "dot" : "fma");
}

/* Does the tier have an entry of its own? */
static bool is_new(const bench_tiers *t, int i, const bench_case *c)
{
    void (*own)(void), (*below)(void);
    memcpy(&own, (const char *)&t->k[i] + c->member, sizeof own);
    for (int j = 0; j < i; j++) {
        memcpy(&below, (const char *)&t->k[j] + c->member, sizeof below);
        if (own == below) return false;
    }
    return true;
}

void bench_measure(const bench_tiers *t, const bench_case *c)
{
    static samples s[BENCH_MAX_TIERS];
    int tier[BENCH_MAX_TIERS], n = 0;
    if (!bench_wanted(t, c->entry)) return;
    for (int i = 0; i < t->n; i++) {
        const char *name = t->k[i].name;
        if (!is_new(t, i, c) || (c->not_reference && strcmp(name, "reference") == 0)) continue;
        const bool again = strcmp(c->memory, "cache") == 0;
        time_calls(c, &t->k[i], 1, 0);
        const int64_t one = time_calls(c, &t->k[i], 1, 0) + 1;
        s[n].calls = again && one < LEAST_NS ? (int)(LEAST_NS / one) + 1 : 1;
        s[n].peak = c->on_bytes ? bench_peak_bytes(name) : bench_peak_floats(name);
        tier[n++] = i;
    }
    int at = 0; /* what a read has seen is not fresh for the call */
    for (int i = 0; i < t->samples; i++)
        for (int j = 0; j < n; j++) {
            s[j].read_ns[i] = time_reads(c, s[j].calls, at++);
            s[j].peak_ns[i] = time_peak(&s[j].peak);
            s[j].ns[i] = time_calls(c, &t->k[tier[j]], s[j].calls, at++);
        }
    for (int j = 0; j < n; j++) report(c, t->k[tier[j]].name, &s[j], t->samples);
}
