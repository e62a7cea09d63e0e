#ifndef FL_TESTS_SUPPORT_QUANTIZED_H
#define FL_TESTS_SUPPORT_QUANTIZED_H

#include "runtime/model/source.h"
#include "tests/support/command.h"
#include "tests/support/make_model.h"

/* What the tests of fourleaf quantize share. Failures end the test. */

/* Runs the tool; its lines on stderr are thrown away, or (loud) come. */
fl_status fl_quantize(const char *in, const char *out, const char *type, const char *arch,
                      fl_err *err);
fl_status fl_quantize_loud(const char *in, const char *out, const char *type, const char *arch,
                           fl_err *err);
/* The same with options as they are written, single spaces between them. */
fl_status fl_quantize_with(const char *in, const char *out, const char *options, fl_err *err);
fl_status fl_quantize_loud_with(const char *in, const char *out, const char *options, fl_err *err);

/* fl_command_call with standard error thrown away. */
fl_status fl_quiet_call(fl_command command, const char *words, fl_err *err);

/* A fresh folder and names in it: a safetensors folder, a GGUF to read, the file to write. */
typedef struct fl_workplace {
    char *dir, *hf, *gguf, *out;
} fl_workplace;
fl_workplace fl_workplace_make(void);
void fl_workplace_remove(fl_workplace *w);

/* Quantizes w->gguf to w->out as q8_0 in a child whose stderr is a full pipe, sends it a signal
 * (which it was started with as ignored, or not) when some tensors are written and not all, and
 * lets it go on. Returns its wait status: exit code 42 for FL_E_CANCELED, 0, or 1. */
int fl_quantize_stopped(const fl_workplace *w, int sig, bool ignored);

fl_source *fl_open_source(const char *path);
const fl_tensor *fl_need_tensor(const fl_source *s, const char *name);

/* Every tensor of `got` is in `want` (written by make_model, which has a converter of its own) with
 * the same shape and, up to `bound` (relative RMS), the same values; with `all`, none is missing.
 * Bound 0: the same bits, but for the last one of exp. */
void fl_compare_files(const char *want, const char *got, double bound, bool all);

/* Tiny models in the forms that a source comes in: 0 is qwen35moe, the others clover_moe. */
enum { FL_N_LAYOUTS = 8 };
fl_make fl_layout(int i);

#endif
