/* Compares a tokenizer with golden ids (tests/golden/README.md, "items files").
 * usage: tokens TOKENIZER.json ITEMS.bin...     exit status 1 when an item differs */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/tokenizer.h"
#include "tests/support/golden_text.h"

static void show(const fl_gold_item *it, const int32_t *ids, size_t n)
{
    printf("text");
    for (uint32_t k = 0; k < it->n && k < 200; k++) printf(" %02x", (unsigned char)it->text[k]);
    printf("\n  expected");
    for (uint32_t k = 0; k < it->n_ids; k++) printf(" %d", fl_gold_id(it, k));
    printf("\n  found   ");
    for (size_t k = 0; k < n; k++) printf(" %d", ids[k]);
    printf("\n");
}

static int compare(const fl_tokenizer *t, const fl_gold_item *it)
{
    fl_err err = {0};
    int32_t *ids;
    size_t n;
    if (fl_tokenizer_encode(t, it->text, it->n, true, &ids, &n, &err) != FL_OK) {
        printf("%s\n", err.msg);
        return 1;
    }
    int bad = n != it->n_ids;
    for (uint32_t k = 0; !bad && k < it->n_ids; k++) bad = ids[k] != fl_gold_id(it, k);
    if (bad) show(it, ids, n);
    free(ids);
    return bad;
}

int main(int argc, char **argv)
{
    fl_err err = {0};
    fl_tokenizer *t = NULL;
    long bad = 0, n = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: tokens TOKENIZER.json ITEMS.bin...\n");
        return 2;
    }
    if (fl_tokenizer_from_json(&t, argv[1], &err) != FL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 2;
    }
    for (int a = 2; a < argc; a++) {
        fl_gold_items g = fl_gold_items_load(argv[a]);
        for (uint32_t i = 0; i < g.n; i++, n++) bad += compare(t, &g.item[i]);
        fl_gold_items_free(&g);
    }
    printf("%ld texts, %ld differences\n", n, bad);
    fl_tokenizer_close(&t);
    return bad != 0;
}
