#ifndef FL_MODEL_INDEX_PARTS_H
#define FL_MODEL_INDEX_PARTS_H

#include "runtime/model/config.h"
#include "runtime/model/index.h"
#include "runtime/model/wiring.h"

/* The steps of fl_index_build. */

/* Adds a sentence to ix->note. */
__attribute__((format(printf, 3, 4))) FL_CHECKED fl_status fl_index_note(fl_index *ix, fl_err *err,
                                                                         const char *fmt, ...);

/* Fills ix->hp from the settings, each within its range, and `full` (malloc'ed, [n_layer]): which
 * layers are attention. Missing settings get the value of the real model and a note. */
FL_CHECKED fl_status fl_hparams_read(fl_index *ix, const fl_config *c, bool **full, fl_err *err);

/* Ids that end a text: from metadata and vocabulary, or from generation_config.json, config.json
 * and, when these name fewer than two, tokenizer.json. */
void fl_stop_ids_read(fl_hparams *hp, const fl_config *c);

/* Finds out how a GGUF file stores norms, decay and value heads, by its metadata and values, unless
 * `w` knows; sets the three switches of ix->hp and notes what it found. */
FL_CHECKED fl_status fl_quirks_detect(fl_index *ix, const fl_config *c, const fl_wiring *w,
                                      fl_err *err);

/* Whether `name` is what GGUF files call some tensor of a layer, behind "blk.N.". */
bool fl_role_known(const char *name);

#endif
