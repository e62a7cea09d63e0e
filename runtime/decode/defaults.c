#include "runtime/decode/defaults.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What Clover's authors recommend; their published GGUF does not say it. */
static const double CLOVER_PRESENCE = 1.5, CLOVER_REPETITION = 1.0;

static const struct setting {
    const char *option, *hf, *gguf;
    double built_in;
    double least, most;
    bool penalty;
} settings[] = {
    [FL_SET_TEMP] = {"temp", "temperature", "general.sampling.temp", 0, 0, 100, false},
    [FL_SET_TOP_K] = {"top-k", "top_k", "general.sampling.top_k", 0, 0, 1e9, false},
    [FL_SET_TOP_P] = {"top-p", "top_p", "general.sampling.top_p", 1, 0x1p-149, 1, false},
    [FL_SET_MIN_P] = {"min-p", "min_p", "general.sampling.min_p", 0, 0, 1, false},
    [FL_SET_PRESENCE] = {"presence", "presence_penalty", "general.sampling.penalty_present", 0, -2,
                         2, true},
    [FL_SET_FREQUENCY] = {"frequency", "frequency_penalty", "general.sampling.penalty_freq", 0, -2,
                          2, true},
    [FL_SET_REPETITION] = {"repetition", "repetition_penalty", "general.sampling.penalty_repeat", 1,
                           0, 10, true},
};
enum { N_NUMBERS = sizeof settings / sizeof *settings };

static double get(const fl_sampler_config *c, int i)
{
    switch (i) {
    case FL_SET_TEMP: return c->temp;
    case FL_SET_TOP_K: return (double)c->top_k;
    case FL_SET_TOP_P: return c->top_p;
    case FL_SET_MIN_P: return c->min_p;
    case FL_SET_PRESENCE: return c->presence;
    case FL_SET_FREQUENCY: return c->frequency;
    default: return c->repetition;
    }
}

static void set(fl_sampler_config *c, int i, double v)
{
    switch (i) {
    case FL_SET_TEMP: c->temp = v; break;
    /* Some files write -1 for "off"; a cast of what is out of range would be undefined. */
    case FL_SET_TOP_K: c->top_k = v <= 0.0 ? 0 : v < 1e9 ? (int64_t)v : (int64_t)1e9; break;
    case FL_SET_TOP_P: c->top_p = v; break;
    case FL_SET_MIN_P: c->min_p = v; break;
    case FL_SET_PRESENCE: c->presence = v; break;
    case FL_SET_FREQUENCY: c->frequency = v; break;
    default: c->repetition = v; break;
    }
}

/* ---- from the file ---- */

/* NaN when the file does not say it, null and texts included. */
static double from_file(const fl_model *m, const struct setting *s)
{
    const fl_gguf *g = fl_source_gguf(m->src);
    const fl_json *j = fl_source_generation_config(m->src);
    if (g) return fl_kv_num(fl_gguf_find(g, s->gguf), NAN);
    if (!s->penalty && !fl_json_bool(fl_json_get(j, "do_sample"), true))
        return s == &settings[FL_SET_TEMP] ? 0.0 : NAN;
    return fl_json_num(fl_json_get(j, s->hf), NAN);
}

static void read_soft(fl_sampler_config *c, fl_origin *from, const fl_clover *sw)
{
    c->soft = (fl_soft_config){sw->soft_think, sw->soft_answer, (double)sw->soft_slope};
    if (sw->has_blocks) *from = sw->soft_from_file ? FL_FROM_FILE : FL_FROM_CLOVER;
}

void fl_defaults_read(fl_sampler_config *c, fl_origin from[FL_N_SETTINGS], const fl_model *model)
{
    const fl_clover *sw = &model->index->clover;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < FL_N_SETTINGS; i++) from[i] = FL_FROM_BUILT_IN;
    for (int i = 0; i < N_NUMBERS; i++) {
        const double v = from_file(model, &settings[i]);
        set(c, i, isnan(v) ? settings[i].built_in : v);
        if (!isnan(v)) from[i] = FL_FROM_FILE;
    }
    read_soft(c, &from[FL_SET_SOFT], sw);
    c->raw_confidence = sw->conf == FL_CONF_RAW;
    if (!sw->has_blocks) return;
    static const struct {
        fl_setting setting;
        const double *value;
    } clover[] = {{FL_SET_PRESENCE, &CLOVER_PRESENCE}, {FL_SET_REPETITION, &CLOVER_REPETITION}};
    for (int i = 0; i < 2; i++) {
        if (from[clover[i].setting] == FL_FROM_FILE) continue;
        set(c, (int)clover[i].setting, *clover[i].value);
        from[clover[i].setting] = FL_FROM_CLOVER;
    }
}

fl_status fl_defaults_check(const fl_sampler_config *c, const fl_origin from[FL_N_SETTINGS],
                            const fl_model *model, fl_err *err)
{
    const bool gguf = fl_source_gguf(model->src) != NULL;
    for (int i = 0; i < N_NUMBERS; i++) {
        const struct setting *s = &settings[i];
        const double v = get(c, i);
        if (from[i] != FL_FROM_FILE || (v >= s->least && v <= s->most)) continue;
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s%s: %s is %g, expected %s%g to %g; --%s overrides it",
                       fl_source_paths(model->src)[0], gguf ? "" : " (generation_config.json)",
                       gguf ? s->gguf : s->hf, v, i == FL_SET_TOP_P ? "above " : "",
                       i == FL_SET_TOP_P ? 0.0 : s->least, s->most, s->option);
    }
    return FL_OK;
}

/* ---- in words ---- */

typedef struct line {
    char *p;
    size_t n, used;
} line;

__attribute__((format(printf, 3, 4))) static void put(line *l, fl_origin from, const char *form,
                                                      ...)
{
    static const char *const name[] = {"built in", "file", "Clover's default", "option"};
    char text[128];
    va_list ap;
    va_start(ap, form);
    vsnprintf(text, sizeof text, form, ap);
    va_end(ap);
    if (l->used >= l->n) return;
    const int k = snprintf(l->p + l->used, l->n - l->used, "%s%s (%s)", l->used ? ", " : "", text,
                           name[from]);
    l->used += k > 0 ? (size_t)k : 0;
}

void fl_defaults_describe(const fl_sampler_config *c, const fl_origin from[FL_N_SETTINGS],
                          char *buf, size_t n)
{
    line l = {buf, n, 0};
    if (n > 0) *buf = 0;
    if (c->temp <= 0.0) put(&l, from[FL_SET_TEMP], "temp 0: greedy");
    for (int i = c->temp <= 0.0 ? FL_SET_PRESENCE : 0; i < N_NUMBERS; i++) {
        const double v = get(c, i);
        if (v != settings[i].built_in || from[i] != FL_FROM_BUILT_IN)
            put(&l, from[i], "%s %g", settings[i].option, v);
    }
    if (c->n_bias > 0) put(&l, FL_FROM_USER, "%d logit biases", c->n_bias);
    if (c->soft.slope > 0.0 && (c->soft.think > 0 || c->soft.answer > 0))
        put(&l, from[FL_SET_SOFT], "ends pushed from %lld tokens of thinking, %lld of answer on",
            (long long)c->soft.think, (long long)c->soft.answer);
    if (c->temp > 0.0 && l.used < n)
        snprintf(buf + l.used, n - l.used, ", seed %llu", (unsigned long long)c->seed);
}
