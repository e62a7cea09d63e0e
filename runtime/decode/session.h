#ifndef FL_DECODE_SESSION_H
#define FL_DECODE_SESSION_H

#include "runtime/decode/generate.h"

/* A generator's sequence in a file: tokens, KV cache, state and checkpoints, with a note of the
 * caller's (the conversation). A restored sequence goes on with the same bits.
 *
 * Little endian: fl_session_head (session.c), the tokens (i32), the checkpoints' positions and
 * kinds (i64 pairs), the note; then the bulk: K and V rows of each attention layer (of the
 * MTP block too where it is loaded; runs with and without it read each other's files), the
 * checkpoints' copies, the state's. Both parts have an XXH3 of their own. */
typedef struct fl_session fl_session;

enum { FL_SESSION_NOTE_MAX = 64 << 20 }; /* bytes */

/* Opens a file and reads all but the bulk. FL_E_IO; FL_E_FORMAT: not a session file, another
 * version of it, cut short, damaged. The file is left alone, here and below. */
FL_CHECKED fl_status fl_session_open(fl_session **out, const char *path, fl_err *err);
void fl_session_close(fl_session **s);
/* The note, NUL-terminated; lives as long as s. */
const char *fl_session_note(const fl_session *s, size_t *n);
int64_t fl_session_tokens(const fl_session *s);

/* Whether it is of this model, read as it is now (fl_index_digest), and of options that give the
 * same bits, and fits the context; the engine need not be loaded. FL_E_FORMAT says what differs.
 * The switches of block mode may differ: what is kept comes from clean passes alone. */
FL_CHECKED fl_status fl_session_check(const fl_session *s, const fl_engine *e, uint64_t identity,
                                      fl_err *err);
/* Makes it the generator's sequence. Fails as the check does, FL_E_FORMAT when the bulk is damaged;
 * the generator then has an empty sequence. Checkpoints that exceed its budget are thinned. */
FL_CHECKED fl_status fl_session_restore(const fl_session *s, fl_generator *g, uint64_t identity,
                                        fl_err *err);

/* Writes the generator's sequence; PATH changes only when all of it is on the disk. A sequence that
 * a failure left unusable goes back to its last checkpoint first. */
FL_CHECKED fl_status fl_session_save(fl_generator *g, uint64_t identity, const char *path,
                                     const char *note, size_t n_note, uint64_t *bytes, fl_err *err);

#endif
