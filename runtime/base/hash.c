#include "runtime/base/hash.h"

#include <stdio.h>
#include <xxhash.h>

/* fl_hasher is the library's state under another name. */
static XXH3_state_t *state(fl_hasher *h) { return (XXH3_state_t *)(void *)h; }

uint64_t fl_hash64(const void *data, size_t n) { return XXH3_64bits(data, n); }

uint64_t fl_hash64_seeded(const void *data, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n, seed);
}

fl_hasher *fl_hasher_create(void)
{
    XXH3_state_t *s = XXH3_createState();
    if (s) XXH3_64bits_reset(s);
    return (fl_hasher *)(void *)s;
}

void fl_hasher_reset(fl_hasher *h) { XXH3_64bits_reset(state(h)); }

void fl_hasher_destroy(fl_hasher **h)
{
    XXH3_freeState(state(*h));
    *h = NULL;
}

void fl_hasher_add(fl_hasher *h, const void *data, size_t n)
{
    XXH3_64bits_update(state(h), data, n);
}

uint64_t fl_hasher_value(const fl_hasher *h)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)h);
}

const char *fl_hash_library(char buf[32])
{
    const unsigned v = XXH_versionNumber();
    snprintf(buf, 32, "xxHash %u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    return buf;
}
