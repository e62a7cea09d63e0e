#ifndef FL_MODEL_BUFFERS_H
#define FL_MODEL_BUFFERS_H

#include "offload/store.h"
#include "quant/law.h"
#include "runtime/base/arena.h"
#include "runtime/base/latch.h"
#include "runtime/model/index.h"

/* Working memory of a forward pass, taken once at load for the largest pass (T rows). Attention,
 * GDN, MoE and the head never run at the same time, so their parts overlap. */

enum { FL_ATTN_SLOTS = 64 };
typedef struct fl_attn_buffers {
    float *qg;    /* [T][n_head][query head_dim | gate head_dim] */
    float *k, *v; /* [T][n_head_kv][head_dim] */
    float *q;     /* [T][n_head][head_dim] normed, rotated */
    float *out;   /* [T][n_head][head_dim] */
    /* Softmaxes under way when keys are shared out among threads: [FL_ATTN_SLOTS][n_head], part_out
     * times [head_dim]; one slot is a row in a chunk. run: the rows from chunk to chunk. */
    float *part_max, *part_sum, *part_out;
    float *run_max, *run_sum;
    float *mtp; /* [T][2 d_model] the MTP block's input: embedding | hidden; NULL without it */
} fl_attn_buffers;

typedef struct fl_gdn_buffers {
    float *u;            /* [T][C] raw in_proj_qkv rows */
    float *c;            /* [T][C] convolved: q | k | v */
    float *z, *o;        /* [T][nv][d] */
    float *alpha, *beta; /* [T][nv]: raw, then decay and beta in place */
    /* block passes only; R = block rows */
    float *bwd_c;                /* [R][C] */
    float *bwd_alpha, *bwd_beta; /* [T][nv]: those of the block are used */
    float *ones, *zeros;         /* [R], [C]: decay 1 and beta 0; the row past the block's edge */
    float *worker_s;             /* [threads][d][d] a state that is thrown away */
    float *worker_r;             /* [threads][R][d] a second read-out */
} fl_gdn_buffers;

typedef struct fl_moe_buffers {
    float *logits;              /* [T][n_expert] */
    float *shared_g, *shared_u; /* [T][d_ff_shared]; shared_u as pair_u below */
    float *shared_gate;         /* [T] */
    float *shared_y;            /* [T][d_model] */
    /* One pair = one (row, expert) product; at most T * top_k. Pairs of one expert are
     * neighbours. */
    float *pair_x;          /* [pairs][d_model], NULL when no expert reads float rows */
    fl_act *pair_q;         /* [pairs][max(d_model, d_ff) / 256] */
    float *pair_g, *pair_u; /* [pairs][d_ff]; pair_u also has the quantized activations */
    float *pair_y;          /* [pairs][d_model] */
} fl_moe_buffers;

typedef struct fl_route_buffers {
    int32_t *expert;        /* [T][top_k] falling probability */
    float *weight;          /* [T][top_k] */
    int32_t *pair;          /* [T][top_k] pair number of (row, k) */
    int32_t *pair_row;      /* [pairs] */
    int32_t *first;         /* [n_expert + 1] first pair of the i-th expert of the union */
    int32_t *count, *order; /* [n_expert] */
    int32_t *rows;          /* [n_expert] of the i-th expert of the union */
    fl_expert_view *view;   /* [n_expert] its view, while it is computed */
    fl_expert_view *came;   /* [n_expert] what the store gave last */
    int32_t *entry;         /* [n_expert] the same as entries of the union */
    /* How far the experts of the union are in a job (moe_experts.c), [n_expert] each. */
    fl_latch *gathered, *ready;
    atomic_int *pieces_left;
    fl_latch shared_ready;
    float *pool_prob;  /* [R][n_expert] block rows' probabilities */
    float *pool_worth; /* [n_expert] */
    bool *pool_in;     /* [n_expert] the block's shared experts */
} fl_route_buffers;

typedef struct fl_buffers {
    int64_t max_rows;           /* T, at least 2 R */
    int64_t max_block;          /* R */
    float *x;                   /* [T][d_model] residual stream */
    float *xn;                  /* [T][d_model] normed */
    float *y;                   /* [T][d_model] a mixer's output */
    fl_act *act;                /* [T][max_cols / 256] quantized input of the product at hand */
    float *rope_cos, *rope_sin; /* [T][rot_dim / 2] */
    double *rope_freq;          /* [rot_dim / 2] */
    fl_attn_buffers attn;
    fl_gdn_buffers gdn;
    fl_moe_buffers moe;
    fl_route_buffers route;
    /* LM head on at most R rows */
    float *head_x;    /* [R][d_model] */
    fl_act *head_q;   /* [R][d_model / 256] */
    float *logits;    /* [R][n_vocab] */
    float *head_part; /* [threads][R][FL_HEAD_PART] logits of one part of the vocabulary */
    float *mtp_h;     /* [d_model] the MTP block's normed output; NULL without it */
} fl_buffers;

/* Ids whose logits are computed and looked at together: what a block's rows have of them stays in a
 * core's cache. */
enum { FL_HEAD_PART = 2048 };

/* What the sizes depend on beside the model. */
typedef struct fl_buffers_shape {
    int64_t max_rows, max_block;
    int n_threads;
    bool float_experts; /* some expert product reads float rows */
    bool mtp;           /* the MTP block runs */
} fl_buffers_shape;

uint64_t fl_buffers_bytes(const fl_index *ix, const fl_buffers_shape *shape);
/* `memory` is zeroed device memory of that size. */
void fl_buffers_init(fl_buffers *b, const fl_index *ix, const fl_buffers_shape *shape,
                     void *memory);

#endif
