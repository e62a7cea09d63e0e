#ifndef FL_TOOLS_SURVEY_H
#define FL_TOOLS_SURVEY_H

#include "offload/measure_link.h"
#include "offload/measure_reads.h"
#include "offload/rates.h"
#include "runtime/base/pin_probe.h"
#include "runtime/model/engine.h"

/* What calibrate measures of the machine with a model: links, reads, memory, experts and passes by
 * rows. Three parts, for they want the engine in three states. A few seconds in all; longer where
 * a pass of a whole chunk takes seconds. */

enum { FL_SURVEY_THREADS = 10, FL_SURVEY_THREAD_ROWS = 2 };

typedef struct fl_survey {
    fl_rates rates;
    fl_link_rates link;
    fl_read_rates reads;
    uint64_t pin_wanted; /* the model's size, or four fifths of what limits allow */
    fl_pinnable pinned;
    /* One expert on fewer threads than the engine's, and on all of them: 1, 2, 4, ... */
    int n_threads, threads[FL_SURVEY_THREADS];
    int thread_rows[FL_SURVEY_THREAD_ROWS]; /* 1 and 32, or the most that a pass can have */
    uint64_t expert_ns[FL_SURVEY_THREADS][FL_SURVEY_THREAD_ROWS];
} fl_survey;

typedef struct fl_survey_watch {
    void (*progress)(void *arg, const char *part); /* before each part; or NULL */
    void *arg;
} fl_survey_watch;

/* Before an engine is opened: its threads and device must not be there yet (pin_probe.h). */
FL_CHECKED fl_status fl_survey_pin(fl_survey *s, const char *model, const fl_survey_watch *w,
                                   fl_err *err);
/* Before weights are loaded: the device's memory is free, no page of the file was wanted yet. */
FL_CHECKED fl_status fl_survey_moves(fl_survey *s, fl_engine *e, const fl_survey_watch *w,
                                     fl_err *err);
/* On the loaded engine; the sequence in it is lost. */
FL_CHECKED fl_status fl_survey_computes(fl_survey *s, fl_engine *e, const fl_survey_watch *w,
                                        fl_err *err);

/* A number of threads that takes at least 5 % less than all of the engine's do, by an expert of 32
 * rows or else of one; 0: there is none. */
int fl_survey_better_threads(const fl_survey *s);

#endif
