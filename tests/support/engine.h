#ifndef FL_TESTS_SUPPORT_ENGINE_H
#define FL_TESTS_SUPPORT_ENGINE_H

#include "runtime/model/forward.h"

/* A model opened and loaded for a test; failures end the test with the error's line. */
typedef struct fl_loaded {
    fl_model *model;
    fl_engine *engine;
} fl_loaded;

fl_loaded fl_load(const char *path, const fl_engine_params *params);
void fl_unload(fl_loaded *l);

/* The plan under these settings, without loading: numbers only. */
fl_plan fl_plan_of(const char *path, const fl_engine_params *params);
/* A cap on device memory that leaves room for `percent` of the experts, or the least that works. */
uint64_t fl_vram_for(const char *path, const fl_engine_params *params, int percent);

/* A cap on host memory that keeps `percent` of what these parameters leave in the file; 0: none. */
uint64_t fl_ram_for(const char *path, const fl_engine_params *params, int percent);

/* One thread, F32 cache, float activations: what goldens are compared under. */
fl_engine_params fl_exact_params(void);

/* All rows' logits of a clean pass over ids, from an empty state; malloc'ed [n][n_vocab]. */
float *fl_clean_logits(fl_engine *e, const int32_t *ids, int64_t n);
/* Rows of a block pass from the current state; malloc'ed [n][n_vocab]. */
float *fl_block_logits(fl_engine *e, const int32_t *ids, int n, fl_gdn_block_mode mode);

/* max |a - b| / max |b|. */
double fl_max_error(const float *a, const float *b, int64_t n);

/* Hash of all that a clean pass writes: n, KV rows below n, S and tail. */
uint64_t fl_state_hash(const fl_state *s);

#endif
