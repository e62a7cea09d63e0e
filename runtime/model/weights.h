#ifndef FL_MODEL_WEIGHTS_H
#define FL_MODEL_WEIGHTS_H

#include "kernels/kernels.h"
#include "offload/io.h"
#include "offload/store.h"
#include "runtime/device/device.h"
#include "runtime/model/index.h"

/* The dense weights: everything but the routed experts, in one run of device memory. Matrices
 * keep the file's type; vectors, norms and convolutions are float32 with the file's quirks undone
 * (1 added to zero-centred norms, A_log turned into -exp(A_log)). */

typedef struct fl_layer_weights {
    bool full_attention;               /* else GDN */
    const float *attn_norm, *ffn_norm; /* [d_model] */
    /* full attention */
    fl_mat q, k, v, o;            /* q: per head [head_dim query rows | head_dim gate rows] */
    const float *q_norm, *k_norm; /* [head_dim] */
    /* GDN; nk, nv heads of dimension d; C = 2 nk d + nv d channels */
    fl_mat qkv, z, alpha, beta, out;
    const float *conv;     /* [C][4], tap 3 newest */
    const float *a, *dt;   /* [nv]: a = -exp(A_log) */
    const float *gdn_norm; /* [d] */
    /* the bidirectional branch; has_bwd false = absent, and never read by a clean pass */
    bool has_bwd;
    fl_mat bwd_alpha, bwd_beta;
    const float *bwd_conv, *bwd_a, *bwd_dt, *bwd_mix;
    /* MoE */
    fl_mat router, shared_gate_inp, shared_gate, shared_up, shared_down;
} fl_layer_weights;

/* What stands around the MTP block's layer: fc [enorm(embedding) | hnorm(hidden)] goes in. */
typedef struct fl_mtp_weights {
    fl_mat fc;                  /* [d_model][2 d_model] */
    const float *enorm, *hnorm; /* [d_model] */
    const float *norm;          /* [d_model] after the layer; output_norm where the file has none */
} fl_mtp_weights;

typedef struct fl_weights {
    fl_mat embed, output;
    const float *output_norm;
    fl_layer_weights *layer; /* [n_layer], and the MTP block's layer behind them if it is loaded */
    fl_mtp_weights mtp;
} fl_weights;

/* Bytes of device memory that fl_weights_load fills, without the MTP block and for it: the loading
 * code itself, counting. */
uint64_t fl_weights_bytes(const fl_index *ix);
uint64_t fl_weights_mtp_bytes(const fl_index *ix); /* the model has a block */
/* Reads everything into `memory` and, unless it is NULL, the MTP block into `mtp_memory` (device
 * memory of those sizes). `io` must have been opened on the source's paths and have nothing in
 * flight. `progress` may be NULL; else it is called with the bytes that have arrived, of the sum of
 * those sizes (what aligns them never arrives). */
FL_CHECKED fl_status fl_weights_load(fl_weights *w, const fl_index *ix, fl_device *dev, fl_io *io,
                                     void *memory, void *mtp_memory,
                                     void (*progress)(void *arg, uint64_t done, uint64_t total),
                                     void *progress_arg, fl_err *err);
/* One layer's dense weights alone, for passes that go layer by layer: fills w->layer[layer], the
 * others are left as they are; layer n_layer stands for the final norm. *w is zero the first time,
 * and freed as usual. `memory` holds fl_weights_layer_bytes(ix, layer). */
uint64_t fl_weights_layer_bytes(const fl_index *ix, int layer);
FL_CHECKED fl_status fl_weights_load_layer(fl_weights *w, const fl_index *ix, fl_device *dev,
                                           fl_io *io, int layer, void *memory, fl_err *err);
void fl_weights_free(fl_weights *w); /* host-side tables; the memory is the caller's */

/* Types and scales of one routed expert's matrices: 0 gate, 1 up, 2 down. */
typedef struct fl_expert_kind {
    uint32_t type[3];
    float scale[3];
} fl_expert_kind;

/* The routed experts as the store and the layers need them; all [layers * n_expert]. */
typedef struct fl_experts {
    fl_expert_place *place;
    fl_expert_kind *kind;
    uint64_t *bytes;      /* all parts, each rounded up to 64 */
    uint64_t *host_bytes; /* in the host tier */
    int n;                /* layers * n_expert */
} fl_experts;
/* Of the first `layers` layers as fl_index_layer counts them. Reads the scale companions where the
 * file has them. */
FL_CHECKED fl_status fl_experts_describe(fl_experts *x, const fl_index *ix, int layers,
                                         fl_err *err);
void fl_experts_free(fl_experts *x);

#endif
