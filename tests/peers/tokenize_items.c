/* Encodes every string of an items file (format: tests/golden/README.md) and compares the ids.
 * usage: tokenize_items TOKENIZER.json ITEMS.bin
 *        tokenize_items --expand VOCAB HEAD OUT.json     writes the golden vocabulary's file
 * Exit 0 when nothing differs. */
#include "runtime/model/tokenizer.h"
#include "tests/golden/expand_vocab.h"

static void show(const uint8_t *text, size_t n, const int32_t *got, size_t n_got,
                 const uint8_t *want, size_t n_want)
{
    printf("text ");
    for (size_t i = 0; i < n; i++) printf("%02x", text[i]);
    printf("\n  ours");
    for (size_t i = 0; i < n_got; i++) printf(" %d", got[i]);
    printf("\n  want");
    for (size_t i = 0; i < n_want; i++) printf(" %d", (int32_t)golden_u32(want + 4 * i));
    printf("\n");
}

/* Number of strings whose ids differ, or -1 on an error. */
static long compare(const fl_tokenizer *t, const uint8_t *p, uint32_t n_items, fl_err *err)
{
    long differ = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t n = golden_u32(p);
        const uint8_t *text = p + 4, *want = text + n + 4;
        size_t n_want = golden_u32(text + n), n_got = 0;
        int32_t *got = NULL;
        if (fl_tokenizer_encode(t, (const char *)text, n, true, &got, &n_got, err)) return -1;
        int same = n_got == n_want;
        for (size_t k = 0; same && k < n_got; k++)
            same = got[k] == (int32_t)golden_u32(want + 4 * k);
        if (!same && differ++ < 10) show(text, n, got, n_got, want, n_want);
        free(got);
        p = want + 4 * n_want;
    }
    return differ;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--expand"))
        return golden_expand_vocab(argv[2], argv[3], argv[4], 0) ? 1 : 0;
    if (argc != 3) {
        fprintf(stderr, "usage: tokenize_items TOKENIZER.json ITEMS.bin\n");
        return 2;
    }
    size_t size = 0;
    uint8_t *items = golden_slurp(argv[2], &size);
    fl_tokenizer *t = NULL;
    fl_err err = {0};
    long differ = -1;
    if (!items)
        perror(argv[2]);
    else if (!fl_tokenizer_from_json(&t, argv[1], &err))
        differ = compare(t, items + 4, golden_u32(items), &err);
    if (items && differ >= 0)
        printf("%u strings, %ld differ\n", golden_u32(items), differ);
    else
        fprintf(stderr, "%s: %s\n", argv[1], err.msg);
    fl_tokenizer_close(&t);
    free(items);
    return differ == 0 ? 0 : 1;
}
