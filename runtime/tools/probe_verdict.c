#include "runtime/tools/probe_verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/decode/generate.h"
#include "runtime/tools/probe.h"

/* The likelihood of FL_PROBE_WRITTEN tokens written in a mode as answers to the probe's prompts. */
static fl_status write_and_score(const fl_probe *p, fl_generator *g, fl_gen_mode mode, int *written,
                                 double *nll, fl_err *err)
{
    fl_gen_config c;
    fl_gen_result r;
    double sum = 0, total = 0;
    fl_gen_config_init(&c, &p->model);
    c.mode = mode;
    c.clover = p->wiring.clover;
    c.sampler = (fl_sampler_config){.top_p = 1.0, .repetition = 1.0};
    *written = 0;
    for (int d = 0; d < p->text.n_docs && *written < FL_PROBE_WRITTEN; d++) {
        const fl_probe_ids *x = &p->text.doc[d];
        c.max_tokens = FL_PROBE_WRITTEN - *written;
        if (c.max_tokens > 50) c.max_tokens = 50;
        FL_TRY(fl_generate(g, &c, x->ids, x->n_prompt, &r, err));
        const int n = x->n_prompt + (int)r.n_generated;
        int32_t *ids = malloc((size_t)n * sizeof *ids);
        if (!ids) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: no memory for a text");
        memcpy(ids, x->ids, (size_t)x->n_prompt * sizeof *ids);
        memcpy(ids + x->n_prompt, r.ids, (size_t)r.n_generated * sizeof *ids);
        const fl_status st = fl_probe_causal_sum(p->engine, ids, x->n_prompt, n, &sum, err);
        free(ids);
        FL_TRY(st);
        total += sum;
        *written += (int)r.n_generated;
    }
    *nll = *written > 0 ? total / *written : (double)FL_PROBE_WORST;
    return FL_OK;
}

static fl_status judge_text(fl_probe *p, fl_probe_verdict *v, fl_err *err)
{
    fl_generator *g = NULL;
    int n = 0;
    FL_TRY(fl_generator_create(&g, p->engine, err));
    fl_status st = write_and_score(p, g, FL_GEN_AR, &n, &v->ar_nll, err);
    if (st == FL_OK) st = write_and_score(p, g, FL_GEN_BLOCK, &v->n_written, &v->own_nll, err);
    fl_generator_destroy(&g);
    FL_TRY(st);
    v->earned = v->own_nll <= v->ar_nll + FL_PROBE_BOUND;
    snprintf(v->why, sizeof v->why,
             "%d tokens written in blocks have %.3f nats each under the model's own AR likelihood, "
             "greedy AR text %.3f; at most %.1f more are allowed",
             v->n_written, v->own_nll, v->ar_nll, FL_PROBE_BOUND);
    return FL_OK;
}

fl_status fl_probe_judge(fl_probe *p, fl_probe_verdict *v, fl_err *err)
{
    *v = (fl_probe_verdict){.earned = false};
    if (!p->wiring.clover.has_blocks) {
        snprintf(v->why, sizeof v->why, "the model knows no masks");
        return FL_OK;
    }
    for (int l = 0; l < FL_MASK_LEVELS; l++) {
        if (p->winner[l] < p->plain[l]) continue;
        snprintf(
            v->why, sizeof v->why,
            "at %.0f %% masked its NLL is %.4f, not below the %.4f of rows that see nothing to "
            "their right",
            100 * fl_mask_level[l], p->winner[l], p->plain[l]);
        return FL_OK;
    }
    return judge_text(p, v, err);
}
