#include "runtime/tools/probe_roles.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ROLES = 6, N_GROUPS = 3, MOST = 3 };

/* Roles of one shape stand together. `hints`: what a name says that has this role. */
static const struct {
    const char *role, *hints[4];
} branch[N_ROLES] = {
    {"ssm_bwd_alpha.weight", {"alpha", "proj_a", "a_proj"}},
    {"ssm_bwd_beta.weight", {"beta", "proj_b", "b_proj"}},
    {"ssm_bwd_conv1d.weight", {"conv"}},
    {"ssm_bwd_a", {"A_log", "a_log", "decay"}},
    {"ssm_bwd_dt.bias", {"dt"}},
    {"ssm_bwd_mix", {"mix", "scale", "gate"}},
};
static const struct {
    int first, n;
} group[N_GROUPS] = {{0, 2}, {2, 1}, {3, 3}};

/* The name with '*' for its first number, which must be a GDN layer's. */
static bool make_pattern(const fl_index *ix, const char *name, char buf[FL_ROLE_BYTES])
{
    const char *at = name;
    while (*at && !isdigit((unsigned char)*at)) at++;
    char *end = NULL;
    const long layer = strtol(at, &end, 10);
    if (end == at || layer < 0 || layer >= ix->hp.n_layer || ix->layer[layer].full_attention)
        return false;
    const int n = snprintf(buf, FL_ROLE_BYTES, "%.*s*%s", (int)(at - name), name, end);
    return n < FL_ROLE_BYTES && !strchr(end, '*');
}

static void list_patterns(fl_probe_roles *r, const fl_index *ix)
{
    for (int i = 0; i < ix->n_extra; i++) {
        char name[FL_ROLE_BYTES];
        int at = 0;
        if (!make_pattern(ix, ix->extra[i]->name, name)) continue;
        while (at < r->n_patterns && strcmp(r->pattern[at].name, name) != 0) at++;
        if (at == FL_PROBE_PATTERNS) return;
        fl_probe_pattern *p = &r->pattern[at];
        if (at == r->n_patterns) {
            memcpy(p->name, name, sizeof name);
            p->first = ix->extra[i];
            r->n_patterns++;
        }
        p->count++;
    }
}

static bool hinted(int role, const char *name)
{
    for (int h = 0; h < 4 && branch[role].hints[h]; h++)
        if (strstr(name, branch[role].hints[h])) return true;
    return false;
}

/* Whether the pattern's name speaks for another role of the group than `role`, and not for it. */
static bool contradicts(int g, int role, const char *name)
{
    bool other = false;
    for (int i = group[g].first; i < group[g].first + group[g].n; i++)
        other |= i != role && hinted(i, name);
    return other && !hinted(role, name);
}

/* A decay -exp(A_log) is never positive. */
static fl_status may_be_decay(const fl_index *ix, const fl_tensor *t, bool *may, fl_err *err)
{
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    const fl_type_info *ti = fl_type_get(t->type);
    *may = ti && ti->readable && n % ti->block_elems == 0;
    if (!*may || ix->hp.a_is_log) return FL_OK;
    uint8_t *raw = malloc(t->bytes + 1);
    float *v = malloc((size_t)n * sizeof *v + 1);
    fl_status st = FL_OK;
    if (!raw || !v) st = FL_FAIL(err, FL_E_NOMEM, 0, "tensor %s: no memory", t->name);
    if (st == FL_OK) st = fl_source_read(ix->src, t, 0, raw, t->bytes, err);
    if (st == FL_OK) ti->dequantize(raw, v, n);
    for (int64_t i = 0; st == FL_OK && i < n; i++) *may &= v[i] <= 0;
    free(raw);
    free(v);
    return st;
}

/* Orders of up to three things. */
static const int orders[6][MOST] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* The patterns of a group's shape, and which orders of them are possible. */
typedef struct choices {
    const fl_probe_pattern *p[MOST];
    bool may_be_decay[MOST];
    int n;
} choices;

static bool possible(const choices *c, int g, const int *order)
{
    for (int i = 0; i < group[g].n; i++) {
        const int role = group[g].first + i, at = order[i];
        if (at >= group[g].n || contradicts(g, role, c->p[at]->name)) return false;
        if (strcmp(branch[role].role, "ssm_bwd_a") == 0 && !c->may_be_decay[at]) return false;
    }
    for (int i = group[g].n; i < MOST; i++)
        if (order[i] != i) return false; /* the same order again */
    return true;
}

static fl_status find_choices(choices *c, const fl_probe_roles *r, const fl_index *ix, int g,
                              fl_err *err)
{
    int layers = 0;
    for (int i = 0; i < ix->hp.n_layer; i++) layers += !ix->layer[i].full_attention;
    *c = (choices){.n = 0};
    for (int i = 0; i < r->n_patterns; i++) {
        const fl_probe_pattern *p = &r->pattern[i];
        if (p->count != layers || !fl_index_role_fits(ix, branch[group[g].first].role, p->first))
            continue;
        if (c->n < MOST) {
            c->p[c->n] = p;
            FL_TRY(may_be_decay(ix, p->first, &c->may_be_decay[c->n], err));
        }
        c->n++;
    }
    return FL_OK;
}

fl_status fl_probe_roles_guess(fl_probe_roles *r, const fl_index *ix, fl_err *err)
{
    choices c[N_GROUPS];
    memset(r, 0, sizeof *r);
    list_patterns(r, ix);
    for (int g = 0; g < N_GROUPS; g++) {
        FL_TRY(find_choices(&c[g], r, ix, g, err));
        if (c[g].n != group[g].n) return FL_OK;
    }
    for (int a = 0; a < 6; a++)
        for (int b = 0; b < 6; b++) {
            if (!possible(&c[0], 0, orders[a]) || !possible(&c[2], 2, orders[b])) continue;
            fl_role_map *m = &r->option[r->n_options++];
            for (int i = 0; i < N_ROLES; i++) {
                const char *name = i < 2    ? c[0].p[orders[a][i]]->name
                                   : i == 2 ? c[1].p[0]->name
                                            : c[2].p[orders[b][i - 3]]->name;
                FL_TRY(fl_role_map_put(m, branch[i].role, name, "guessed roles", err));
            }
        }
    return FL_OK;
}

const char *fl_probe_roles_text(const fl_index *ix, const fl_tensor *t, char buf[160])
{
    size_t n = 0;
    buf[0] = 0;
    for (int i = 0; i < N_ROLES; i++)
        if (fl_index_role_fits(ix, branch[i].role, t))
            n += (size_t)snprintf(buf + n, 160 - n, "%s%s", n ? " or " : "", branch[i].role);
    return buf;
}
