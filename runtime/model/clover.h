#ifndef FL_MODEL_CLOVER_H
#define FL_MODEL_CLOVER_H

#include <stdbool.h>

#include "runtime/model/source.h"

/* Everything about Clover that its authors have not published, each choice in one place. A wrong
 * guess costs one line here. Facts, definitions and how a checkpoint settles them: README, "What
 * is known about Clover". */

typedef enum fl_gdn_block_mode {
    FL_GDN_CAUSAL,   /* o_t reads S_t */
    FL_GDN_BLOCKEND, /* every row reads the state after the block's last row */
    FL_GDN_MIXED,    /* leading clean rows causal, the others block end */
    FL_GDN_BIDIR     /* forward plus strict backward scan with the file's extra tensors */
} fl_gdn_block_mode;

typedef enum fl_block_align { FL_ALIGN_ABSOLUTE, FL_ALIGN_RELATIVE } fl_block_align;
typedef enum fl_commit_mode { FL_COMMIT_CAUSAL, FL_COMMIT_BLOCK_BIDIR } fl_commit_mode;
typedef enum fl_pool_mode { FL_POOL_OFF, FL_POOL_MAX, FL_POOL_MASS } fl_pool_mode;
typedef enum fl_conf_mode { FL_CONF_PROCESSED, FL_CONF_RAW } fl_conf_mode;

/* From where on a text is pushed to its end, and how steeply: the lengths are known, the slope is
 * our choice. */
#define FL_SOFT_THINK 4096
#define FL_SOFT_ANSWER 8192
#define FL_SOFT_SLOPE 0.01f

/* Of the backward scan (FL_GDN_BIDIR). */
typedef enum fl_gdn_scan { FL_SCAN_STRICT, FL_SCAN_INCLUSIVE } fl_gdn_scan; /* row t sees itself? */
typedef enum fl_gdn_combine {
    FL_COMBINE_MIX, /* o = f + mix r */
    FL_COMBINE_SUM, /* o = f + r */
    FL_COMBINE_GATE /* o = (1 - g) f + g r, g = sigmoid(mix) */
} fl_gdn_combine;
/* What the backward convolution finds past the block's right edge: zeros, or the last row. */
typedef enum fl_gdn_edge { FL_EDGE_ZEROS, FL_EDGE_REPEAT } fl_gdn_edge;
/* What the forward convolution of a block finds before it: the clean rows, or zeros. */
typedef enum fl_gdn_tail { FL_TAIL_CLEAN, FL_TAIL_ZEROS } fl_gdn_tail;

typedef struct fl_clover {
    bool has_blocks; /* the model knows masks: architecture clover_moe */
    bool has_bwd;    /* the extra bidirectional tensors are in the file */
    int block_size;  /* 32 */
    int32_t mask_id; /* file's mask_token_id; 248077 when absent; -1 for the base model */
    float threshold; /* 0.95 */
    int pred_shift;  /* 0: row i predicts row i; 1: row i-1 predicts row i */
    fl_block_align block_align;
    fl_commit_mode commit_mode;
    fl_gdn_block_mode gdn_block_mode; /* bidir when has_bwd, else blockend */
    fl_gdn_scan gdn_scan;
    fl_gdn_combine gdn_combine;
    fl_gdn_edge gdn_conv_edge;
    fl_gdn_tail gdn_tail;
    fl_pool_mode pool;
    int pool_c; /* 48 */
    fl_conf_mode conf;
    int verdict; /* block mode earned: 1 yes, 0 no, -1 nobody says */
    /* The biases that end a long thought and a long answer (decode/bias.h); 0 = none. */
    int soft_think, soft_answer; /* tokens */
    float soft_slope;            /* logit per token beyond */
    bool soft_from_file;
} fl_clover;

/* A switch with one word per setting; its name is the file's key. The first word is the
 * definition's (but gdn_block_mode: see above). */
typedef struct fl_switch {
    const char *name;
    const char *const *words; /* NULL behind the last */
    size_t at;                /* of the setting in fl_clover */
} fl_switch;
/* All of them; .name NULL behind the last. */
extern const fl_switch fl_switches[];
/* The setting's word; `name` is one of fl_switches. */
const char *fl_clover_word(const fl_clover *c, const char *name);
/* Sets it; false when `name` or `word` is unknown. */
bool fl_clover_set(fl_clover *c, const char *name, const char *word);

/* Reads the switches from metadata (clover_moe.NAME) or config.json (text_config or top level).
 * NAME is a word switch, or one of block_size, mask_token_id, confidence_threshold, pred_shift
 * (0 | 1), expert_pool_size (0 = off, else mode max with that C unless expert_pool_mode says
 * otherwise), soft_think_tokens, soft_answer_tokens (0 = never), soft_slope (0 to 10,
 * logit per token), verdict (0 | 1; or the boolean block_mode_earned, in config.json also inside an
 * object block_mode). An absent one keeps the definition's value, a wrong one is FL_E_FORMAT. The
 * base model has none of them. `has_bwd` is found by the index. */
FL_CHECKED fl_status fl_clover_read(fl_clover *c, const fl_source *src, bool has_bwd, fl_err *err);
/* Name to mode ("causal", "blockend", "mixed", "bidir"); false when unknown. */
bool fl_gdn_block_mode_parse(const char *name, fl_gdn_block_mode *out);
const char *fl_gdn_block_mode_name(fl_gdn_block_mode m);

#endif
