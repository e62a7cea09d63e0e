#include "runtime/decode/outlook.h"

#include <assert.h>
#include <string.h>

#include "runtime/model/machine.h"

/* Public figures, in thousandths of a token: a pass over a block of masks at a confidence of 0.95
 * (LLaDA2.0-mini, general tasks); a guess and its check, two passes (Clover's published speeds,
 * inverted through bytes); a check of MTP drafts (untuned conversions of Qwen3.5). */
enum { BLOCK_MILLI = 2550, GUESS_MILLI = 4500 / 2, MTP_MILLI = 2300, MTP_ROWS = 4 };

fl_predict_kind fl_outlook_kind(fl_gen_mode mode)
{
    assert(mode != FL_GEN_AUTO);
    return mode == FL_GEN_AR      ? FL_PREDICT_AR
           : mode == FL_GEN_BLOCK ? FL_PREDICT_BLOCK
                                  : FL_PREDICT_SPEC;
}

/* Rows 0: no such passes, or nothing is published about them. */
static fl_predict_pass published(const fl_engine *e, const fl_clover *sw, fl_gen_mode mode)
{
    const int block = e->params.block_size;
    if (mode == FL_GEN_AR) return (fl_predict_pass){.rows = 1, .tokens_milli = 1000};
    if (mode == FL_GEN_BLOCK && sw->has_blocks)
        /* Of all passes of a block one commits the block before as well. */
        return (fl_predict_pass){.rows = block + BLOCK_MILLI / 1000, .tokens_milli = BLOCK_MILLI};
    if (mode == FL_GEN_SPEC && e->params.held_rows > 1 && sw->has_blocks)
        return (fl_predict_pass){.rows = block, .tokens_milli = GUESS_MILLI};
    if (mode == FL_GEN_SPEC && e->params.mtp)
        return (fl_predict_pass){.rows = MTP_ROWS, .tokens_milli = MTP_MILLI};
    return (fl_predict_pass){0};
}

/* Experts of a layer that a pass of the mode uses, in thousandths: as the profile of the traffic
 * counted them; 0: it has not. A guess and its check take turns. */
static int64_t seen(const fl_profile *p, fl_predict_kind kind)
{
    if (!p || kind == FL_PREDICT_PREFILL) return 0;
    if (kind == FL_PREDICT_AR) return fl_profile_distinct(p, FL_PASS_AR);
    const int64_t block = fl_profile_distinct(p, FL_PASS_BLOCK);
    if (kind == FL_PREDICT_BLOCK) return block;
    const int64_t check = fl_profile_distinct(p, FL_PASS_VERIFY);
    return block && check ? (block + check) / 2 : check;
}

static void describe_passes(fl_forecast *f, const fl_engine *e, const fl_clover *sw,
                            const fl_facts *facts)
{
    const fl_hparams *hp = &e->model->index->hp;
    for (int m = FL_GEN_AR; m < FL_GEN_MODES; m++) {
        const fl_predict_kind k = fl_outlook_kind((fl_gen_mode)m);
        f->in.pass[k] = published(e, sw, (fl_gen_mode)m);
        if (m == FL_GEN_SPEC && e->params.held_rows < 2) continue;
        f->counted[k] =
            m == FL_GEN_AR || (facts && fl_rates_pass(facts, (fl_gen_mode)m, &f->in.pass[k]));
    }
    f->in.pass[FL_PREDICT_PREFILL] =
        (fl_predict_pass){.rows = (int)e->params.chunk, .tokens_milli = e->params.chunk * 1000};
    f->counted[FL_PREDICT_PREFILL] = true;
    for (int k = 0; k < FL_PREDICT_KINDS; k++) {
        if (!f->in.pass[k].rows) continue;
        const int64_t known = seen(e->routing.profile, (fl_predict_kind)k);
        f->in.pass[k].distinct_milli =
            known ? known : fl_predict_distinct(hp->n_expert, hp->top_k, f->in.pass[k].rows);
    }
}

/* Where the CPU computes both, nothing is copied that need not be (offload/lanes.h). */
static fl_lane_choice lane_of(fl_lane_choice choice, bool shared_pool)
{
    if (choice == FL_LANES_DEVICE) return FL_LANES_DEVICE;
    return choice == FL_LANES_CPU || shared_pool ? FL_LANES_CPU : FL_LANES_AUTO;
}

/* The share of what moves that is on its way before it is needed, in thousandths: such that a step
 * takes what calibrate measured with as many experts on the device. All of it where nothing was. */
static int ahead(const fl_forecast *f, const fl_engine *e, const fl_facts *facts)
{
    char key[FL_RATES_KEY];
    fl_predict_input in = f->in;
    fl_prediction p;
    fl_rates_key(key, e);
    const uint64_t ns = facts ? fl_rates_pass_ns(facts, key, "step") : 0;
    if (e->params.no_prefetch) return 0;
    in.ahead_permille = 0;
    fl_predict(&e->plan, &in, &p);
    const fl_predicted_pass *step = &p.kind[FL_PREDICT_AR];
    const uint64_t move = step->read_ns > step->copy_ns ? step->read_ns : step->copy_ns;
    if (!ns || !step->pass_ns || !move || ns <= move) return 1000;
    const uint64_t both = step->compute_ns + move;
    const uint64_t hidden = both > ns ? both - ns : 0;
    return hidden < move ? (int)(hidden * 1000 / move) : 1000;
}

fl_status fl_outlook_make(fl_outlook *out, const fl_engine *e, const fl_clover *sw,
                          const fl_facts *facts, fl_err *err)
{
    char machine[FL_MACHINE_TEXT], setup[FL_MACHINE_SETUP];
    *out = (fl_outlook){0};
    fl_forecast *f = &out->forecast;
    fl_machine_describe(machine, NULL, fl_source_paths(e->model->src)[0]);
    fl_machine_setup(setup, e);
    if (!facts || !fl_machine_rates(facts, machine, setup, &out->rates)) out->rates = (fl_rates){0};
    f->in.rates = &out->rates;
    f->in.heat = e->plan_input.heat;
    f->in.shared_pool = strcmp(fl_device_kind(e->dev), "host") == 0;
    f->in.lane = lane_of(e->params.lanes, f->in.shared_pool);
    describe_passes(f, e, sw, facts);
    f->in.ahead_permille = ahead(f, e, facts);
    f->in.prefill_ahead_permille = e->params.no_prefetch ? 0 : 1000;
    return fl_forecast_make(f, &e->plan, &e->plan_input, err);
}
