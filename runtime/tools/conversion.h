#ifndef FL_TOOLS_CONVERSION_H
#define FL_TOOLS_CONVERSION_H

#include "runtime/model/index.h"

/* From an opened model (Hugging Face safetensors or GGUF) to the tensors of a GGUF file in
 * llama.cpp's form: names, shapes, and for every output row which source rows it is made of.
 *
 * What the index found out about the source decides the treatment, the same for both kinds:
 *   value heads grouped (v_grouped) -> tiled: output head n is source head R (n % K) + n / K, with
 *     K key heads and R = V / K value heads per key head; rows of qkv (its V part), z, alpha,
 *     beta, conv (its V part), dt, a and all tensors of the backward branch; columns of ssm_out
 *   zero-centred norms (norm_add_one) -> 1 + w, never for the gated norm of GDN
 *   A_log (a_is_log) -> -exp(A_log)
 *   fused gate and up rows -> two tensors; experts one by one -> one tensor; conv squeezed
 * Held by tests/tools/test_quantize.c. */

enum { FL_CONV_NAME = 64 };

typedef enum fl_conv_map {
    FL_CONV_ROWS,      /* output row r is source row r */
    FL_CONV_HEADS,     /* rows from `first` on: heads of `unit` rows, permuted as above */
    FL_CONV_HEAD_COLS, /* columns: heads of `unit` values, permuted as above */
    FL_CONV_HALF       /* of each group of 2 * unit source rows the first (half 0) or second half */
} fl_conv_map;

typedef enum fl_conv_op { FL_CONV_COPY, FL_CONV_ADD_ONE, FL_CONV_NEG_EXP } fl_conv_op;

typedef struct fl_conv_tensor {
    char name[FL_CONV_NAME];
    uint32_t type; /* as it will be written */
    int n_dims;
    int64_t ne[4];
    int64_t rows, cols; /* rows * cols values in output order; whole blocks lie inside a row */
    bool fallback;      /* the wanted type does not divide the rows: another one was taken */

    const fl_tensor *one;         /* the source, or */
    const fl_tensor *const *many; /* one source per run of rows_per_src rows (stride 3) */
    int64_t rows_per_src;
    fl_conv_map map;
    int64_t first, unit; /* see fl_conv_map */
    int half, n_k, n_r;  /* n_k key heads, n_r value heads per key head */
    fl_conv_op op;
} fl_conv_tensor;

typedef struct fl_conv {
    const fl_source *src;
    fl_conv_tensor *tensor;
    int n, cap;
    bool failed;   /* out of memory while listing */
    int n_dropped; /* source tensors that the output does not have */
} fl_conv;

/* Lists the output's tensors. `main_type` is the type of the large matrices: Q4_K, Q8_0, BF16, F16
 * or F32. With Q4_K these stay Q8_0: token_embd and output, which everything passes through;
 * attn_qkv and ssm_out, the way into and out of the recurrent state, and the gates alpha and beta
 * of both GDN branches, whose errors add up over a sequence; attn_k and attn_v, which are small and
 * serve several heads (figures: quant/FORMAT.md, section 5). Norms,
 * router, convolutions, shared gate and vectors are F32 with every main type. `bwd`: list the
 * tensors of the backward branch. A source tensor that is quantized already is refused. */
FL_CHECKED fl_status fl_conv_plan(fl_conv *c, const fl_index *ix, uint32_t main_type, bool bwd,
                                  fl_err *err);
void fl_conv_fini(fl_conv *c);

/* Rows [row0, row0 + n) of an output tensor as float32 into dst[n][cols]. `scratch` has room for
 * (n + 1) * cols floats. A NaN or an infinity in the source is an error that names the place. */
FL_CHECKED fl_status fl_conv_read(const fl_conv *c, const fl_conv_tensor *t, int64_t row0,
                                  int64_t n, float *dst, void *scratch, fl_err *err);

#endif
