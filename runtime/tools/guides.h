#ifndef FL_TOOLS_GUIDES_H
#define FL_TOOLS_GUIDES_H

#include "runtime/tools/importance_file.h"
#include "runtime/tools/stream.h"

/* From an importance file to the guides of the rounding: which second moments a tensor of the
 * output is rounded with. Matrices that read the same rows (q, k and v; the shared gate and up)
 * share one guide; the experts' gates and ups take the layer's full moment with their own mean
 * squares; each expert's down matrix has one of its own. Where the file knows nothing of a matrix,
 * and for types without a search, rounding is plain. Bytes do not depend on threads. */
typedef struct fl_guides fl_guides;

/* Opens the file and looks whether its columns are those of the output's tensors, whose types are
 * chosen: FL_E_FORMAT names the first that differs. *c is borrowed. */
FL_CHECKED fl_status fl_guides_open(fl_guides **out, const char *path, const fl_conv *c,
                                    fl_err *err);
void fl_guides_close(fl_guides **g);

/* For fl_stream. All that was taken must be put back before the close. */
fl_stream_guides fl_guides_stream(fl_guides *g);

/* Mean squares of one expert's inputs (expert 0 where there are none), [cols]; *known false when
 * the file has none. Any thread. */
FL_CHECKED fl_status fl_guides_diag(const fl_guides *g, const fl_conv_tensor *t, int expert,
                                    float *diag, bool *known, fl_err *err);

/* One line on what was led by the file and what was not, for after the run; returns buf. */
const char *fl_guides_summary(fl_guides *g, char buf[256]);

#endif
