/* Makes routing traces with the figures measured of real routers, and replays traces through the
 * store's cache policies.
 *   bench/traces FOLDER [--kind block|ar|verify] [--layers N] [--passes N] [--prompt N] [--seed N]
 *       writes FOLDER/KIND-code.trace and FOLDER/KIND-chat.trace, prints what they reached
 *   bench/traces --import NPY-FOLDER OUT.trace
 *       a trace that tests/clover_tiny/traces.py recorded, its blocks
 *   bench/traces --replay FILE...
 *       JSON lines: share of the experts asked for that were there, with room for 20, 40 and 70 %
 *       of all experts: for the best policy that could be (Belady), the best set that never
 * changes, and each policy */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/traffic.h"
#include "offload/replay.h"

static const char usage[] =
    "usage: traces FOLDER [--kind block|ar|verify] [--layers N] [--passes N] [--prompt N]\n"
    "              [--seed N]\n"
    "       traces --import NPY-FOLDER OUT.trace\n"
    "       traces --replay FILE...\n";

typedef struct settings {
    bench_traffic traffic;
    const char *import;
    bool replay;
    char **files;
    int n_files;
} settings;

static fl_status number(const char *name, const char *text, int least, int most, int64_t *out,
                        fl_err *err)
{
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < least || v > most)
        return FL_FAIL(err, FL_E_ARG, 0, "--%s %s: expected a number from %d to %d", name, text,
                       least, most);
    *out = v;
    return FL_OK;
}

static fl_status set_kind(bench_traffic *t, const char *name, fl_err *err)
{
    for (int k = FL_PASS_AR; k < FL_N_PASS_KINDS; k++)
        if (strcmp(name, fl_pass_kind_name((fl_pass_kind)k)) == 0) {
            t->kind = (fl_pass_kind)k;
            return FL_OK;
        }
    return FL_FAIL(err, FL_E_ARG, 0, "--kind %s: expected block, ar or verify", name);
}

static fl_status parse(settings *s, int argc, char **argv, fl_err *err)
{
    static const struct option options[] = {{"kind", 1, NULL, 'k'},   {"layers", 1, NULL, 'l'},
                                            {"passes", 1, NULL, 'p'}, {"prompt", 1, NULL, 'r'},
                                            {"seed", 1, NULL, 's'},   {"import", 1, NULL, 'i'},
                                            {"replay", 0, NULL, 'y'}, {NULL, 0, NULL, 0}};
    bench_traffic *t = &s->traffic;
    *s = (settings){.traffic = bench_traffic_defaults()};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        int64_t v = 0;
        switch (c) {
        case 'k': FL_TRY(set_kind(t, optarg, err)); break;
        case 'l':
            FL_TRY(number("layers", optarg, 1, 1000, &v, err));
            t->n_layer = (int)v;
            break;
        case 'p':
            FL_TRY(number("passes", optarg, 1, 100000, &v, err));
            t->passes = (int)v;
            break;
        case 'r':
            FL_TRY(number("prompt", optarg, 0, FL_TRACE_MAX_ROWS, &v, err));
            t->prompt = (int)v;
            break;
        case 's':
            FL_TRY(number("seed", optarg, 0, INT32_MAX, &v, err));
            t->seed = (uint64_t)v;
            break;
        case 'i': s->import = optarg; break;
        case 'y': s->replay = true; break;
        default: return FL_FAIL(err, FL_E_ARG, 0, "an option is wrong, see above");
        }
    }
    s->files = argv + optind;
    s->n_files = argc - optind;
    if (s->n_files >= 1 && (s->replay || s->n_files == 1)) return FL_OK;
    return FL_FAIL(err, FL_E_ARG, 0, "%s expected, %d were given",
                   s->replay ? "files are" : "one place to write to is", s->n_files);
}

/* ---- making ---- */

