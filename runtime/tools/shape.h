#ifndef FL_TOOLS_SHAPE_H
#define FL_TOOLS_SHAPE_H

#include "runtime/model/model.h"

/* A known model by its name alone, to plan for before anything is downloaded: the settings and
 * tensors of the real one, in the types of the main recipe (q4), without an MTP block and without a
 * tokenizer. What is opened is a file in memory that has a header and, behind it, zeros that take
 * no place; so every line that opens, checks and measures a file does the same here.
 * Held by tests/tools/test_shape.c. */

/* clover-35b-a3b or qwen3.6-35b-a3b; another name is FL_E_ARG. `asked` as fl_model_open_known has
 * it. */
FL_CHECKED fl_status fl_shape_open(fl_model **out, const char *name, const fl_wiring *asked,
                                   fl_err *err);

#endif
