/* A routing trace. Byte 0 says what is put right, so that damage behind the checksums is reached as
 * well: 1 both of them. The rest is the file. What is taken can be walked over in all its
 * parts. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "offload/trace.h"
#include "runtime/base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { HEAD = 88, PASSES_HASH = 72, HEAD_HASH = 80 };

static void need(bool ok)
{
    if (!ok) abort();
}

static void mend(uint8_t *file, size_t n)
{
    uint64_t hash = fl_hash64(file + HEAD, n - HEAD);
    memcpy(file + PASSES_HASH, &hash, sizeof hash);
    memset(file + HEAD_HASH, 0, sizeof hash);
    hash = fl_hash64(file, HEAD);
    memcpy(file + HEAD_HASH, &hash, sizeof hash);
}

static void walk(const fl_trace *t, size_t bytes)
{
    const fl_trace_shape *s = fl_trace_get_shape(t);
    int32_t *ids = malloc((size_t)s->n_expert * sizeof *ids);
    need(ids != NULL);
    for (int p = 0; p < fl_trace_n_passes(t); p++) {
        const fl_trace_pass *pass = fl_trace_get_pass(t, p);
        need(pass->rows >= 1 && pass->clean <= pass->rows && pass->done <= pass->rows);
        need((size_t)pass->rows * (size_t)s->n_layer * (size_t)s->top_k < bytes);
        for (int l = 0; l < s->n_layer; l++) {
            const int k = fl_trace_union(t, p, l, ids);
            need(k >= s->top_k && k <= s->n_expert && k <= pass->rows * s->top_k);
            fl_trace_row(t, p, l, pass->rows - 1, ids);
            for (int i = 0; i < s->top_k; i++) need(ids[i] >= 0 && ids[i] < s->n_expert);
        }
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_err err = {0};
    fl_trace *t = NULL;
    if (n == 0) return 0;
    uint8_t *file = malloc(n);
    need(file != NULL);
    memcpy(file, p + 1, n - 1);
    if ((p[0] & 1) && n - 1 >= HEAD) mend(file, n - 1);
    if (fl_trace_parse(&t, file, n - 1, "input", &err) == FL_OK)
        walk(t, n - 1);
    else
        need(t == NULL && err.code == FL_E_FORMAT && err.msg[0] != 0);
    fl_trace_close(&t);
    free(file);
    return 0;
}
