#ifndef FL_OFFLOAD_FORECAST_H
#define FL_OFFLOAD_FORECAST_H

#include "offload/predict.h"

/* Predictions of a plan and of larger budgets, for people and programs. */
typedef struct fl_forecast {
    fl_predict_input in;            /* heat and rates are borrowed */
    bool counted[FL_PREDICT_KINDS]; /* its passes were counted on this model; else public figures */
    fl_prediction now;
    fl_predict_point vram[FL_PREDICT_MAX_POINTS], ram[FL_PREDICT_MAX_POINTS];
    int n_vram, n_ram;
} fl_forecast;

/* Fills what follows from f->in. `plan` was made of `input`. Fails as fl_predict_curve does. */
FL_CHECKED fl_status fl_forecast_make(fl_forecast *f, const fl_plan *plan,
                                      const fl_plan_input *input, fl_err *err);

const char *fl_predict_name(fl_predict_kind kind); /* "ar", "block", "spec", "prefill" */

/* One line without its end: experts by tier, memory, and tokens/s where rates are known. Malloc'ed;
 * NULL when out of memory, here and below. */
char *fl_forecast_line(const fl_forecast *f, const fl_plan *plan);
/* A table of the modes, and what larger budgets would bring to `mode`. */
char *fl_forecast_text(const fl_forecast *f, const fl_plan *plan, fl_predict_kind mode);
/* {"modes": {"ar": {"tokens_per_s" (null: not known), "tokens_per_pass", "rows", "distinct",
 *                   "passes" ("counted" or "published"), "hits": {"device", "host", "file"} (shares
 *                   of uses), "copy_bytes", "read_bytes", "compute_ns", "copy_ns", "read_ns",
 *                   "pass_ns" (null)}, ..., "prefill": {...}},
 *  "lacks": ["compute", "link", "file"],
 *  "vram": [{"bytes", "resident", "host", "tokens_per_s": {"ar", ...}}], "ram": [...]} */
fl_json *fl_forecast_json(const fl_forecast *f);

#endif
