#ifndef FL_BENCH_SUPPORT_SYNTH_H
#define FL_BENCH_SUPPORT_SYNTH_H

#include "bench/support/array.h"
#include "bench/support/random.h"
#include "tests/support/make_model.h"

/* Synthetic models to measure speed with: shapes and types of a real file, made-up weights.
 *
 * The embedding of token t is pattern t mod (d_model - 1): a row of a Hadamard matrix, values +-1,
 * orthogonal to every other pattern. A layer's router holds, for each pattern, the experts it
 * shall go to, so what a text routes to is chosen freely; the layers together add a fifth to the
 * residual stream, which leaves nearly all of it as it was chosen. Tokens without a trace draw
 * their experts by a popularity that falls exponentially, steep enough that 32 random tokens touch
 * 70 of 256 experts, 78 % of which the 32 before them touched.
 *
 * Types are those of llama.cpp's Q4_K_M with all experts in Q4_K: attn_qkv Q5_K, output Q6_K,
 * attn_v of some layers Q6_K; router, norms, convolutions and vectors F32. */
typedef struct bench_synth {
    fl_make shape;            /* n_layer, n_expert, n_vocab, seed may be changed */
    const bench_array *trace; /* experts of token t: row t mod rows; layers in turn; or NULL */
} bench_synth;

/* "35b" (Qwen3.6-35B-A3B) or "tiny" (row length 256, 256 experts); FL_E_ARG: another name. */
FL_CHECKED fl_status bench_synth_shape(fl_make *m, const char *name, const char *arch, fl_err *err);
/* Refuses what cannot be written: FL_E_ARG. */
FL_CHECKED fl_status bench_synth_check(const bench_synth *s, fl_err *err);

/* The file appears under its name when it is complete. `progress` may be NULL: bytes of tensors. */
FL_CHECKED fl_status bench_synth_write(const bench_synth *s, const char *path,
                                       void (*progress)(void *arg, uint64_t done, uint64_t total),
                                       void *arg, fl_err *err);

/* ---- parts of it ---- */

/* Sign of column c in pattern p: bit set = -1. */
static inline bool bench_pattern(int p, int64_t c)
{
    return __builtin_parity((unsigned)(p + 1) & (unsigned)c);
}
/* Patterns of a model of that width. */
static inline int bench_n_patterns(int64_t d_model) { return (int)d_model - 1; }

/* Random blocks of Q4_K, Q5_K or Q6_K: n values near zero mean and standard deviation `spread`. */
void bench_fill_blocks(uint32_t type, void *out, int64_t n, double spread, uint64_t *state);
/* A pattern as a row of Q4_K. */
void bench_fill_pattern(void *out, int64_t d_model, int pattern);

/* Which experts each pattern goes to in one layer: [n_patterns][top_k], all different. */
void bench_routes(const bench_synth *s, int layer, int32_t *out);
/* The router that does it: [n_expert][d_model]. */
void bench_router(const fl_make *m, const int32_t *routes, float *out);

#endif
