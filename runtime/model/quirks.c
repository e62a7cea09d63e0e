#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/index_parts.h"

/* Counts over the values of several small tensors. */
typedef struct tally {
    uint64_t n, not_positive, positive;
} tally;

static fl_status count_values(const fl_index *ix, const fl_tref *ref, tally *t, fl_err *err)
{
    const fl_tensor *x = ref->tensor;
    if (!x) return FL_OK;
    const fl_type_info *ti = fl_type_get(x->type);
    const int64_t n = x->ne[0] * x->ne[1] * x->ne[2] * x->ne[3];
    float *v = malloc((size_t)n * sizeof *v);
    void *raw = malloc(x->bytes);
    fl_status st = FL_OK;
    if (!v || !raw) st = FL_FAIL(err, FL_E_NOMEM, 0, "tensor '%s': no memory", x->name);
    if (st == FL_OK) st = fl_source_read(ix->src, x, 0, raw, x->bytes, err);
    if (st == FL_OK) {
        ti->dequantize(raw, v, n);
        t->n += (uint64_t)n;
        for (int64_t i = 0; i < n && st == FL_OK; i++) {
            if (!isfinite(v[i]))
                st = FL_FAIL(err, FL_E_NAN, 0,
                             "%s: tensor '%s' holds a value that is not finite (element %lld): the "
                             "file is damaged, download it again",
                             fl_source_paths(ix->src)[x->file], x->name, (long long)i);
            t->not_positive += v[i] <= 0;
            t->positive += v[i] > 0;
        }
    }
    free(v);
    free(raw);
    return st;
}

/* What a file shows; no note of it where it is known (0) that it is otherwise. */

/* Norms: with 1 + w applied next to no entry is at or below zero; zero-centred ones have many. */
static fl_status detect_norms(fl_index *ix, int known, fl_err *err)
{
    tally t = {0};
    FL_TRY(count_values(ix, &ix->output_norm, &t, err));
    for (int i = 0; i < ix->hp.n_layer; i++) {
        const fl_layer_refs *l = &ix->layer[i];
        FL_TRY(count_values(ix, &l->attn_norm, &t, err));
        FL_TRY(count_values(ix, &l->ffn_norm, &t, err));
        FL_TRY(count_values(ix, &l->q_norm, &t, err));
        FL_TRY(count_values(ix, &l->k_norm, &t, err));
    }
    ix->hp.norm_add_one = t.not_positive * 20 > t.n;
    if (!ix->hp.norm_add_one || known == 0) return FL_OK;
    return fl_index_note(
        ix, err,
        "norm weights are zero-centred (%.1f %% of the entries are not positive): 1 "
        "is added on load",
        100.0 * (double)t.not_positive / (double)t.n);
}

/* ssm_a: -exp(A_log) is never positive. */
static fl_status detect_decay(fl_index *ix, int known, fl_err *err)
{
    tally t = {0};
    for (int i = 0; i < ix->hp.n_layer; i++) {
        FL_TRY(count_values(ix, &ix->layer[i].a, &t, err));
        FL_TRY(count_values(ix, &ix->layer[i].bwd_a, &t, err));
    }
    ix->hp.a_is_log = t.positive > 0;
    if (!ix->hp.a_is_log || known == 0) return FL_OK;
    return fl_index_note(
        ix, err,
        "ssm_a is stored as A_log (%llu of %llu entries are positive): converted to "
        "-exp(A_log) on load",
        (unsigned long long)t.positive, (unsigned long long)t.n);
}

static fl_status detect_heads(fl_index *ix, const fl_config *c, int known, fl_err *err)
{
    bool reordered = true;
    fl_config_bool(c, "ssm.v_head_reordered", NULL, &reordered);
    ix->hp.v_grouped = !reordered;
    if (reordered || known == 0) return FL_OK;
    return fl_index_note(
        ix, err,
        "%s.ssm.v_head_reordered is false: value heads are grouped as in Hugging Face "
        "files, value head n uses key head n / %d",
        c->arch, ix->hp.gdn_v_heads / ix->hp.gdn_k_heads);
}

/* What is known (1, 0, -1 = nothing) takes the place of what was detected; form[known] says what
 * that is. */
static fl_status override(fl_index *ix, const char *const form[2], int known, bool *value,
                          fl_err *err)
{
    if (known < 0 || known == *value) return FL_OK;
    *value = known;
    return fl_index_note(ix, err, "%s", form[known]);
}

fl_status fl_quirks_detect(fl_index *ix, const fl_config *c, const fl_wiring *w, fl_err *err)
{
    static const char *const norms[] = {
        "norm weights are used as they are stored: the probe found that they fit so",
        "1 is added to norm weights on load: the probe found that they are zero-centred"};
    static const char *const decay[] = {
        "ssm_a is used as it is stored: the probe found that it is -exp(A_log)",
        "ssm_a is converted to -exp(A_log) on load: the probe found that it is A_log"};
    static const char *const heads[] = {
        "value heads are read as tiled, because --v-heads or a probe says so",
        "value heads are read as grouped, because --v-heads or a probe says so"};
    fl_hparams *hp = &ix->hp;
    if (!c->gguf) { /* Hugging Face form, by definition */
        hp->norm_add_one = hp->a_is_log = hp->v_grouped = true;
        if (w->v_grouped != 0) return FL_OK;
        return FL_FAIL(err, FL_E_ARG, 0, "%s: value heads of safetensors are grouped", c->path);
    }
    FL_TRY(detect_norms(ix, w->norm_add_one, err));
    FL_TRY(detect_decay(ix, w->a_is_log, err));
    FL_TRY(detect_heads(ix, c, w->v_grouped, err));
    FL_TRY(override(ix, norms, w->norm_add_one, &hp->norm_add_one, err));
    FL_TRY(override(ix, decay, w->a_is_log, &hp->a_is_log, err));
    return override(ix, heads, w->v_grouped, &hp->v_grouped, err);
}
