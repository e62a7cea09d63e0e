#ifndef FL_MODEL_LAYERS_H
#define FL_MODEL_LAYERS_H

#include "offload/store.h"
#include "runtime/model/buffers.h"
#include "runtime/model/linear.h"
#include "runtime/model/observe.h"
#include "runtime/model/routing.h"
#include "runtime/model/state.h"
#include "runtime/model/weights.h"

/* The parts of one layer. Each reads buffers->xn (the normed rows) and adds its result to
 * buffers->x. Private to the forward pass (forward.c). */
typedef struct fl_pass {
    const fl_exec *exec;
    const fl_hparams *hp;
    const fl_weights *weights;
    const fl_experts *experts;
    fl_store *store;
    fl_buffers *buf;
    fl_state *state;
    int64_t at; /* position of row 0 */
    /* Rows [0, n_write) are clean: token-causal, and the state moves behind them. Rows
     * [n_write, n_rows) are a block: they see all clean rows and each other, start from the state
     * behind the clean ones and leave nothing. Either part may be empty. */
    int n_write, n_rows;
    const fl_clover *sw; /* block rows: GDN mode, expert pool; else NULL */
    bool held;           /* the block's rows are token-causal and go to state->held as well */
    bool commit;         /* the state moves behind the block's rows (n_write is 0) */
    int n_lead;          /* leading block rows that are not masks (FL_GDN_MIXED) */
    /* Where the state behind clean rows goes as well; n rising, from state->n + 1 to
     * state->n + n_write */
    const fl_state_copy *copy;
    int n_copies;
    const fl_observer *see; /* shown the inputs of products; or NULL */
    fl_routing *routing;    /* told the experts of all rows; or NULL */
} fl_pass;

/* Rows of a block in front of its first mask (fl_pass.n_lead). */
int fl_leading_rows(const int32_t *ids, int n, int32_t mask_id);
/* Angles of the rows' positions: computed in double, cosine and sine rounded to float. */
void fl_rope_prepare(const fl_pass *p);

/* A token's embedding, float32; `id` is inside the vocabulary. */
void fl_embed_row(const fl_mat *embed, int32_t id, float *out);
/* Mixer and experts of one layer on the residual stream buf->x. */
FL_CHECKED fl_status fl_layer_forward(const fl_pass *p, int layer, fl_err *err);

/* FL_E_NAN when an activation is not finite; `layer` is named. */
FL_CHECKED fl_status fl_attention_forward(const fl_pass *p, int layer, fl_err *err);
/* Only keys and values of xn's rows [first, first + n), into the cache; the pass's angles are
 * ready. What is not finite is kept as NaN, for the pass that reads it to find. */
void fl_attention_keys(const fl_pass *p, int layer, int first, int n);
FL_CHECKED fl_status fl_gdn_forward(const fl_pass *p, int layer, fl_err *err);
/* Moves a GDN layer's state over the first p->n_rows rows of the last held pass: the very
 * recurrence that a clean pass over them runs. */
void fl_gdn_promote(const fl_pass *p, int layer);
/* Before the experts of the layer before run: tells the store which experts the layer will ask for,
 * by its router on the rows as they stand. Nothing but time depends on it. Uses xn, act and the
 * routing buffers. */
void fl_moe_hint(const fl_pass *p, int layer);
/* The router alone, on xn: leaves each row's experts and weights in buf->route. */
FL_CHECKED fl_status fl_moe_route(const fl_pass *p, int layer, fl_err *err);
/* On xn: the router's logits, gate and up of the shared expert with their gate's logits; leaves the
 * quantized rows in buf->act. */
FL_CHECKED fl_status fl_moe_begin(const fl_pass *p, int layer, fl_err *err);
/* Behind it: the n entries of the union that route.entry names, whose views are held in
 * route.view, and with the first ones the shared expert. NULL, or what was not finite. */
FL_CHECKED const char *fl_moe_run_part(const fl_pass *p, int layer, int n, bool first);
/* The shared expert alone, on xn: leaves its rows in buf->moe.shared_y, their gates' logits in
 * shared_gate. */
FL_CHECKED fl_status fl_moe_shared(const fl_pass *p, int layer, fl_err *err);
/* y += the gated row of the shared expert: the last addend of a row's experts. */
void fl_moe_add_shared(const fl_pass *p, int row, float *y);
/* Also forwards the store's failures; no lease is held afterwards. */
FL_CHECKED fl_status fl_moe_forward(const fl_pass *p, int layer, fl_err *err);

/* Brings the MTP block's cache behind the first n rows of a pass over `ids` whose hidden rows are
 * in buf->x; state->h_last is still that of the token before. Changes nothing else but scratch. */
void fl_mtp_follow(const fl_pass *p, const int32_t *ids, int n);
/* The MTP block on one token at position p->at; h: the final-norm row before it, or the block's own
 * output (which then is buf->mtp_h). Leaves buf->mtp_h, and the token's row in the block's cache.
 */
FL_CHECKED fl_status fl_mtp_step(const fl_pass *p, int32_t id, const float *h, fl_err *err);

/* xn = rmsnorm(x) with weight w, all rows of the pass. */
void fl_rows_norm(const fl_pass *p, const float *w);
/* y += delta over all rows of the pass ([n_rows][d_model]). False when a sum is not finite: what
 * comes out of a mixer or of the experts is looked at here, or the next layer would be named. */
FL_CHECKED bool fl_rows_add(const fl_pass *p, float *y, const float *delta);
/* The same for one row of n values. */
FL_CHECKED bool fl_row_add(float *y, const float *delta, int64_t n);

/* The one wording of a NaN. */
FL_CHECKED fl_status fl_pass_nan(int layer, const char *where, fl_err *err);

#endif
