#ifndef FL_MODEL_INDEX_ROLES_H
#define FL_MODEL_INDEX_ROLES_H

#include <stddef.h>

#include "runtime/model/index.h"

/* The tensors of a layer: one table of names and shapes, for finding them and for making them up.
 */

/* A dimension, by meaning. */
typedef enum {
    D_NONE,
    D_ONE,
    D_MODEL,
    D_2MODEL,
    D_VOCAB,
    D_Q2,    /* query and gate rows: 2 heads * head_dim */
    D_Q,     /* heads * head_dim */
    D_KV,    /* kv heads * head_dim */
    D_HEAD,  /* head_dim */
    D_MIXED, /* conv channels: 2 * key + value */
    D_VALUE, /* value heads * gdn_dim */
    D_VHEADS,
    D_GDN, /* gdn_dim */
    D_TAPS,
    D_EXPERTS,
    D_FF,
    D_2FF,
    D_SHARED
} fl_role_dims;

/* Which layers have a tensor. */
typedef enum { IN_ALL, IN_FULL, IN_GDN, IN_BWD, IN_FUSED, IN_APART, IN_DOWN, IN_MTP } fl_role_where;

typedef struct fl_role {
    uint16_t at;      /* of its fl_tref in fl_layer_refs */
    uint8_t where;    /* fl_role_where */
    uint8_t ne[3];    /* fl_role_dims, ne[0] first */
    const char *gguf; /* behind "blk.N." */
    const char *hf;   /* behind "layers.N." */
} fl_role;

#define AT(FIELD) (uint16_t) offsetof(fl_layer_refs, FIELD)
enum { FL_N_ROLES = 36 };
extern const fl_role fl_roles[FL_N_ROLES];

int64_t fl_role_dim(const fl_hparams *hp, uint8_t dim);

/* A tensor as GGUF files hold it. */
typedef struct fl_role_shape {
    char name[64];
    int n_dims;
    int64_t ne[3];
    bool f32; /* router, norms, convolutions, vectors: never in another type */
} fl_role_shape;
/* Those of a layer, gate and up apart; an MTP block's are not among them. Returns their number. */
int fl_role_shapes(const fl_hparams *hp, int layer, bool full, bool bwd,
                   fl_role_shape out[FL_N_ROLES]);

#endif
