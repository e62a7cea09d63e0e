#include "runtime/tools/sensitivity_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"

enum { FILE_LIMIT = 16 << 20, MAX_LINE = 256 };

/* Measured on clover-tiny: the mean of a kind's tensors. */
static const struct {
    const char *role; /* what stands behind blk.N. */
    double nats;
} usual[] = {
    {"token_embd.weight", 1.0e-2},     {"output.weight", 4.7e-3},
    {"attn_qkv.weight", 2.8e-3},       {"attn_gate.weight", 8.2e-4},
    {"ssm_alpha.weight", 8.1e-5},      {"ssm_beta.weight", 8.1e-5},
    {"ssm_bwd_alpha.weight", 8.1e-5},  {"ssm_bwd_beta.weight", 8.1e-5},
    {"ssm_out.weight", 3.1e-3},        {"attn_q.weight", 1.6e-3},
    {"attn_k.weight", 3.5e-4},         {"attn_v.weight", 9.3e-4},
    {"attn_output.weight", 1.1e-3},    {"ffn_gate_exps.weight", 5.7e-5},
    {"ffn_up_exps.weight", 2.9e-5},    {"ffn_down_exps.weight", 2.9e-4},
    {"ffn_gate_shexp.weight", 1.7e-5}, {"ffn_up_shexp.weight", 9.1e-6},
    {"ffn_down_shexp.weight", 2.4e-5},
};
/* An MTP block only drafts: a worse one costs speed, never quality. */
#define MTP_NATS 1e-5

static double usual_nats(const char *name)
{
    const char *role = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    role = role ? role + 1 : name;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (strcmp(role, usual[i].role) == 0) return usual[i].nats;
    return MTP_NATS;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct fl_sensitivity_line *)a)->name,
                  ((const struct fl_sensitivity_line *)b)->name);
}

static fl_status add(fl_sensitivity *s, const char *name, int number, char *text, fl_err *err)
{
    static const char blanks[] = " \t\r";
    char *save = NULL, *end = NULL;
    const char *tensor = strtok_r(text, blanks, &save);
    const char *value = tensor ? strtok_r(NULL, blanks, &save) : NULL;
    if (!tensor) return FL_OK;
    const double nats = value ? strtod(value, &end) : NAN;
    if (!value || strtok_r(NULL, blanks, &save) || end == value || *end || !isfinite(nats) ||
        nats < 0 || strlen(tensor) >= FL_CONV_NAME)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s line %d: expected a tensor's name and a number that is 0 or more", name,
                       number);
    if (s->n == s->cap) {
        const int cap = s->cap ? 2 * s->cap : 128;
        struct fl_sensitivity_line *line = realloc(s->line, (size_t)cap * sizeof *line);
        if (!line) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its lines", name);
        s->line = line;
        s->cap = cap;
    }
    snprintf(s->line[s->n].name, sizeof s->line->name, "%s", tensor);
    s->line[s->n++].nats = nats;
    return FL_OK;
}

/* How much larger the file's values are than the usual ones of the same tensors. */
static double ratio(const fl_sensitivity *s)
{
    double file = 0, other = 0;
    for (int i = 0; i < s->n; i++) {
        file += s->line[i].nats;
        other += usual_nats(s->line[i].name);
    }
    return file > 0 ? file / other : 1;
}

fl_status fl_sensitivity_parse(fl_sensitivity *s, const char *name, const char *text, size_t n,
                               fl_err *err)
{
    fl_status st = FL_OK;
    int number = 0;
    *s = (fl_sensitivity){.scale = 1};
    for (size_t at = 0; at < n && st == FL_OK;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t whole = end ? (size_t)(end - text) - at : n - at;
        const char *comment = memchr(text + at, '#', whole);
        const size_t used = comment ? (size_t)(comment - text) - at : whole;
        char line[MAX_LINE];
        number++;
        if (used >= sizeof line || memchr(text + at, 0, used)) {
            st = FL_FAIL(err, FL_E_FORMAT, 0, "%s line %d: no plain text, or too long", name,
                         number);
            break;
        }
        memcpy(line, text + at, used);
        line[used] = 0;
        st = add(s, name, number, line, err);
        at += whole + 1;
    }
    if (s->n > 1) qsort(s->line, (size_t)s->n, sizeof *s->line, by_name);
    for (int i = 1; i < s->n && st == FL_OK; i++)
        if (strcmp(s->line[i].name, s->line[i - 1].name) == 0)
            st = FL_FAIL(err, FL_E_FORMAT, 0, "%s: %s stands there twice", name, s->line[i].name);
    s->scale = ratio(s);
    if (st != FL_OK) fl_sensitivity_fini(s);
    return st;
}

fl_status fl_sensitivity_load(fl_sensitivity *s, const char *path, fl_err *err)
{
    char *text;
    uint64_t n;
    *s = (fl_sensitivity){0};
    FL_TRY(fl_file_load(path, FILE_LIMIT, &text, &n, err));
    const fl_status st = fl_sensitivity_parse(s, path, text, n, err);
    free(text);
    return st;
}

void fl_sensitivity_fini(fl_sensitivity *s)
{
    free(s->line);
    *s = (fl_sensitivity){0};
}

double fl_sensitivity_of(const fl_sensitivity *s, const fl_conv_tensor *t, bool *known)
{
    struct fl_sensitivity_line key;
    snprintf(key.name, sizeof key.name, "%s", t->name);
    const struct fl_sensitivity_line *l =
        s && s->n ? bsearch(&key, s->line, (size_t)s->n, sizeof key, by_name) : NULL;
    *known = l != NULL;
    if (l) return l->nats;
    return (t->class == FL_CONV_MTP ? MTP_NATS : usual_nats(t->name)) * (s && s->n ? s->scale : 1);
}
