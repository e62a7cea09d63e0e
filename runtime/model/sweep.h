#ifndef FL_MODEL_SWEEP_H
#define FL_MODEL_SWEEP_H

#include "runtime/model/model.h"
#include "runtime/model/observe.h"

/* A model run layer by layer: all rows of a text go through one layer before the next one is read,
 * so that every weight is read once, however large the file, and memory holds one layer's dense
 * weights, a few experts and the rows. For measuring what goes on inside; no token comes out.
 *
 * A row's values are those of the forward pass (forward.h) but for the order in which its experts
 * are summed: by number, not by falling weight. They do not depend on threads. */
typedef struct fl_sweep fl_sweep;

/* Passes of one sequence follow each other: clean rows move its state, rows of a block behind them
 * see it and leave nothing. Either part may be empty. */
typedef struct fl_sweep_pass {
    int32_t seq; /* 0, 1, ... rising */
    int64_t at;  /* position of the pass's first row */
    int n_write, n_block;
} fl_sweep_pass;

typedef struct fl_sweep_text {
    const fl_sweep_pass *pass; /* borrowed */
    int64_t n_passes;
    const int32_t *ids; /* [n_rows], in the order of the passes; borrowed */
    int64_t n_rows;
    int n_seqs;
    int64_t n_ctx;           /* positions of the longest sequence, its blocks included */
    int max_rows, max_block; /* of a pass */
} fl_sweep_text;

typedef struct fl_sweep_params {
    int threads;          /* 0 = physical cores */
    const char *cpu_tier; /* NULL = best */
    const char *io;       /* I/O backend, NULL = best */
    bool act_f32;         /* float activations instead of the numeric law */
    uint32_t kv_type;
} fl_sweep_params;

/* Who looks on. Any may be NULL. */
typedef struct fl_sweep_watch {
    fl_observer see;
    /* All rows of this expert of the layer were seen; every expert in turn, also unused ones. */
    fl_status (*expert)(void *arg, int expert, fl_err *err);
    /* `done` of `total` units of the layer's work; false ends it with FL_E_CANCELED. */
    bool (*go_on)(void *arg, int64_t done, int64_t total);
    void *arg;
} fl_sweep_watch;

/* Of memory: bytes that open and the layers take together. */
uint64_t fl_sweep_bytes(const fl_model *model, const fl_sweep_text *text, int threads);

/* `model`, `text` and `sw` (block rows' switches) outlive the sweep. FL_E_ARG: a token outside the
 * vocabulary, a context the model does not take, block mode bidir without its tensors. */
FL_CHECKED fl_status fl_sweep_open(fl_sweep **out, const fl_model *model, const fl_sweep_text *text,
                                   const fl_clover *sw, const fl_sweep_params *params, fl_err *err);
void fl_sweep_close(fl_sweep **s);

/* The rows' residual stream [n_rows][d_model]: after fl_sweep_embed the embeddings, after
 * fl_sweep_layer what leaves that layer. May be saved and put back to go on later. */
float *fl_sweep_rows(fl_sweep *s);
FL_CHECKED fl_status fl_sweep_embed(fl_sweep *s, fl_err *err);
/* [n_rows][top_k]: the experts that the router of the last layer gave each row, by falling weight.
 */
const int32_t *fl_sweep_experts(const fl_sweep *s);
/* Layers in rising order. A sequence with a value that is not finite is left out from there on
 * (fl_sweep_n_lost); FL_E_NAN when none is left, or when an expert's rows are not finite. After a
 * failure only fl_sweep_close is allowed. */
FL_CHECKED fl_status fl_sweep_layer(fl_sweep *s, int layer, const fl_sweep_watch *watch,
                                    fl_err *err);
/* Final norm: shows FL_SITE_HEAD_IN. */
FL_CHECKED fl_status fl_sweep_head(fl_sweep *s, const fl_sweep_watch *watch, fl_err *err);

const fl_exec *fl_sweep_exec(const fl_sweep *s);
/* True for a sequence that was left out. */
bool fl_sweep_is_lost(const fl_sweep *s, int seq);
int fl_sweep_n_lost(const fl_sweep *s);
/* Leaves a sequence out, as one that was lost before rows were saved. */
void fl_sweep_lose(fl_sweep *s, int seq);
/* Bytes of weights read from the model's files so far. */
uint64_t fl_sweep_bytes_read(const fl_sweep *s);

#endif
