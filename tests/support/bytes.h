#ifndef FL_TESTS_SUPPORT_BYTES_H
#define FL_TESTS_SUPPORT_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* A growing run of bytes, to write file headers by hand, wrong ones too. Zero-initialise. */
typedef struct fl_bytes {
    uint8_t *p;
    size_t n, room;
} fl_bytes;

void fl_bytes_free(fl_bytes *b);
void fl_bytes_put(fl_bytes *b, const void *p, size_t n);
void fl_bytes_u8(fl_bytes *b, uint8_t v);
void fl_bytes_u32(fl_bytes *b, uint32_t v); /* little endian */
void fl_bytes_u64(fl_bytes *b, uint64_t v);
void fl_bytes_f32(fl_bytes *b, float v);
void fl_bytes_text(fl_bytes *b, const char *s); /* without length and NUL */
void fl_bytes_zero(fl_bytes *b, size_t n);
void fl_bytes_pad(fl_bytes *b, size_t align); /* zeros up to a multiple of align */

/* GGUF pieces: string with its u64 length; key with value. */
void fl_bytes_str(fl_bytes *b, const char *s);
void fl_bytes_gguf_head(fl_bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv);
void fl_bytes_kv_u32(fl_bytes *b, const char *key, uint32_t v);
void fl_bytes_kv_str(fl_bytes *b, const char *key, const char *v);
void fl_bytes_tensor(fl_bytes *b, const char *name, uint32_t n_dims, const uint64_t *ne,
                     uint32_t type, uint64_t offset);

#endif
