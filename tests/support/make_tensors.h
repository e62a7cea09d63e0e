#ifndef FL_TESTS_SUPPORT_MAKE_TENSORS_H
#define FL_TESTS_SUPPORT_MAKE_TENSORS_H

#include "tests/support/make_model.h"

/* The list of tensors behind make_model.c. */
typedef enum fl_make_kind {
    FL_MAKE_MATRIX, /* N(0, gain^2 / cols) */
    FL_MAKE_EMBED,  /* N(0, 1) */
    FL_MAKE_NORM,   /* zero-centred, N(0, 0.2^2); GGUF stores 1 + w */
    FL_MAKE_GATED_NORM,
    FL_MAKE_CONV,
    FL_MAKE_A_LOG, /* log of 0.05..8; GGUF stores -exp */
    FL_MAKE_DT,
    FL_MAKE_MIX
} fl_make_kind;

typedef struct fl_make_tensor {
    char hf[96];   /* without prefix; "" when only GGUF has it under this name */
    char gguf[64]; /* "" when it is a part of another GGUF tensor */
    char key[96];  /* Hugging Face name of the whole that the values come from */
    fl_make_kind kind;
    float gain;
    int64_t n, rows, cols; /* n matrices of [rows][cols]; vectors: 1, 1, cols */
    int64_t whole_rows;    /* rows of each matrix of the whole */
    int64_t row0;          /* first row taken of it */
    int64_t expert;        /* -1, or the one matrix of the whole that is taken */
    int64_t heads_row0;    /* rows from here on are value heads; -1 none */
    int64_t row_unit;      /* rows of one value head there */
    int64_t col_unit;      /* > 0: the columns are value heads of this many */
    bool vector, f32;      /* vector: 1-D; f32: never in another type (GGUF) */
    bool st_f32;           /* F32 in safetensors too */
} fl_make_tensor;

/* Tensors of the model in file order, malloc'ed; gguf chooses how experts are cut. */
fl_make_tensor *fl_make_list(const fl_make *m, bool gguf, int *n);
/* Values in Hugging Face form, malloc'ed: n * rows * cols floats. */
float *fl_make_tensor_values(const fl_make *m, const fl_make_tensor *t);
/* Turns them into GGUF form in place: permutation, 1 + w, -exp, as the quirks ask. */
void fl_make_to_gguf(const fl_make *m, const fl_make_tensor *t, float *v);

#endif
