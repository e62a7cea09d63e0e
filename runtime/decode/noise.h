#ifndef FL_DECODE_NOISE_H
#define FL_DECODE_NOISE_H

#include <stdint.h>

/* Noise that depends on nothing but its keys: seed, absolute position, token. splitmix64's
 * finalizer over the chained keys gives 52 bits, u = (bits + 0.5) / 2^52: exact, never 0 nor 1. */

static inline uint64_t fl_noise_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* What the tokens of one position share. */
static inline uint64_t fl_noise_key(uint64_t seed, int64_t pos)
{
    return fl_noise_mix(fl_noise_mix(seed) ^ (uint64_t)pos);
}

static inline uint64_t fl_noise_bits(uint64_t key, int32_t token)
{
    return fl_noise_mix(key ^ (uint32_t)token) >> 12;
}

/* u of these bits, in (0, 1). */
static inline double fl_noise_uniform(uint64_t bits) { return ((double)bits + 0.5) * 0x1p-52; }

/* G = -log(-log(u)), from -3.7 to 36.8. */
double fl_noise_gumbel(uint64_t bits);

#endif
