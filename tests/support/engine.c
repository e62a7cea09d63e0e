#include "tests/support/engine.h"

#include <math.h>
#include <stdlib.h>

#include <xxhash.h>

#include "tests/support/test.h"

fl_loaded fl_load(const char *path, const fl_engine_params *params)
{
    fl_err err = {0};
    fl_loaded l = {0};
    ASSERT_OK(fl_model_open(&l.model, path, &err));
    ASSERT_OK(fl_engine_open(&l.engine, l.model, params, &err));
    ASSERT_OK(fl_engine_load(l.engine, NULL, NULL, &err));
    return l;
}

void fl_unload(fl_loaded *l)
{
    fl_engine_close(&l->engine);
    fl_model_close(&l->model);
}

/* The plan's numbers alone: its pointers are of an engine that is closed. */
fl_plan fl_plan_of(const char *path, const fl_engine_params *params)
{
    fl_err err = {0};
    fl_loaded l = {0};
    ASSERT_OK(fl_model_open(&l.model, path, &err));
    ASSERT_OK(fl_engine_open(&l.engine, l.model, params, &err));
    const fl_plan p = l.engine->plan;
    fl_unload(&l);
    return p;
}

uint64_t fl_vram_for(const char *path, const fl_engine_params *params, int percent)
{
    const fl_plan p = fl_plan_of(path, params);
    const uint64_t cap = p.fixed_bytes + p.expert_bytes * (uint64_t)percent / 100;
    return cap < p.min_device_cap ? p.min_device_cap : cap;
}

uint64_t fl_ram_for(const char *path, const fl_engine_params *params, int percent)
{
    const fl_plan p = fl_plan_of(path, params);
    if (percent == 0) return 0;
    return p.staging_bytes + (p.full_host_cap - p.staging_bytes) * (uint64_t)percent / 100;
}

fl_engine_params fl_exact_params(void)
{
    fl_engine_params p = fl_engine_defaults();
    p.kv_type = FL_TYPE_F32;
    p.act_f32 = true;
    p.threads = 1;
    return p;
}

/* Appends the logits of rows 0 .. n - 1 of the last pass to out. */
static void copy_logits(fl_engine *e, int n, float *out)
{
    fl_err err = {0};
    const int64_t vocab = e->model->index->hp.n_vocab;
    const float *logits = NULL;
    for (int r = 0; r < n; r++) {
        ASSERT_OK(fl_forward_logits(e, &r, 1, &logits, &err));
        memcpy(out + r * vocab, logits, (size_t)vocab * sizeof(float));
    }
}

float *fl_clean_logits(fl_engine *e, const int32_t *ids, int64_t n)
{
    fl_err err = {0};
    const int64_t vocab = e->model->index->hp.n_vocab;
    float *out = malloc((size_t)(n * vocab) * sizeof(float));
    assert_non_null(out);
    fl_state_reset(&e->state);
    for (int64_t done = 0; done < n;) {
        const int64_t rows = n - done < e->params.chunk ? n - done : e->params.chunk;
        ASSERT_OK(fl_forward_clean(e, ids + done, rows, &err));
        copy_logits(e, (int)rows, out + done * vocab);
        done += rows;
    }
    return out;
}

float *fl_block_logits(fl_engine *e, const int32_t *ids, int n, fl_gdn_block_mode mode)
{
    fl_err err = {0};
    fl_clover sw = e->model->index->clover;
    float *out = malloc((size_t)(n * e->model->index->hp.n_vocab) * sizeof(float));
    assert_non_null(out);
    sw.gdn_block_mode = mode;
    ASSERT_OK(fl_forward_denoise(e, ids, n, &sw, &err));
    copy_logits(e, n, out);
    return out;
}

double fl_max_error(const float *a, const float *b, int64_t n)
{
    double diff = 0.0, max = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= diff)) diff = d; /* a NaN stays */
        if (fabs((double)b[i]) > max) max = fabs((double)b[i]);
    }
    return diff / max;
}

uint64_t fl_state_hash(const fl_state *s)
{
    const size_t kv_bytes = (size_t)s->n * fl_state_kv_row_bytes(s);
    XXH64_state_t *x = XXH64_createState();
    XXH64_reset(x, (XXH64_hash_t)s->n);
    for (int i = 0; i < s->n_layer; i++) {
        if (s->k[i]) {
            XXH64_update(x, s->k[i], kv_bytes);
            XXH64_update(x, s->v[i], kv_bytes);
        } else {
            XXH64_update(x, s->s[i], (size_t)s->s_elems * sizeof(float));
            XXH64_update(x, s->tail[i], (size_t)(3 * s->n_channels) * sizeof(float));
        }
    }
    const uint64_t h = XXH64_digest(x);
    XXH64_freeState(x);
    return h;
}
