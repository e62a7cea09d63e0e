#ifndef FL_OFFLOAD_PROFILE_H
#define FL_OFFLOAD_PROFILE_H

#include <stdbool.h>

#include "offload/trace.h"

/* How often each expert is used, by kind of pass, and which ones blocks use together; kept in a
 * file from run to run. A profile follows the traffic: what was counted n passes ago weighs about
 * FL_PROFILE_PASSES / (FL_PROFILE_PASSES + n). One thread. Held by tests/offload/test_profile.c and
 * tests/fuzz/fuzz_profile.c.
 *
 * A use counts FL_PROFILE_USE in a pass of any kind but prefill, however many rows chose the
 * expert. A long prefill uses nearly all experts: there, c of its rows count as 32 of such rows
 * would, by 32 c / (32 c + rows) of a use. Together: for each expert the last 64 blocks that were
 * counted, a bit each, newest lowest. */
enum { FL_PROFILE_USE = 256, FL_PROFILE_PASSES = 4096, FL_PROFILE_BLOCKS = 64 };

typedef struct fl_profile fl_profile;

/* Flat: nothing is known. An expert's key is layer * n_expert + expert. FL_E_NOMEM. */
FL_CHECKED fl_status fl_profile_create(fl_profile **out, int n_layer, int n_expert, fl_err *err);
void fl_profile_destroy(fl_profile **p);

/* ---- counting: no allocation, no system call ---- */

/* A pass of that kind begins. `first`: the first one of a block; the rows in front of it, `clean`
 * of them, are of the block before. */
void fl_profile_pass(fl_profile *p, fl_pass_kind kind, bool first, int clean);
/* What its rows chose in one layer: [rows][top_k]. */
void fl_profile_layer(fl_profile *p, int layer, int rows, int top_k, const int32_t *experts);

/* ---- what is known: the file's and what was counted here ---- */

/* Uses of each expert: [n_layer * n_expert], the same memory at each call. All 0 when nothing is
 * known. Prefill passes count a sixteenth, or as much as others where there are none. */
const uint32_t *fl_profile_heat(fl_profile *p);
/* Passes of that kind that were counted, decayed. */
uint64_t fl_profile_passes(const fl_profile *p, fl_pass_kind kind);
/* Experts of a layer that a pass of that kind used, on average, in thousandths; 0: fewer than
 * FL_PROFILE_FEW passes are known, or the kind is prefill, whose uses are weighed. */
enum { FL_PROFILE_FEW = 16 };
int64_t fl_profile_distinct(const fl_profile *p, fl_pass_kind kind);
/* Of the last 64 blocks, finished ones: those that used a, b, and both. */
typedef struct fl_profile_pair {
    int a, b, both;
} fl_profile_pair;
fl_profile_pair fl_profile_together(const fl_profile *p, int32_t key_a, int32_t key_b);

/* ---- the file ---- */

/* No file: nothing is known. FL_E_IO; FL_E_FORMAT: damaged, or of another model's shape; then
 * nothing is known either. */
FL_CHECKED fl_status fl_profile_load(fl_profile *p, const char *path, fl_err *err);
/* The same of bytes; `name` is for messages. */
FL_CHECKED fl_status fl_profile_parse(fl_profile *p, const void *data, uint64_t n, const char *name,
                                      fl_err *err);
/* Adds what was counted since the last save to what the file holds by now, which another run may
 * have written in the meantime; the file appears whole or not at all. A damaged file is replaced.
 * Waits for another run that is doing the same: FL_E_BUSY after five seconds. FL_E_IO. What could
 * not be saved is kept for the next call. */
FL_CHECKED fl_status fl_profile_save(fl_profile *p, const char *path, fl_err *err);

#endif
