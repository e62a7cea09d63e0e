#ifndef FL_TESTS_SUPPORT_TRACES_H
#define FL_TESTS_SUPPORT_TRACES_H

#include "bench/support/traffic.h"

/* A fresh folder for a routing trace, and a name in it. */
extern char *fl_traces_dir, *fl_traces_path;

/* Setup and teardown for cmocka. */
int fl_traces_setup(void **state);
int fl_traces_teardown(void **state);

/* A made-up trace, written and read. */
fl_trace *fl_traces_make(const bench_traffic *t);

#endif
