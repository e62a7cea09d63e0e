/* A safetensors header; what passes lies inside the file. */
#include <stdint.h>
#include <stdlib.h>

#include "runtime/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_err err = {0};
    fl_safetensors *s = NULL;
    if (fl_safetensors_parse(&s, p, n, "fuzz.safetensors", &err) != FL_OK) {
        if (s || !*err.msg) abort();
        return 0;
    }
    volatile int sum = 0;
    for (size_t i = 0; i < fl_safetensors_n(s); i++) {
        const fl_safetensor *t = fl_safetensors_at(s, i);
        for (size_t b = 0; b < t->name.n; b++) sum += t->name.p[b];
        if (t->offset > n || t->bytes > n - t->offset || t->n_dims < 1 || t->n_dims > 4) abort();
    }
    const fl_str license = fl_safetensors_license(s);
    for (size_t b = 0; b < license.n; b++) sum += license.p[b];
    fl_safetensors_close(&s);
    return 0;
}
