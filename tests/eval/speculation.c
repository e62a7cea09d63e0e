/* AR and speculation give the same text: clover-tiny, greedy and sampled, token by token; what
 * drafts are worth, with and without loops, with the check's noise and with noise of their own.
 *
 *   speculation MODEL HELDOUT.jsonl [--prompts N] [--tokens N]      (20 prompts, 1,000 tokens)
 *
 * Stop ids and loops end nothing here, and the context is longer than the model's: most of the
 * text makes no sense, which is what a test of equality wants. A loop inflates every count, so
 * each figure stands beside that of the texts' beginnings up to their first loop: LOOP tokens in a
 * row, each equal to the one a period of at most PERIOD before it. Noise of its own is measured on
 * a quarter of the tokens. Exit status 1 when a text differs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/eval/common.h"

enum { LOOP = 64, PERIOD = 32, N_SEEDS = 3, MAX_PROMPT = 900 };

typedef struct tally {
    int64_t tokens, passes, rounds, drafted, accepted;
} tally;

typedef struct kind {
    const char *name;
    double temp;
    bool own_noise;
    tally all, loop_free;
} kind;

static kind kinds[] = {
    {.name = "greedy"},
    {.name = "temperature 0.8, the check's noise", .temp = 0.8},
    {.name = "temperature 0.8, noise of its own", .temp = 0.8, .own_noise = true}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static int n_texts, n_different;

/* Length of the beginning that no loop has reached. */
static int64_t before_loop(const int32_t *ids, int64_t n)
{
    for (int period = 1; period <= PERIOD; period++) {
        int64_t same = 0;
        for (int64_t i = period; i < n; i++) {
            same = ids[i] == ids[i - period] ? same + 1 : 0;
            /* An earlier loop may have another period: the shortest beginning counts. */
            if (same == LOOP) n = i + 1 - LOOP;
        }
    }
    return n;
}

static void count(tally *t, const fl_gen_result *r)
{
    t->tokens += r->n_generated;
    t->passes += r->clean_passes + r->held_passes + r->denoise_passes;
    t->rounds += r->held_passes;
    t->drafted += r->drafted;
    t->accepted += r->accepted;
}

static void generate(ev_model *m, const fl_gen_config *c, const int32_t *prompt, size_t n,
                     fl_gen_result *r)
{
    fl_err err = {0};
    if (fl_generate(m->gen, c, prompt, (int64_t)n, r, &err) != FL_OK) ev_die("%s", err.msg);
}

static void compare(ev_model *m, kind *k, uint64_t seed, const int32_t *prompt, size_t n,
                    int64_t tokens)
{
    fl_gen_config c;
    fl_gen_result r;
    fl_gen_config_init(&c, m->model);
    c.sampler.temp = k->temp;
    c.sampler.seed = seed;
    c.max_tokens = tokens;
    c.ignore_eos = c.draft_always = true;
    c.repeat_stop = false;
    c.draft_own_noise = k->own_noise;
    c.mode = FL_GEN_AR;
    generate(m, &c, prompt, n, &r);
    const int64_t n_ar = r.n_generated, sound = before_loop(r.ids, n_ar);
    int32_t *ar = ev_alloc((size_t)n_ar * sizeof *ar);
    memcpy(ar, r.ids, (size_t)n_ar * sizeof *ar);

    c.mode = FL_GEN_SPEC;
    generate(m, &c, prompt, n, &r);
    count(&k->all, &r);
    n_texts++;
    if (n_ar != tokens || r.n_generated != n_ar ||
        memcmp(ar, r.ids, (size_t)n_ar * sizeof *ar) != 0) {
        n_different++;
        printf("DIFFERENT: %s, seed %llu\n", k->name, (unsigned long long)seed);
    }
    if (sound < n_ar) {
        c.max_tokens = sound;
        generate(m, &c, prompt, n, &r);
    }
    count(&k->loop_free, &r);
    free(ar);
}

static void print_tally(const char *name, const tally *t)
{
    printf(
        "    %-10s %7lld tokens, %5.2f per pass, %5.2f per round, %5.1f %% of %lld drafted right\n",
        name, (long long)t->tokens, (double)t->tokens / (double)(t->passes ? t->passes : 1),
        (double)(t->accepted + t->rounds) / (double)(t->rounds ? t->rounds : 1),
        t->drafted ? 100.0 * (double)t->accepted / (double)t->drafted : 0.0, (long long)t->drafted);
}

int main(int argc, char **argv)
{
    int prompts = 20;
    int64_t tokens = 1000;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--prompts") == 0 && i + 1 < argc)
            prompts = atoi(argv[++i]);
        else if (strcmp(argv[i], "--tokens") == 0 && i + 1 < argc)
            tokens = atoi(argv[++i]);
        else
            prompts = 0;
    }
    if (argc < 3 || prompts < 1 || tokens < 4)
        ev_die("usage: speculation MODEL HELDOUT.jsonl [--prompts N] [--tokens N]");
    ev_set set;
    ev_model m;
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = MAX_PROMPT + tokens;
    p.held_rows = 32;
    ev_set_load(&set, argv[2]);
    ev_open(&m, argv[1], &p);
    for (int i = 0; i < prompts; i++) {
        size_t n = 0;
        int32_t *ids = ev_encode(&m, set.item[(int64_t)i * set.n / prompts].prompt, &n);
        for (int k = 0; k < N_KINDS; k++)
            for (uint64_t seed = 1; seed <= (kinds[k].temp > 0 ? N_SEEDS : 1); seed++)
                compare(&m, &kinds[k], seed, ids, n, kinds[k].own_noise ? tokens / 4 : tokens);
        free(ids);
        fprintf(stderr, "prompt %d of %d: %d of %d texts equal\n", i + 1, prompts,
                n_texts - n_different, n_texts);
    }
    for (int k = 0; k < N_KINDS; k++) {
        printf("%s\n", kinds[k].name);
        print_tally("all", &kinds[k].all);
        print_tally("loop-free", &kinds[k].loop_free);
    }
    printf("%s texts of AR and speculation that differ: %d of %d\n", n_different ? "FAIL" : "PASS",
           n_different, n_texts);
    ev_close(&m);
    ev_set_free(&set);
    return n_different ? 1 : 0;
}
