#include "runtime/model/wiring.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/model/index_parts.h"

enum { VERSION = 1, MAX_MAP_BYTES = 1 << 20 };

/* ---- roles -------------------------------------------------------------------------------- */

fl_status fl_role_map_put(fl_role_map *r, const char *role, const char *name, const char *what,
                          fl_err *err)
{
    const char *star = strchr(name, '*');
    if (!fl_role_known(role))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: '%.60s' is no role; roles are what a GGUF file calls a layer's tensor "
                       "behind blk.N., as ssm_bwd_alpha.weight",
                       what, role);
    if (!star || strchr(star + 1, '*') || strlen(name) >= FL_ROLE_BYTES)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: '%.60s': expected a tensor's name of at most %d bytes with one * in "
                       "place of the layer's number",
                       what, name, FL_ROLE_BYTES - 1);
    if (fl_role_map_get(r, role) || r->n == FL_ROLE_MAP_ROOM)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: role '%s' is given twice", what, role);
    fl_role_name *x = &r->item[r->n++];
    snprintf(x->role, sizeof x->role, "%s", role);
    snprintf(x->name, sizeof x->name, "%s", name);
    return FL_OK;
}

const char *fl_role_map_get(const fl_role_map *r, const char *role)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->item[i].role, role) == 0) return r->item[i].name;
    return NULL;
}

/* The next word of a line into buf (cut to its size), *at behind it; false at the end. */
static bool next_word(const char **at, const char *end, char *buf, size_t size)
{
    size_t n = 0;
    while (*at < end && isspace((unsigned char)**at)) (*at)++;
    if (*at == end || **at == '#') return false;
    for (; *at < end && !isspace((unsigned char)**at); (*at)++)
        if (n + 1 < size) buf[n++] = **at ? **at : '?';
    buf[n] = 0;
    return true;
}

fl_status fl_role_map_parse(fl_role_map *r, const char *text, size_t n, const char *what,
                            fl_err *err)
{
    *r = (fl_role_map){0};
    const char *const end = text + n;
    int line = 1;
    for (const char *at = text; at < end; at++, line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        char role[FL_ROLE_BYTES + 1], name[FL_ROLE_BYTES + 1], more[8], where[300];
        if (!stop) stop = end;
        snprintf(where, sizeof where, "%.250s, line %d", what, line);
        if (next_word(&at, stop, role, sizeof role)) {
            if (!next_word(&at, stop, name, sizeof name) || next_word(&at, stop, more, sizeof more))
                return FL_FAIL(err, FL_E_FORMAT, 0, "%s: expected two words, ROLE NAME", where);
            FL_TRY(fl_role_map_put(r, role, name, where, err));
        }
        at = stop;
    }
    return FL_OK;
}

fl_status fl_role_map_load(fl_role_map *r, const char *path, fl_err *err)
{
    char *text = NULL;
    uint64_t n = 0;
    FL_TRY(fl_file_load(path, MAX_MAP_BYTES, &text, &n, err));
    const fl_status st = fl_role_map_parse(r, text, n, path, err);
    free(text);
    return st;
}

/* ---- the wiring --------------------------------------------------------------------------- */

fl_wiring fl_wiring_none(void)
{
    return (fl_wiring){.norm_add_one = -1, .a_is_log = -1, .v_grouped = -1};
}

