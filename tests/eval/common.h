#ifndef FL_TESTS_EVAL_COMMON_H
#define FL_TESTS_EVAL_COMMON_H

/* What the evaluation programs share: the held-out prompts, and a loaded model that answers. A
 * failure that leaves nothing to measure prints one line and ends the program with status 2. */
#include "runtime/decode/generate.h"

typedef struct ev_prompt {
    char *task;
    bool think;
    char *prompt; /* as the training script rendered it */
    char *answer; /* wanted text, without thinking */
    char *whole;  /* prompt and the wanted turn with its thinking and end token */
    fl_json *json;
} ev_prompt;

typedef struct ev_set {
    ev_prompt *item;
    int n;
} ev_set;

/* Lines of {"task", "think", "messages", "tools"?, "prompt", "answer", "completion"}. */
void ev_set_load(ev_set *s, const char *path);
void ev_set_free(ev_set *s);
/* Prompts that fl_chat_render writes otherwise than the training script; each is printed. */
int ev_set_unlike_renderer(const ev_set *s);

typedef struct ev_model {
    fl_model *model;
    fl_engine *engine;
    fl_generator *gen;
} ev_model;

/* A context beyond the model's is taken: what is compared there need not make sense. */
void ev_open(ev_model *m, const char *path, const fl_engine_params *p);
void ev_close(ev_model *m);
/* Token ids of a text with added tokens read as such; malloc'ed. */
int32_t *ev_encode(const ev_model *m, const char *text, size_t *n);
/* Greedy answer to a rendered prompt; the text is malloc'ed. Speculation drafts in every round, so
 * counts do not depend on the clock. */
char *ev_answer(ev_model *m, const char *prompt, fl_gen_mode mode, int64_t max_tokens,
                fl_gen_result *result);
/* The part of an answer that a user sees: behind the last </think>, blanks at both ends cut;
 * malloc'ed. */
char *ev_visible(const char *text);

/* ---- distributions of the next token (distributions.c) ---- */

typedef struct ev_rows {
    float *logits; /* [n][vocab] */
    int64_t n, cap, vocab;
} ev_rows;

typedef struct ev_measured {
    ev_rows causal; /* every position of the texts */
    ev_rows block;  /* masked rows: half of a block's rows, chosen by a fixed hash */
} ev_measured;

/* Logits of `positions` rows of each kind over prompts and wanted answers. The same rows for every
 * model with the same tokenizer. act_f32: float activations, else the law with option H or not.
 * kv_type: that of the KV cache. */
void ev_measure(ev_measured *out, const char *path, const ev_set *set, int64_t positions,
                bool act_f32, bool h, uint32_t kv_type);
void ev_forget(ev_measured *m);

typedef struct ev_figure {
    double kl;   /* mean KL(reference || other), nats */
    double top1; /* % of rows with the same largest logit */
} ev_figure;
ev_figure ev_compare(const ev_rows *ref, const ev_rows *got);

/* Runs the quantize command. */
void ev_quantize(const char *in, const char *out, const char *type);
uint64_t ev_hash(uint64_t x);

_Noreturn __attribute__((format(printf, 1, 2))) void ev_die(const char *fmt, ...);
void *ev_alloc(size_t n);

#endif
