#include "runtime/tools/probe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/model/facts.h"
#include "runtime/tools/probe_verdict.h"
#include "runtime/tools/setup.h"

/* A line that rewrites itself; nothing where it could not. */
static void show_progress(void *arg, const char *what, int measured)
{
    if (*(const bool *)arg) fprintf(stderr, "\rprobing: %s, %d measured\033[K", what, measured);
}

/* ---- what the file has beyond the base model ---------------------------------------------- */

static const char *shape_of(const fl_tensor *t, char buf[96])
{
    size_t n = 0;
    for (int i = 0; i < t->n_dims; i++)
        n += (size_t)snprintf(buf + n, 96 - n, "%s%" PRId64, i ? " x " : "", t->ne[i]);
    return buf;
}

/* Tensors that stand in layer after layer are one line. */
static fl_json *extra_tensors(const fl_probe *p)
{
    fl_json *list = fl_json_new_array();
    char shape[96], role[160];
    for (int i = 0; i < p->roles.n_patterns; i++) {
        const fl_probe_pattern *x = &p->roles.pattern[i];
        fl_json *j = fl_json_new_object();
        fl_json_set_str(j, "name", x->name);
        fl_json_set_int(j, "count", x->count);
        fl_json_set_str(j, "shape", shape_of(x->first, shape));
        fl_json_set_str(j, "may_be", fl_probe_roles_text(p->model.index, x->first, role));
        fl_json_append(list, j);
    }
    return list;
}

/* Keys of a GGUF file under the architecture's name that neither the base model nor our definition
 * of Clover has. */
static fl_json *extra_keys(const fl_probe *p)
{
    static const char *const known[] = {
        /* of the base model */
        "block_count", "context_length", "embedding_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "attention.layer_norm_rms_epsilon", "attention.recurrent_layers", "rope.dimension_count",
        "rope.dimension_sections", "rope.freq_base", "expert_count", "expert_used_count",
        "expert_feed_forward_length", "expert_shared_feed_forward_length", "ssm.conv_kernel",
        "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size",
        "full_attention_interval", "nextn_predict_layers", "vocab_size",
        /* of our definition */
        "expert_shared_count", "ssm.v_head_reordered", "block_size", "mask_token_id",
        "confidence_threshold", "expert_pool_size", "pred_shift", "verdict", "block_mode_earned",
        "soft_think_tokens", "soft_answer_tokens", "soft_slope"};
    fl_json *list = fl_json_new_array();
    const fl_gguf *g = fl_source_gguf(p->src);
    const fl_str arch = fl_kv_str(g ? fl_gguf_find(g, "general.architecture") : NULL);
    for (size_t i = 0; g && i < fl_gguf_n_kv(g); i++) {
        const fl_str key = fl_gguf_kv_at(g, i)->key;
        char name[200];
        bool ours = false;
        if (key.n <= arch.n + 1 || memcmp(key.p, arch.p, arch.n) != 0 || key.p[arch.n] != '.')
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(key.n - arch.n - 1), key.p + arch.n + 1);
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            ours |= strcmp(name, known[k]) == 0;
        for (const fl_switch *s = fl_switches; s->name; s++) ours |= strcmp(name, s->name) == 0;
        if (!ours) fl_json_append(list, fl_json_new_str(name));
    }
    return list;
}

/* ---- what is stored ----------------------------------------------------------------------- */

static fl_json *entry_json(const fl_probe_entry *e, bool file)
{
    fl_json *j = fl_json_new_object(), *nll = fl_json_new_array();
    fl_json_set_str(j, "guess", e->guess);
    fl_json_set_str(j, "value", e->value);
    for (int l = 0; l < FL_MASK_LEVELS && !file; l++)
        fl_json_append(nll, fl_json_new_num(e->nll[l]));
    fl_json_set(j, "nll", nll);
    fl_json_set_num(j, "mean", e->mean);
    fl_json_set_num(j, "diff", e->diff);
    fl_json_set_num(j, "se", e->se);
    fl_json_set_bool(j, "base", e->base);
    fl_json_set_bool(j, "taken", e->taken);
    return j;
}

/* The section "probe" of the facts: the wiring, then what it rests on. */
static fl_json *section_of(const fl_probe *p, const fl_probe_verdict *v)
{
    fl_json *j = fl_wiring_to_json(&p->wiring), *table = fl_json_new_array();
    fl_json_set_str(j, "why", v->why);
    fl_json_set_str(j, "text", p->text.name);
    fl_json_set_int(j, "tokens", p->text.n_answer);
    fl_json_set_num(j, "causal_nll", p->causal);
    for (int i = 0; i < p->n_entries; i++)
        fl_json_append(table, entry_json(&p->entry[i], i < p->n_file));
    fl_json_set(j, "table", table);
    fl_json_set(j, "tensors_beyond", extra_tensors(p));
    fl_json_set(j, "keys_beyond", extra_keys(p));
    return j;
}

/* ---- what is printed ---------------------------------------------------------------------- */

