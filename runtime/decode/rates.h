#ifndef FL_DECODE_RATES_H
#define FL_DECODE_RATES_H

#include "offload/predict.h"
#include "runtime/decode/choose.h"
#include "runtime/model/engine.h"
#include "runtime/model/facts.h"

/* How fast a model is on this machine, as `fourleaf calibrate` and `probe` measured it and nobody
 * else writes it: section "rates" of the stored facts, an object of entries by setup:
 *   "host, avx2, 2 threads, kv f16, act law, 45 % of experts resident":
 *       {"tokens_per_s": {"ar": 31.5, "block": 81.2, "spec": 40.0}, ...}
 * What else stands in an entry is for people and for other parts of the program. */

enum { FL_RATES_KEY = 160 };
/* What speed depends on, of an opened engine: one with the same options elsewhere has the same
 * key. The share of resident experts is rounded to 5 %. */
void fl_rates_key(char key[FL_RATES_KEY], const fl_engine *e);

/* What the facts say about modes: the probe's word, and the rates under `key`. */
fl_mode_facts fl_rates_read(const fl_facts *f, const char *key);

/* Takes `entry` (also on failure) in place of the one under `key`; others stay. Fails as
 * fl_facts_put does. */
FL_CHECKED fl_status fl_rates_store(fl_facts *f, const char *key, fl_json *entry, fl_err *err);

/* What a pass of that kind ("step": one AR token) takes under `key`, in nanoseconds; 0: not
 * measured there. */
uint64_t fl_rates_pass_ns(const fl_facts *f, const char *key, const char *kind);

/* How a mode's passes look, as calibrate counted them for these or other options (what a pass
 * brings depends on the model, not on the budget): "modes": {"spec": {"tokens", "passes", "rows",
 * ...}}. False: not counted, and *out is as it was; else its rows and tokens are set. */
bool fl_rates_pass(const fl_facts *f, fl_gen_mode mode, fl_predict_pass *out);

#endif
