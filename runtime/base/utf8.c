#include "runtime/base/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD};

int fl_utf8_next(const char *text, const char *end, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)text;
    const size_t left = (size_t)(end - text);
    const uint8_t b = p[0];
    if (b < 0x80) {
        *cp = b;
        return 1;
    }
    /* Length by the lead byte, and the range of the second byte (no overlong forms, no
     * surrogates, nothing above U+10FFFF). */
    const int len = b >= 0xF0 ? 4 : b >= 0xE0 ? 3 : 2;
    const uint8_t lo = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80;
    const uint8_t hi = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    if (b < 0xC2 || b > 0xF4) {
        *cp = FL_UTF8_BAD;
        return 1;
    }
    uint32_t c = b & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i == left) {
            *cp = FL_UTF8_CUT;
            return i;
        }
        if (p[i] < (i == 1 ? lo : 0x80) || p[i] > (i == 1 ? hi : 0xBF)) {
            *cp = FL_UTF8_BAD;
            return i;
        }
        c = c << 6 | (p[i] & 0x3F);
    }
    *cp = c;
    return len;
}

int fl_utf8_put(char *buf, uint32_t cp)
{
    if (cp < 0x80) {
        buf[0] = (char)cp;
        return 1;
    }
    const int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6) buf[i] = (char)(0x80 | (cp & 0x3F));
    buf[0] = (char)((0xF00 >> len & 0xFF) | cp);
    return len;
}

size_t fl_utf8_valid_prefix(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        if (n - i >= sizeof w) {
            memcpy(&w, text + i, sizeof w);
            if (!(w & 0x8080808080808080u)) {
                i += sizeof w;
                continue;
            }
        }
        uint32_t cp;
        const int len = fl_utf8_next(text + i, text + n, &cp);
        if (cp >= FL_UTF8_CUT) break;
        i += (size_t)len;
    }
    return i;
}

fl_status fl_utf8_repair(const char *text, size_t n, char **fixed, size_t *n_fixed, fl_err *err)
{
    size_t i = fl_utf8_valid_prefix(text, n);
    *fixed = NULL;
    *n_fixed = n;
    if (i == n) return FL_OK;
    /* Each byte may become three. */
    char *out = n < SIZE_MAX / 3 ? malloc(3 * n + 1) : NULL;
    if (!out) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %zu bytes of text", n);
    size_t o = i;
    memcpy(out, text, i);
    while (i < n) {
        uint32_t cp;
        const int len = fl_utf8_next(text + i, text + n, &cp);
        const bool bad = cp >= FL_UTF8_CUT;
        const size_t add = bad ? sizeof replacement : (size_t)len;
        memcpy(out + o, bad ? replacement : text + i, add);
        o += add;
        i += (size_t)len;
    }
    out[o] = 0;
    *fixed = out;
    *n_fixed = o;
    return FL_OK;
}

bool fl_utf8_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}
