#ifndef FL_TOOLS_IMPORTANCE_SITES_H
#define FL_TOOLS_IMPORTANCE_SITES_H

#include "runtime/model/observe.h"

/* Names of an importance file (importance_file.h). */

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
