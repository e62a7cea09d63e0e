#ifndef FL_BENCH_SUPPORT_RANDOM_H
#define FL_BENCH_SUPPORT_RANDOM_H

#include <stdint.h>

/* Random numbers of one stream (xorshift); a state is never 0. */
static inline uint64_t bench_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}
/* In (0, 1). */
static inline double bench_uniform(uint64_t *state)
{
    return ((double)(bench_random(state) >> 11) + 0.5) * 0x1p-53;
}

#endif
