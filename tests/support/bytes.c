#include "tests/support/bytes.h"

#include <stdlib.h>
#include <string.h>

void fl_bytes_free(fl_bytes *b)
{
    free(b->p);
    *b = (fl_bytes){0};
}

static uint8_t *grow(fl_bytes *b, size_t n)
{
    if (b->n + n > b->room) {
        b->room = (b->n + n) * 2 + 64;
        b->p = realloc(b->p, b->room);
        if (!b->p) abort();
    }
    b->n += n;
    return b->p + b->n - n;
}

void fl_bytes_put(fl_bytes *b, const void *p, size_t n)
{
    if (n) memcpy(grow(b, n), p, n);
}

void fl_bytes_u8(fl_bytes *b, uint8_t v) { *grow(b, 1) = v; }
void fl_bytes_u32(fl_bytes *b, uint32_t v)
{
    for (int i = 0; i < 4; i++) fl_bytes_u8(b, (uint8_t)(v >> (8 * i)));
}
void fl_bytes_u64(fl_bytes *b, uint64_t v)
{
    for (int i = 0; i < 8; i++) fl_bytes_u8(b, (uint8_t)(v >> (8 * i)));
}
void fl_bytes_f32(fl_bytes *b, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    fl_bytes_u32(b, u);
}
void fl_bytes_text(fl_bytes *b, const char *s) { fl_bytes_put(b, s, strlen(s)); }
void fl_bytes_zero(fl_bytes *b, size_t n) { memset(grow(b, n), 0, n); }
void fl_bytes_pad(fl_bytes *b, size_t align) { fl_bytes_zero(b, (align - b->n % align) % align); }

void fl_bytes_str(fl_bytes *b, const char *s)
{
    fl_bytes_u64(b, strlen(s));
    fl_bytes_text(b, s);
}

void fl_bytes_gguf_head(fl_bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    fl_bytes_text(b, "GGUF");
    fl_bytes_u32(b, version);
    fl_bytes_u64(b, n_tensors);
    fl_bytes_u64(b, n_kv);
}

void fl_bytes_kv_u32(fl_bytes *b, const char *key, uint32_t v)
{
    fl_bytes_str(b, key);
    fl_bytes_u32(b, 4);
    fl_bytes_u32(b, v);
}

void fl_bytes_kv_str(fl_bytes *b, const char *key, const char *v)
{
    fl_bytes_str(b, key);
    fl_bytes_u32(b, 8);
    fl_bytes_str(b, v);
}

void fl_bytes_tensor(fl_bytes *b, const char *name, uint32_t n_dims, const uint64_t *ne,
                     uint32_t type, uint64_t offset)
{
    fl_bytes_str(b, name);
    fl_bytes_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) fl_bytes_u64(b, ne[d]);
    fl_bytes_u32(b, type);
    fl_bytes_u64(b, offset);
}
