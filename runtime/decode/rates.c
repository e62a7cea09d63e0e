#include "runtime/decode/rates.h"

#include <stdio.h>
#include <string.h>

void fl_rates_key(char key[FL_RATES_KEY], const fl_engine *e)
{
    const fl_plan *p = &e->plan;
    const double share = p->n_total > 0 ? (double)p->n_resident / p->n_total : 1.0;
    snprintf(key, FL_RATES_KEY, "%s, %s, %d threads, kv %s, act %s, %d %% of experts resident",
             fl_device_kind(e->dev), e->exec.k.name, fl_pool_threads(e->exec.pool),
             fl_type_get(e->params.kv_type)->name, e->exec.act_f32 ? "f32" : "law",
             5 * (int)(20.0 * share + 0.5));
}

fl_mode_facts fl_rates_read(const fl_facts *f, const char *key)
{
    fl_mode_facts m = fl_mode_facts_none();
    const fl_json *earned = fl_json_get(fl_facts_section(f, "probe"), "earned");
    const fl_json *rates = fl_json_get(fl_facts_section(f, "rates"), key);
    if (fl_json_kind_of(earned) == FL_JSON_BOOL) m.earned = fl_json_bool(earned, false);
    for (int i = FL_GEN_AR; i < FL_GEN_MODES; i++) {
        const fl_json *per_s = fl_json_get(rates, "tokens_per_s");
        m.per_s[i] = fl_json_num(fl_json_get(per_s, fl_gen_mode_name((fl_gen_mode)i)), 0.0);
    }
    return m;
}

fl_status fl_rates_store(fl_facts *f, const char *key, fl_json *entry, fl_err *err)
{
    const fl_json *now = fl_facts_section(f, "rates");
    fl_json *section = now ? fl_json_copy(now) : fl_json_new_object();
    fl_json_set(section, key, entry);
    return fl_facts_put(f, "rates", section, err);
}

uint64_t fl_rates_pass_ns(const fl_facts *f, const char *key, const char *kind)
{
    const fl_json *passes = fl_json_get(fl_json_get(fl_facts_section(f, "rates"), key), "passes");
    for (size_t i = 0; i < fl_json_size(passes); i++) {
        const fl_json *p = fl_json_at(passes, i);
        const double s = fl_json_num(fl_json_get(p, "seconds"), 0.0);
        if (strcmp(fl_json_str(fl_json_get(p, "kind"), ""), kind) == 0 && s > 0.0 && s < 1e6)
            return (uint64_t)(s * 1e9);
    }
    return 0;
}

bool fl_rates_pass(const fl_facts *f, fl_gen_mode mode, fl_predict_pass *out)
{
    void *iter = NULL;
    const char *key;
    const fl_json *entry;
    while (fl_json_next(fl_facts_section(f, "rates"), &iter, &key, &entry)) {
        const fl_json *m = fl_json_get(fl_json_get(entry, "modes"), fl_gen_mode_name(mode));
        const int64_t passes = fl_json_int(fl_json_get(m, "passes"), 0);
        const int64_t tokens = fl_json_int(fl_json_get(m, "tokens"), 0);
        const int64_t rows = fl_json_int(fl_json_get(m, "rows"), 0);
        const int64_t most = INT32_MAX;
        if (passes <= 0 || rows < passes || rows > most || tokens <= 0 || tokens > most) continue;
        out->rows = (int)(rows / passes);
        out->tokens_milli = tokens * 1000 / passes;
        return true;
    }
    return false;
}
