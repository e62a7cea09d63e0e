#ifndef FL_MODEL_FACTS_H
#define FL_MODEL_FACTS_H

#include "runtime/base/json.h"
#include "runtime/model/source.h"

/* What this machine has found out about a model: one JSON file per model under the user's cache,
 * $XDG_CACHE_HOME/fourleaf/IDENTITY.json (~/.cache when that is not set), of named sections.
 *
 *   "probe"  by `fourleaf probe`: how the model is wired, whether block mode is earned
 *   "rates"  by `fourleaf calibrate` and `probe` alone: how fast passes are here
 *   "machine" by `fourleaf calibrate`: how fast links, reads and experts are (machine.h)
 *
 * Reading never fails for what the file holds: a damaged one, or one of another version, counts
 * as absent, and fl_facts_note says so. */
typedef struct fl_facts fl_facts;

/* FL_E_NOMEM alone. */
FL_CHECKED fl_status fl_facts_open(fl_facts **out, uint64_t identity, fl_err *err);
/* Those of an opened model. Fails as fl_model_identity does, too. */
FL_CHECKED fl_status fl_facts_of(fl_facts **out, const fl_source *src, fl_err *err);
void fl_facts_close(fl_facts **f);

/* One line to show the user when there is a file that could not be used; else NULL. */
const char *fl_facts_note(const fl_facts *f);
/* The file, there or not; NULL when neither XDG_CACHE_HOME nor HOME names a folder. */
const char *fl_facts_path(const fl_facts *f);
/* The name of another file on the model, beside that one: FOLDER/IDENTITY.KIND, malloc'ed; NULL
 * when there is no folder. FL_E_NOMEM. */
FL_CHECKED fl_status fl_facts_sibling(const fl_facts *f, const char *kind, char **out, fl_err *err);
/* An object, borrowed until the next put or close; NULL when nothing is known. */
const fl_json *fl_facts_section(const fl_facts *f, const char *name);

/* FL_E_IO when put could not work for want of a place or of the right to write there; asks before
 * long work. Makes the folder. */
FL_CHECKED fl_status fl_facts_writable(const fl_facts *f, fl_err *err);

/* Takes the object `value` (also on failure) in place of the section; the other sections stay as
 * they are on the disk by now. The file appears whole or not at all. FL_E_IO names what cannot be
 * written. */
FL_CHECKED fl_status fl_facts_put(fl_facts *f, const char *section, fl_json *value, fl_err *err);

#endif
