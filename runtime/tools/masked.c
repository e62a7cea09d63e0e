#include "runtime/tools/masked.h"

#include <math.h>

const double fl_mask_level[FL_MASK_LEVELS] = {0.15, 0.5, 0.85, 1.0};

/* A number in [0, 1) for a position of a text, always the same one. */
static double fixed_random(int text, int64_t pos)
{
    uint64_t x = ((uint64_t)text << 32 | (uint32_t)pos) + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

bool fl_mask_at(int text, int64_t pos, int level)
{
    return fixed_random(text, pos) < fl_mask_level[level];
}

int32_t fl_mask_fill(const fl_model *m)
{
    const int32_t end = m->tokenizer ? fl_tokenizer_special(m->tokenizer, "<|endoftext|>") : -1;
    if (end >= 0) return end;
    return m->index->hp.eos_id > 0 ? m->index->hp.eos_id : 0;
}

double fl_nll(const float *logits, int64_t n, int32_t id)
{
    float max = logits[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)max);
    return log(sum) - ((double)logits[id] - (double)max);
}

fl_status fl_masked_pass(fl_engine *e, const fl_clover *sw, const fl_masked_block *b, int level,
                         fl_masked_rows *out, fl_err *err)
{
    int32_t x[FL_MAX_BLOCK];
    int source[FL_MAX_BLOCK];
    out->n = 0;
    for (int i = 0; i < sw->block_size; i++) {
        const int64_t pos = b->start + i;
        const bool masked = pos >= b->from && fl_mask_at(b->text, pos, level);
        x[i] = masked ? sw->mask_id : b->ids[i];
        if (!masked || pos >= b->to) continue;
        source[out->n] = i - sw->pred_shift;
        out->row[out->n++] = i;
    }
    if (out->n == 0) return FL_OK;
    FL_TRY(fl_forward_denoise(e, x, sw->block_size, sw, err));
    return fl_forward_logits(e, source, out->n, &out->logits, err);
}

fl_status fl_masked_commit(fl_engine *e, const fl_clover *sw, const int32_t *ids, fl_err *err)
{
    return sw->commit_mode == FL_COMMIT_BLOCK_BIDIR
               ? fl_forward_commit(e, ids, sw->block_size, sw, err)
               : fl_forward_clean(e, ids, sw->block_size, err);
}
