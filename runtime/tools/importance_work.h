#ifndef FL_TOOLS_IMPORTANCE_WORK_H
#define FL_TOOLS_IMPORTANCE_WORK_H

#include "runtime/model/sweep.h"

/* The folder OUT.work of an unfinished run: "job" says what is measured, layer-NNN.gguf are the
 * layers that are done, rows-NNN is what left layer NNN. Each file appears whole or not at all, so
 * a run that was killed goes on behind the last saved rows; what came after is measured again, to
 * the same bytes. One run at a time has it (a lock that ends with the process). */
typedef struct fl_importance_work fl_importance_work;

/* `job`: all that determines the result, as text. FL_E_ARG: the folder belongs to another job;
 * FL_E_BUSY becomes FL_E_IO: another run is at work there. */
FL_CHECKED fl_status fl_importance_work_open(fl_importance_work **out, const char *path,
                                             const char *job, fl_err *err);
void fl_importance_work_close(fl_importance_work **w); /* leaves the folder */
/* Removes the folder and closes. */
void fl_importance_work_remove(fl_importance_work **w);
/* Path of a layer's file; lives as long as *w. */
const char *fl_importance_work_layer(const fl_importance_work *w, int layer);

/* Saves what left a layer whose file is there; older rows are removed. */
FL_CHECKED fl_status fl_importance_work_save(fl_importance_work *w, int layer, fl_sweep *s,
                                             const fl_sweep_text *text, int64_t d_model,
                                             fl_err *err);
/* The last layer whose rows are there, undamaged, with the files of all layers up to it; the rows
 * are then those of the sweep. -1: from the beginning. */
FL_CHECKED fl_status fl_importance_work_resume(fl_importance_work *w, int n_layer, fl_sweep *s,
                                               const fl_sweep_text *text, int64_t d_model,
                                               int *layer, fl_err *err);

#endif
