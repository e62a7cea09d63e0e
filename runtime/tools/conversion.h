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

/* What a tensor is in the model, for tables of sizes and for what is known of its sensitivity. A
 * matrix of the backward branch or of an MTP block counts there. */
typedef enum fl_conv_class {
    FL_CONV_EMBED,
    FL_CONV_OUTPUT,
    FL_CONV_EXP_GATE,
    FL_CONV_EXP_UP,
    FL_CONV_EXP_DOWN,
    FL_CONV_SHARED,
    FL_CONV_ATTENTION,
    FL_CONV_GDN,
    FL_CONV_BRANCH,
    FL_CONV_MTP,
    FL_CONV_ROUTER, /* and the gate of the shared expert */
    FL_CONV_NORMS,  /* norms, convolutions, vectors */
    FL_CONV_CLASSES
} fl_conv_class;
extern const char *const fl_conv_class_name[FL_CONV_CLASSES];

typedef struct fl_conv_tensor {
    char name[FL_CONV_NAME];
    fl_conv_class class;
    bool fixed;    /* F32 whatever is asked for: router, norms, convolutions, vectors */
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
    const fl_tensor *scale; /* ".scale" companion or NULL; read into */
    float *factor;          /* [n_factors]: one for all rows, or one for each expert */
    int64_t n_factors;

    /* Known after fl_conv_settle: */
    bool copied; /* the source's blocks are taken as they are (fl_conv_blocks) */
    bool again;  /* the source is quantized and its values are rounded a second time */
} fl_conv_tensor;

typedef struct fl_conv {
    const fl_source *src;
    fl_conv_tensor *tensor;
    int n, cap;
    bool failed;   /* out of memory while listing */
    int n_dropped; /* source tensors that the output does not have */
    int n_copied, n_again;
} fl_conv;

/* Lists the output's tensors, all F32 as yet. `bwd`: those of the backward branch too. */
FL_CHECKED fl_status fl_conv_plan(fl_conv *c, const fl_index *ix, bool bwd, fl_err *err);
/* Gives a tensor a type. One that is `fixed` stays F32; where blocks do not divide the rows it
 * falls back to Q8_0, else to F16. */
void fl_conv_set_type(fl_conv_tensor *t, uint32_t want);
/* Whether a tensor written in that type is its quantized source's blocks as they are. */
bool fl_conv_copies(const fl_conv_tensor *t, uint32_t type);
/* With all types given: which tensors of a quantized source are copied and which are rounded again.
 * A tensor that would be rounded again is refused (FL_E_UNSUPPORTED) unless `requantize`; values
 * written as F32 are not rounded. */
FL_CHECKED fl_status fl_conv_settle(fl_conv *c, bool requantize, fl_err *err);
/* The type that holds most values. */
uint32_t fl_conv_main_type(const fl_conv *c);
/* Bytes of a tensor in a type; 0 when its blocks do not divide the rows. */
uint64_t fl_conv_bytes(const fl_conv_tensor *t, uint32_t type);
void fl_conv_fini(fl_conv *c);

/* Rows [row0, row0 + n) of an output tensor as float32 into dst[n][cols]. `scratch` has room for
 * (n + 1) * cols floats. A NaN or an infinity in the source is an error that names the place. */
FL_CHECKED fl_status fl_conv_read(const fl_conv *c, const fl_conv_tensor *t, int64_t row0,
                                  int64_t n, float *dst, void *scratch, fl_err *err);

/* ---- the same from memory ---- */

/* Where the bytes of a source tensor come from: *data holds until the next call. */
typedef struct fl_conv_fetch {
    void *ctx;
    fl_status (*get)(void *ctx, const fl_tensor *src, uint64_t skip, uint64_t bytes,
                     const void **data, fl_err *err);
} fl_conv_fetch;

/* What fl_conv_read gives. */
FL_CHECKED fl_status fl_conv_values(const fl_conv *c, const fl_conv_tensor *t, int64_t row0,
                                    int64_t n, const fl_conv_fetch *fetch, float *dst,
                                    void *scratch, fl_err *err);
/* The same rows of a tensor that is `copied`, as the source's blocks. `scratch`: room for a row. */
FL_CHECKED fl_status fl_conv_blocks(const fl_conv_tensor *t, int64_t row0, int64_t n,
                                    const fl_conv_fetch *fetch, void *dst, void *scratch,
                                    fl_err *err);

/* Output rows from `row` on, at most `most`, whose source rows lie behind each other. */
typedef struct fl_conv_run {
    const fl_tensor *src;
    int64_t from, rows; /* rows of src */
    uint64_t row_bytes;
} fl_conv_run;
fl_conv_run fl_conv_run_at(const fl_conv_tensor *t, int64_t row, int64_t most);
/* The source tensor of an output row. */
const fl_tensor *fl_conv_source(const fl_conv_tensor *t, int64_t row);

#endif
