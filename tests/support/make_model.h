#ifndef FL_TESTS_SUPPORT_MAKE_MODEL_H
#define FL_TESTS_SUPPORT_MAKE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/format.h"
#include "tests/support/bytes.h"

/* Writes small random models, as a GGUF file (single or split) and as a safetensors folder. The
 * same `seed` and geometry give the same weights in both: each weight comes from the seed and its
 * Hugging Face name alone, and is a number that F32, F16 and BF16 all hold exactly. The GGUF is
 * laid out as llama.cpp's converter does: value heads permuted from grouped to tiled, norms + 1,
 * ssm_a = -exp(A_log). Failures end the test program.
 *
 *     fl_make m = fl_make_default();
 *     m.arch = "clover_moe", m.type = FL_TYPE_Q4_K;
 *     fl_make_gguf(&m, "/tmp/x/model.gguf");
 *     fl_make_safetensors(&m, "/tmp/x/hf"); */
typedef struct fl_make {
    const char *arch; /* "qwen35moe" or "clover_moe" (with the backward branch unless no_bwd) */
    uint64_t seed;

    int n_layer, interval; /* layer i is attention iff (i + 1) % interval == 0 */
    int d_model, n_head, n_head_kv, head_dim, rot_dim;
    int gdn_k_heads, gdn_v_heads, gdn_dim, conv_kernel;
    int n_expert, top_k, d_ff, d_ff_shared, n_vocab, n_ctx;
    bool tied;         /* no output matrix */
    bool mtp;          /* one MTP block behind the layers */
    bool no_bwd;       /* clover_moe without the backward branch */
    bool no_tokenizer; /* any n_vocab will do then; the mask id is the last one */

    /* GGUF. Matrices (2-D, 3-D, embedding and output) have `type` unless a name contains
     * mix[i].part: the first match counts. Norms, other vectors, router and conv are F32. */
    uint32_t type;
    struct {
        const char *part; /* "ffn_down_exps", "blk.2.", "token_embd" */
        uint32_t type;
    } mix[8];
    uint32_t version;   /* 2 or 3 */
    uint32_t alignment; /* general.alignment; 0 = key absent, 32 */
    int n_files;        /* > 1: PATH must end in .gguf; NAME-0000i-of-0000n.gguf are written */
    bool fused;         /* ffn_gate_up_exps instead of two tensors */
    bool scales;        /* .scale companions (1.5 and, per expert e, 1 + e / 8), .input_scale too */
    /* quirks of clover.md section 3, and Ollama's spelling */
    bool no_shared_count, norms_zero_centred, a_as_log, v_grouped, ollama;

    /* safetensors */
    uint32_t st_type;   /* F32, F16 or BF16; A_log and linear_attn.norm are always F32 */
    int st_files;       /* > 1: shards and model.safetensors.index.json */
    bool st_per_expert; /* mlp.experts.E.gate_proj.weight ... */
    bool st_plain;      /* names begin with model. instead of model.language_model. */
    bool st_flat;       /* config.json without text_config */
    const char *st_license, *config_license; /* in __metadata__, in config.json; NULL: none */
} fl_make;

/* qwen35moe: 4 layers (G G G A), d_model 256, 4 heads of 64 (2 kv, 16 rotary), GDN 2 key and 4
 * value heads of 64, 8 experts of width 256, top 2, vocabulary 512, context 1,024; all F32. Every
 * row length of a matrix is 256. */
fl_make fl_make_default(void);
/* A much smaller one (under 1 MB in F32) for tests that open many files; rows of 32 and 64. */
fl_make fl_make_tiny(void);

/* Under a sanitizer, where rounding to Q4_K takes half a minute, experts in Q8_0. */
void fl_make_quick_experts(fl_make *m);

void fl_make_gguf(const fl_make *m, const char *path);
/* A GGUF v3 file of that model's metadata alone, without tensors; *out is freed by the caller. */
void fl_make_metadata(const fl_make *m, fl_bytes *out);
/* Makes the folder if needed; writes config.json, generation_config.json, tokenizer.json and
 * model.safetensors (or shards with their index). */
void fl_make_safetensors(const fl_make *m, const char *dir);

/* Ids of the tiny vocabulary: ids 0..255 are the bytes, then merges, then
 * Qwen's special tokens, the rest [PADn]. */
int fl_make_token(const fl_make *m, const char *text); /* "<|im_end|>"; -1 when absent */
int fl_make_mask_id(const fl_make *m);                 /* first id behind the special tokens */

/* A tensor's values in Hugging Face form: name without prefix ("layers.0.mlp.gate.weight",
 * "embed_tokens.weight", "lm_head.weight"); malloc'ed, *n elements; NULL when there is none. */
float *fl_make_values(const fl_make *m, const char *hf_name, int64_t *n);

#endif
