#include "bench/support/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/trace.h"
#include "runtime/base/file.h"

enum { MAX_FILE = 64 << 20 };

fl_status bench_array_load(bench_array *a, const char *path, const char *type, fl_err *err)
{
    uint64_t n = 0;
    *a = (bench_array){.dim = {1, 1, 1}};
    FL_TRY(fl_file_load(path, MAX_FILE, &a->file, &n, err));
    const uint8_t *p = (const uint8_t *)a->file;
    const uint64_t head = n > 10 ? 10 + (uint64_t)p[8] + 256 * (uint64_t)p[9] : n + 1;
    if (head > n || memcmp(p, "\x93NUMPY\x01", 7) != 0) {
        bench_array_free(a);
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: is no NumPy file of version 1.0", path);
    }
    a->file[head - 1] = 0; /* the header's line end */
    const char *shape = strstr(a->file + 10, "'shape': (");
    if (!shape || !strstr(a->file + 10, type) || strstr(a->file + 10, "True")) {
        const fl_status st = FL_FAIL(err, FL_E_FORMAT, 0, "%s: expected type %s in C order: %s",
                                     path, type, a->file + 10);
        bench_array_free(a);
        return st;
    }
    sscanf(shape + 10, "%" SCNd64 ", %" SCNd64 ", %" SCNd64, &a->dim[0], &a->dim[1], &a->dim[2]);
    a->data = p + head;
    a->bytes = n - head;
    return FL_OK;
}

void bench_array_free(bench_array *a)
{
    free(a->file);
    *a = (bench_array){0};
}

static void copy_rows(const fl_trace *t, uint8_t *out)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    int32_t ids[256];
    for (int p = 0; p < fl_trace_n_passes(t); p++)
        for (int r = 0; r < fl_trace_get_pass(t, p)->rows; r++)
            for (int l = 0; l < s->n_layer; l++) {
                fl_trace_row(t, p, l, r, ids);
                for (int i = 0; i < s->top_k; i++) *out++ = (uint8_t)ids[i];
            }
}

static fl_status load_trace(bench_array *a, const char *path, fl_err *err)
{
    fl_trace *t = NULL;
    fl_status st;
    FL_GO(fl_trace_open(&t, path, err));
    const fl_trace_shape *s = fl_trace_get_shape(t);
    int64_t rows = 0;
    for (int p = 0; p < fl_trace_n_passes(t); p++) rows += fl_trace_get_pass(t, p)->rows;
    if (s->n_expert > 256 || rows == 0)
        FL_GO(FL_FAIL(err, FL_E_FORMAT, 0, "%s: %lld rows of %d experts, expected at most 256",
                      path, (long long)rows, s->n_expert));
    *a = (bench_array){.dim = {rows, s->n_layer, s->top_k}};
    a->bytes = (uint64_t)(rows * s->n_layer * s->top_k);
    a->file = malloc(a->bytes);
    a->data = (uint8_t *)a->file;
    if (a->file)
        copy_rows(t, (uint8_t *)a->file);
    else
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its rows", path);
out:
    fl_trace_close(&t);
    return st;
}

fl_status bench_trace_load(bench_array *a, const char *path, fl_err *err)
{
    if (fl_trace_is(path)) return load_trace(a, path, err);
    FL_TRY(bench_array_load(a, path, "'|u1'", err));
    const int64_t most = INT64_C(1) << 20, *d = a->dim;
    if (d[0] >= 1 && d[1] >= 1 && d[2] >= 1 && d[0] <= most && d[1] <= most && d[2] <= 256 &&
        (uint64_t)d[0] * (uint64_t)d[1] * (uint64_t)d[2] == a->bytes)
        return FL_OK;
    bench_array_free(a);
    return FL_FAIL(err, FL_E_FORMAT, 0,
                   "%s: expected experts as bytes [rows][layers][top k], as "
                   "tests/clover_tiny/traces.py writes them",
                   path);
}