static fl_status show_figures(const fl_trace *t, const char *path, fl_err *err)
{
    bench_traffic_stats s;
    FL_TRY(bench_traffic_measure(&s, t, err));
    printf("%s: %d passes of a layer's %.1f distinct experts, %.1f %% of the choices on the most "
           "used quarter; %.2f positions a pass\n",
           path, s.passes, s.distinct, 100 * s.hot, s.done);
    if (s.blocks == 0) return FL_OK;
    printf("  %d blocks: known from the pass before %.1f %%, from the block's first %.1f %% (of "
           "real routers 57 %%); union over mean %.2f; a block's first pass known from the block "
           "before %.1f %% (69 to 79), from its last pass %.1f %% (54)\n",
           s.blocks, 100 * s.reuse, 100 * s.first, s.union_mean, 100 * s.next_union,
           100 * s.next_last);
    const char *missed = bench_traffic_missed(&s);
    printf("  %s%s\n", missed ? "NOT like real routers: " : "like real routers",
           missed ? missed : "");
    return FL_OK;
}

static fl_status make(const settings *s, fl_err *err)
{
    char path[4096];
    fl_trace *trace[BENCH_N_DOMAINS] = {NULL};
    bench_traffic t = s->traffic;
    double jaccard;
    fl_status st = FL_OK;
    for (int d = 0; d < BENCH_N_DOMAINS; d++) {
        t.domain = (bench_domain)d;
        snprintf(path, sizeof path, "%s/%s-%s.trace", s->files[0], fl_pass_kind_name(t.kind),
                 bench_domain_name[d]);
        FL_GO(bench_traffic_write(&t, path, err));
        FL_GO(fl_trace_open(&trace[d], path, err));
        FL_GO(show_figures(trace[d], path, err));
    }
    FL_GO(bench_traffic_jaccard(&jaccard, trace[0], trace[1], err));
    printf("Jaccard of the two most used quarters: %.3f (%s %.1f)\n", jaccard,
           jaccard < BENCH_MAX_JACCARD ? "below" : "NOT below", BENCH_MAX_JACCARD);
out:
    for (int d = 0; d < BENCH_N_DOMAINS; d++) fl_trace_close(&trace[d]);
    return st;
}

/* ---- replay ---- */

static double rate(const fl_replay_result *r)
{
    return r->asked ? (double)r->hits / (double)r->asked : 0.0;
}

static fl_status replay_at(const fl_trace *t, const char *path, int percent, fl_err *err)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    const int n_slots = s->n_layer * s->n_expert * percent / 100;
    fl_replay_result r;
    FL_TRY(fl_replay_best(&r, t, n_slots, err));
    printf("{\"trace\":\"%s\",\"synthetic\":%s,\"passes\":%d,\"percent\":%d,\"slots\":%d,"
           "\"asked\":%llu,\"best\":%.4f",
           path, s->synthetic ? "true" : "false", fl_trace_n_passes(t), percent, n_slots,
           (unsigned long long)r.asked, rate(&r));
    FL_TRY(fl_replay_fixed(&r, t, n_slots, err));
    printf(",\"fixed\":%.4f", rate(&r));
    for (int k = 0; k < FL_N_POLICIES; k++) {
        FL_TRY(fl_replay_policy(&r, t, (fl_policy_kind)k, n_slots, err));
        printf(",\"%s\":%.4f", fl_policy_name((fl_policy_kind)k), rate(&r));
    }
    puts("}");
    return FL_OK;
}

static fl_status replay(const settings *s, fl_err *err)
{
    static const int percent[] = {20, 40, 70};
    for (int i = 0; i < s->n_files; i++) {
        fl_trace *t = NULL;
        FL_TRY(fl_trace_open(&t, s->files[i], err));
        fl_status st = FL_OK;
        for (int p = 0; p < 3 && st == FL_OK; p++) st = replay_at(t, s->files[i], percent[p], err);
        fl_trace_close(&t);
        FL_TRY(st);
    }
    return FL_OK;
}

int main(int argc, char **argv)
{
    settings s;
    fl_err err = {0};
    fl_status st = parse(&s, argc, argv, &err);
    if (st != FL_OK)
        fputs(usage, stderr);
    else
        st = s.replay   ? replay(&s, &err)
             : s.import ? bench_traffic_import(s.import, s.files[0], &err)
                        : make(&s, &err);
    if (st != FL_OK) fprintf(stderr, "traces: %s\n", err.msg);
    return st == FL_OK ? 0 : st == FL_E_ARG ? 2 : 1;
}
