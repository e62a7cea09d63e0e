/* An importance file, ours or llama.cpp's: what opens can be asked for every matrix with the
 * columns that its tensors have, and gives numbers or a line. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/tools/importance_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { MOST_COLS = 64 };

static void ask(const fl_importance *im, const char *name, int64_t cols, int expert)
{
    fl_err err = {0};
    fl_importance_found found;
    float *diag = calloc((size_t)cols, sizeof *diag);
    float *full = calloc((size_t)(cols * cols), sizeof *full);
    const fl_status st = fl_importance_get(im, name, cols, expert, diag, full, &found, &err);
    if (st != FL_OK && !*err.msg) abort();
    for (int64_t i = 0; i < cols && st == FL_OK && found.diag; i++)
        if (isnan(diag[i]) || diag[i] < 0.0f) abort();
    free(diag);
    free(full);
}

static void ask_all(const fl_importance *im)
{
    static const char *const names[] = {"blk.0.attn_q.weight",
                                        "blk.0.ssm_bwd_beta.weight",
                                        "blk.0.ssm_out.weight",
                                        "blk.0.ffn_up_shexp.weight",
                                        "blk.0.ffn_gate_exps.weight",
                                        "blk.0.ffn_down_exps.weight",
                                        "blk.0.ffn_down_shexp.weight",
                                        "output.weight",
                                        "token_embd.weight"};
    fl_err err = {0};
    int64_t n;
    float *rows = NULL;
    double enough;
    const size_t n_cols = im->src ? fl_source_n_tensors(im->src) : 8;
    for (size_t k = 0; k < n_cols && k < 16; k++) {
        const int64_t cols = im->src ? fl_source_tensor(im->src, k)->ne[0] : (int64_t)k + 1;
        for (size_t i = 0; i < sizeof names / sizeof *names && cols <= MOST_COLS; i++)
            for (int e = 0; e < 2; e++) ask(im, names[i], cols, e);
    }
    if (fl_importance_experts(im, 0, &n, &rows, &enough, &err) != FL_OK && !*err.msg) abort();
    free(rows);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_err err = {0};
    fl_importance *im = NULL;
    char path[64];
    const int fd = memfd_create("importance", MFD_CLOEXEC);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fl_importance_open(&im, path, &err) != FL_OK) {
        if (im || !*err.msg) abort();
    } else {
        ask_all(im);
        fl_importance_close(&im);
    }
    close(fd);
    return 0;
}