fl_json *fl_wiring_to_json(const fl_wiring *w)
{
    const fl_clover *c = &w->clover;
    fl_json *j = fl_json_new_object(), *file = fl_json_new_object();
    fl_json *roles = fl_json_new_object(), *clover = fl_json_new_object();
    fl_json_set_int(j, "version", VERSION);
    if (w->norm_add_one >= 0) fl_json_set_bool(file, "norms_zero_centred", w->norm_add_one);
    if (w->a_is_log >= 0) fl_json_set_bool(file, "decay_as_log", w->a_is_log);
    if (w->v_grouped >= 0) fl_json_set_bool(file, "value_heads_grouped", w->v_grouped);
    fl_json_set(j, "file", file);
    for (int i = 0; i < w->roles.n; i++)
        fl_json_set_str(roles, w->roles.item[i].role, w->roles.item[i].name);
    fl_json_set(j, "roles", roles);
    if (c->has_blocks) {
        fl_json_set_int(clover, "mask_token_id", c->mask_id);
        fl_json_set_int(clover, "pred_shift", c->pred_shift);
        fl_json_set_int(clover, "expert_pool_size", c->pool_c);
        for (const fl_switch *s = fl_switches; s->name; s++)
            fl_json_set_str(clover, s->name, fl_clover_word(c, s->name));
    }
    fl_json_set(j, "clover", clover);
    fl_json_set_bool(j, "earned", c->verdict == 1);
    return j;
}

static int flag(const fl_json *file, const char *name)
{
    const fl_json *v = fl_json_get(file, name);
    return v ? fl_json_bool(v, false) : -1;
}

static bool read_clover(fl_clover *c, const fl_json *j)
{
    const int64_t mask = fl_json_int(fl_json_get(j, "mask_token_id"), -1);
    const int64_t shift = fl_json_int(fl_json_get(j, "pred_shift"), -1);
    const int64_t pool = fl_json_int(fl_json_get(j, "expert_pool_size"), -1);
    if (fl_json_size(j) == 0) return true; /* a model without blocks */
    if (mask < 0 || mask > INT32_MAX || (shift != 0 && shift != 1) || pool < 1 || pool > 4096)
        return false;
    for (const fl_switch *s = fl_switches; s->name; s++)
        if (!fl_clover_set(c, s->name, fl_json_str(fl_json_get(j, s->name), ""))) return false;
    c->has_blocks = true;
    c->mask_id = (int32_t)mask;
    c->pred_shift = (int)shift;
    c->pool_c = (int)pool;
    return true;
}

bool fl_wiring_from_json(fl_wiring *w, const fl_json *section)
{
    fl_err err = {0};
    void *iter = NULL;
    const char *role;
    const fl_json *name, *file = fl_json_get(section, "file");
    *w = fl_wiring_none();
    bool ok = fl_json_int(fl_json_get(section, "version"), 0) == VERSION;
    w->norm_add_one = flag(file, "norms_zero_centred");
    w->a_is_log = flag(file, "decay_as_log");
    w->v_grouped = flag(file, "value_heads_grouped");
    while (ok && fl_json_next(fl_json_get(section, "roles"), &iter, &role, &name))
        ok = fl_role_map_put(&w->roles, role, fl_json_str(name, ""), "facts", &err) == FL_OK;
    ok = ok && read_clover(&w->clover, fl_json_get(section, "clover"));
    w->clover.verdict = fl_json_bool(fl_json_get(section, "earned"), false);
    w->probed = ok;
    if (!ok) *w = fl_wiring_none();
    return ok;
}

const char *fl_wiring_text(const fl_wiring *w, char buf[256])
{
    const fl_clover *c = &w->clover;
    if (!c->has_blocks) {
        snprintf(buf, 256, "no block diffusion");
        return buf;
    }
    const bool bidir = c->gdn_block_mode == FL_GDN_BIDIR;
    snprintf(buf, 256,
             "mask token %d, row %s predicts row i, GDN %s%s%s%s%s, blocks %s, commits %s",
             (int)c->mask_id, c->pred_shift ? "i-1" : "i", fl_clover_word(c, "gdn_block_mode"),
             bidir ? " " : "", bidir ? fl_clover_word(c, "gdn_scan") : "", bidir ? " " : "",
             bidir ? fl_clover_word(c, "gdn_combine") : "", fl_clover_word(c, "block_align"),
             fl_clover_word(c, "commit_mode"));
    return buf;
}
