#include "runtime/model/clover.h"

#include <string.h>

#include "runtime/model/config.h"

/* The definition's own id, used when the file does not name one. */
enum { DEFAULT_MASK_ID = 248077 };

static const struct {
    const char *name;
    fl_gdn_block_mode mode;
} gdn_modes[] = {{"causal", FL_GDN_CAUSAL},
                 {"blockend", FL_GDN_BLOCKEND},
                 {"mixed", FL_GDN_MIXED},
                 {"bidir", FL_GDN_BIDIR}};

bool fl_gdn_block_mode_parse(const char *name, fl_gdn_block_mode *out)
{
    for (size_t i = 0; i < sizeof gdn_modes / sizeof *gdn_modes; i++) {
        if (strcmp(name, gdn_modes[i].name) != 0) continue;
        *out = gdn_modes[i].mode;
        return true;
    }
    return false;
}

const char *fl_gdn_block_mode_name(fl_gdn_block_mode m)
{
    for (size_t i = 0; i < sizeof gdn_modes / sizeof *gdn_modes; i++)
        if (gdn_modes[i].mode == m) return gdn_modes[i].name;
    return "unknown";
}

static fl_status bad(const fl_config *c, const char *name, const char *found, const char *allowed,
                     fl_err *err)
{
    return FL_FAIL(err, FL_E_FORMAT, 0, "%s: %s.%s is '%s', expected %s", c->path, c->arch, name,
                   found, allowed);
}

/* An integer setting within [least, most]; *v keeps its default when absent. */
static fl_status read_int(const fl_config *c, const char *name, int64_t least, int64_t most,
                          int64_t *v, fl_err *err)
{
    int64_t a;
    if (!fl_config_int(c, name, name, &a)) return FL_OK;
    if (a < least || a > most)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: %s.%s is %lld, expected %lld to %lld: the file is damaged", c->path,
                       c->arch, name, (long long)a, (long long)least, (long long)most);
    *v = a;
    return FL_OK;
}

/* One of two words; *second keeps its default when the setting is absent. */
static fl_status read_word(const fl_config *c, const char *name, const char *first,
                           const char *other, bool *second, fl_err *err)
{
    char word[64];
    if (!fl_config_str(c, name, name, word)) return FL_OK;
    if (strcmp(word, first) != 0 && strcmp(word, other) != 0)
        return bad(c, name, word, "one of the two words of clover.h", err);
    *second = strcmp(word, other) == 0;
    return FL_OK;
}

static fl_status read_numbers(fl_clover *k, const fl_config *c, fl_err *err)
{
    int64_t block = 32, mask = DEFAULT_MASK_ID, shift = 0, pool = 0;
    double threshold = 0.95;
    FL_TRY(read_int(c, "block_size", 1, 1024, &block, err));
    FL_TRY(read_int(c, "mask_token_id", 0, INT32_MAX, &mask, err));
    FL_TRY(read_int(c, "pred_shift", 0, 1, &shift, err));
    FL_TRY(read_int(c, "expert_pool_size", 0, 4096, &pool, err));
    fl_config_num(c, "confidence_threshold", "confidence_threshold", &threshold);
    if (!(threshold > 0 && threshold <= 1))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: %s.confidence_threshold is %g, expected above 0, at most 1", c->path,
                       c->arch, threshold);
    k->block_size = (int)block;
    k->mask_id = (int32_t)mask;
    k->pred_shift = (int)shift;
    k->threshold = (float)threshold;
    k->pool = pool > 0 ? FL_POOL_MAX : FL_POOL_OFF;
    if (pool > 0) k->pool_c = (int)pool;
    return FL_OK;
}

/* How a text that gets long is pushed to its end. Known is that the authors do it, and from which
 * lengths on; how steeply is ours. */
static fl_status read_soft_ends(fl_clover *k, const fl_config *c, fl_err *err)
{
    int64_t think = -1, answer = -1;
    double slope = -1;
    FL_TRY(read_int(c, "soft_think_tokens", 0, 1 << 20, &think, err));
    FL_TRY(read_int(c, "soft_answer_tokens", 0, 1 << 20, &answer, err));
    const bool steep = fl_config_num(c, "soft_slope", "soft_slope", &slope);
    if (steep && !(slope >= 0 && slope <= 10))
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: %s.soft_slope is %g, expected 0 (off) to 10",
                       c->path, c->arch, slope);
    k->soft_from_file = steep || think >= 0 || answer >= 0;
    k->soft_think = think >= 0 ? (int)think : FL_SOFT_THINK;
    k->soft_answer = answer >= 0 ? (int)answer : FL_SOFT_ANSWER;
    k->soft_slope = steep ? (float)slope : FL_SOFT_SLOPE;
    return FL_OK;
}

static fl_status read_words(fl_clover *k, const fl_config *c, fl_err *err)
{
    bool relative = false, bidir = false, raw = false;
    char word[64];
    FL_TRY(read_word(c, "block_align", "absolute", "relative", &relative, err));
    FL_TRY(read_word(c, "commit_mode", "causal", "block_bidir", &bidir, err));
    FL_TRY(read_word(c, "confidence_source", "processed", "raw", &raw, err));
    k->block_align = relative ? FL_ALIGN_RELATIVE : FL_ALIGN_ABSOLUTE;
    k->commit_mode = bidir ? FL_COMMIT_BLOCK_BIDIR : FL_COMMIT_CAUSAL;
    k->conf = raw ? FL_CONF_RAW : FL_CONF_PROCESSED;
    if (fl_config_str(c, "gdn_block_mode", "gdn_block_mode", word) &&
        !fl_gdn_block_mode_parse(word, &k->gdn_block_mode))
        return bad(c, "gdn_block_mode", word, "causal, blockend, mixed or bidir", err);
    if (k->gdn_block_mode == FL_GDN_BIDIR && !k->has_bwd)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: %s.gdn_block_mode is bidir, but the file has no ssm_bwd tensors",
                       c->path, c->arch);
    return FL_OK;
}

/* Whether the file says that block mode is earned: verdict (0 or 1), block_mode_earned, or
 * block_mode.block_mode_earned of config.json. */
static int read_verdict(const fl_config *c)
{
    int64_t number;
    bool earned;
    if (fl_config_int(c, "verdict", "verdict", &number)) return number != 0;
    if (fl_config_bool(c, "block_mode_earned", "block_mode_earned", &earned)) return earned;
    const fl_json *j = fl_json_get(fl_config_json(c, "block_mode"), "block_mode_earned");
    return j ? fl_json_bool(j, false) : -1;
}

fl_status fl_clover_read(fl_clover *c, const fl_source *src, bool has_bwd, fl_err *err)
{
    fl_config f;
    FL_TRY(fl_config_open(&f, src, err));
    *c = (fl_clover){.has_blocks = strcmp(f.arch, "clover_moe") == 0,
                     .has_bwd = has_bwd,
                     .block_size = 32,
                     .mask_id = -1,
                     .threshold = 0.95f,
                     .gdn_block_mode = has_bwd ? FL_GDN_BIDIR : FL_GDN_BLOCKEND,
                     .pool_c = 48,
                     .verdict = -1};
    if (!c->has_blocks) return FL_OK;
    c->verdict = read_verdict(&f);
    FL_TRY(read_numbers(c, &f, err));
    FL_TRY(read_soft_ends(c, &f, err));
    return read_words(c, &f, err);
}
