/* Writes a synthetic model for measurements (bench/support/synth.h says what is in it), runs it and
 * prints which experts its passes touch.
 *   bench/synth OUT.gguf [--arch qwen35moe|clover_moe] [--shape 35b|tiny] [--layers N]
 *                        [--experts N] [--vocab N] [--seed N] [--trace FILE] [--passes N]
 * Shape 35b (the default) has 8 layers unless told otherwise: 4.5 GB. --trace: token t goes where
 * row t of the trace went (bench/traces makes traces; experts.npy of tests/clover_tiny/traces.py is
 * one too). --passes: of 32 rows, to measure the routing with; 0 = none, default 16. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/reuse.h"
#include "bench/support/synth.h"
#include "runtime/tools/progress.h"

enum { ROWS = 32, MAX_PASSES = 1000 };

static const char usage[] =
    "usage: synth OUT.gguf [--arch qwen35moe|clover_moe] [--shape 35b|tiny] [--layers N]\n"
    "             [--experts N] [--vocab N] [--seed N] [--trace FILE] [--passes N]\n";

typedef struct settings {
    const char *out, *arch, *shape, *trace;
    int64_t layers, experts, vocab, seed, passes; /* -1 not given */
} settings;

static fl_status number(const char *name, const char *text, int64_t most, int64_t *out, fl_err *err)
{
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < 0 || v > most)
        return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected a number from 0 to %lld", name, text,
                       (long long)most);
    *out = v;
    return FL_OK;
}

static fl_status parse(settings *s, int argc, char **argv, fl_err *err)
{
    static const struct option options[] = {
        {"arch", 1, NULL, 0},   {"shape", 1, NULL, 0},   {"trace", 1, NULL, 0},
        {"layers", 1, NULL, 0}, {"experts", 1, NULL, 0}, {"vocab", 1, NULL, 0},
        {"seed", 1, NULL, 0},   {"passes", 1, NULL, 0},  {NULL, 0, NULL, 0}};
    *s = (settings){NULL, "qwen35moe", "35b", NULL, -1, -1, -1, 1, 16};
    const char **const text[] = {&s->arch, &s->shape, &s->trace};
    int64_t *const value[] = {&s->layers, &s->experts, &s->vocab, &s->seed, &s->passes};
    int which;
    for (int c; (c = getopt_long(argc, argv, "", options, &which)) != -1;) {
        if (c != 0) return FL_FAIL(err, FL_E_ARG, 0, "an option is wrong, see above");
        if (which < 3)
            *text[which] = optarg;
        else
            FL_TRY(number(options[which].name, optarg, which == 7 ? MAX_PASSES : INT32_MAX,
                          value[which - 3], err));
    }
    if (optind + 1 != argc)
        return FL_FAIL(err, FL_E_ARG, 0, "one output file is expected, %d were given",
                       argc - optind);
    s->out = argv[optind];
    return FL_OK;
}

static void show(void *arg, uint64_t done, uint64_t total)
{
    fl_progress *p = arg;
    char line[FL_PROGRESS_LINE];
    double spent;
    if (!fl_progress_due(p, &spent)) return;
    snprintf(line, sizeof line, "writing: %3.0f %% of %.2f GB, %.0f MB/s",
             100.0 * (double)done / (double)total, (double)total * 1e-9,
             (double)done * 1e-6 / spent);
    fl_progress_line(p, line);
}

static fl_status measure(const settings *s, const bench_array *trace, fl_err *err)
{
    fl_model *model = NULL;
    bench_reuse r;
    fl_status st;
    FL_GO(fl_model_open(&model, s->out, err));
    FL_GO(bench_reuse_measure(&r, model, ROWS, (int)s->passes, trace, 0, err));
    printf("%d passes of %d rows: %.1f distinct experts a layer (layers: %.1f to %.1f)", r.passes,
           r.rows, r.distinct, r.least, r.most);
    if (r.passes > 1) printf(", %.1f %% of them in the pass before", 100.0 * r.reuse);
    if (trace) printf(", %.2f %% of the choices as in the trace", 100.0 * r.followed);
    putchar('\n');
out:
    fl_model_close(&model);
    return st;
}

static fl_status run(const settings *s, bench_array *trace, fl_err *err)
{
    bench_synth synth = {0};
    fl_progress progress;
    FL_TRY(bench_synth_shape(&synth.shape, s->shape, s->arch, err));
    synth.shape.seed = (uint64_t)s->seed;
    if (s->layers >= 0) synth.shape.n_layer = (int)s->layers;
    if (s->experts >= 0) synth.shape.n_expert = (int)s->experts;
    if (s->vocab >= 0) synth.shape.n_vocab = (int)s->vocab;
    if (s->trace) {
        FL_TRY(bench_trace_load(trace, s->trace, err));
        synth.trace = trace;
    }
    fl_progress_start(&progress);
    const fl_status st = bench_synth_write(&synth, s->out, show, &progress, err);
    fl_progress_end(&progress);
    FL_TRY(st);
    return s->passes > 0 ? measure(s, synth.trace, err) : FL_OK;
}

int main(int argc, char **argv)
{
    settings s;
    bench_array trace = {0};
    fl_err err = {0};
    fl_status st = parse(&s, argc, argv, &err);
    if (st != FL_OK) fputs(usage, stderr);
    if (st == FL_OK) st = run(&s, &trace, &err);
    bench_array_free(&trace);
    if (st != FL_OK) fprintf(stderr, "synth: %s\n", err.msg);
    return st == FL_OK ? 0 : st == FL_E_ARG ? 2 : 1;
}
