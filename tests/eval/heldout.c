/* clover-tiny on its held-out prompts, in AR, block mode and speculation, in BF16 and Q4_K: right
 * answers, tokens per forward pass, passes per block, tokens per second.
 *
 *   heldout BF16_MODEL Q4_K_MODEL HELDOUT.jsonl [--show] [--every K]
 *
 * --show prints wrong answers; --every takes each K-th prompt alone, for a first look.
 *
 * Greedy. An answer is right when what the user sees (behind the thinking, blanks at the ends
 * cut) equals the wanted text byte for byte. Passes: clean, held and block ones (a commit
 * inside a block pass is none of its own), in AR and speculation also the one over the prompt,
 * which gives the first token. Speculation drafts in every round, whatever the clock says. Every
 * prompt must be what the program's own chat renderer writes. Ends with one line per target; exit
 * status 1 when one is missed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/eval/common.h"

enum { MAX_TASKS = 32, MAX_TOKENS = 400, N_RUNS = 6, MIN_PROMPTS = 200 };

static const struct {
    const char *name;
    bool q4;
    fl_gen_mode mode;
} runs[N_RUNS] = {{"BF16 AR", false, FL_GEN_AR},      {"BF16 block", false, FL_GEN_BLOCK},
                  {"BF16 spec", false, FL_GEN_SPEC},  {"Q4_K AR", true, FL_GEN_AR},
                  {"Q4_K block", true, FL_GEN_BLOCK}, {"Q4_K spec", true, FL_GEN_SPEC}};
enum { BF16_AR, BF16_BLOCK, BF16_SPEC, Q4_AR, Q4_BLOCK, Q4_SPEC };

typedef struct tally {
    int n, right;
    int64_t tokens, passes, blocks;
    double seconds;
} tally;

static const char *task_name[MAX_TASKS];
static int n_tasks;
static tally table[MAX_TASKS][N_RUNS], total[N_RUNS];

static int task_of(const char *name)
{
    for (int i = 0; i < n_tasks; i++)
        if (strcmp(task_name[i], name) == 0) return i;
    if (n_tasks == MAX_TASKS) ev_die("more than %d tasks", MAX_TASKS);
    task_name[n_tasks] = name;
    return n_tasks++;
}

static void count(tally *t, bool right, const fl_gen_result *r)
{
    t->n++;
    t->right += right;
    t->tokens += r->n_generated;
    t->passes += r->clean_passes + r->held_passes + r->denoise_passes;
    if (r->choice.mode != FL_GEN_BLOCK) t->passes += r->prefill_passes;
    t->blocks += r->blocks;
    t->seconds += r->decode_s;
}

static void one_run(int run, const char *path, const ev_set *set, bool show, int every)
{
    ev_model m;
    fl_engine_params p = fl_engine_defaults();
    p.held_rows = 32;
    ev_open(&m, path, &p);
    for (int i = 0; i < set->n; i += every) {
        const ev_prompt *q = &set->item[i];
        fl_gen_result r;
        char *text = ev_answer(&m, q->prompt, runs[run].mode, MAX_TOKENS, &r);
        char *seen = ev_visible(text);
        const bool right = strcmp(seen, q->answer) == 0;
        count(&table[task_of(q->task)][run], right, &r);
        count(&total[run], right, &r);
        if (show && !right)
            printf("%s, prompt %d (%s, thinking %s)\n  wanted: %s\n  got:    %s\n", runs[run].name,
                   i + 1, q->task, q->think ? "on" : "off", q->answer, text);
        free(seen);
        free(text);
    }
    ev_close(&m);
    fprintf(stderr, "%s: %d of %d right\n", runs[run].name, total[run].right, total[run].n);
}

static double percent(const tally *t) { return t->n ? 100.0 * t->right / t->n : 0; }
static double per_forward(const tally *t)
{
    return t->passes ? (double)t->tokens / (double)t->passes : 0;
}

static void print_row(const char *name, const tally *t)
{
    printf("%-10s %5d", name, t[0].n);
    for (int r = 0; r < N_RUNS; r++) printf(" %11.1f", percent(&t[r]));
    printf(" %10.2f %10.2f\n", per_forward(&t[BF16_BLOCK]), per_forward(&t[Q4_BLOCK]));
}

static void print_table(void)
{
    printf("%-10s %5s", "task", "n");
    for (int r = 0; r < N_RUNS; r++) printf(" %11s", runs[r].name);
    printf(" %10s %10s\n", "tok/fwd", "tok/fwd Q4");
    for (int i = 0; i < n_tasks; i++) print_row(task_name[i], table[i]);
    print_row("all", total);
    printf("\n%-10s %8s %12s %12s %10s\n", "mode", "% right", "tokens/pass", "passes/block",
           "tokens/s");
    for (int r = 0; r < N_RUNS; r++) {
        const tally *t = &total[r];
        printf("%-10s %8.1f %12.2f", runs[r].name, percent(t), per_forward(t));
        if (t->blocks > 0)
            printf(" %12.2f", (double)t->passes / (double)t->blocks);
        else
            printf(" %12s", "-");
        printf(" %10.1f\n", t->seconds > 0 ? (double)t->tokens / t->seconds : 0);
    }
    putchar('\n');
}

static int missed;
static void target(bool met, const char *what, double value, double bound)
{
    printf("%s %s: %.2f (wanted %.2f)\n", met ? "PASS" : "FAIL", what, value, bound);
    missed += !met;
}

int main(int argc, char **argv)
{
    bool show = false;
    int every = 1;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--show") == 0)
            show = true;
        else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc)
            every = atoi(argv[++i]);
        else
            every = 0;
    }
    if (argc < 4 || every < 1)
        ev_die("usage: heldout BF16_MODEL Q4_K_MODEL HELDOUT.jsonl [--show] [--every K]");
    ev_set set;
    ev_set_load(&set, argv[3]);
    const int unlike = ev_set_unlike_renderer(&set);
    for (int r = 0; r < N_RUNS; r++) one_run(r, argv[1 + runs[r].q4], &set, show, every);
    print_table();
    const double ar = percent(&total[BF16_AR]), block = percent(&total[BF16_BLOCK]);
    const double q4 = percent(&total[Q4_AR]), per_pass = per_forward(&total[BF16_BLOCK]);
    target(total[0].n >= MIN_PROMPTS, "held-out prompts", total[0].n, MIN_PROMPTS);
    target(unlike == 0, "prompts that render differently", unlike, 0);
    target(ar >= 95, "BF16, AR mode, % right", ar, 95);
    target(block >= ar - 3, "BF16, block mode, % right", block, ar - 3);
    target(q4 >= ar - 2, "Q4_K, AR mode, % right", q4, ar - 2);
    target(per_pass >= 2.5, "BF16, block mode, tokens per forward pass (commits counted)", per_pass,
           2.5);
    for (int r = 0; r < N_RUNS; r += BF16_SPEC + 1)
        target(total[r + BF16_SPEC].right == total[r + BF16_AR].right &&
                   total[r + BF16_SPEC].tokens == total[r + BF16_AR].tokens,
               "tokens of speculation, as many as AR's", (double)total[r + BF16_SPEC].tokens,
               (double)total[r + BF16_AR].tokens);
    ev_set_free(&set);
    return missed ? 1 : 0;
}
