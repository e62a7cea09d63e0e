#ifndef FL_TOOLS_DIALOG_H
#define FL_TOOLS_DIALOG_H

#include "runtime/base/lock.h"
#include "runtime/base/options.h"
#include "runtime/decode/session.h"
#include "runtime/model/chat.h"

/* The conversation of --session FILE: its messages come from the file, where it exists, and go back
 * into it with the answer. Without --session every call but ask does nothing. */
typedef struct fl_dialog {
    const char *path; /* NULL: no session */
    fl_lock *lock;    /* from open to close */
    uint64_t identity;
    fl_session *session; /* the file as it was; NULL: there is none yet */
    fl_json *kept;       /* messages that are answered */
    fl_json *asked;      /* those and the question */
} fl_dialog;

/* The engine need not be loaded. Fails as fl_session_open and _check do, as fl_outfile_open where
 * the file could not be written and as fl_lock_take where another run uses it; FL_E_ARG for a file
 * of the model. Close it on failure too. */
FL_CHECKED fl_status fl_dialog_open(fl_dialog *d, const fl_options *o, const fl_engine *e,
                                    fl_err *err);
void fl_dialog_close(fl_dialog *d);
/* The prompt's tokens: the messages so far and the question of n bytes. A system text takes the
 * place of the file's. *ids is malloc'ed. */
FL_CHECKED fl_status fl_dialog_ask(fl_dialog *d, const fl_tokenizer *t, const char *system,
                                   const char *user, size_t n, bool think, int32_t **ids,
                                   size_t *n_ids, fl_err *err);
/* Brings the generator to where the file left off. */
FL_CHECKED fl_status fl_dialog_restore(const fl_dialog *d, fl_generator *g, fl_err *err);
/* Question and answer are kept, unless the answer has neither text nor calls. */
FL_CHECKED fl_status fl_dialog_answer(fl_dialog *d, const fl_chat_answer *a, fl_err *err);
FL_CHECKED fl_status fl_dialog_save(const fl_dialog *d, fl_generator *g, bool stats, fl_err *err);

#endif
