#ifndef FL_TOOLS_PROBE_VERDICT_H
#define FL_TOOLS_PROBE_VERDICT_H

#include "runtime/tools/probe_search.h"

/* Whether block mode is earned (probe.h has the rule). */
enum { FL_PROBE_WRITTEN = 100 };
typedef struct fl_probe_verdict {
    bool earned;
    char why[160];
    int n_written;          /* tokens of each kind of text; 0: not asked for */
    double ar_nll, own_nll; /* nats per token of greedy AR text, of block text */
} fl_probe_verdict;

/* p: after the search, its model loaded. */
FL_CHECKED fl_status fl_probe_judge(fl_probe *p, fl_probe_verdict *v, fl_err *err);

#endif
