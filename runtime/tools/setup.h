#ifndef FL_TOOLS_SETUP_H
#define FL_TOOLS_SETUP_H

#include "runtime/base/options.h"
#include "runtime/decode/generate.h"

/* From the options table to the parameters of the layers below; shared by every command that
 * drives a model. */

/* The one positional argument MODEL; FL_E_ARG with the usage when it is missing. */
FL_CHECKED fl_status fl_setup_model_path(const fl_options *o, const char **path, fl_err *err);
/* FL_E_ARG when `out`, which is to be written, is one of the files of the model that is read. */
FL_CHECKED fl_status fl_setup_check_output(const fl_source *src, const char *out, fl_err *err);
/* --v-heads and --map. */
FL_CHECKED fl_status fl_setup_asked(const fl_options *o, fl_wiring *w, fl_err *err);
/* Of the device, threads, I/O, cache type; the rest stays "not given". */
FL_CHECKED fl_status fl_setup_engine_params(const fl_options *o, fl_engine_params *p, fl_err *err);
/* Opens the MODEL (or --shape) of the options and makes the plan: all that is known before the
 * weights are read. *c: the model's defaults, a value given by the user wins; with --mode auto also
 * what is stored about the model, of which a damaged file gives a note on standard error. On
 * failure both are NULL. */
FL_CHECKED fl_status fl_setup_open(const fl_options *o, fl_model **model, fl_engine **engine,
                                   fl_gen_config *c, fl_err *err);
/* Says the plan in a line on standard error and reads the weights, with progress there when that
 * takes more than a second; then says what is slower or other than it could be: a fallback of the
 * I/O, notes on the file. */
FL_CHECKED fl_status fl_setup_load(fl_engine *engine, fl_err *err);

#endif
