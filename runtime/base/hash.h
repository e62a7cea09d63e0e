#ifndef FL_BASE_HASH_H
#define FL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH3, 64 bits, of bytes at once or piece by piece: the same value either way. Finds damage and
 * tells contents apart; it is no protection against somebody who wants a collision. The library
 * behind it is seen by hash.c alone. */
uint64_t fl_hash64(const void *data, size_t n);
/* The same with a seed: binds the bytes to what hashed to it. */
uint64_t fl_hash64_seeded(const void *data, size_t n, uint64_t seed);

typedef struct fl_hasher fl_hasher;
fl_hasher *fl_hasher_create(void);  /* NULL: out of memory */
void fl_hasher_reset(fl_hasher *h); /* forgets what was added */
void fl_hasher_destroy(fl_hasher **h);
void fl_hasher_add(fl_hasher *h, const void *data, size_t n);
/* Of all that was added so far. */
uint64_t fl_hasher_value(const fl_hasher *h);

/* "xxHash 0.8.1". Returns buf. */
const char *fl_hash_library(char buf[32]);

#endif
