#ifndef FL_MODEL_ROUTING_H
#define FL_MODEL_ROUTING_H

#include "offload/profile.h"
#include "offload/trace.h"
#include "runtime/model/model.h"

/* What passes tell about their routing, and to whom: the profile of expert use, a trace file. Part
 * of the engine; nothing of that reaches a token.
 *
 * A script, for measuring models of made-up weights, is a trace that the passes follow instead:
 * each pass takes the experts of the script's next pass of its kind, a block's first pass those of
 * the next block, and commits or accepts as many positions. Behind the last one the first follows.
 * Kinds that the script lacks go their own ways. */
typedef struct fl_routing {
    fl_profile *profile;     /* or NULL */
    char *profile_path;      /* NULL: there is no place to keep it */
    char *profile_note;      /* one line for the user when there is a file that cannot be used */
    fl_trace_writer *writer; /* or NULL */
    int n_layer;             /* of the trace: layers behind it, the MTP block's, are not written */
    fl_trace_pass pass;      /* the last one begun */
    bool over;               /* it is, and not in the trace yet */
    int64_t block_at;        /* position of its block; -1: it has none, as at first */
    fl_trace *script;        /* or NULL */
    int at[FL_N_PASS_KINDS]; /* the script's pass that the last pass of a kind followed; -1: none */
    int block_before;        /* the same of the last block's last pass; -1: none */
    fl_status st;            /* of the first failure to write the trace, told by finish */
    fl_err err;
} fl_routing;

/* The profile of that name, empty when there is none yet. A name has 1 to 32 letters, digits, dots,
 * dashes and underscores, and begins with no dot; another one is FL_E_ARG. FL_E_NOMEM. */
FL_CHECKED fl_status fl_routing_open_profile(fl_routing *r, const fl_model *m, const char *name,
                                             fl_err *err);
/* Keeps what was counted (fl_profile_save); makes the folder. */
FL_CHECKED fl_status fl_routing_save_profile(fl_routing *r, const fl_model *m, fl_err *err);

/* From now on passes of at most max_rows rows go to that file. */
FL_CHECKED fl_status fl_routing_open_trace(fl_routing *r, const fl_model *m, const char *path,
                                           int block, int max_rows, fl_err *err);
/* It appears under its name. What failed since it was begun is told now. */
FL_CHECKED fl_status fl_routing_save_trace(fl_routing *r, fl_err *err);
/* From now on passes follow that trace. FL_E_ARG: it is of another number of experts. */
FL_CHECKED fl_status fl_routing_open_script(fl_routing *r, const fl_model *m, const char *path,
                                            fl_err *err);
void fl_routing_fini(fl_routing *r);

/* A pass begins; its `first` is found by the position of its block. */
void fl_routing_begin(fl_routing *r, const fl_trace_pass *pass, int64_t block_at);
/* The script's experts for its rows in one layer, [rows][top_k]; as a guess, ahead of the layer:
 * every fifth row as it was in the pass before. False: there is no script for it. */
bool fl_routing_follow(const fl_routing *r, int layer, int rows, bool guess, int32_t *experts);
/* Positions or rows that the script's pass brought; 0: that is not scripted. */
int fl_routing_scripted(const fl_routing *r);
/* What its rows chose in one layer: [rows][top_k]. */
void fl_routing_layer(fl_routing *r, int layer, int rows, int top_k, const int32_t *experts);
/* It went well. */
void fl_routing_end(fl_routing *r);
/* What it brought: positions committed, rows accepted. Without this: all rows of a clean pass, of
 * others it is not known. */
static inline void fl_routing_done(fl_routing *r, int n) { r->pass.done = n; }

#endif
