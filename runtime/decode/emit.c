#include "runtime/decode/emit.h"

#include <string.h>

fl_status fl_emitter_check(const fl_gen_config *c, fl_err *err)
{
    for (int i = 0; i < c->n_stop; i++) {
        const size_t n = strlen(c->stop[i]);
        if (n == 0 || n > FL_MAX_STOP_BYTES)
            return FL_FAIL(err, FL_E_ARG, 0, "stop string %d has %zu bytes; expected 1 to %d",
                           i + 1, n, FL_MAX_STOP_BYTES);
    }
    if (c->n_stop > FL_MAX_STOP_STRINGS)
        return FL_FAIL(err, FL_E_ARG, 0, "%d stop strings; at most %d are taken", c->n_stop,
                       FL_MAX_STOP_STRINGS);
    return FL_OK;
}

void fl_emitter_init(fl_emitter *em, const fl_gen_config *c, const fl_model *model)
{
    em->c = c;
    em->hp = &model->index->hp;
    em->has_text = model->tokenizer != NULL;
    em->canceled = em->any_text = false;
    em->n_held = 0;
    if (em->has_text) fl_detok_init(&em->detok, model->tokenizer, false);
}

static void put(fl_emitter *em, const char *text, size_t n)
{
    if (n == 0) return;
    em->any_text = true;
    if (em->c->on_text && !em->canceled && !em->c->on_text(em->c->arg, text, n))
        em->canceled = true;
}

/* Puts out the first n held bytes. */
static void put_held(fl_emitter *em, size_t n)
{
    put(em, em->held, n);
    memmove(em->held, em->held + n, em->n_held - n);
    em->n_held -= n;
}

/* Offset of the earliest stop string in the held text, or n_held. */
static size_t find_stop(const fl_emitter *em)
{
    for (size_t at = 0; at < em->n_held; at++)
        for (int i = 0; i < em->c->n_stop; i++) {
            const size_t n = strlen(em->c->stop[i]);
            if (n <= em->n_held - at && memcmp(em->held + at, em->c->stop[i], n) == 0) return at;
        }
    return em->n_held;
}

/* Length of the longest end of the held text that begins a stop string. */
static size_t undecided(const fl_emitter *em)
{
    for (size_t at = 0; at < em->n_held; at++) {
        const size_t left = em->n_held - at;
        for (int i = 0; i < em->c->n_stop; i++)
            if (left < strlen(em->c->stop[i]) && memcmp(em->held + at, em->c->stop[i], left) == 0)
                return left;
    }
    return 0;
}

/* Takes up to FL_EMIT_PIECE new bytes; true when a stop string was completed. */
static bool take_text(fl_emitter *em, const char *text, size_t n)
{
    if (em->c->n_stop == 0) {
        put(em, text, n);
        return false;
    }
    memcpy(em->held + em->n_held, text, n);
    em->n_held += n;
    const size_t at = find_stop(em);
    if (at < em->n_held) {
        put_held(em, at);
        em->n_held = 0;
        return true;
    }
    put_held(em, em->n_held - undecided(em));
    return false;
}

static bool is_stop_id(const fl_emitter *em, int32_t id)
{
    for (int i = 0; i < em->hp->n_stop_ids; i++)
        if (em->hp->stop_ids[i] == id) return !em->c->ignore_eos;
    return false;
}

fl_emit_event fl_emitter_push(fl_emitter *em, int32_t id)
{
    if (is_stop_id(em, id)) return FL_EMIT_STOP_ID;
    if (em->has_text) {
        char piece[FL_EMIT_PIECE];
        const size_t n = fl_detok_push(&em->detok, id, piece, sizeof(piece));
        if (take_text(em, piece, n)) return FL_EMIT_STOP_STRING;
    }
    return em->canceled ? FL_EMIT_CANCELED : FL_EMIT_GO;
}

void fl_emitter_flush(fl_emitter *em)
{
    if (!em->has_text) return;
    char piece[FL_EMIT_PIECE];
    const size_t n = fl_detok_flush(&em->detok, piece, sizeof(piece));
    if (take_text(em, piece, n)) return;
    put_held(em, em->n_held);
}
