#include "runtime/tools/eval_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/json.h"

static bool is_blocks(int kind) { return kind == FL_EVAL_OF_BLOCKS; }

/* "causal", "15 %", ... "masked" */
static const char *label(int kind, char buf[16])
{
    if (kind == FL_EVAL_OF_CAUSAL) return "causal";
    if (is_blocks(kind)) return "masked";
    snprintf(buf, 16, "  %3.0f %%", 100 * fl_mask_level[kind - FL_EVAL_OF_LEVEL]);
    return buf;
}

/* All block passes first, then level by level. */
static const int order[FL_EVAL_KINDS] = {FL_EVAL_OF_CAUSAL,    FL_EVAL_OF_BLOCKS,
                                         FL_EVAL_OF_LEVEL,     FL_EVAL_OF_LEVEL + 1,
                                         FL_EVAL_OF_LEVEL + 2, FL_EVAL_OF_LEVEL + 3};

static int64_t tokens_read(const fl_eval_report *r)
{
    int64_t n = 0;
    for (int64_t w = 0; w < r->plan->n_windows; w++) n += r->plan->window[w].n;
    return n;
}

/* Where the worst row's token stands. */
typedef struct place {
    const fl_corpus_doc *doc;
    long long token;
} place;

static place worst_of(const fl_eval_report *r, const fl_eval_figures *f)
{
    const fl_eval_window *x = &r->plan->window[f->worst_window];
    return (place){&r->plan->text->doc[x->doc], (long long)(x->start + f->worst_pos)};
}

/* ---- the table ---- */

static void print_likelihood(const fl_eval_stats *s)
{
    char buf[16];
    printf("%-9s %9s %22s %24s\n", "", "rows", "NLL", "perplexity");
    for (int i = 0; i < FL_EVAL_KINDS; i++) {
        const fl_eval_figures *f = &s->kind[order[i]];
        if (f->nll.n == 0) continue;
        const double nll = fl_mean_value(&f->nll), e = fl_mean_error(&f->nll);
        printf("%-9s %9lld %11.5f +- %7.5f", label(order[i], buf), (long long)f->nll.n, nll, e);
        if (order[i] == FL_EVAL_OF_CAUSAL) printf(" %13.4f +- %7.4f", exp(nll), exp(nll) * e);
        putchar('\n');
    }
}

static void print_against(const fl_eval_stats *s)
{
    char buf[16];
    printf("%-9s %22s %10s %10s %10s %10s %9s %20s\n", "", "KL", "median", "90 %", "99 %", "worst",
           "same top", "NLL");
    for (int i = 0; i < FL_EVAL_KINDS; i++) {
        const fl_eval_figures *f = &s->kind[order[i]];
        if (f->n_kls == 0) continue;
        printf("%-9s %10.6f +- %8.6f %10.6f %10.6f %10.6f %10.6f %7.2f %% %+9.5f +- %7.5f\n",
               label(order[i], buf), fl_mean_value(&f->kl), fl_mean_error(&f->kl),
               fl_eval_quantile(f, 0.5), fl_eval_quantile(f, 0.9), fl_eval_quantile(f, 0.99),
               f->worst, 100 * fl_mean_value(&f->same), fl_mean_value(&f->delta),
               fl_mean_error(&f->delta));
    }
}

static void print_worst(const fl_eval_report *r, int kind)
{
    const fl_eval_figures *f = &r->stats->kind[kind];
    char buf[16];
    if (f->n_kls == 0 || f->worst == 0) return;
    const place at = worst_of(r, f);
    printf("worst %s row: token %lld of %s", label(kind, buf), at.token, at.doc->path);
    if (at.doc->line) printf(" line %d", at.doc->line);
    putchar('\n');
}

void fl_eval_print(const fl_eval_report *r)
{
    const fl_eval_stats *s = r->stats;
    printf("%s: %lld windows of up to %d tokens, %lld of %lld tokens\n", r->model,
           (long long)r->plan->n_windows, r->plan->ctx, (long long)tokens_read(r),
           (long long)r->plan->text->n);
    print_likelihood(s);
    if (!r->reference) return;
    printf("against %s, in nats:\n", r->reference->name);
    print_against(s);
    print_worst(r, FL_EVAL_OF_CAUSAL);
    print_worst(r, FL_EVAL_OF_BLOCKS);
    const double c = fl_mean_value(&s->kind[FL_EVAL_OF_CAUSAL].rounding);
    const double b = fl_mean_value(&s->kind[FL_EVAL_OF_BLOCKS].rounding);
    printf("the reference's rows are kept in 16 bits: a mean KL is off by %.1e at most\n",
           c > b ? c : b);
    if (s->kind[FL_EVAL_OF_BLOCKS].nll.n && !s->kind[FL_EVAL_OF_BLOCKS].n_kls)
        printf("the reference has no block passes: compared on the causal path alone\n");
}

