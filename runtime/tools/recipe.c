#include "runtime/tools/recipe.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"

const char fl_recipe_types[] = "q4_k, q5_k, q6_k, q8_0, q4_0, iq4_xs, bf16, f16, f32";
static const char separators[] = " \t\r\v\f";

enum { FILE_LIMIT = 1 << 20, MAX_LINE = 1 << 12 };

/* Of the recipes below: what stays at eight bits because it is small, everything passes through it,
 * or it leads into or out of the recurrent state (figures: quant/FORMAT.md, section 5). */
#define SENSITIVE                                               \
    "token_embd.weight q8_0\noutput.weight q8_0\n"              \
    "*.attn_qkv.weight q8_0\n*.ssm_out.weight q8_0\n"           \
    "*.ssm_alpha.weight q8_0\n*.ssm_beta.weight q8_0\n"         \
    "*.ssm_bwd_alpha.weight q8_0\n*.ssm_bwd_beta.weight q8_0\n" \
    "*.attn_k.weight q8_0\n*.attn_v.weight q8_0\n"

static const struct {
    const char *name, *type, *rules; /* rules NULL: made from the model (like_llama) */
} built_in[] = {
    {"q4", "q4_k", SENSITIVE "* q4_k\n"},
    {"q4_k_m", NULL, NULL},
    {"q5", "q5_k", SENSITIVE "* q5_k\n"},
    {"q6", "q6_k", SENSITIVE "* q6_k\n"},
    {"q8", "q8_0", "* q8_0\n"},
    {"q4_0", "q4_0", SENSITIVE "* q4_0\n"},
    {"iq4_xs", "iq4_xs", SENSITIVE "* iq4_xs\n"},
    {"bf16", "bf16", "* bf16\n"},
    {"f16", "f16", "* f16\n"},
    {"f32", "f32", "* f32\n"},
    {"keep", NULL, "* keep\n"},
};
enum { N_BUILT_IN = sizeof built_in / sizeof *built_in };

bool fl_recipe_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *again = NULL; /* the last star, and where its run ends so far */
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            again = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++again;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}

/* A type that a rule may name, or -1. */
static int type_of(const char *word)
{
    char low[16];
    size_t n = 0;
    for (; word[n] && n < sizeof low - 1; n++) low[n] = (char)tolower((unsigned char)word[n]);
    low[n] = 0;
    if (word[n]) return -1;
    if (strcmp(low, "keep") == 0) return FL_RECIPE_KEEP;
    for (const char *p = strstr(fl_recipe_types, low); n && p; p = strstr(p + 1, low))
        if ((p == fl_recipe_types || p[-1] == ' ') && (p[n] == ',' || p[n] == 0))
            return fl_type_by_name(low);
    return -1;
}

static fl_rule *add_rule(fl_recipe *r)
{
    if (r->n == r->cap) {
        const int cap = r->cap ? 2 * r->cap : 32;
        fl_rule *rule = realloc(r->rule, (size_t)cap * sizeof *rule);
        if (!rule) return NULL;
        r->rule = rule;
        r->cap = cap;
    }
    return &r->rule[r->n++];
}

/* One line without its comment; blank ones are no rules. */
static fl_status parse_line(fl_recipe *r, char *line, int number, fl_err *err)
{
    char *save = NULL;
    const char *pattern = strtok_r(line, separators, &save);
    const char *word = pattern ? strtok_r(NULL, separators, &save) : NULL;
    if (!pattern) return FL_OK;
    const char *more = strtok_r(NULL, separators, &save);
    if (!word || more)
        return FL_FAIL(err, FL_E_ARG, 0, "%s line %d: expected PATTERN TYPE, found %s%s", r->name,
                       number, word ? "a third word: " : "one word: ", word ? more : pattern);
    if (strlen(pattern) >= sizeof r->rule->pattern)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s line %d: a pattern of %zu characters; names have at most %zu", r->name,
                       number, strlen(pattern), sizeof r->rule->pattern - 1);
    const int type = type_of(word);
    if (type < 0)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s line %d: '%s' is no type that is written; expected one of %s, or keep",
                       r->name, number, word, fl_recipe_types);
    fl_rule *rule = add_rule(r);
    if (!rule) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its rules", r->name);
    snprintf(rule->pattern, sizeof rule->pattern, "%s", pattern);
    rule->type = (uint32_t)type;
    rule->line = number;
    return FL_OK;
}

static bool is_printable(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isprint((unsigned char)s[i]) && !strchr(separators, s[i] ? s[i] : 'x')) return false;
    return true;
}

fl_status fl_recipe_parse(fl_recipe *r, const char *name, const char *text, size_t n, fl_err *err)
{
    *r = (fl_recipe){.name = name};
    fl_status st = FL_OK;
    int number = 0;
    for (size_t at = 0; at < n && st == FL_OK;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t whole = end ? (size_t)(end - text) - at : n - at;
        const char *comment = memchr(text + at, '#', whole);
        const size_t used = comment ? (size_t)(comment - text) - at : whole;
        char line[MAX_LINE];
        number++;
        if (used >= sizeof line || !is_printable(text + at, used)) {
            st = FL_FAIL(err, FL_E_ARG, 0, "%s line %d: %s; expected PATTERN TYPE", name, number,
                         used >= sizeof line ? "thousands of characters"
                                             : "characters that are not plain text");
            break;
        }
        memcpy(line, text + at, used);
        line[used] = 0;
        st = parse_line(r, line, number, err);
        at += whole + 1;
    }
    if (st != FL_OK) fl_recipe_fini(r);
    return st;
}

