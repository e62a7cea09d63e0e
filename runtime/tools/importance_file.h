#ifndef FL_TOOLS_IMPORTANCE_FILE_H
#define FL_TOOLS_IMPORTANCE_FILE_H

#include "runtime/model/source.h"

/* What the inputs of a model's matrices look like: mean squares and second moments over a text,
 * as `fourleaf importance` measures them, or as llama.cpp's imatrix does (mean squares alone; GGUF
 * or the older form, which does not say how many rows each expert saw).
 *
 * Our file is a GGUF container of the architecture "fourleaf_importance". Matrices that read the
 * same rows share a site; N is the layer, E the number of experts, C the columns, all tensors F32:
 *   blk.N.mixer_in    attn_q, attn_k, attn_v | attn_qkv, attn_gate, ssm_alpha, ssm_beta
 *   blk.N.block_in    ssm_bwd_alpha, ssm_bwd_beta: the rows of block passes alone
 *   blk.N.mixer_out   attn_output | ssm_out, its value heads tiled
 *   blk.N.ffn_in      router, shared gate and up; what all experts of the layer see
 *   blk.N.expert_in   ffn_gate_exps, ffn_up_exps: mean squares of each expert's rows
 *   blk.N.shared_mid  ffn_down_shexp
 *   blk.N.expert_mid  ffn_down_exps
 *   head_in           output; token_embd where it is the output as well (key ...tied)
 * A site S has S.rows [E or 1], how many rows went in; S.odd [2], how many of them were all zeros
 * and how many were left out as not finite; S.diag [C, E or 1], the mean of x_i^2;
 * S.full [C (C + 1) / 2, E or 1] (not expert_in), the mean of x_i x_j for j <= i, row i behind row
 * i - 1; and expert_mid.all [C (C + 1) / 2], the mean over all rows of all experts.
 * Columns are in the order of the GGUF that quantize writes, whatever was measured. */
typedef struct fl_importance fl_importance;

/* Refuses with one line what is neither (FL_E_FORMAT, FL_E_UNSUPPORTED) or damaged. Only headers
 * and counts are read. */
FL_CHECKED fl_status fl_importance_open(fl_importance **out, const char *path, fl_err *err);
void fl_importance_close(fl_importance **im);

/* What there is for one matrix. */
typedef struct fl_importance_found {
    bool diag, full; /* which of the two were given */
    double rows;     /* input rows that this matrix saw itself */
    bool prior;      /* an expert that saw so few that its layer counts for more than its rows */
    int repaired;    /* columns whose value was no number or below 0: the mean of the others */
} fl_importance_found;

/* Mean squares diag[cols] and, unless `full` is NULL, second moments full[cols][cols] of the inputs
 * of a matrix. `name`: the GGUF name of its tensor ("blk.3.ffn_down_exps.weight"); `expert`: which
 * one of an expert tensor, else 0. Where nothing is known found->diag and found->full are false and
 * the arrays are left alone; that is no failure. A full matrix is symmetric, positive
 * semidefinite, and has diag on its diagonal.
 *
 * Experts: with n rows of its own, an expert's S becomes (n S + k f P) / (n + k): P is the mean
 * over the layer, f makes its trace that of S (1 where n is 0), k is worth so many rows: 32 for
 * mean squares, for full matrices the effective rank of P, tr(P)^2 / |P|^2. Gate and up: the
 * layer's full matrix, rows and columns scaled to the expert's mean squares.
 *
 * FL_E_FORMAT: other columns or fewer experts than asked for, or damaged values, by name. Any
 * thread; *im stays as it is. */
FL_CHECKED fl_status fl_importance_get(const fl_importance *im, const char *name, int64_t cols,
                                       int expert, float *diag, float *full,
                                       fl_importance_found *found, fl_err *err);

/* How many rows each expert of a layer saw itself, *rows [*n] (malloc'ed); below *enough of them
 * its layer counts for more in one of its matrices. *n is 0 where our file has no such layer, and
 * for an imatrix. */
FL_CHECKED fl_status fl_importance_experts(const fl_importance *im, int layer, int64_t *n,
                                           float **rows, double *enough, fl_err *err);

/* Of the whole file. Strings live as long as *im. */
typedef struct fl_importance_info {
    const char *kind;     /* "fourleaf" or "imatrix" */
    const char *model;    /* our file: name of the model; else "" */
    const char *identity; /* our file: identity of the model's files, 16 hex digits; else "" */
    double tokens;        /* clean rows of text; 0 where the file does not say */
    double block_rows;    /* rows of block passes */
} fl_importance_info;
fl_importance_info fl_importance_describe(const fl_importance *im);

#endif
