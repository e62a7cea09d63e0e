#ifndef FL_TOOLS_LOGIT_ROW_H
#define FL_TOOLS_LOGIT_ROW_H

#include <stdbool.h>
#include <stdint.h>

/* A row of logits in 2 bytes an id, and how far another row is from it.
 *
 *   u64 hash; f64 nll; f32 high, step; i32 id[top]; f32 logit[top]; u16 code[vocab]; zeros to 8
 *
 * little endian. The `top` largest logits are exact, falling, lower id first (top = 32, or vocab if
 * that is less); their code is 65535. Any other is high - step * code, code at most 65534: within
 * step / 2, where step is at most 40 / 65534. What lies more than 40 below `high` (the largest that
 * is not exact) counts as 40 below it: at e^-40 it changes nothing that is printed. hash: XXH3 of
 * the float32 row; nll: of the token that stands there, exact. */
enum { FL_LOGIT_TOP = 32 };

uint64_t fl_logit_row_bytes(int64_t vocab); /* a multiple of 8 */

/* logits finite [vocab]; dst holds fl_logit_row_bytes, 8-byte aligned. */
void fl_logit_row_pack(void *dst, const float *logits, int64_t vocab, double nll);
/* Whether the bytes are such a row; the functions below take no other. */
bool fl_logit_row_valid(const void *row, int64_t vocab);

double fl_logit_row_nll(const void *row);
int32_t fl_logit_row_best(const void *row); /* id of the largest logit, the lowest one */

/* KL(row || softmax(logits)) in nats, at least 0, and the most that it is off for the rounding of
 * the row. 0 and 0 when the row was made from these very logits. */
typedef struct fl_divergence {
    double kl, error;
} fl_divergence;
fl_divergence fl_logit_row_compare(const void *row, const float *logits, int64_t vocab);

#endif
