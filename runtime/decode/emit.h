#ifndef FL_DECODE_EMIT_H
#define FL_DECODE_EMIT_H

#include "runtime/decode/generate.h"

/* The end of the line: tokens in order become text, stop strings and stop ids end it. Text that
 * could still turn out to be the start of a stop string is held back. */

enum { FL_EMIT_PIECE = 8192, FL_EMIT_HELD = FL_EMIT_PIECE + FL_MAX_STOP_BYTES };

typedef struct fl_emitter {
    const fl_gen_config *c;
    const fl_hparams *hp;
    fl_detok detok;
    bool has_text; /* the model has a tokenizer */
    bool canceled;
    bool any_text; /* some text went out */
    char held[FL_EMIT_HELD];
    size_t n_held;
} fl_emitter;

/* FL_E_ARG: a stop string that is empty or too long, or too many of them. */
FL_CHECKED fl_status fl_emitter_check(const fl_gen_config *c, fl_err *err);
/* c has passed the check. */
void fl_emitter_init(fl_emitter *em, const fl_gen_config *c, const fl_model *model);

/* What a token did. */
typedef enum fl_emit_event {
    FL_EMIT_GO,
    FL_EMIT_STOP_ID,
    FL_EMIT_STOP_STRING,
    FL_EMIT_CANCELED
} fl_emit_event;

/* A stop id gives no text (unless ignore_eos, where it is a token like any other). */
fl_emit_event fl_emitter_push(fl_emitter *em, int32_t id);
/* The end: held text that is no stop string goes out. Not after FL_EMIT_STOP_STRING. */
void fl_emitter_flush(fl_emitter *em);

#endif
