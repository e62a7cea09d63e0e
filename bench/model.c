/* Tokens per second of passes over a model, with what decoding takes from each: the logits of the
 * last row of a clean pass, of every row of a block pass (--block).
 *   bench/model MODEL [--rows 1,32,512] [--context 0] [--threads 0] [--cpu TIER,...]
 *               [--samples 5] [--busy 0] [--block]
 * Lists are measured against each other: for each number of rows and each context, samples of all
 * numbers of threads and tiers alternate. A sample of one row is 32 tokens, one after the other;
 * else it is one pass. Tokens are random; a context is random keys and values. --busy starts so
 * many processes that do nothing but compute, on the last cores. One JSON object a line and
 * measurement on standard output:
 *   {"model":"m.gguf","pass":"clean","rows":1,"passes":32,"context":0,
 *    "major_faults":0,"threads":2,"cpu":"avx2","busy":0,"ns":[...]}
 * where major_faults are pages that the process read from a file since the model was loaded;
 * tokens per second (medians) on standard error. */
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench/support/report.h"
#include "bench/support/synth.h"
#include "runtime/base/clock.h"
#include "runtime/model/forward.h"

enum { MAX_LIST = 8, MAX_VARIANTS = 24, MAX_SAMPLES = 1000, TOKENS = 32 };

static const char usage[] =
    "usage: model MODEL [--rows 1,32,512] [--context 0] [--threads 0] [--cpu TIER,...]\n"
    "             [--samples 5] [--busy 0] [--block]\n";

typedef struct settings {
    const char *model;
    int64_t rows[MAX_LIST], context[MAX_LIST], threads[MAX_LIST], samples, busy;
    int n_rows, n_context, n_threads, n_cpu, block;
    const char *cpu[MAX_LIST];
} settings;

/* What computes, once as it is and once otherwise. */
typedef struct variant {
    fl_pool *pool;
    fl_kernels k;
    int64_t ns[MAX_SAMPLES];
} variant;

typedef struct bench {
    const settings *s;
    fl_engine *e;
    variant v[MAX_VARIANTS];
    int n;
    uint64_t random;
    long faults; /* major ones, until the model was loaded */
} bench;

/* ---- command line ---- */

static fl_status numbers(const char *name, char *text, int64_t least, int64_t most, int64_t *out,
                         int *n, fl_err *err)
{
    *n = 0;
    for (char *save, *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        char *end;
        const long long v = strtoll(word, &end, 10);
        if (*end || end == word || v < least || v > most || *n == MAX_LIST)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "--%s: expected up to %d numbers from %lld to %lld, found '%s'", name,
                           MAX_LIST, (long long)least, (long long)most, word);
        out[(*n)++] = v;
    }
    return *n > 0 ? FL_OK : FL_FAIL(err, FL_E_ARG, 0, "--%s: expected a number", name);
}

static fl_status tiers(char *text, settings *s, fl_err *err)
{
    s->n_cpu = 0;
    for (char *save, *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        fl_kernels k;
        if (s->n_cpu == MAX_LIST || !fl_kernels_init(&k, word) || strcmp(k.name, word) != 0)
            return FL_FAIL(err, FL_E_ARG, 0, "--cpu: '%s' is no tier of this machine", word);
        s->cpu[s->n_cpu++] = word;
    }
    return s->n_cpu > 0 ? FL_OK : FL_FAIL(err, FL_E_ARG, 0, "--cpu: expected a tier");
}

