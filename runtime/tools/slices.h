#ifndef FL_TOOLS_SLICES_H
#define FL_TOOLS_SLICES_H

#include "runtime/tools/conversion.h"

/* Cuts the tensors of a conversion into slices: the units in which stream.h reads, rounds and
 * writes. A slice is a run of whole rows of one tensor that never crosses two experts, of about a
 * million values (at least one row). Where rows are taken from all over a small tensor it is that
 * tensor. */
typedef struct fl_slice {
    int tensor; /* of fl_conv */
    int expert; /* 0 for a tensor without experts */
    int64_t row0, rows;
    bool first, last; /* of the rows of that expert */
    bool end;         /* of the tensor */
} fl_slice;

/* Goes on to the next slice; false behind the last. {.tensor = k} stands before tensor k. */
bool fl_slice_next(const fl_conv *c, fl_slice *s);

/* The places of the source that a slice is made of, in the order in which fl_conv_values asks for
 * their bytes. */
typedef struct fl_slice_part {
    const fl_tensor *src;
    uint64_t skip, bytes; /* of src */
    const uint8_t *data;  /* NULL as yet */
} fl_slice_part;
/* Fills part[room] as far as it goes (may be NULL, 0) and returns how many there are. */
int fl_slice_parts(const fl_conv *c, const fl_slice *s, fl_slice_part *part, int room);

#endif
