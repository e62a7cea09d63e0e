#ifndef FL_TOOLS_IMPORTANCE_LAYER_H
#define FL_TOOLS_IMPORTANCE_LAYER_H

#include "runtime/model/gguf_write.h"
#include "runtime/model/sweep.h"

/* The moments of one layer, gathered while a sweep runs it and written as an importance file that
 * has this layer alone. */
typedef struct fl_layer_moments fl_layer_moments;

/* What every file says of its origin. */
typedef struct fl_importance_origin {
    char model[128], identity[32];
    bool tied;
    uint32_t tokens, block_rows; /* clean rows, rows of block passes */
} fl_importance_origin;
void fl_importance_put_origin(fl_gguf_writer *w, const fl_importance_origin *o);

/* `layer` n_layer: the head. The file appears at `path` when it is finished. `blocks`: the text has
 * block passes. *origin, the sweep and the index outlive it. */
FL_CHECKED fl_status fl_layer_moments_open(fl_layer_moments **out, const fl_index *ix, int layer,
                                           bool blocks, const fl_exec *exec,
                                           const fl_importance_origin *origin, const char *path,
                                           fl_err *err);
/* see and expert of a watch; `arg` is the fl_layer_moments. */
void fl_layer_moments_rows(void *arg, fl_site site, int expert, const fl_rows *in);
fl_status fl_layer_moments_expert(void *arg, int expert, fl_err *err);
/* Writes the rest; *m becomes NULL whatever the outcome. */
FL_CHECKED fl_status fl_layer_moments_finish(fl_layer_moments **m, fl_err *err);
void fl_layer_moments_discard(fl_layer_moments **m);

/* Of the file that finish leaves, without its header. */
uint64_t fl_layer_moments_file_bytes(const fl_index *ix, int layer, bool blocks);
/* Memory that the moments of the largest layer take. */
uint64_t fl_layer_moments_bytes(const fl_index *ix, int threads);

#endif