static fl_status parse(settings *s, int argc, char **argv, fl_err *err)
{
    static const struct option options[] = {{"rows", 1, NULL, 'r'},    {"context", 1, NULL, 'c'},
                                            {"threads", 1, NULL, 't'}, {"cpu", 1, NULL, 'p'},
                                            {"samples", 1, NULL, 's'}, {"busy", 1, NULL, 'b'},
                                            {"block", 0, NULL, 'k'},   {NULL, 0, NULL, 0}};
    *s = (settings){.rows = {1, 32, 512},
                    .n_rows = 3,
                    .n_context = 1,
                    .n_threads = 1,
                    .n_cpu = 1,
                    .samples = 5};
    int one;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'r': FL_TRY(numbers("rows", optarg, 1, 8192, s->rows, &s->n_rows, err)); break;
        case 'c':
            FL_TRY(numbers("context", optarg, 0, 1 << 17, s->context, &s->n_context, err));
            break;
        case 't': FL_TRY(numbers("threads", optarg, 0, 256, s->threads, &s->n_threads, err)); break;
        case 'p': FL_TRY(tiers(optarg, s, err)); break;
        case 's': FL_TRY(numbers("samples", optarg, 1, MAX_SAMPLES, &s->samples, &one, err)); break;
        case 'b': FL_TRY(numbers("busy", optarg, 0, 256, &s->busy, &one, err)); break;
        case 'k': s->block = 1; break;
        default: return FL_FAIL(err, FL_E_ARG, 0, "an option is wrong, see above");
        }
    }
    if (optind + 1 != argc)
        return FL_FAIL(err, FL_E_ARG, 0, "one model is expected, %d were given", argc - optind);
    if (s->n_threads * s->n_cpu > MAX_VARIANTS)
        return FL_FAIL(err, FL_E_ARG, 0, "more than %d combinations of --threads and --cpu",
                       MAX_VARIANTS);
    s->model = argv[optind];
    return FL_OK;
}

static int64_t largest(const int64_t *v, int n)
{
    int64_t m = v[0];
    for (int i = 1; i < n; i++) m = v[i] > m ? v[i] : m;
    return m;
}

/* ---- load ---- */

/* Children that compute until this process ends. */
static void start_busy(int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (fork() != 0) continue;
        cpu_set_t set, one;
        CPU_ZERO(&one);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sched_getaffinity(0, sizeof set, &set);
        int64_t behind = i % CPU_COUNT(&set);
        for (int c = CPU_SETSIZE - 1; c >= 0; c--)
            if (CPU_ISSET(c, &set) && behind-- == 0) CPU_SET(c, &one);
        sched_setaffinity(0, sizeof one, &one);
        for (volatile uint64_t x = 0;;) x = x + 1;
    }
}

static fl_status make_variants(bench *b, fl_err *err)
{
    for (int t = 0; t < b->s->n_threads; t++)
        for (int c = 0; c < b->s->n_cpu; c++) {
            variant *v = &b->v[b->n];
            fl_kernels_init(&v->k, b->s->cpu[c]);
            FL_TRY(fl_pool_create(&v->pool, (int)b->s->threads[t], err));
            b->n++;
        }
    return FL_OK;
}

/* Random keys and values in the rows before n: attention reads as much as after a prompt of n
 * tokens. */
static void fill_context(bench *b, int64_t n)
{
    fl_state *st = &b->e->state;
    float *row = malloc(2 * (size_t)st->kv_row * sizeof *row);
    if (!row) abort();
    for (int i = 0; i < st->n_layer; i++)
        for (int64_t r = 0; st->k[i] && r < n; r++) {
            for (int64_t c = 0; c < 2 * st->kv_row; c++)
                row[c] = (float)(2 * bench_uniform(&b->random) - 1);
            fl_state_put_kv(st, i, r, row, row + st->kv_row);
        }
    free(row);
}

/* ---- samples ---- */

static fl_status one_pass(bench *b, int rows, fl_err *err)
{
    int32_t ids[8192];
    int last[FL_MAX_BLOCK];
    const float *logits;
    fl_engine *e = b->e;
    for (int i = 0; i < rows; i++)
        ids[i] =
            (int32_t)((bench_random(&b->random) >> 16) % (uint64_t)e->model->index->hp.n_vocab);
    if (b->s->block) {
        for (int i = 0; i < rows; i++) last[i] = i;
        FL_TRY(fl_forward_denoise(e, ids, rows, &e->model->index->clover, err));
        return fl_forward_logits(e, last, rows, &logits, err);
    }
    last[0] = rows - 1;
    FL_TRY(fl_forward_clean(e, ids, rows, err));
    return fl_forward_logits(e, last, 1, &logits, err);
}

