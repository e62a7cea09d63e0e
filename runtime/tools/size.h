#ifndef FL_TOOLS_SIZE_H
#define FL_TOOLS_SIZE_H

#include "runtime/base/pool.h"
#include "runtime/tools/sensitivity_file.h"
#include "runtime/tools/stream.h"

/* Types for a budget of bytes: of all assignments that fit, the one with the least expected loss
 *     sum over tensors t of  S_t E_t(type) / E_t(plain rounding to Q4_K).
 * S_t, the sensitivity, is the KL divergence that rounding t alone to Q4_K costs
 * (sensitivity_file.h). E_t is measured: rows of the tensor, spread over it, are rounded to each
 * type as the run will do it, with the guide it has there, and compared in the guide's norm. A type
 * that leaves a quantized source's blocks as they are loses nothing.
 *
 * Each tensor's types are those of its upper envelope of bytes and loss; a table over the bytes
 * above the floor (at most 2^17 steps) then finds the best assignment, and what the steps left over
 * goes to the tensor with the most gain per byte. The outcome depends on the file, the guides and
 * the budget alone. Held by tests/tools/test_size.c. */
typedef struct fl_size fl_size;

/* Measures. Tensors that are `fixed` or have done[i] keep the type they have. `guides` may be NULL.
 * *c is borrowed and its types are set by fl_size_choose. */
FL_CHECKED fl_status fl_size_create(fl_size **out, fl_conv *c, const bool *done,
                                    const fl_sensitivity *s, const fl_stream_guides *guides,
                                    fl_pool *pool, fl_err *err);
void fl_size_destroy(fl_size **s);

/* Bytes of all tensors with their padding at the smallest and at the largest types. */
uint64_t fl_size_floor(const fl_size *s);
uint64_t fl_size_ceiling(const fl_size *s);

/* Gives the tensors the best types of at most `bytes`, which is no less than the floor. *loss: the
 * expected one, in the unit of the sensitivities. */
FL_CHECKED fl_status fl_size_choose(const fl_size *s, uint64_t bytes, double *loss, fl_err *err);

#endif
