#ifndef FL_MODEL_MODEL_H
#define FL_MODEL_MODEL_H

#include "runtime/model/index.h"
#include "runtime/model/tokenizer.h"

/* A model's files, opened and understood; nothing big is read. Immutable, may be shared. */
typedef struct fl_model {
    fl_source *src;
    fl_index *index;
    fl_tokenizer *tokenizer; /* NULL when the files hold none: token ids only */
} fl_model;

/* FL_E_FORMAT, FL_E_IO, FL_E_UNSUPPORTED with one line that names the file and the remedy. */
FL_CHECKED fl_status fl_model_open(fl_model **out, const char *path, fl_err *err);
/* The same, read as the user says (`asked`), and where he says nothing as the probe found (among
 * this machine's facts on the model); a note on the index says so. */
FL_CHECKED fl_status fl_model_open_known(fl_model **out, const char *path, const fl_wiring *asked,
                                         fl_err *err);
/* The index alone; *known (may be NULL) gets what was known. */
FL_CHECKED fl_status fl_index_build_known(fl_index **out, const fl_source *src,
                                          const fl_wiring *asked, fl_wiring *known, fl_err *err);
void fl_model_close(fl_model **m);

/* Hard limit on prompt and output together, the last block's space included. */
enum { FL_MAX_CONTEXT = 131072 };
/* Context when none was asked for. */
enum { FL_DEFAULT_CONTEXT = 4096 };

#endif
