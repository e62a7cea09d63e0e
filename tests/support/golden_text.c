#include "tests/support/golden_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *load(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "golden file %s cannot be read\n", path);
        abort();
    }
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*n + 1);
    if (!p || fread(p, 1, *n, f) != *n) abort();
    p[*n] = 0;
    fclose(f);
    return p;
}

static uint32_t u32_at(const char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t take_u32(const char *file, size_t n, size_t *at)
{
    if (*at + 4 > n) abort();
    *at += 4;
    return u32_at(file + *at - 4);
}

fl_gold_items fl_gold_items_load(const char *path)
{
    fl_gold_items g = {0};
    size_t n, at = 0;
    g.file = load(path, &n);
    g.n = take_u32(g.file, n, &at);
    g.item = calloc(g.n + 1, sizeof *g.item);
    if (!g.item) abort();
    for (uint32_t i = 0; i < g.n; i++) {
        fl_gold_item *it = &g.item[i];
        it->n = take_u32(g.file, n, &at);
        it->text = g.file + at;
        at += it->n;
        it->n_ids = take_u32(g.file, n, &at);
        it->ids = (const uint8_t *)g.file + at;
        at += 4 * (size_t)it->n_ids;
        if (at > n) abort();
    }
    return g;
}

int32_t fl_gold_id(const fl_gold_item *it, uint32_t i)
{
    int32_t v;
    memcpy(&v, it->ids + 4 * (size_t)i, sizeof v);
    return v;
}

void fl_gold_items_free(fl_gold_items *g)
{
    free(g->item);
    free(g->file);
    *g = (fl_gold_items){0};
}
