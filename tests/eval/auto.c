/* Mode auto: its text under load, and its speed against each mode by itself.
 *
 *   auto MODEL HELDOUT.jsonl [--prompts N] [--runs N] [--rounds N]      (20 prompts, 10 runs, 5
 * rounds)
 *
 * Text: N prompts, TOKENS tokens each whatever the model ends, greedy, with nothing stored (so AR
 * and speculation take turns by the clock), once alone and then N times while other threads burn
 * the CPUs in random bursts: every run gives the first one's tokens.
 *
 * Speed: rates are measured as calibrate does; then each kind of answer is generated in every mode
 * that auto may take and in auto, in turns, and the least of the rounds counts for each: auto has
 * at least 95 % of the best mode's tokens per second. On one thread and by its CPU time, so that
 * other work on the machine does not decide; a prompt is read once and then taken from its
 * checkpoint. Exit status 1 when something is missed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/tools/measure.h"
#include "tests/eval/common.h"

enum { TOKENS = 96, N_BURNERS = 4, MOST_PER_KIND = 6 };

static int missed;

/* ---- load ---- */

static atomic_bool burning;

static void *burn(void *arg)
{
    uint64_t state = *(const uint64_t *)arg;
    while (atomic_load(&burning)) {
        state = ev_hash(state);
        const uint64_t until = fl_clock_ns() + state % 20000000;
        while (fl_clock_ns() < until) {}
        state = ev_hash(state);
        nanosleep(&(struct timespec){.tv_nsec = (long)(state % 40000000)}, NULL);
    }
    return NULL;
}

typedef struct load {
    pthread_t thread[N_BURNERS];
    uint64_t seed[N_BURNERS];
} load;

static void start_load(load *l, int run)
{
    atomic_store(&burning, true);
    for (int i = 0; i < N_BURNERS; i++) {
        l->seed[i] = ev_hash((uint64_t)(run * N_BURNERS + i + 1));
        if (pthread_create(&l->thread[i], NULL, burn, &l->seed[i]) != 0) ev_die("no thread");
    }
}

static void stop_load(load *l)
{
    atomic_store(&burning, false);
    for (int i = 0; i < N_BURNERS; i++) pthread_join(l->thread[i], NULL);
}

/* ---- text ---- */

static void generate(ev_model *m, const fl_gen_config *c, const char *prompt, fl_gen_result *r)
{
    fl_err err = {0};
    size_t n = 0;
    int32_t *ids = ev_encode(m, prompt, &n);
    if (fl_generate(m->gen, c, ids, (int64_t)n, r, &err) != FL_OK) ev_die("%s", err.msg);
    free(ids);
}

/* One run over the prompts: the tokens into ids, and how many of them AR's turns gave. */
static int64_t one_run(ev_model *m, const ev_set *set, int prompts, int32_t (*ids)[TOKENS])
{
    int64_t steps = 0;
    for (int i = 0; i < prompts; i++) {
        fl_gen_config c;
        fl_gen_result r;
        fl_gen_config_init(&c, m->model);
        c.sampler.temp = 0;
        c.max_tokens = TOKENS;
        c.ignore_eos = true;
        c.repeat_stop = false;
        generate(m, &c, set->item[(int64_t)i * set->n / prompts].prompt, &r);
        if (r.n_generated != TOKENS) ev_die("prompt %d: %lld tokens", i, (long long)r.n_generated);
        memcpy(ids[i], r.ids, sizeof ids[i]);
        steps += r.clean_passes;
    }
    return steps;
}

static void check_text(ev_model *m, const ev_set *set, int prompts, int runs)
{
    int32_t(*first)[TOKENS] = ev_alloc((size_t)prompts * sizeof *first);
    int32_t(*other)[TOKENS] = ev_alloc((size_t)prompts * sizeof *other);
    int64_t least = one_run(m, set, prompts, first), most = least;
    int different = 0;
    for (int run = 1; run <= runs; run++) {
        load l;
        start_load(&l, run);
        const int64_t steps = one_run(m, set, prompts, other);
        stop_load(&l);
        for (int i = 0; i < prompts; i++)
            different += memcmp(first[i], other[i], sizeof first[i]) != 0;
        if (steps < least) least = steps;
        if (steps > most) most = steps;
        fprintf(stderr, "run %d of %d under load: %d texts differ\n", run, runs, different);
    }
    printf(
        "%s texts that differ under load: %d of %d (AR's turns gave %lld to %lld of %d tokens of "
        "a run)\n",
        different ? "FAIL" : "PASS", different, prompts * runs, (long long)least, (long long)most,
        prompts * TOKENS);
    missed += different > 0;
    free(first);
    free(other);
}

/* ---- speed ---- */

