/* Which experts passes share, from kept routing traces (tests/clover_tiny/traces.py describes the
 * files): how many a pass and a block touch, and how much of them was there before.
 *
 *   routing FOLDER                                   FOLDER: index.json, forwards.npy, experts.npy
 *
 * Sets are per layer; shares are weighed by the size of the set that is to be covered. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/array.h"
#include "tests/eval/common.h"

enum { MAX_EXPERTS = 256, MAX_LAYERS = 64 };
enum { PROMPT, AR_STEP, BLOCK_PASS, COMMIT, N_KINDS };

static bench_array load(const char *folder, const char *name)
{
    fl_err err = {0};
    char path[4096];
    bench_array a;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const bool trace = strcmp(name, "experts.npy") == 0;
    const fl_status st =
        trace ? bench_trace_load(&a, path, &err) : bench_array_load(&a, path, "'<i4'", &err);
    if (st != FL_OK) ev_die("%s", err.msg);
    return a;
}

/* Experts of one pass or block. */
typedef struct sets {
    int n_layers;
    uint8_t in[MAX_LAYERS][MAX_EXPERTS];
} sets;

static void clear(sets *s, int n_layers)
{
    memset(s, 0, sizeof *s);
    s->n_layers = n_layers;
}

static int64_t size(const sets *s)
{
    int64_t n = 0;
    for (int l = 0; l < s->n_layers; l++)
        for (int e = 0; e < MAX_EXPERTS; e++) n += s->in[l][e];
    return n;
}

static int64_t common(const sets *a, const sets *b)
{
    int64_t n = 0;
    for (int l = 0; l < a->n_layers; l++)
        for (int e = 0; e < MAX_EXPERTS; e++) n += a->in[l][e] & b->in[l][e];
    return n;
}

static void join(sets *a, const sets *b)
{
    for (int l = 0; l < a->n_layers; l++)
        for (int e = 0; e < MAX_EXPERTS; e++) a->in[l][e] |= b->in[l][e];
}

/* sum / weight. */
typedef struct mean {
    int64_t sum, weight;
} mean;
static double value(mean m) { return m.weight ? (double)m.sum / (double)m.weight : 0; }

static void add(mean *m, int64_t sum, int64_t weight)
{
    m->sum += sum;
    m->weight += weight;
}

typedef struct figures {
    mean per_pass[N_KINDS], per_block, passes; /* experts of a layer; passes of a block */
    mean in_pass_before, in_first_pass;        /* within a block */
    mean in_last_block, in_last_pass;          /* a block's first pass */
} figures;

/* What the walk over one answer has at hand. */
typedef struct walk {
    figures *f;
    sets first, before, block, last_block, last_pass;
    int n_passes; /* of the block; 0: none has begun */
    bool any_block;
} walk;

static void end_block(walk *w)
{
    if (w->n_passes == 0) return;
    add(&w->f->per_block, size(&w->block), w->block.n_layers);
    add(&w->f->passes, w->n_passes, 1);
    w->last_block = w->block;
    w->last_pass = w->before;
    w->any_block = true;
    w->n_passes = 0;
}

static void block_pass(walk *w, const sets *s)
{
    figures *f = w->f;
    if (w->n_passes++ > 0) {
        add(&f->in_pass_before, common(s, &w->before), size(s));
        add(&f->in_first_pass, common(s, &w->first), size(s));
        join(&w->block, s);
    } else {
        if (w->any_block) add(&f->in_last_block, common(s, &w->last_block), size(s));
        if (w->any_block) add(&f->in_last_pass, common(s, &w->last_pass), size(s));
        w->first = w->block = *s;
    }
    w->before = *s;
}

static void measure(figures *f, const bench_array *forwards, const bench_array *experts)
{
    const int n_layers = (int)experts->dim[1], top_k = (int)experts->dim[2];
    int32_t run = -1;
    static walk w;
    static sets s;
    w.f = f;
    for (int64_t i = 0; i < forwards->dim[0]; i++) {
        int32_t at[4]; /* prompt, kind, first row, rows */
        memcpy(at, forwards->data + i * (int64_t)sizeof at, sizeof at);
        if (at[1] < 0 || at[1] >= N_KINDS || at[2] < 0 || at[3] < 1 ||
            at[2] + (int64_t)at[3] > experts->dim[0])
            ev_die("forwards.npy: row %" PRId64 " is out of range", i);
        clear(&s, n_layers);
        const uint8_t *e = experts->data + (int64_t)at[2] * n_layers * top_k;
        for (int64_t j = 0; j < (int64_t)at[3] * n_layers * top_k; j++)
            s.in[j / top_k % n_layers][e[j]] = 1;
        add(&f->per_pass[at[1]], size(&s), n_layers);
        if (at[1] != BLOCK_PASS || at[0] != run) end_block(&w);
        if (at[0] != run) w.any_block = false;
        run = at[0];
        if (at[1] == BLOCK_PASS) block_pass(&w, &s);
    }
    end_block(&w);
}

static void row(const char *what, mean m, bool share)
{
    printf("  %-58s %7.1f%s\n", what, share ? 100 * value(m) : value(m), share ? " %" : "");
}

int main(int argc, char **argv)
{
    figures f = {0};
    if (argc != 2) ev_die("usage: routing FOLDER");
    bench_array forwards = load(argv[1], "forwards.npy");
    bench_array experts = load(argv[1], "experts.npy");
    if (forwards.dim[1] != 4 || (uint64_t)forwards.dim[0] * 16 != forwards.bytes)
        ev_die("forwards.npy: expected [forwards][4]");
    if (experts.dim[1] > MAX_LAYERS) ev_die("experts.npy: more than %d layers", MAX_LAYERS);
    measure(&f, &forwards, &experts);
    printf("%s: %" PRId64 " passes, %" PRId64 " layers, top %" PRId64 "\n", argv[1],
           forwards.dim[0], experts.dim[1], experts.dim[2]);
    printf("Distinct experts per layer, of\n");
    row("a pass over a prompt", f.per_pass[PROMPT], false);
    row("an AR step", f.per_pass[AR_STEP], false);
    row("a block pass", f.per_pass[BLOCK_PASS], false);
    row("a commit", f.per_pass[COMMIT], false);
    row("a block, all its passes", f.per_block, false);
    row("(passes of a block)", f.passes, false);
    printf("Share of the experts\n");
    row("of a later pass that were in the pass before", f.in_pass_before, true);
    row("of a later pass that were in its block's first pass", f.in_first_pass, true);
    row("of a first pass that were in any pass of the last block", f.in_last_block, true);
    row("of a first pass that were in the last pass of that block", f.in_last_pass, true);
    bench_array_free(&forwards);
    bench_array_free(&experts);
    return 0;
}
