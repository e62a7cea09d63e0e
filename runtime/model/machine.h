#ifndef FL_MODEL_MACHINE_H
#define FL_MODEL_MACHINE_H

#include "offload/rates.h"
#include "runtime/model/engine.h"
#include "runtime/model/facts.h"

/* What `fourleaf calibrate` measured of this machine with a model: section "machine" of the stored
 * facts,
 *   {"machine": "AMD Ryzen 9 5900X, 12 cores; ...", "reads": {...}, "pinned": {...},
 *    "setups": {"host, avx2, 12 threads, act law": {"rates": {...}, ...}}}
 * It holds for the machine that it names, word for word: another CPU, memory, kernel, driver, card,
 * or drive under the model, and it counts as absent. That it is about this file the facts see to
 * (facts.h). Held by tests/model/test_machine.c. */

enum { FL_MACHINE_TEXT = 1024, FL_MACHINE_SETUP = 96 };

/* What speeds depend on, as one line. `path`: the model's file; `root` as in sysfile.h. */
void fl_machine_describe(char out[FL_MACHINE_TEXT], const char *root, const char *path);
/* Of an opened engine: "host, avx2, 12 threads, act law". */
void fl_machine_setup(char out[FL_MACHINE_SETUP], const fl_engine *e);

/* The rates stored for machine and setup; false when there are none that can be used. */
bool fl_machine_rates(const fl_facts *f, const char *machine, const char *setup, fl_rates *out);
/* Another part of the section ("reads", "pinned"); NULL when it is absent or another machine's. */
const fl_json *fl_machine_part(const fl_facts *f, const char *machine, const char *part);

/* Takes (also on failure) `parts`, an object whose members replace those of the section, and
 * `entry`, which replaces the one of the setup. What is stored of another machine goes; other
 * setups of this one stay. Fails as fl_facts_put does. */
FL_CHECKED fl_status fl_machine_store(fl_facts *f, const char *machine, const char *setup,
                                      fl_json *parts, fl_json *entry, fl_err *err);

#endif