static void print_beyond(const fl_json *section)
{
    const fl_json *t = fl_json_get(section, "tensors_beyond");
    const fl_json *k = fl_json_get(section, "keys_beyond");
    if (fl_json_size(t)) printf("Tensors in layers beyond the base model\n");
    for (size_t i = 0; i < fl_json_size(t); i++) {
        const fl_json *x = fl_json_at(t, i);
        const char *may = fl_json_str(fl_json_get(x, "may_be"), "");
        printf("  %s, %" PRId64 " layers, %s%s%s\n", fl_json_str(fl_json_get(x, "name"), ""),
               fl_json_int(fl_json_get(x, "count"), 0), fl_json_str(fl_json_get(x, "shape"), ""),
               *may ? ": by its shape " : "", may);
    }
    if (fl_json_size(k)) printf("Keys beyond the base model\n");
    for (size_t i = 0; i < fl_json_size(k); i++)
        printf("  %s\n", fl_json_str(fl_json_at(k, i), ""));
}

static void print_entries(const fl_probe *p)
{
    for (int i = 0; i < p->n_entries; i++) {
        const fl_probe_entry *e = &p->entry[i];
        if (i == p->n_file) printf("Masked text, nats per token at 15, 50, 85 and 100 %% masked\n");
        printf("%c %-18s %-36s", e->taken ? '*' : ' ', e->guess, e->value);
        for (int l = 0; l < FL_MASK_LEVELS && i >= p->n_file; l++) printf(" %8.4f", e->nll[l]);
        if (i < p->n_file)
            printf(" %8.4f\n", e->mean);
        else if (e->base)
            printf("\n");
        else
            printf("  %+.4f +- %.4f\n", e->diff, e->se);
    }
}

/* path NULL: it could not be stored. */
static void print_text(const fl_probe *p, const fl_probe_verdict *v, const fl_json *section,
                       const char *path)
{
    char text[256];
    print_beyond(section);
    printf("Text: %s, %d answer tokens; * is taken: the definition, unless another is better by "
           "more than 3 standard errors\nPlain text, nats per token\n",
           p->text.name, p->text.n_answer);
    print_entries(p);
    for (int i = 0; i < p->wiring.roles.n; i++)
        printf("role %s: %s\n", p->wiring.roles.item[i].role, p->wiring.roles.item[i].name);
    printf("Wiring: %s\n", fl_wiring_text(&p->wiring, text));
    printf("Block mode is %searned: %s\n", v->earned ? "" : "not ", v->why);
    if (path) printf("Stored in %s\n", path);
    if (v->earned) puts("fourleaf calibrate measures the speeds by which --mode auto decides");
}

static fl_status print_json(const fl_json *section, fl_err *err)
{
    char *text = fl_json_dump(section, 1);
    if (!text) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: no memory for the report");
    puts(text);
    free(text);
    return FL_OK;
}

/* ---- the command -------------------------------------------------------------------------- */

static fl_status open_facts(const fl_source *src, fl_facts **facts, fl_err *err)
{
    FL_TRY(fl_facts_of(facts, src, err));
    return fl_facts_writable(*facts, err);
}

static fl_status report(const fl_options *o, fl_probe *p, const fl_probe_verdict *v,
                        fl_facts *facts, fl_err *err)
{
    fl_json *section = section_of(p, v);
    const fl_status stored = fl_facts_put(facts, "probe", fl_json_copy(section), err);
    fl_status st = FL_OK;
    if (o->json)
        st = print_json(section, err);
    else
        print_text(p, v, section, stored == FL_OK ? fl_facts_path(facts) : NULL);
    fl_json_free(&section);
    return st == FL_OK ? stored : st;
}

fl_status fl_tool_probe(const fl_options *o, fl_err *err)
{
    fl_status st;
    fl_source *src = NULL;
    fl_tokenizer *tokenizer = NULL;
    fl_facts *facts = NULL;
    fl_probe_verdict v;
    bool terminal = isatty(STDERR_FILENO);
    fl_probe *p = calloc(1, sizeof *p);
    if (!p) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: out of memory");
    FL_GO(fl_setup_asked(o, &p->asked, err));
    FL_GO(fl_setup_engine_params(o, &p->params, err));
    FL_GO(fl_source_open(&src, o->args[0], err));
    FL_GO(open_facts(src, &facts, err));
    FL_GO(fl_tokenizer_open(&tokenizer, src, err));
    p->src = src;
    p->tokenizer = tokenizer;
    p->progress = show_progress;
    p->arg = &terminal;
    FL_GO(fl_probe_search(p, err));
    FL_GO(fl_probe_judge(p, &v, err));
    p->wiring.clover.verdict = v.earned;
    if (terminal) fprintf(stderr, "\r\033[K");
    st = report(o, p, &v, facts, err);
out:
    if (st != FL_OK && terminal) fprintf(stderr, "\r\033[K");
    fl_probe_fini(p);
    free(p);
    fl_facts_close(&facts);
    fl_tokenizer_close(&tokenizer);
    fl_source_close(&src);
    return st;
}
