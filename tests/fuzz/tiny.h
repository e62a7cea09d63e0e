#ifndef FL_TESTS_FUZZ_TINY_H
#define FL_TESTS_FUZZ_TINY_H

#include <stdlib.h>

#include "runtime/decode/generate.h"

/* The shipped model for targets that need one, loaded at the first call: 128 tokens of context,
 * chunks of 8, three checkpoints. */
static inline void fl_fuzz_need(bool ok)
{
    if (!ok) abort();
}

static inline fl_engine *fl_fuzz_engine(fl_generator **g)
{
    static fl_model *model;
    static fl_engine *engine;
    static fl_generator *generator;
    if (!engine) {
        fl_engine_params p = fl_engine_defaults();
        p.threads = 1;
        p.n_ctx = 128;
        p.chunk = 8;
        p.io = "pread";
        p.state_budget = 3 << 20;
        fl_fuzz_need(fl_model_open(&model, "tests/clover_tiny/model", NULL) == FL_OK);
        fl_fuzz_need(fl_engine_open(&engine, model, &p, NULL) == FL_OK);
        fl_fuzz_need(fl_engine_load(engine, NULL, NULL, NULL) == FL_OK);
        fl_fuzz_need(fl_generator_create(&generator, engine, NULL) == FL_OK);
    }
    *g = generator;
    return engine;
}

#endif
