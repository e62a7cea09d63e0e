#include "runtime/model/clover.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "runtime/model/config.h"

/* The definition's own id, used when the file does not name one. */
enum { DEFAULT_MASK_ID = 248077 };

static const char *const block_modes[] = {"causal", "blockend", "mixed", "bidir", NULL};
static const char *const scans[] = {"strict", "inclusive", NULL};
static const char *const combines[] = {"mix", "sum", "gate", NULL};
static const char *const edges[] = {"zeros", "repeat", NULL};
static const char *const tails[] = {"clean", "zeros", NULL};
static const char *const aligns[] = {"absolute", "relative", NULL};
static const char *const commits[] = {"causal", "block_bidir", NULL};
static const char *const pools[] = {"off", "max", "mass", NULL};
static const char *const confs[] = {"processed", "raw", NULL};

#define AT(FIELD) offsetof(fl_clover, FIELD)
/* Every setting is an enum, read and written as a number below. */
_Static_assert(sizeof(fl_gdn_block_mode) == sizeof(unsigned) &&
                   sizeof(fl_gdn_edge) == sizeof(unsigned),
               "enums have the size of an unsigned");

const fl_switch fl_switches[] = {{"gdn_block_mode", block_modes, AT(gdn_block_mode)},
                                 {"gdn_scan", scans, AT(gdn_scan)},
                                 {"gdn_combine", combines, AT(gdn_combine)},
                                 {"gdn_conv_edge", edges, AT(gdn_conv_edge)},
                                 {"gdn_tail", tails, AT(gdn_tail)},
                                 {"block_align", aligns, AT(block_align)},
                                 {"commit_mode", commits, AT(commit_mode)},
                                 {"expert_pool_mode", pools, AT(pool)},
                                 {"confidence_source", confs, AT(conf)},
                                 {NULL, NULL, 0}};

static const fl_switch *find_switch(const char *name)
{
    const fl_switch *s = fl_switches;
    while (s->name && strcmp(s->name, name) != 0) s++;
    return s->name ? s : NULL;
}

const char *fl_clover_word(const fl_clover *c, const char *name)
{
    const fl_switch *s = find_switch(name);
    assert(s);
    return s->words[*(const unsigned *)((const char *)c + s->at)];
}

/* The number of `word` among the switch's words, or -1. */
static int word_number(const fl_switch *s, const char *word)
{
    for (int i = 0; s->words[i]; i++)
        if (strcmp(s->words[i], word) == 0) return i;
    return -1;
}

bool fl_clover_set(fl_clover *c, const char *name, const char *word)
{
    const fl_switch *s = find_switch(name);
    const int i = s ? word_number(s, word) : -1;
    if (i < 0) return false;
    *(unsigned *)((char *)c + s->at) = (unsigned)i;
    return true;
}

bool fl_gdn_block_mode_parse(const char *name, fl_gdn_block_mode *out)
{
    const int i = word_number(&fl_switches[0], name);
    if (i < 0) return false;
    *out = (fl_gdn_block_mode)i;
    return true;
}

const char *fl_gdn_block_mode_name(fl_gdn_block_mode m) { return block_modes[m]; }

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

/* "causal, blockend, mixed or bidir" into buf. */
static const char *list_words(const fl_switch *s, char buf[96])
{
    size_t at = 0;
    for (int i = 0; s->words[i]; i++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%s",
                               i == 0            ? ""
                               : s->words[i + 1] ? ", "
                                                 : " or ",
                               s->words[i]);
    return buf;
}

static fl_status read_words(fl_clover *k, const fl_config *c, fl_err *err)
{
    char word[64], known[96];
    for (const fl_switch *s = fl_switches; s->name; s++) {
        if (!fl_config_str(c, s->name, s->name, word)) continue;
        if (!fl_clover_set(k, s->name, word))
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: %s.%s is '%s', expected %s", c->path, c->arch,
                           s->name, word, list_words(s, known));
    }
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
