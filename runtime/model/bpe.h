#ifndef FL_MODEL_BPE_H
#define FL_MODEL_BPE_H

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* The merges of a byte-level BPE: (left id, right id) -> (rank, merged id). Immutable after
 * creation. */
typedef struct fl_bpe fl_bpe;

/* byte_id[b]: id of the token of byte b, -1 where the vocabulary has none. */
FL_CHECKED fl_status fl_bpe_create(fl_bpe **out, size_t n_merges, const int32_t byte_id[256],
                                   fl_err *err);
void fl_bpe_destroy(fl_bpe **b);
/* Adds the merge of the next rank. Of equal pairs the first, lowest one counts. At most n_merges
 * calls. */
void fl_bpe_add(fl_bpe *b, int32_t left, int32_t right, int32_t merged);

/* Ids of one caller, and scratch for long pieces; zero-initialise, give back with
 * fl_bpe_out_fini (or take `ids` and set it to NULL first). */
typedef struct fl_bpe_out {
    int32_t *ids;
    size_t n, cap;
    void *scratch;
    size_t scratch_bytes;
} fl_bpe_out;

/* Appends one id. */
FL_CHECKED fl_status fl_bpe_push(fl_bpe_out *o, int32_t id, fl_err *err);
/* Appends the ids of one piece: from single bytes, the pair of lowest rank is merged (leftmost
 * first), until no pair is in the list. n log n in the length of the piece, which must be less
 * than 2^31 bytes. A byte without token is FL_E_UNSUPPORTED. */
FL_CHECKED fl_status fl_bpe_encode(const fl_bpe *b, fl_str piece, fl_bpe_out *o, fl_err *err);
void fl_bpe_out_fini(fl_bpe_out *o);

#endif
