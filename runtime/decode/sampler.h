#ifndef FL_DECODE_SAMPLER_H
#define FL_DECODE_SAMPLER_H

#include <stdbool.h>

#include "kernels/kernels.h"
#include "runtime/base/pool.h"
#include "runtime/decode/bias.h"
#include "runtime/decode/noise.h"

/* From logits to a token and its confidence.
 *
 * process: banned ids are taken out (before any softmax, so confidence is shared among real
 * tokens), then penalties, biases by token and by length, temperature, top-k, top-p, min-p in this
 * order. Penalties look at the tokens generated so far, never at the prompt: a token that occurred
 * `c` > 0 times gets l / repetition (l * repetition where l < 0), then l - presence - frequency *
 * c. At temperature 0 the last four do not apply: the pick is the largest logit, lowest id on ties,
 * over all that is not banned. pick: Gumbel-max, argmax over the processed candidates of l / temp +
 * G(seed, position, token). Its law is the softmax of the processed distribution; its noise depends
 * on nothing but the three keys, so the same seed gives the same text in every mode that reads rows
 * one at a time. confidence: the picked token's softmax probability in the processed distribution
 * (float32), or with raw_confidence in the distribution with only the bans applied. */
typedef struct fl_sampler_config {
    double temp;   /* 0 = greedy; else 1e-6 to 100 */
    int64_t top_k; /* 0 = off */
    double top_p;  /* 1 = off; (0, 1] */
    double min_p;  /* 0 = off; [0, 1] */
    uint64_t seed;
    double presence;   /* -2 to 2; 0 = off */
    double frequency;  /* -2 to 2; 0 = off */
    double repetition; /* above 0, at most 10; 1 or 0 = off */
    bool raw_confidence;
    fl_soft_config soft;
    int n_bias;
    fl_logit_bias bias[FL_MAX_BIASES];
} fl_sampler_config;

typedef struct fl_pick {
    int32_t token;
    float confidence;
    bool biased; /* the token has a bias by length, which may be why it was picked */
} fl_pick;

typedef struct fl_sampler fl_sampler;

/* Scratch for `n_workers` rows of n_vocab logits at once, 16 bytes an id and row; nothing allocates
 * afterwards. The kernels are borrowed; the picks do not depend on their tier. */
FL_CHECKED fl_status fl_sampler_create(fl_sampler **out, const fl_kernels *k, int64_t n_vocab,
                                       int n_workers, fl_err *err);
void fl_sampler_destroy(fl_sampler **s);
/* FL_E_ARG names the option that is out of range, or a biased id outside the n_vocab ids. */
FL_CHECKED fl_status fl_sampler_check(const fl_sampler_config *c, int64_t n_vocab, fl_err *err);
/* Fails as the check does, and with FL_E_ARG when bans and biases leave no id. Bans stay, the
 * counted tokens are forgotten; nothing has a bias by length before fl_sampler_begin. */
FL_CHECKED fl_status fl_sampler_configure(fl_sampler *s, const fl_sampler_config *c, fl_err *err);
/* A text starts behind this prompt (not kept). */
void fl_sampler_begin(fl_sampler *s, fl_soft_ids ids, const int32_t *prompt, int64_t n_prompt);
/* Switches the bias by length off and on again; configure switches it on. */
void fl_sampler_soft(fl_sampler *s, bool on);
/* Other noise from now on; all else stays. */
void fl_sampler_reseed(fl_sampler *s, uint64_t seed);
void fl_sampler_ban(fl_sampler *s, int32_t id);
bool fl_sampler_banned(const fl_sampler *s, int32_t id);

/* A generated token is final: from now on penalties count it, and biases by length know it. */
void fl_sampler_count(fl_sampler *s, int32_t id, int64_t pos);

/* One row of finite logits for absolute position `pos`. At least one id must not be banned. */
fl_pick fl_sampler_pick(fl_sampler *s, const float *logits, int64_t pos, int worker);
/* n rows [n][n_vocab] on the pool; row i is for position pos[i]. `ahead` (may be NULL): n - 1
 * tokens that are not final; for row i the first i of them count as generated, right before it. */
void fl_sampler_pick_rows(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                          const int32_t *ahead, int n, fl_pick *out);

/* ---- a part of the vocabulary at a time ----
 *
 * Where nothing is cut off (greedy, or without top-k, top-p and min-p), picks need no row of logits
 * in one place. Ids are then looked at in parts of FL_SAMPLER_PART, on any thread and in any order;
 * what is known of the parts is put together in their order. fl_sampler_pick and
 * fl_sampler_pick_rows do the same with rows that are at hand: the picks are the same, to the bit.
 */
enum { FL_SAMPLER_PART = 2048 };

/* Rows as in fl_sampler_pick_rows. */
typedef struct fl_sampler_rows {
    const int64_t *pos;
    const int32_t *ahead;
    int n;
} fl_sampler_rows;

bool fl_sampler_by_parts(const fl_sampler *s);
/* Room for so many rows; kept until destroy. */
FL_CHECKED fl_status fl_sampler_reserve_rows(fl_sampler *s, int rows, fl_err *err);
/* Logits of ids [first, first + n) of one row: `first` a multiple of FL_SAMPLER_PART, n that or the
 * rest. Threads with different `worker` may call at once. */
void fl_sampler_part(const fl_sampler *s, const fl_sampler_rows *rows, int row, int64_t first,
                     int64_t n, const float *logits, int worker);
/* When all parts of all rows were there: out[rows->n]. */
void fl_sampler_join(const fl_sampler *s, const fl_sampler_rows *rows, fl_pick *out);

/* ---- speculation by the ratio of two probabilities ----
 *
 * The other lossless way besides drafting and checking with the same noise: a draft x that was
 * drawn from q is accepted with probability min(1, P(x) / q(x)), else the token is drawn from
 * max(0, P - q), normed. The text then has P's law without being AR's text. Right only when a
 * drafted row depends on no other drafted token: one draft pass. Draws, acceptance and redraws
 * each have noise of their own, keyed by (seed, position). */

/* Room for the distributions of so many drafted tokens, n_vocab floats each; kept until destroy. */
FL_CHECKED fl_status fl_sampler_reserve_drafts(fl_sampler *s, int rows, fl_err *err);
/* Draws n tokens as fl_sampler_pick_rows picks them, and keeps their n distributions. confidence is
 * the largest probability of the row: where a draft is cut must not depend on the draw. */
void fl_sampler_draw_drafts(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                            int n, fl_pick *out);
/* Checks drafts[0 .. n - 2], drawn by the last call in this order: out[i].token is drafts[i] when
 * that is accepted, else another token; out[n - 1] is a plain pick. Rows as in
 * fl_sampler_pick_rows with ahead = drafts. */
void fl_sampler_check_drafts(fl_sampler *s, fl_pool *pool, const float *logits, const int64_t *pos,
                             const int32_t *drafts, int n, fl_pick *out);

#endif