static const struct {
    const char *name, *task;
    bool think;
} kinds[] = {{"short factual", "capital", false},
             {"JSON", "dispatch", false},
             {"free text, the longest it has", "explain", true}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds and tokens of one answer in one mode; the least seconds stay. */
typedef struct best {
    double seconds;
    int64_t tokens;
} best;

static void answer(ev_model *m, const fl_mode_facts *facts, fl_gen_mode mode, const char *prompt,
                   best *b)
{
    fl_gen_config c;
    fl_gen_result r;
    fl_gen_config_init(&c, m->model);
    c.sampler.temp = 0;
    c.max_tokens = 256;
    c.mode = mode;
    c.facts = *facts;
    const double t0 = cpu_seconds();
    generate(m, &c, prompt, &r);
    const double s = cpu_seconds() - t0;
    if (b->tokens == 0 || s < b->seconds) b->seconds = s;
    b->tokens = r.n_generated;
}

static bool allowed(const ev_model *m, const fl_mode_facts *facts, int mode)
{
    return mode != FL_GEN_BLOCK || fl_gen_block_earned(&m->model->index->clover, facts);
}

static void check_kind(ev_model *m, const ev_set *set, const fl_mode_facts *facts, int kind,
                       int rounds)
{
    const char *prompt[MOST_PER_KIND];
    static best b[MOST_PER_KIND][FL_GEN_MODES];
    int n = 0;
    memset(b, 0, sizeof b);
    for (int i = 0; i < set->n && n < MOST_PER_KIND; i++)
        if (strcmp(set->item[i].task, kinds[kind].task) == 0 &&
            set->item[i].think == kinds[kind].think)
            prompt[n++] = set->item[i].prompt;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < n; i++) {
            best reading = {0};
            answer(m, facts, FL_GEN_AR, prompt[i], &reading); /* else the first mode pays for it */
            for (int mode = FL_GEN_AUTO; mode < FL_GEN_MODES; mode++)
                if (allowed(m, facts, mode))
                    answer(m, facts, (fl_gen_mode)mode, prompt[i], &b[i][mode]);
        }
    double rate[FL_GEN_MODES] = {0}, top = 0;
    printf("%-30s", kinds[kind].name);
    for (int mode = FL_GEN_AUTO; mode < FL_GEN_MODES; mode++) {
        best sum = {0};
        for (int i = 0; i < n; i++) {
            sum.seconds += b[i][mode].seconds;
            sum.tokens += b[i][mode].tokens;
        }
        if (sum.tokens > 0) rate[mode] = (double)sum.tokens / sum.seconds;
        if (mode != FL_GEN_AUTO && rate[mode] > top) top = rate[mode];
        printf(" %s %.1f", fl_gen_mode_name((fl_gen_mode)mode), rate[mode]);
    }
    const double share = top > 0 ? 100 * rate[FL_GEN_AUTO] / top : 0;
    printf("\n%s auto's share of the best mode's tokens/s: %.1f %% (wanted 95)\n",
           share >= 95 ? "PASS" : "FAIL", share);
    missed += share < 95;
}

static void check_speed(ev_model *m, const ev_set *set, int rounds)
{
    fl_err err = {0};
    fl_gen_config c;
    fl_measured measured;
    fl_mode_facts facts = fl_mode_facts_none();
    fl_gen_config_init(&c, m->model);
    const fl_measure_config config = {
        .gen = &c, .think = true, .block = fl_gen_block_earned(&c.clover, &facts), .seconds = 60};
    if (fl_measure(m->engine, m->gen, &config, &measured, &err) != FL_OK) ev_die("%s", err.msg);
    for (int mode = FL_GEN_AR; mode < FL_GEN_MODES; mode++)
        facts.per_s[mode] = fl_measured_rate(&measured, (fl_gen_mode)mode);
    const fl_choice choice = fl_gen_choose(FL_GEN_AUTO, &c.clover, &facts, true);
    printf("auto takes %s: %s\n", fl_gen_mode_name(choice.mode), choice.reason);
    for (int kind = 0; kind < N_KINDS; kind++) check_kind(m, set, &facts, kind, rounds);
}

int main(int argc, char **argv)
{
    int prompts = 20, runs = 10, rounds = 5;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--prompts") == 0 && i + 1 < argc)
            prompts = atoi(argv[++i]);
        else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            runs = atoi(argv[++i]);
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = atoi(argv[++i]);
        else
            prompts = 0;
    }
    if (argc < 3 || prompts < 1 || runs < 1 || rounds < 1)
        ev_die("usage: auto MODEL HELDOUT.jsonl [--prompts N] [--runs N] [--rounds N]");
    ev_set set;
    ev_model m;
    fl_engine_params p = fl_engine_defaults();
    p.held_rows = 32;
    p.threads = 1;
    ev_set_load(&set, argv[2]);
    ev_open(&m, argv[1], &p);
    check_speed(&m, &set, rounds);
    ev_close(&m);
    p.threads = 0;
    ev_open(&m, argv[1], &p);
    check_text(&m, &set, prompts, runs);
    ev_close(&m);
    ev_set_free(&set);
    return missed ? 1 : 0;
}
