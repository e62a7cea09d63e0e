#ifndef FL_OFFLOAD_TRACE_H
#define FL_OFFLOAD_TRACE_H

#include <stdbool.h>

#include "runtime/base/status.h"

/* Routing traces: which experts every row of every pass went to, and what the pass brought. A run
 * writes one (--trace-out), bench/traces makes synthetic ones; cache policies are replayed over
 * them (offload/replay.h) and runs can follow one.
 *
 * The file, little endian: the head, then each pass: kind u8, flags u8 (1: first pass of a block),
 * rows u16, clean u16, done u16, and the experts [n_layer][rows][top_k] by falling logit, a byte
 * each where n_expert is at most 256, else two. The head holds an XXH3 of itself and of all passes.
 * Held by tests/offload/test_trace.c and tests/fuzz/fuzz_trace.c. */

typedef enum fl_pass_kind {
    FL_PASS_PREFILL,
    FL_PASS_AR,
    FL_PASS_BLOCK, /* rows of a block; in front of them the last block's clean rows, if any */
    FL_PASS_VERIFY,
    FL_N_PASS_KINDS
} fl_pass_kind;
const char *fl_pass_kind_name(fl_pass_kind kind); /* "prefill", "ar", "block", "verify" */

enum { FL_TRACE_NAME = 32, FL_TRACE_MAX_ROWS = 8192 };

typedef struct fl_trace_shape {
    int n_layer, n_expert, top_k;
    int block; /* rows of a block */
    bool synthetic;
    char name[FL_TRACE_NAME]; /* of the traffic, for people; NUL-terminated */
} fl_trace_shape;

typedef struct fl_trace_pass {
    fl_pass_kind kind;
    bool first; /* of a block */
    int rows;   /* 1 to FL_TRACE_MAX_ROWS */
    int clean;  /* of them, in front: rows that write the state */
    int done;   /* block: positions committed after it; verify: rows accepted; else `rows`;
                   0: not known */
} fl_trace_pass;

typedef struct fl_trace fl_trace;

/* True when the file begins as one. */
bool fl_trace_is(const char *path);
/* Reads and checks all of it. FL_E_IO, FL_E_NOMEM; FL_E_FORMAT: no trace, of another version, cut
 * short, damaged; the line says where. */
FL_CHECKED fl_status fl_trace_open(fl_trace **out, const char *path, fl_err *err);
/* The same of bytes; `name` is for messages. */
FL_CHECKED fl_status fl_trace_parse(fl_trace **out, const void *data, uint64_t n, const char *name,
                                    fl_err *err);
void fl_trace_close(fl_trace **t);
const fl_trace_shape *fl_trace_get_shape(const fl_trace *t);
int fl_trace_n_passes(const fl_trace *t);
const fl_trace_pass *fl_trace_get_pass(const fl_trace *t, int pass);
/* The experts of one row: out[top_k], all different. */
void fl_trace_row(const fl_trace *t, int pass, int layer, int row, int32_t *out);
/* The different experts of a pass in one layer, rising: out[n_expert]; how many. */
int fl_trace_union(const fl_trace *t, int pass, int layer, int32_t *out);

/* A file that appears under its name when it is complete. */
typedef struct fl_trace_writer fl_trace_writer;
/* No pass will have more than max_rows rows. */
FL_CHECKED fl_status fl_trace_writer_open(fl_trace_writer **out, const char *path,
                                          const fl_trace_shape *shape, int max_rows, fl_err *err);
/* The experts of the next pass's rows in one layer: [rows][top_k]. Layers in any order, the last
 * call for one counts. No allocation, no system call. */
void fl_trace_writer_layer(fl_trace_writer *w, int layer, int rows, const int32_t *experts);
/* Ends the pass; each of its layers has been put with pass->rows rows (assert). */
FL_CHECKED fl_status fl_trace_writer_pass(fl_trace_writer *w, const fl_trace_pass *pass,
                                          fl_err *err);
/* *w becomes NULL whatever the outcome. */
FL_CHECKED fl_status fl_trace_writer_commit(fl_trace_writer **w, fl_err *err);
void fl_trace_writer_discard(fl_trace_writer **w);

#endif
