#ifndef FL_TOOLS_IMPORTANCE_PARTS_H
#define FL_TOOLS_IMPORTANCE_PARTS_H

#include "runtime/tools/importance_file.h"

/* One tensor of an imatrix in its older form. */
typedef struct fl_dat_entry {
    fl_str name;
    int64_t n;           /* values: of all experts */
    double calls;        /* mean squares were multiplied by it */
    const uint8_t *data; /* floats, not aligned */
} fl_dat_entry;

/* What the readers of the kinds of file share. */
struct fl_importance {
    char *path;
    fl_source *src; /* NULL for the older form */
    char *file;     /* the older form: its bytes */
    fl_dat_entry *entry;
    int n_entries;
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

/* The older form of llama.cpp's imatrix: whether the file begins like one, and its table. */
bool fl_importance_is_dat(const char *path);
FL_CHECKED fl_status fl_importance_open_dat(fl_importance *im, fl_err *err);

/* llama.cpp's imatrix in its GGUF form; get: of both. */
FL_CHECKED fl_status fl_importance_open_imatrix(fl_importance *im, fl_err *err);
FL_CHECKED fl_status fl_importance_get_imatrix(const fl_importance *im, const char *name,
                                               int64_t cols, int expert, double prior_rows,
                                               float *diag, fl_importance_found *found,
                                               fl_err *err);

#endif
