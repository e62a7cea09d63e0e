#include "bench/support/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

fl_status bench_trace_load(bench_array *a, const char *path, fl_err *err)
{
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
