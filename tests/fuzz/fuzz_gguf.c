/* A GGUF file from its first byte to the index of a model. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/model/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

/* Touches every value through every accessor. */
static void read_all(const fl_gguf *g)
{
    volatile double sum = 0;
    for (size_t i = 0; i < fl_gguf_n_kv(g); i++) {
        const fl_kv *kv = fl_gguf_kv_at(g, i);
        sum += fl_kv_num(kv, 0) + (double)fl_kv_int(kv, 0) + fl_kv_bool(kv, false);
        const fl_str s = fl_kv_str(kv);
        for (size_t b = 0; b < s.n; b++) sum += s.p[b];
        for (uint64_t e = 0; kv->type == FL_GGUF_ARRAY && e < kv->count; e++)
            sum += fl_kv_num_at(kv, e, 0) + (double)fl_kv_int_at(kv, e, 0);
        fl_str *word = calloc(kv->count + 1, sizeof *word);
        if (word && fl_kv_strings(kv, word))
            for (uint64_t e = 0; e < kv->count; e++)
                for (size_t b = 0; b < word[e].n; b++) sum += word[e].p[b];
        free(word);
    }
    for (size_t i = 0; i < fl_gguf_n_tensors(g); i++) sum += (double)fl_gguf_tensor_at(g, i)->bytes;
}

static void build_index(const uint8_t *p, size_t n)
{
    static int fd = -1;
    static char path[64];
    fl_err err = {0};
    fl_source *src;
    fl_index *ix;
    if (fd < 0) {
        fd = memfd_create("fuzz.gguf", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, p, n, 0) != (ssize_t)n) abort();
    if (fl_source_open(&src, path, &err) != FL_OK) return;
    if (fl_index_build(&ix, src, &err) == FL_OK) {
        fl_index_sizes s;
        fl_expert_mat x;
        fl_index_measure(ix, &s);
        fl_index_expert(ix, ix->hp.n_layer - 1, ix->hp.n_expert - 1, 2, &x);
        if (x.offset + x.bytes > n) abort();
        fl_index_free(&ix);
    }
    fl_source_close(&src);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_err err = {0};
    fl_gguf *g = NULL;
    if (fl_gguf_parse(&g, p, n, "fuzz.gguf", &err) != FL_OK) {
        if (g || !*err.msg) abort();
        return 0;
    }
    read_all(g);
    fl_gguf_close(&g);
    build_index(p, n);
    return 0;
}
