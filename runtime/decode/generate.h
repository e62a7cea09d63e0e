#ifndef FL_DECODE_GENERATE_H
#define FL_DECODE_GENERATE_H

#include "runtime/decode/choose.h"
#include "runtime/decode/defaults.h"
#include "runtime/decode/roles.h"
#include "runtime/model/forward.h"

/* Text generation: from prompt ids to streamed text, one token at a time (AR), in blocks of masks
 * that are filled in several passes (block diffusion), or by speculation, which drafts several
 * tokens and keeps those that AR would have picked: AR's very text, in fewer passes. */

typedef enum fl_finish {
    FL_FINISH_STOP,        /* a stop id */
    FL_FINISH_STOP_STRING, /* a stop string */
    FL_FINISH_LENGTH,      /* max_tokens */
    FL_FINISH_CONTEXT,     /* the context is full */
    FL_FINISH_CANCELED,    /* a callback said so */
    FL_FINISH_REPEAT       /* the text ran in circles (guard.h) */
} fl_finish;
const char *fl_finish_name(fl_finish f); /* "stop", "stop_string", "length", ... */
/* OpenAI's finish_reason: "stop" for an end that the text has itself, "length" for one that it was
 * given. */
const char *fl_finish_openai(fl_finish f);

enum { FL_MAX_STOP_STRINGS = 16, FL_MAX_STOP_BYTES = 1024 };

typedef struct fl_gen_config {
    fl_gen_mode mode;
    fl_mode_facts facts; /* what auto goes by */
    fl_sampler_config sampler;
    fl_origin from[FL_N_SETTINGS]; /* of the sampler's settings */
    int64_t max_tokens;            /* -1 = until something else ends it */
    const char *const *stop;       /* stop strings: UTF-8, 1 to FL_MAX_STOP_BYTES bytes each */
    int n_stop;
    bool ignore_eos;      /* the model's stop ids do not end the text */
    bool repeat_stop;     /* a text that runs in circles ends (guard.h); on by default */
    float draft_min;      /* speculation: a draft ends before the first token below this confidence;
                             0.5 finds on clover-tiny as many right ones as 0.3, in fewer rows */
    int draft_passes;     /* block passes that fill a draft; 1: the masks of all rows at once */
    bool draft_always;    /* speculation: no turn of AR, whatever the clock says; for measuring */
    bool draft_ratio;     /* accept sampled drafts by the ratio of probabilities: AR's law, but not
                             AR's text; wants draft_passes 1 and a model with masks */
    bool draft_own_noise; /* draft with noise of its own instead of the check's: the same text with
                             fewer right drafts, for comparison */
    bool separate_commits; /* run each commit and the next block's first pass as two passes: the
                              same text, for comparison */
    fl_clover clover;      /* block switches; block_size must not exceed the engine's */
    /* Text as it becomes final: whole characters, never a stop string or its part. Returning
     * false cancels. May be NULL. */
    bool (*on_text)(void *arg, const char *text, size_t n);
    /* Before each chunk of the prompt, with its tokens read so far of those that are to be read,
     * then with done == total when all are, before the answer's first pass or token, and after each
     * pass. Returning false cancels: what was read stays for the next call. May be NULL. */
    bool (*on_progress)(void *arg, int64_t done, int64_t total);
    void *arg;
    fl_roles roles; /* of the prompt; a zeroed one is allowed */
} fl_gen_config;

/* The model's own defaults: clover's switches, the sampler's settings (defaults.h). */
void fl_gen_config_init(fl_gen_config *c, const fl_model *model);

typedef struct fl_gen_result {
    fl_choice choice; /* the mode taken, and why */
    fl_finish finish;
    int32_t stop_id;    /* FL_FINISH_STOP: which; else -1 */
    int period;         /* FL_FINISH_REPEAT: tokens of the phrase; 0 = a second closing tag */
    const int32_t *ids; /* generated ids in order, the stop id included; the generator's memory */
    int64_t n_prompt, n_generated;
    int64_t n_reused;          /* tokens of the prompt that were not read: the state held them */
    int64_t prefill_passes;    /* chunks of the prompt */
    int64_t clean_passes;      /* after the prompt: AR steps or block commits on their own */
    int64_t held_passes;       /* verifications of a draft */
    int64_t drafted, accepted; /* tokens of those drafts, and how many were right */
    int64_t draft_steps;       /* of the MTP block, a token each */
    const char *draft_source;  /* where they came from; NULL without speculation */
    int64_t denoise_passes;    /* block passes, the fused ones included */
    int64_t fused_passes;      /* of these: with the commit of the block before in the same pass */
    int64_t blocks;            /* begun */
    int max_passes;            /* most denoise passes of one block */
    int64_t committed_at_threshold;           /* positions committed with confidence >= threshold */
    double prefill_s, decode_s, first_text_s; /* seconds; first_text_s from the start, 0 = none */
} fl_gen_result;

typedef struct fl_generator fl_generator;

/* Allocates everything that generation needs; `engine` must be loaded and outlive it. */
FL_CHECKED fl_status fl_generator_create(fl_generator **out, fl_engine *engine, fl_err *err);
void fl_generator_destroy(fl_generator **g);
/* Checkpoints of the state: how many there are, how many fit the budget, bytes of one. */
void fl_generator_checkpoints(const fl_generator *g, int *n, int *most, uint64_t *bytes);

/* Whether this model decodes in the mode asked for, as fl_gen_check has it. */
FL_CHECKED fl_status fl_gen_check_mode(const fl_gen_config *c, const fl_engine *e, fl_err *err);
/* All that can be said before the weights are there (`e` opened, not necessarily loaded). FL_E_ARG:
 * an empty prompt, one that leaves no room in the context (with the counts), bad settings, block
 * mode on a model without masks. */
FL_CHECKED fl_status fl_gen_check(const fl_gen_config *c, const fl_engine *e, int64_t n_prompt,
                                  fl_err *err);
/* Generates the answer to a prompt. What the prompt's beginning shares with the tokens that the
 * generator read or generated before is not read again, as far as the checkpoints reach: the
 * tokens, their bits and the state are those of a fresh generator (tests/decode/test_reuse.c).
 * After a failure and after a cancellation the next call works likewise. Fails as fl_gen_check
 * does; FL_E_NAN names the layer; FL_E_IO: experts could not be read, or the model's file was
 * changed or replaced since it was loaded (told at once, also when this answer would not have read
 * it). */
FL_CHECKED fl_status fl_generate(fl_generator *g, const fl_gen_config *c, const int32_t *prompt,
                                 int64_t n_prompt, fl_gen_result *out, fl_err *err);

#endif
