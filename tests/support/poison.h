#ifndef FL_TESTS_SUPPORT_POISON_H
#define FL_TESTS_SUPPORT_POISON_H

#include <stdint.h>

/* Overwrites `n` floats of an F32 tensor in a file with one number, the first one `skip` bytes into
 * the tensor, the others `stride` bytes apart. Failures end the test program. */
void fl_poison(const char *path, const char *tensor, uint64_t skip, int n, uint64_t stride,
               float value);

#endif
