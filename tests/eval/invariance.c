/* The greedy text does not depend on where experts lie, on threads or on the prefill chunk.
 *
 *   invariance MODEL HELDOUT.jsonl
 *
 * AR mode and block mode, each with device memory for 100, 50, 25 and 10 % of the experts' bytes,
 * 1 and 2 threads, prefill chunks of 64, 512 and 4,096; 12 prompts, one of them longer than 512
 * tokens. Prints the table; exit status 1 when a text differs by one byte or is empty: a model that
 * answers nothing proves nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/eval/common.h"

enum { N_PROMPTS = 12, MAX_TOKENS = 48, LONG = 512 };

static const int shares[] = {100, 50, 25, 10};
static const int threads[] = {1, 2};
static const int64_t chunks[] = {64, 512, 4096};

static char *prompts[N_PROMPTS];

/* One prompt for each task in turn, then the longest; lengthened when that is not enough. */
static void choose_prompts(const ev_set *set, const ev_model *m)
{
    int longest = 0, n = 0;
    for (int i = 0; i < set->n; i++)
        if (strlen(set->item[i].prompt) > strlen(set->item[longest].prompt)) longest = i;
    const int step = set->n / (N_PROMPTS - 1);
    if (step < 1) ev_die("%d prompts are too few", set->n);
    for (int i = 0; n < N_PROMPTS - 1; i++) prompts[n++] = strdup(set->item[i * step].prompt);
    const char *text = set->item[longest].prompt, *body = strstr(text, "<|im_start|>user\n");
    if (!body) ev_die("the longest prompt has no user turn");
    body += strlen("<|im_start|>user\n");
    char *grown = strdup(text);
    for (;;) {
        size_t n_ids = 0;
        free(ev_encode(m, grown, &n_ids));
        if (n_ids > LONG) break;
        static const char filler[] = "The road to the harbour is long and quiet in the morning. ";
        char *more = ev_alloc(strlen(grown) + sizeof filler);
        const size_t head = (size_t)(body - text);
        memcpy(more, grown, head);
        strcat(strcpy(more + head, filler), grown + head);
        free(grown);
        grown = more;
    }
    prompts[n] = grown;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Device memory that holds the fixed parts and `share` percent of the experts' bytes. */
static uint64_t memory_for(const char *path, fl_engine_params p, int share)
{
    fl_err err = {0};
    fl_model *model = NULL;
    fl_engine *e = NULL;
    p.vram = 0;
    if (fl_model_open(&model, path, &err) != FL_OK || fl_engine_open(&e, model, &p, &err) != FL_OK)
        ev_die("%s", err.msg);
    uint64_t v = e->plan.fixed_bytes + e->plan.expert_bytes * (uint64_t)share / 100;
    if (share == 100) v = e->plan.full_device_cap;
    if (v < e->plan.min_device_cap) v = e->plan.min_device_cap;
    fl_engine_close(&e);
    fl_model_close(&model);
    return v;
}

static int differing, n_empty;

/* Runs one combination; the first of a mode gives the texts that the others must equal. */
static void combination(const char *path, fl_gen_mode mode, int share, int n_threads, int64_t chunk,
                        char **want)
{
    fl_engine_params p = fl_engine_defaults();
    ev_model m;
    p.threads = n_threads;
    p.chunk = chunk;
    p.vram = memory_for(path, p, share);
    p.ram = 0;
    const double start = now();
    ev_open(&m, path, &p);
    int equal = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
        fl_gen_result r;
        char *text = ev_answer(&m, prompts[i], mode, MAX_TOKENS, &r);
        if (!want[i]) want[i] = strdup(text);
        equal += strcmp(text, want[i]) == 0;
        n_empty += text[0] == 0;
        free(text);
    }
    const fl_store_stats s = fl_store_get_stats(m.engine->store);
    printf("%-5s %4d %% %9.2f %4d/%d %6d %7d %6lld %12.2f %6.1f   %d of %d\n",
           mode == FL_GEN_AR ? "ar" : "block", share, (double)p.vram / (1 << 20),
           m.engine->plan.n_resident, m.engine->plan.n_total, m.engine->plan.n_slots, n_threads,
           (long long)chunk, (double)s.bytes_read / (1 << 20), now() - start, equal, N_PROMPTS);
    fflush(stdout);
    differing += N_PROMPTS - equal;
    ev_close(&m);
}

int main(int argc, char **argv)
{
    if (argc != 3) ev_die("usage: invariance MODEL HELDOUT.jsonl");
    ev_set set;
    ev_model m;
    const fl_engine_params p = fl_engine_defaults();
    ev_set_load(&set, argv[2]);
    ev_open(&m, argv[1], &p);
    choose_prompts(&set, &m);
    ev_close(&m);
    ev_set_free(&set);
    printf("%-5s %6s %9s %7s %6s %7s %6s %12s %6s   %s\n", "mode", "share", "vram MiB", "resid.",
           "slots", "threads", "chunk", "read MiB", "s", "texts equal");
    int n = 0;
    for (int mode = 0; mode < 2; mode++) {
        char *want[N_PROMPTS] = {0};
        for (int s = 0; s < 4; s++)
            for (int t = 0; t < 2; t++)
                for (int c = 0; c < 3; c++, n++)
                    combination(argv[1], mode ? FL_GEN_BLOCK : FL_GEN_AR, shares[s], threads[t],
                                chunks[c], want);
        for (int i = 0; i < N_PROMPTS; i++) free(want[i]);
    }
    for (int i = 0; i < N_PROMPTS; i++) free(prompts[i]);
    const bool failed = differing > 0 || n_empty > 0;
    printf("%s %d combinations, %d texts differ, %d are empty\n", failed ? "FAIL" : "PASS", n,
           differing, n_empty);
    return failed ? 1 : 0;
}
