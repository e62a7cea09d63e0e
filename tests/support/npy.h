#ifndef FL_TESTS_SUPPORT_NPY_H
#define FL_TESTS_SUPPORT_NPY_H

#include <stdint.h>

/* A NumPy file (version 1.0, float32 or int32, C order, 1 or 2 dimensions). Failures end the test
 * program with the path. */
typedef struct fl_npy {
    int64_t rows, cols; /* one dimension: rows = 1 */
    float *f;           /* '<f4', else NULL */
    int32_t *i;         /* '<i4', else NULL */
} fl_npy;

fl_npy fl_npy_load(const char *path);
void fl_npy_free(fl_npy *a);

#endif
