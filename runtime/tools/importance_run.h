#ifndef FL_TOOLS_IMPORTANCE_RUN_H
#define FL_TOOLS_IMPORTANCE_RUN_H

#include "runtime/model/sweep.h"

/* Measures a model's importance file: the text layer by layer, each layer into a file of its own in
 * OUT.work, all of them together into `out`. */
typedef struct fl_importance_job {
    const fl_model *model;
    const fl_clover *sw;      /* of block rows; has_blocks false: clean rows alone */
    const char *const *paths; /* text */
    int n_paths;
    int64_t ctx, tokens; /* of a window; in all, 0 = no limit */
    const char *out;
    fl_sweep_params sweep;
    double save_seconds; /* rows are saved at a layer's end when so long has gone since the last */
    /* Work in rows that went through a layer; false ends the run with FL_E_CANCELED. May be NULL.
     */
    bool (*go_on)(void *arg, int layer, double done, double total);
    void *arg;
} fl_importance_job;

typedef struct fl_importance_result {
    int64_t tokens, block_rows;
    int first_layer; /* that was measured now: 0, or where an earlier run had come to */
    int n_windows, n_lost;
    uint64_t bytes_read; /* of weights */
} fl_importance_result;

/* After FL_E_CANCELED or a kill the same call goes on; the file is then the same to the byte.
 * FL_E_NOMEM: the rows do not fit into memory, with the number of tokens that would. */
FL_CHECKED fl_status fl_importance_run(const fl_importance_job *job, fl_importance_result *out,
                                       fl_err *err);

#endif
