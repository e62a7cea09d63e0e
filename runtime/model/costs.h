#ifndef FL_MODEL_COSTS_H
#define FL_MODEL_COSTS_H

#include "runtime/model/engine.h"

/* How long parts of a pass take on a loaded engine, run by the code that passes run. The least of
 * a few tries, a fraction of a second each. The sequence in the engine is lost. Held by
 * tests/model/test_costs.c. */
typedef struct fl_costs fl_costs;

/* Reads some experts of one layer into host memory of its own (at most 64: more than caches hold,
 * where the model is large). Uses the engine until it is closed. FL_E_NOMEM; fails as reads do. */
FL_CHECKED fl_status fl_costs_open(fl_costs **out, fl_engine *e, fl_err *err);
void fl_costs_close(fl_costs **c);

/* The most rows that can be asked for: a pass's, and the context's. */
int fl_costs_max_rows(const fl_costs *c);
/* One routed expert for `rows` rows on `pool` (of at most the engine's threads), from host memory:
 * experts run several to a job, as in a pass, and what one of them takes is its share. */
FL_CHECKED fl_status fl_costs_expert(fl_costs *c, fl_pool *pool, int rows, uint64_t *ns,
                                     fl_err *err);
/* A pass over `rows` tokens at the beginning of a sequence without its routed experts, with the
 * logits of all rows of a block, of the last row where there are more. */
FL_CHECKED fl_status fl_costs_dense(fl_costs *c, int rows, uint64_t *ns, fl_err *err);
/* Bytes per second of device memory by the largest one-row product, the LM head. */
FL_CHECKED fl_status fl_costs_device(fl_costs *c, uint64_t *bytes_s, fl_err *err);

/* Bytes per second of host memory, `bytes` of it read by all threads of the pool. FL_E_NOMEM. */
FL_CHECKED fl_status fl_costs_host(fl_pool *pool, uint64_t bytes, uint64_t *bytes_s, fl_err *err);

#endif
