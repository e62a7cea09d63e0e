#ifndef FL_DECODE_DEFAULTS_H
#define FL_DECODE_DEFAULTS_H

#include "runtime/decode/sampler.h"
#include "runtime/model/model.h"

/* The sampler's settings that a model may come with, and where each value is from. */

typedef enum fl_setting {
    FL_SET_TEMP,
    FL_SET_TOP_K,
    FL_SET_TOP_P,
    FL_SET_MIN_P,
    FL_SET_PRESENCE,
    FL_SET_FREQUENCY,
    FL_SET_REPETITION,
    FL_SET_SOFT, /* lengths and slope of the biases by length */
    FL_N_SETTINGS
} fl_setting;

typedef enum fl_origin {
    FL_FROM_BUILT_IN, /* neither model nor user said anything */
    FL_FROM_FILE,     /* generation_config.json or the GGUF's general.sampling.* keys */
    FL_FROM_CLOVER,   /* Clover's own, where its file gives none */
    FL_FROM_USER
} fl_origin;

/* A value that the model's file gives lies outside what its option takes: FL_E_FORMAT names file,
 * key, value, range and the option that overrides it. */
FL_CHECKED fl_status fl_defaults_check(const fl_sampler_config *c,
                                       const fl_origin from[FL_N_SETTINGS], const fl_model *model,
                                       fl_err *err);
/* Greedy without penalties, then what the file says: `temperature` or `general.sampling.temp` and
 * their like. Without do_sample a folder gives its penalties alone. A clover_moe file without a
 * presence or repetition penalty gets 1.5 and 1.0; one without soft_* keys those of clover.h. */
void fl_defaults_read(fl_sampler_config *c, fl_origin from[FL_N_SETTINGS], const fl_model *model);

/* One line without end: "temp 0.7 (file), top-k 20 (option), ...": what is in force and where it
 * is from; what is off and nobody asked for is left out. Cut to n bytes. */
void fl_defaults_describe(const fl_sampler_config *c, const fl_origin from[FL_N_SETTINGS],
                          char *buf, size_t n);

#endif