static fl_status sample(bench *b, variant *v, int rows, int passes, int64_t context, int64_t *ns,
                        fl_err *err)
{
    fl_state *st = &b->e->state;
    b->e->exec.pool = v->pool;
    b->e->exec.k = v->k;
    st->n = st->n_causal = context;
    const uint64_t t = fl_clock_ns();
    for (int i = 0; i < passes; i++) FL_TRY(one_pass(b, rows, err));
    *ns = (int64_t)(fl_clock_ns() - t);
    return FL_OK;
}

static long major_faults(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_majflt;
}

static void print(const bench *b, const variant *v, int rows, int passes, int64_t context)
{
    const settings *s = b->s;
    const int threads = fl_pool_threads(v->pool), n = (int)s->samples;
    const char *pass = s->block ? "block" : "clean";
    printf("{\"model\":\"%s\",\"pass\":\"%s\",\"rows\":%d,\"passes\":%d,\"context\":%lld,"
           "\"major_faults\":%ld,\"threads\":%d,\"cpu\":\"%s\",\"busy\":%d,",
           s->model, pass, rows, passes, (long long)context, major_faults() - b->faults, threads,
           v->k.name, (int)s->busy);
    bench_print_samples(v->ns, n);
    fprintf(stderr, "%s, %3d rows at %6lld, %d threads, %-11s %8.2f tokens/s\n", pass, rows,
            (long long)context, threads, v->k.name,
            1e9 * rows * passes / (double)bench_median(v->ns, n));
}

static fl_status measure(bench *b, int rows, int64_t context, fl_err *err)
{
    const int passes = rows == 1 ? TOKENS : 1;
    int64_t ns;
    for (int i = 0; i < b->n; i++) FL_TRY(sample(b, &b->v[i], rows, 1, context, &ns, err));
    for (int64_t i = 0; i < b->s->samples; i++)
        for (int j = 0; j < b->n; j++)
            FL_TRY(sample(b, &b->v[j], rows, passes, context, &b->v[j].ns[i], err));
    for (int j = 0; j < b->n; j++) print(b, &b->v[j], rows, passes, context);
    return FL_OK;
}

static fl_status run(bench *b, const fl_model *model, fl_err *err)
{
    const settings *s = b->s;
    const int64_t context = largest(s->context, s->n_context), rows = largest(s->rows, s->n_rows);
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = context + (rows > TOKENS ? rows : TOKENS) + 1;
    p.chunk = rows;
    p.block_size = s->block ? (int)rows : 0;
    p.threads = (int)largest(s->threads, s->n_threads);
    if (s->block && rows > FL_MAX_BLOCK)
        return FL_FAIL(err, FL_E_ARG, 0, "--block: at most %d rows", FL_MAX_BLOCK);
    FL_TRY(make_variants(b, err));
    FL_TRY(fl_engine_open(&b->e, model, &p, err));
    FL_TRY(fl_engine_load(b->e, NULL, NULL, err));
    b->faults = major_faults();
    fl_pool *own = b->e->exec.pool;
    fill_context(b, context);
    start_busy(s->busy);
    fl_status st = FL_OK;
    for (int c = 0; c < s->n_context && st == FL_OK; c++)
        for (int r = 0; r < s->n_rows && st == FL_OK; r++)
            st = measure(b, (int)s->rows[r], s->context[c], err);
    b->e->exec.pool = own;
    return st;
}

int main(int argc, char **argv)
{
    static bench b;
    settings s;
    fl_err err = {0};
    fl_model *model = NULL;
    b.s = &s;
    b.random = 88172645463325252ull;
    fl_status st = parse(&s, argc, argv, &err);
    if (st != FL_OK) fputs(usage, stderr);
    if (st == FL_OK) st = fl_model_open(&model, s.model, &err);
    if (st == FL_OK) st = run(&b, model, &err);
    fl_engine_close(&b.e);
    for (int i = 0; i < b.n; i++) fl_pool_destroy(&b.v[i].pool);
    fl_model_close(&model);
    if (st != FL_OK) fprintf(stderr, "model: %s\n", err.msg);
    return st == FL_OK ? 0 : st == FL_E_ARG ? 2 : 1;
}
