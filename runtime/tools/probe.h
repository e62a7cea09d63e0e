#ifndef FL_TOOLS_PROBE_H
#define FL_TOOLS_PROBE_H

#include "runtime/base/options.h"

/* fourleaf probe MODEL: lists what the file has beyond the base model, measures how it is wired and
 * whether its block mode is earned, prints the tables (or with --json what is stored) and stores
 * the winners in the user's cache, where every command finds them.
 *
 * Earned: masked NLL below that of GDN mode causal at every level, and 100 tokens of the model's
 * own text in block mode that, token by token, it finds no more than FL_PROBE_BOUND nats per token
 * less likely than its own greedy text. */
#define FL_PROBE_BOUND 0.5
FL_CHECKED fl_status fl_tool_probe(const fl_options *o, fl_err *err);

#endif