/* ---- JSON ---- */

static fl_json *worst_json(const fl_eval_report *r, const fl_eval_figures *f)
{
    const place at = worst_of(r, f);
    fl_json *j = fl_json_new_object();
    fl_json_set_num(j, "kl", f->worst);
    fl_json_set_str(j, "text", at.doc->path);
    if (at.doc->line) fl_json_set_int(j, "line", at.doc->line);
    fl_json_set_int(j, "token", at.token);
    return j;
}

static void set_mean(fl_json *j, const char *name, const char *error, const fl_mean *m)
{
    fl_json_set_num(j, name, fl_mean_value(m));
    fl_json_set_num(j, error, fl_mean_error(m));
}

static fl_json *figures_json(const fl_eval_report *r, int kind)
{
    const fl_eval_figures *f = &r->stats->kind[kind];
    fl_json *j = fl_json_new_object();
    const double nll = fl_mean_value(&f->nll);
    if (kind >= FL_EVAL_OF_LEVEL && !is_blocks(kind))
        fl_json_set_num(j, "share", fl_mask_level[kind - FL_EVAL_OF_LEVEL]);
    fl_json_set_int(j, "rows", f->nll.n);
    set_mean(j, "nll", "nll_error", &f->nll);
    if (kind == FL_EVAL_OF_CAUSAL) {
        fl_json_set_num(j, "perplexity", exp(nll));
        fl_json_set_num(j, "perplexity_error", exp(nll) * fl_mean_error(&f->nll));
    }
    if (f->n_kls == 0) return j;
    set_mean(j, "kl", "kl_error", &f->kl);
    fl_json_set_num(j, "kl_median", fl_eval_quantile(f, 0.5));
    fl_json_set_num(j, "kl_90", fl_eval_quantile(f, 0.9));
    fl_json_set_num(j, "kl_99", fl_eval_quantile(f, 0.99));
    fl_json_set(j, "kl_worst", worst_json(r, f));
    fl_json_set_num(j, "kl_rounding", fl_mean_value(&f->rounding));
    set_mean(j, "same_top", "same_top_error", &f->same);
    set_mean(j, "delta_nll", "delta_nll_error", &f->delta);
    return j;
}

static fl_json *report_json(const fl_eval_report *r)
{
    fl_json *j = fl_json_new_object(), *texts = fl_json_new_array();
    fl_json_set_str(j, "model", r->model);
    const fl_corpus *t = r->plan->text;
    for (int i = 0; i < t->n_docs; i++)
        if (i == 0 || t->doc[i].path != t->doc[i - 1].path)
            fl_json_append(texts, fl_json_new_str(t->doc[i].path));
    fl_json_set(j, "texts", texts);
    fl_json_set_int(j, "ctx", r->plan->ctx);
    fl_json_set_int(j, "windows", r->plan->n_windows);
    fl_json_set_int(j, "tokens", tokens_read(r));
    if (r->reference) fl_json_set_str(j, "against", r->reference->name);
    if (r->plan->causal) fl_json_set(j, "causal", figures_json(r, FL_EVAL_OF_CAUSAL));
    if (r->plan->block_size == 0) return j;
    fl_json *masked = figures_json(r, FL_EVAL_OF_BLOCKS), *levels = fl_json_new_array();
    for (int l = 0; l < FL_MASK_LEVELS; l++)
        fl_json_append(levels, figures_json(r, FL_EVAL_OF_LEVEL + l));
    fl_json_set(masked, "levels", levels);
    fl_json_set(j, "masked", masked);
    return j;
}

fl_status fl_eval_print_json(const fl_eval_report *r, fl_err *err)
{
    fl_json *j = report_json(r);
    char *text = fl_json_dump(j, 1);
    fl_json_free(&j);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "eval: out of memory");
    printf("%s\n", text);
    free(text);
    return FL_OK;
}
