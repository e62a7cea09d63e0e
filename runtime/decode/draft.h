#ifndef FL_DECODE_DRAFT_H
#define FL_DECODE_DRAFT_H

#include "runtime/decode/loop.h"

/* Where speculation takes its drafts from. A draft may be anything: what it costs is time, never
 * the text. Private to runtime/decode. */

/* What a source may look at; nothing of it changes but the generator's rows, pos and picks, and
 * the counts of denoise passes and of draft steps. */
typedef struct fl_draft_view {
    fl_generator *g;
    const fl_gen_config *c;
    fl_gen_result *out;
    const int32_t *prompt; /* [n_prompt] */
    int64_t n_prompt;
} fl_draft_view;

typedef struct fl_draft_source {
    const char *name; /* for --stats */
    /* x[0] is the pending token, which follows the state; fills x[1 .. *n) with what may come
     * behind it. 1 <= *n <= max, max >= 2; 1 = nothing to propose. */
    fl_status (*draft)(const fl_draft_view *v, int32_t *x, int max, int *n, fl_err *err);
} fl_draft_source;

/* Greedy drafts are accepted by match, whatever was asked for. */
static inline bool fl_drafts_by_ratio(const fl_gen_config *c)
{
    return c->draft_ratio && c->sampler.temp > 0.0;
}

/* Block passes over masks where the model knows masks, else the MTP block where the engine has
 * loaded it, else the text so far. */
const fl_draft_source *fl_draft_choose(const fl_gen_config *c, const fl_engine *e);

#endif
