/* Writes the tokenizer.json that the compact vocabulary tokenizer/qwen36.vocab stands for. The file
 * would be 10 MB, so it is not committed. Format: README.md beside this header.
 *
 *     golden_expand_vocab(vocab, head, out, old_merges)     0, or -1 with errno
 *
 * old_merges: merges as "left right", as older files have them, instead of ["left","right"].
 * For tests: it trusts its input and leaks nothing but time. */
#ifndef TESTS_GOLDEN_EXPAND_VOCAB_H
#define TESTS_GOLDEN_EXPAND_VOCAB_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const uint8_t *p;
    size_t n;
} golden_token;

static inline uint8_t *golden_slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    uint8_t *b = NULL;
    if (fseek(f, 0, SEEK_END) == 0) {
        long size = ftell(f);
        rewind(f);
        b = size < 0 ? NULL : malloc((size_t)size + 1);
        *n = b ? fread(b, 1, (size_t)size, f) : 0;
        if (b && *n != (size_t)size) {
            free(b);
            b = NULL;
        }
    }
    fclose(f);
    return b;
}

static inline uint32_t golden_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The GPT-2 character of a byte: itself where printable, else U+0100 upwards in byte order. */
static inline unsigned golden_mapped(unsigned b)
{
    if ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae) return b;
    return b <= 0x20 ? 0x100 + b : b == 0xad ? 0x143 : 0x121 + (b - 0x7f);
}

/* One token in byte-level characters, as JSON text without quotes. */
static inline void golden_put(FILE *f, golden_token t)
{
    for (size_t i = 0; i < t.n; i++) {
        unsigned c = golden_mapped(t.p[i]);
        if (c == '"' || c == '\\') fputc('\\', f);
        if (c >= 0x80) fputc((int)(0xc0 | c >> 6), f);
        fputc((int)(c >= 0x80 ? 0x80 | (c & 63) : c), f);
    }
}

/* Fills t[] with the tokens' bytes and pair[] with the place of a token's two parts, or NULL.
 * Returns one arena that holds the merged bytes. */
static inline uint8_t *golden_tokens(const uint8_t *vocab, uint32_t n, golden_token *t,
                                     const uint8_t **pair)
{
    const uint8_t *p = vocab + 8;
    size_t used = 0, room = (size_t)n * 128; /* longest token: 128 bytes */
    uint8_t *arena = malloc(room);
    if (!arena) return NULL;
    for (uint32_t i = 0; i < 256; i++) t[i] = (golden_token){p++, 1};
    for (uint32_t i = 256; i < n; i++) {
        uint32_t left = golden_u32(p), size = golden_u32(p + 4);
        pair[i] = left == UINT32_MAX ? NULL : p;
        p += 8;
        if (!pair[i]) {
            t[i] = (golden_token){p, size};
            p += size;
        }
    }
    /* A part may have a higher id than its whole: expand until nothing is left to do. */
    for (int more = 1; more;) {
        more = 0;
        for (uint32_t i = 256; i < n; i++) {
            if (t[i].p) continue;
            golden_token a = t[golden_u32(pair[i])], b = t[golden_u32(pair[i] + 4)];
            if (!a.p || !b.p || used + a.n + b.n > room) {
                more = !a.p || !b.p;
                continue;
            }
            memcpy(arena + used, a.p, a.n);
            memcpy(arena + used + a.n, b.p, b.n);
            t[i] = (golden_token){arena + used, a.n + b.n};
            used += a.n + b.n;
        }
    }
    return arena;
}

static inline void golden_write_json(FILE *f, uint32_t n, const golden_token *t,
                                     const uint8_t **pair, int old_merges)
{
    fputs("\"vocab\":{", f);
    for (uint32_t i = 0; i < n; i++) {
        fputs(i ? ",\"" : "\"", f);
        golden_put(f, t[i]);
        fprintf(f, "\":%u", i);
    }
    fputs("},\n\"merges\":[", f);
    const char *sep = "";
    for (uint32_t i = 256; i < n; i++) {
        if (!pair[i]) continue;
        fprintf(f, "%s%s", sep, old_merges ? "\"" : "[\"");
        golden_put(f, t[golden_u32(pair[i])]);
        fputs(old_merges ? " " : "\",\"", f);
        golden_put(f, t[golden_u32(pair[i] + 4)]);
        fputs(old_merges ? "\"" : "\"]", f);
        sep = ",\n";
    }
    fputs("]}}\n", f);
}

static inline int golden_expand_vocab(const char *vocab_path, const char *head_path,
                                      const char *out_path, int old_merges)
{
    size_t n_vocab = 0, n_head = 0;
    int rc = -1;
    FILE *f = NULL;
    golden_token *t = NULL;
    const uint8_t **pair = NULL;
    uint8_t *arena = NULL, *head = NULL, *vocab = golden_slurp(vocab_path, &n_vocab);
    if (!vocab || n_vocab < 264 || memcmp(vocab, "FLV1", 4)) goto out;
    uint32_t n = golden_u32(vocab + 4);
    t = calloc(n, sizeof *t);
    pair = calloc(n, sizeof *pair);
    arena = t && pair ? golden_tokens(vocab, n, t, pair) : NULL;
    head = arena ? golden_slurp(head_path, &n_head) : NULL;
    f = head ? fopen(out_path, "wb") : NULL;
    if (!f) goto out;
    fwrite(head, 1, n_head, f);
    golden_write_json(f, n, t, pair, old_merges);
    rc = ferror(f) ? -1 : 0;
    if (fclose(f)) rc = -1;
out:
    free(arena);
    free(head);
    free(pair);
    free(t);
    free(vocab);
    return rc;
}

#endif
