#ifndef FL_TESTS_SUPPORT_DECODER_H
#define FL_TESTS_SUPPORT_DECODER_H

#include "runtime/decode/generate.h"
#include "tests/support/engine.h"

/* One tiny clover model with random weights, loaded once per program on one thread, context 256,
 * 32 held rows; tests put back what they change. */
typedef struct fl_tiny_model {
    char *dir, *path;
    fl_model *model;
    fl_engine *engine;
    fl_generator *gen;
} fl_tiny_model;

extern fl_tiny_model fl_tiny;

/* Group setup (the default KV cache, or Q8_0) and teardown of cmocka. */
int fl_tiny_setup(void **state);
int fl_tiny_setup_q8_0(void **state);
int fl_tiny_teardown(void **state);

/* What one generation gave. */
enum { FL_OUTPUT_IDS = 256, FL_OUTPUT_TEXT = 8192 };
typedef struct fl_output {
    fl_gen_result r;
    int32_t ids[FL_OUTPUT_IDS];
    char text[FL_OUTPUT_TEXT];
    size_t n_text;
    int cancel_after; /* pieces; 0 = never */
    int pieces;
} fl_output;

/* Greedy, a low threshold, no stop ids, so many tokens: of any model. */
fl_gen_config fl_greedy_config(const fl_model *model, fl_gen_mode mode, int64_t max_tokens);
/* Greedy, low threshold (random weights are never sure), no stop ids, loops go on. */
fl_gen_config fl_tiny_config(fl_gen_mode mode);
/* Generates; o->cancel_after is kept, all else of o is new. Failures end the test. */
void fl_tiny_run(const fl_gen_config *config, const int32_t *prompt, int n, fl_output *o);
/* n letters. */
void fl_tiny_prompt(int32_t *ids, int n);

#endif