void fl_recipe_fini(fl_recipe *r)
{
    free(r->rule);
    *r = (fl_recipe){0};
}

/* ---- built-in recipes ---- */

/* Which of n layers llama.cpp gives more bits to in its _M mixes. */
static bool gets_more(int i, int n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

/* What llama-quantize makes of this architecture with Q4_K_M. */
static fl_status like_llama(fl_recipe *r, const fl_index *ix, fl_err *err)
{
    const int n = ix->hp.n_layer + ix->hp.n_mtp;
    int n_attention = 0, seen = 0;
    fl_text t = {0};
    char line[96], *text = NULL;
    size_t bytes;
    fl_text_puts(&t, "output.weight q6_k\n*.attn_qkv.weight q5_k\n");
    for (int i = 0; i < n; i++) n_attention += fl_index_layer(ix, i)->full_attention;
    for (int i = 0; i < n; i++) {
        const bool attention = fl_index_layer(ix, i)->full_attention;
        if (attention && gets_more(seen++, n_attention)) {
            snprintf(line, sizeof line, "blk.%d.attn_v.weight q6_k\n", i);
            fl_text_puts(&t, line);
        }
        if (!gets_more(i, n)) continue;
        snprintf(line, sizeof line, "blk.%d.ffn_down_*.weight q6_k\n", i);
        fl_text_puts(&t, line);
    }
    fl_text_puts(&t, "* q4_k\n");
    FL_TRY(fl_text_take(&t, "recipe", &text, &bytes, err));
    const fl_status st = fl_recipe_parse(r, "q4_k_m", text, bytes, err);
    free(text);
    return st;
}

static fl_status open_built_in(fl_recipe *r, int i, const fl_index *ix, fl_err *err)
{
    const char *rules = built_in[i].rules;
    if (rules)
        FL_TRY(fl_recipe_parse(r, built_in[i].name, rules, strlen(rules), err));
    else
        FL_TRY(like_llama(r, ix, err));
    r->built_in = true;
    return FL_OK;
}

fl_status fl_recipe_of_type(fl_recipe *r, const char *type, const fl_index *ix, fl_err *err)
{
    for (int i = 0; i < N_BUILT_IN; i++)
        if (built_in[i].type && strcmp(type, built_in[i].type) == 0)
            return open_built_in(r, i, ix, err);
    return FL_FAIL(err, FL_E_ARG, 0, "--type %s: expected one of %s", type, fl_recipe_types);
}

fl_status fl_recipe_open(fl_recipe *r, const char *name_or_file, const fl_index *ix, fl_err *err)
{
    char names[160] = "";
    *r = (fl_recipe){0};
    for (int i = 0; i < N_BUILT_IN; i++) {
        if (strcmp(name_or_file, built_in[i].name) == 0) return open_built_in(r, i, ix, err);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                 built_in[i].name);
    }
    char *text;
    uint64_t n;
    fl_err why = {0};
    const fl_status st = fl_file_load(name_or_file, FILE_LIMIT, &text, &n, &why);
    if (st != FL_OK)
        return FL_FAIL(err, st, 0, "--recipe %s: none of %s, and as a file: %s", name_or_file,
                       names, why.msg);
    const fl_status parsed = fl_recipe_parse(r, name_or_file, text, n, err);
    free(text);
    return parsed;
}

/* ---- to a model's tensors ---- */

static uint32_t source_type(const fl_conv_tensor *t)
{
    return t->many ? t->many[0]->type : t->one->type;
}

static fl_status say(const fl_recipe *r, const fl_rule *rule, int matched, int fixed, int taken,
                     fl_text *notes, fl_err *err)
{
    char line[512];
    if (r->built_in) return FL_OK;
    if (matched == 0)
        return FL_FAIL(err, FL_E_ARG, 0, "%s line %d: no tensor of the output is named like '%s'",
                       r->name, rule->line, rule->pattern);
    if (taken == 0) {
        snprintf(line, sizeof line, "%s line %d: earlier lines took all that '%s' matches\n",
                 r->name, rule->line, rule->pattern);
        fl_text_puts(notes, line);
    }
    if (fixed > 0 && rule->type != FL_TYPE_F32 && strcmp(rule->pattern, "*") != 0) {
        snprintf(line, sizeof line,
                 "%s line %d: %d of %d tensors that '%s' matches stay f32 (norms, router, "
                 "convolutions, vectors)\n",
                 r->name, rule->line, fixed, matched, rule->pattern);
        fl_text_puts(notes, line);
    }
    return FL_OK;
}

fl_status fl_recipe_apply(const fl_recipe *r, fl_conv *c, bool *done, fl_text *notes, fl_err *err)
{
    for (int k = 0; k < r->n; k++) {
        const fl_rule *rule = &r->rule[k];
        int matched = 0, fixed = 0, taken = 0;
        for (int i = 0; i < c->n; i++) {
            fl_conv_tensor *t = &c->tensor[i];
            if (!fl_recipe_matches(rule->pattern, t->name)) continue;
            matched++;
            fixed += t->fixed;
            if (done[i]) continue;
            done[i] = true;
            taken++;
            fl_conv_set_type(t, rule->type == FL_RECIPE_KEEP ? source_type(t) : rule->type);
        }
        FL_TRY(say(r, rule, matched, fixed, taken, notes, err));
    }
    return FL_OK;
}
