#ifndef TESTS_SUPPORT_GOLDEN_TEXT_H
#define TESTS_SUPPORT_GOLDEN_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Readers of tests/golden/tokenizer (formats in tests/golden/README.md). They abort with a line
 * on stderr when a file is missing or damaged. */
typedef struct fl_gold_item {
    const char *text;
    uint32_t n;
    uint32_t n_ids;
    const uint8_t *ids; /* little-endian i32, not aligned */
} fl_gold_item;

typedef struct fl_gold_items {
    char *file;
    fl_gold_item *item;
    uint32_t n;
} fl_gold_items;

fl_gold_items fl_gold_items_load(const char *path);
int32_t fl_gold_id(const fl_gold_item *it, uint32_t i);
void fl_gold_items_free(fl_gold_items *g);

#endif
