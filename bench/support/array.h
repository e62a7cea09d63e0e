#ifndef FL_BENCH_SUPPORT_ARRAY_H
#define FL_BENCH_SUPPORT_ARRAY_H

#include "runtime/base/status.h"

/* A NumPy file (version 1.0, C order): its data and the dimensions of its header, those it does not
 * name being 1. */
typedef struct bench_array {
    char *file; /* owned */
    const uint8_t *data;
    uint64_t bytes;
    int64_t dim[3];
} bench_array;

/* `type` as the header has it: "'<i4'", "'|u1'". FL_E_FORMAT: another file, another type. */
FL_CHECKED fl_status bench_array_load(bench_array *a, const char *path, const char *type,
                                      fl_err *err);
void bench_array_free(bench_array *a);

/* The experts that a routing trace gives each row: uint8 [rows][layers][top_k], by falling logit.
 * A trace (offload/trace.h) of at most 256 experts, or experts.npy of tests/clover_tiny/traces.py.
 */
FL_CHECKED fl_status bench_trace_load(bench_array *a, const char *path, fl_err *err);

#endif
