#include "tests/support/golden_text.h"

#include <stdarg.h>
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

/* ---- vocabulary --------------------------------------------------------------------------- */

typedef struct vocab {
    char **tok; /* byte-level text, JSON-escaped */
    uint32_t (*pair)[2];
    uint32_t n;
} vocab;

/* A byte as GPT-2's character, in UTF-8. */
static int put_byte(char *out, unsigned b)
{
    unsigned cp = 0x100;
    const int plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    for (unsigned i = 0; i < b && !plain; i++)
        cp += !((i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE);
    if (plain) cp = b;
    int n = 0;
    if (cp == '"' || cp == '\\') out[n++] = '\\';
    if (cp < 0x80) {
        out[n++] = (char)cp;
    } else {
        out[n++] = (char)(0xC0 | cp >> 6);
        out[n++] = (char)(0x80 | (cp & 0x3F));
    }
    return n;
}

static char *spelled(const char *bytes, size_t n)
{
    char *s = malloc(2 * n + 1), *o = s;
    if (!s) abort();
    for (size_t i = 0; i < n; i++) o += put_byte(o, (unsigned char)bytes[i]);
    *o = 0;
    return s;
}

/* A part may have a higher id than the whole, so tokens are made when they are needed. */
static const char *token(vocab *v, uint32_t id)
{
    if (id >= v->n) abort();
    if (v->tok[id]) return v->tok[id];
    const char *a = token(v, v->pair[id][0]), *b = token(v, v->pair[id][1]);
    char *s = malloc(strlen(a) + strlen(b) + 1);
    if (!s) abort();
    strcpy(stpcpy(s, a), b);
    return v->tok[id] = s;
}

static vocab vocab_load(const char *path)
{
    size_t n, at = 4;
    char *file = load(path, &n);
    if (n < 264 || memcmp(file, "FLV1", 4) != 0) abort();
    vocab v = {.n = take_u32(file, n, &at)};
    v.tok = calloc(v.n, sizeof *v.tok);
    v.pair = calloc(v.n, sizeof *v.pair);
    if (!v.tok || !v.pair) abort();
    for (uint32_t i = 0; i < v.n; i++) {
        uint32_t left = UINT32_MAX, right = 1;
        if (i >= 256) {
            left = take_u32(file, n, &at);
            right = take_u32(file, n, &at);
        }
        if (left == UINT32_MAX) {
            if (right > n - at) abort();
            v.tok[i] = spelled(file + at, right);
            at += right;
        }
        v.pair[i][0] = left;
        v.pair[i][1] = right;
    }
    free(file);
    return v;
}

typedef struct text {
    char *p;
    size_t n, cap;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *fmt, ...)
{
    for (;;) {
        va_list ap;
        va_start(ap, fmt);
        const size_t left = t->cap - t->n;
        const int k = vsnprintf(t->p + t->n, left, fmt, ap);
        va_end(ap);
        if ((size_t)k < left) {
            t->n += (size_t)k;
            return;
        }
        t->cap = 2 * t->cap + (size_t)k;
        t->p = realloc(t->p, t->cap);
        if (!t->p) abort();
    }
}

char *fl_gold_vocab_json(const char *vocab_path, const char *head_path, int merges_as_strings,
                         size_t *n)
{
    vocab v = vocab_load(vocab_path);
    size_t n_head;
    text t = {.cap = 16 << 20};
    t.p = malloc(t.cap);
    if (!t.p) abort();
    char *head = load(head_path, &n_head);
    add(&t, "%s\"vocab\":{", head);
    for (uint32_t i = 0; i < v.n; i++) add(&t, "%s\"%s\":%u", i ? "," : "", token(&v, i), i);
    add(&t, "},\"merges\":[");
    const char *sep = "";
    for (uint32_t i = 0; i < v.n; i++) {
        if (v.pair[i][0] == UINT32_MAX) continue;
        add(&t, merges_as_strings ? "%s\"%s %s\"" : "%s[\"%s\",\"%s\"]", sep,
            token(&v, v.pair[i][0]), token(&v, v.pair[i][1]));
        sep = ",";
    }
    add(&t, "]}}");
    for (uint32_t i = 0; i < v.n; i++) free(v.tok[i]);
    free(v.tok);
    free(v.pair);
    free(head);
    *n = t.n;
    return t.p;
}
