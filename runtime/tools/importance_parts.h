#ifndef FL_TOOLS_IMPORTANCE_PARTS_H
#define FL_TOOLS_IMPORTANCE_PARTS_H

#include "runtime/tools/importance_file.h"

/* What the readers of the two kinds of file share. */
struct fl_importance {
    char *path;
    fl_source *src;
    fl_importance_info info;
    char model[128], identity[32];
    bool tied; /* ours: token_embd is the output as well */
};

/* `n` values of a tensor from value `skip` on; FL_E_FORMAT past its end. */
FL_CHECKED fl_status fl_importance_read(const fl_importance *im, const fl_tensor *t, int64_t skip,
                                        int64_t n, float *out, fl_err *err);

/* s = (n s + k f p) / (n + k) over `count` values; f makes the trace of p that of s. */
void fl_importance_mix(float *s, double n, const float *p, double k, int64_t count, double trace_s,
                       double trace_p);

/* llama.cpp's imatrix in its GGUF form. */
FL_CHECKED fl_status fl_importance_open_imatrix(fl_importance *im, fl_err *err);
FL_CHECKED fl_status fl_importance_get_imatrix(const fl_importance *im, const char *name,
                                               int64_t cols, int expert, double prior_rows,
                                               float *diag, fl_importance_found *found,
                                               fl_err *err);

#endif
