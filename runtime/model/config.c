#include "runtime/model/config.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Spellings seen in files, lower case and without '_', '-' and '.'. */
static const struct {
    const char *spelling, *arch;
} aliases[] = {
    {"qwen35moe", "qwen35moe"},  {"qwen35moetext", "qwen35moe"},  {"qwen36moe", "qwen35moe"},
    {"clovermoe", "clover_moe"}, {"clovermoetext", "clover_moe"}, {"clover", "clover_moe"},
};

static const char *resolve(const char *spelling)
{
    char plain[64];
    size_t n = 0;
    for (; *spelling && n < sizeof plain - 1; spelling++)
        if (!strchr("_-.", *spelling)) plain[n++] = (char)tolower((unsigned char)*spelling);
    plain[n] = 0;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(plain, aliases[i].spelling) == 0) return aliases[i].arch;
    return NULL;
}

const char *fl_config_arch_spelling(const fl_source *src, char buf[64])
{
    const fl_gguf *g = fl_source_gguf(src);
    const fl_json *config = fl_source_config(src);
    if (g) {
        const fl_str s = fl_kv_str(fl_gguf_find(g, "general.architecture"));
        snprintf(buf, 64, "%.*s", (int)(s.n < 63 ? s.n : 63), s.p ? s.p : "");
    } else {
        const char *top = fl_json_str(fl_json_get(config, "model_type"), NULL);
        const fl_json *text = fl_json_get(config, "text_config");
        snprintf(buf, 64, "%.63s", top ? top : fl_json_str(fl_json_get(text, "model_type"), ""));
    }
    return buf;
}

fl_status fl_config_open(fl_config *c, const fl_source *src, fl_err *err)
{
    char spelling[64];
    *c = (fl_config){.src = src, .gguf = fl_source_gguf(src), .top = fl_source_config(src)};
    c->path = fl_source_paths(src)[0];
    if (!c->gguf && !c->top)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: config.json is missing beside it; download it into the same folder",
                       c->path);
    const fl_json *text = fl_json_get(c->top, "text_config");
    c->text = text && fl_json_kind_of(text) == FL_JSON_OBJECT ? text : c->top;
    fl_config_arch_spelling(src, spelling);
    if (!*spelling)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: does not say its architecture (%s is missing); expected qwen35moe or "
                       "clover_moe",
                       c->path, c->gguf ? "key general.architecture" : "model_type in config.json");
    const char *arch = resolve(spelling);
    if (!arch)
        return FL_FAIL(
            err, FL_E_UNSUPPORTED, 0,
            "%s: architecture '%s' does not run here; take a model of architecture "
            "qwen35moe (Qwen3.5-35B-A3B, Qwen3.6-35B-A3B) or clover_moe (Clover-35B-A3B)",
            c->path, spelling);
    snprintf(c->arch, sizeof c->arch, "%s", arch);
    snprintf(c->prefix[0], sizeof c->prefix[0], "%s.", spelling);
    snprintf(c->prefix[1], sizeof c->prefix[1], "%s.", arch);
    snprintf(c->prefix[2], sizeof c->prefix[2], "qwen35moe.");
    return FL_OK;
}

const fl_kv *fl_config_kv(const fl_config *c, const char *name)
{
    char key[160];
    for (int i = 0; c->gguf && name && i < 3; i++) {
        snprintf(key, sizeof key, "%s%s", c->prefix[i], name);
        const fl_kv *kv = fl_gguf_find(c->gguf, key);
        if (kv) return kv;
    }
    return NULL;
}

const fl_json *fl_config_json(const fl_config *c, const char *name)
{
    if (!name || c->gguf) return NULL;
    const fl_json *v = fl_json_get(c->text, name);
    if (!v || fl_json_kind_of(v) == FL_JSON_NULL) v = fl_json_get(c->top, name);
    return v && fl_json_kind_of(v) != FL_JSON_NULL ? v : NULL;
}

/* Largest element of an array of integers. */
static bool max_of_array(const fl_kv *kv, int64_t *v)
{
    bool any = false;
    for (uint64_t i = 0; i < kv->count; i++) {
        const int64_t e = fl_kv_int_at(kv, i, INT64_MIN);
        if (e == INT64_MIN) return false;
        if (!any || e > *v) *v = e;
        any = true;
    }
    return any;
}

bool fl_config_int(const fl_config *c, const char *gguf, const char *hf, int64_t *v)
{
    const fl_kv *kv = fl_config_kv(c, gguf);
    if (kv && kv->type == FL_GGUF_ARRAY) return max_of_array(kv, v);
    if (kv) {
        const int64_t a = fl_kv_int(kv, INT64_MIN);
        if (a != INT64_MIN) *v = a;
        return a != INT64_MIN;
    }
    const fl_json *j = fl_config_json(c, hf);
    if (!j || fl_json_kind_of(j) != FL_JSON_INT) return false;
    *v = fl_json_int(j, 0);
    return true;
}

bool fl_config_num(const fl_config *c, const char *gguf, const char *hf, double *v)
{
    const fl_kv *kv = fl_config_kv(c, gguf);
    const fl_json *j = fl_config_json(c, hf);
    const double a = kv ? fl_kv_num(kv, NAN) : fl_json_num(j, NAN);
    if (!isfinite(a)) return false;
    *v = a;
    return true;
}

bool fl_config_bool(const fl_config *c, const char *gguf, const char *hf, bool *v)
{
    const fl_kv *kv = fl_config_kv(c, gguf);
    const fl_json *j = fl_config_json(c, hf);
    if (kv && kv->type == FL_GGUF_BOOL) {
        *v = fl_kv_bool(kv, false);
        return true;
    }
    if (!j || fl_json_kind_of(j) != FL_JSON_BOOL) return false;
    *v = fl_json_bool(j, false);
    return true;
}

bool fl_config_str(const fl_config *c, const char *gguf, const char *hf, char buf[64])
{
    const fl_str s = fl_kv_str(fl_config_kv(c, gguf));
    const char *j = fl_json_str(fl_config_json(c, hf), NULL);
    if (!s.p && !j) return false;
    if (s.p)
        snprintf(buf, 64, "%.*s", (int)(s.n < 63 ? s.n : 63), s.p);
    else
        snprintf(buf, 64, "%.63s", j);
    return true;
}
