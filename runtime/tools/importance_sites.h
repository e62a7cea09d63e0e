#ifndef FL_TOOLS_IMPORTANCE_SITES_H
#define FL_TOOLS_IMPORTANCE_SITES_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/status.h"

/* The sites of an importance file (importance_file.h): where rows are looked at on their way into
 * the matrices that share them. */
typedef enum fl_site {
    FL_SITE_MIXER_IN,
    FL_SITE_BLOCK_IN,
    FL_SITE_MIXER_OUT,
    FL_SITE_FFN_IN,
    FL_SITE_EXPERT_IN,
    FL_SITE_SHARED_MID,
    FL_SITE_EXPERT_MID,
    FL_SITE_HEAD_IN,
    FL_N_SITES
} fl_site;

#define FL_IMPORTANCE_ARCH "fourleaf_importance"
#define FL_IMPORTANCE_KEY(name) FL_IMPORTANCE_ARCH "." name
enum { FL_IMPORTANCE_VERSION = 1, FL_SITE_NAME = 64 };

/* "blk.3.mixer_in.PART" into buf; returns buf. `layer` means nothing to FL_SITE_HEAD_IN. */
const char *fl_site_name(char buf[FL_SITE_NAME], fl_site site, int layer, const char *part);

/* The site that a matrix with this GGUF name reads from, and its layer; false when it is none of
 * the model's matrices with measured inputs. */
bool fl_site_of(const char *tensor_name, fl_site *site, int *layer);

/* Values of a packed lower triangle. */
static inline int64_t fl_triangle(int64_t cols) { return cols * (cols + 1) / 2; }

#endif
