#ifndef FL_MODEL_INDEX_H
#define FL_MODEL_INDEX_H

#include "runtime/model/source.h"
#include "runtime/model/wiring.h"

/* Hyperparameters and the role of every tensor, the same for GGUF and safetensors. */

enum { FL_MAX_STOP_IDS = 8 };

typedef struct fl_hparams {
    char arch[32];  /* "qwen35moe" or "clover_moe" */
    char name[128]; /* what the file calls itself */
    int n_layer;    /* without MTP blocks */
    int n_mtp;
    int64_t d_model, n_vocab, n_ctx_train;
    int n_head, n_head_kv, head_dim, rot_dim;
    double rope_base;
    float eps;
    int n_expert, top_k;
    int64_t d_ff, d_ff_shared;
    int conv_kernel; /* 4 */
    int gdn_dim;     /* key and value head dimension */
    int gdn_k_heads, gdn_v_heads;
    bool v_grouped;    /* value head n uses key head n/(v/k) (Hugging Face order); false: n % k */
    bool norm_add_one; /* stored norms are zero-centred: add 1 on load (never to the gated norm) */
    bool a_is_log;     /* stored A is A_log: use -exp(A) */
    int32_t stop_ids[FL_MAX_STOP_IDS];
    int n_stop_ids;
    int32_t bos_id, eos_id, pad_id; /* -1 when absent */
} fl_hparams;

/* A matrix or vector of the model; tensor == NULL means absent. Fused tensors are addressed by
 * row ranges (row0, n_rows), so gate and up may share one tensor. */
typedef struct fl_tref {
    const fl_tensor *tensor;
    const fl_tensor *scale; /* ".scale" companion, F32: one value, or one per expert; or NULL */
} fl_tref;

typedef struct fl_layer_refs {
    bool full_attention; /* else GDN */
    fl_tref attn_norm, ffn_norm;
    /* full attention */
    fl_tref q, k, v, o, q_norm, k_norm; /* q: per head [query head_dim | gate head_dim] rows */
    /* GDN */
    fl_tref qkv, z, alpha, beta, conv, a, dt, gdn_norm, out;
    fl_tref bwd_alpha, bwd_beta, bwd_conv, bwd_a, bwd_dt, bwd_mix;
    /* MoE */
    fl_tref router, shared_gate_inp, shared_gate, shared_up, shared_down;
    fl_tref exp_gate_up;                /* fused: gate rows then up rows of each expert */
    fl_tref exp_gate, exp_up, exp_down; /* whole-layer tensors [E][out][in] */
    /* MTP blocks: input norms, their projection, final norm */
    fl_tref nextn_enorm, nextn_hnorm, nextn_proj, nextn_norm;
    const fl_tensor **per_expert; /* separate tensors: [n_expert][3] gate, up, down; or NULL */
} fl_layer_refs;

typedef struct fl_index {
    const fl_source *src;
    fl_hparams hp;
    fl_clover clover;
    fl_tref embed, output, output_norm; /* output.tensor == embed.tensor when tied */
    fl_layer_refs *layer;               /* [n_layer] */
    fl_layer_refs *mtp;                 /* [n_mtp]; the first one can draft */
    /* Plain sentences about quirks found and handled, unknown tensors, missing keys. */
    char **note;
    int n_notes;
    const fl_tensor **extra; /* [n_extra] tensors that play no role, in file order */
    int n_extra;
} fl_index;

/* Builds the index and checks every shape against the hyperparameters; a missing tensor, a wrong
 * shape, a type that cannot be read, an unknown architecture give one line that says what to do.
 * `src` must outlive the index. */
FL_CHECKED fl_status fl_index_build(fl_index **out, const fl_source *src, fl_err *err);
/* The same with what else is known; a role that the map names and no tensor plays is FL_E_FORMAT.
 */
FL_CHECKED fl_status fl_index_build_as(fl_index **out, const fl_source *src, const fl_wiring *w,
                                       fl_err *err);
void fl_index_free(fl_index **ix);

/* Layer n_layer is the first MTP block. */
const fl_layer_refs *fl_index_layer(const fl_index *ix, int layer);

/* Expert e's matrix `part` (0 gate, 1 up, 2 down) of a layer: type, extent in the file, shape.
 * For fused experts gate and up are halves of one contiguous run. */
typedef struct fl_expert_mat {
    uint32_t type;
    int64_t rows, cols;
    int32_t file;
    uint64_t offset, bytes;
    const fl_tensor *scale; /* or NULL */
} fl_expert_mat;
void fl_index_expert(const fl_index *ix, int layer, int expert, int part, fl_expert_mat *out);

/* Whether a tensor has the shape of a layer's tensor of this role. */
bool fl_index_role_fits(const fl_index *ix, const char *role, const fl_tensor *t);

/* A digest of how clean passes read the file: the three switches of how values are stored, the name
 * of each tensor by its role. What passes over masks alone read is not in it. */
uint64_t fl_index_digest(const fl_index *ix);

/* Bytes by component, for inspect and plan. */
typedef struct fl_index_sizes {
    uint64_t embed, output, attention, gdn, bwd, experts, shared, router, norms, mtp, other, total;
    uint64_t params_total, params_active;
} fl_index_sizes;
void fl_index_measure(const fl_index *ix, fl_index_sizes *out);

#endif
