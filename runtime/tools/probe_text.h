#ifndef FL_TOOLS_PROBE_TEXT_H
#define FL_TOOLS_PROBE_TEXT_H

#include "runtime/model/model.h"

/* The text that a probe measures on: conversations, each a rendered prompt and the answer to it.
 * Some 500 tokens together; prompts of many lengths modulo 32, answers of one to four blocks. */
typedef struct fl_probe_doc {
    const char *prompt, *answer;
} fl_probe_doc;

/* Ended by a NULL prompt. fl_probe_tiny: held-out conversations of clover-tiny's own data, since it
 * knows nothing else (written by tests/clover_tiny/probe_text.py). */
extern const fl_probe_doc fl_probe_general[], fl_probe_tiny[];

enum { FL_PROBE_DOCS = 16 };

/* One conversation in token ids: the answer is ids[n_prompt .. n). */
typedef struct fl_probe_ids {
    int32_t *ids;
    int n_prompt, n;
} fl_probe_ids;

typedef struct fl_probe_text {
    const char *name; /* "general" or "clover-tiny" */
    fl_probe_ids doc[FL_PROBE_DOCS];
    int n_docs;
    int n_answer; /* tokens of all answers */
    int longest;  /* tokens of the longest conversation */
    int32_t fill; /* what follows an answer to the end of its block */
} fl_probe_text;

/* Picks the text by the vocabulary and encodes it. Conversations are cut at `limit` tokens.
 * FL_E_UNSUPPORTED: the model has no tokenizer, or nothing of the text fits. */
FL_CHECKED fl_status fl_probe_text_open(fl_probe_text *t, const fl_model *model, int limit,
                                        fl_err *err);
void fl_probe_text_free(fl_probe_text *t);

#endif
