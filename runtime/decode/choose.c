#include "runtime/decode/choose.h"

#include <stdio.h>
#include <string.h>

const char *fl_gen_mode_name(fl_gen_mode m)
{
    static const char *const name[] = {"auto", "ar", "block", "spec"};
    return name[m];
}

fl_mode_facts fl_mode_facts_none(void) { return (fl_mode_facts){.earned = -1}; }

bool fl_gen_block_earned(const fl_clover *sw, const fl_mode_facts *facts)
{
    return sw->has_blocks && (facts->earned >= 0 ? facts->earned : sw->verdict) == 1;
}

static const char *block_mode_is(const fl_clover *sw, const fl_mode_facts *facts)
{
    if (!sw->has_blocks) return "the model knows no masks";
    if (facts->earned >= 0)
        return facts->earned ? "the probe found that block mode is earned"
                             : "the probe found that block mode is not earned";
    if (sw->verdict >= 0)
        return sw->verdict ? "the file says that block mode is earned"
                           : "the file says that block mode is not earned";
    return "nothing says that block mode is earned (fourleaf probe finds out)";
}

/* The fastest stored mode of those that are allowed; FL_GEN_AUTO when there is none. */
static fl_gen_mode fastest(const fl_mode_facts *facts, bool block_allowed, bool can_draft)
{
    fl_gen_mode best = FL_GEN_AUTO;
    for (int m = FL_GEN_AR; m < FL_GEN_MODES; m++) {
        const bool allowed = m == FL_GEN_AR || (m == FL_GEN_BLOCK ? block_allowed : can_draft);
        if (allowed && facts->per_s[m] > (best ? facts->per_s[best] : 0.0)) best = (fl_gen_mode)m;
    }
    return best;
}

/* "; stored rates: block 81.2, spec 40.0, ar 31.5 tokens/s". */
static void add_rates(fl_choice *c, const fl_mode_facts *facts)
{
    static const fl_gen_mode order[] = {FL_GEN_BLOCK, FL_GEN_SPEC, FL_GEN_AR};
    size_t n = strlen(c->reason);
    const char *before = "; stored rates: ";
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (facts->per_s[order[i]] <= 0.0) continue;
        n += (size_t)snprintf(c->reason + n, sizeof c->reason - n, "%s%s %.1f", before,
                              fl_gen_mode_name(order[i]), facts->per_s[order[i]]);
        if (n >= sizeof c->reason) return;
        before = ", ";
    }
    snprintf(c->reason + n, sizeof c->reason - n, " tokens/s");
}

fl_choice fl_gen_choose(fl_gen_mode asked, const fl_clover *sw, const fl_mode_facts *facts,
                        bool can_draft)
{
    fl_choice c = {asked, "asked for"};
    if (asked != FL_GEN_AUTO) return c;
    const bool block_allowed = fl_gen_block_earned(sw, facts);
    const char *why = block_mode_is(sw, facts);
    c.mode = fastest(facts, block_allowed, can_draft);
    if (c.mode != FL_GEN_AUTO) {
        snprintf(c.reason, sizeof c.reason, "%s", why);
        add_rates(&c, facts);
        return c;
    }
    c.mode = can_draft ? FL_GEN_SPEC : FL_GEN_AR;
    snprintf(c.reason, sizeof c.reason, "%s%s", why,
             block_allowed ? ", but no rates are stored for these options (fourleaf calibrate "
                             "stores them)"
                           : "");
    return c;
}
