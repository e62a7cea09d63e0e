#include <assert.h>
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/model/tokenizer.h"
#include "runtime/model/tokenizer_build.h"

static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD};

void fl_detok_init(fl_detok *d, const fl_tokenizer *t, bool show_control)
{
    *d = (fl_detok){.t = t, .show_control = show_control};
}

/* Whole characters of in[0..n) to buf, ill-formed parts as U+FFFD, the incomplete tail into
 * d->pending. */
static size_t take(fl_detok *d, const char *in, size_t n, char *buf)
{
    const char *p = in, *end = in + n;
    size_t o = 0;
    d->n_pending = 0;
    while (p < end) {
        uint32_t cp;
        const int len = fl_utf8_next(p, end, &cp);
        if (cp == FL_UTF8_CUT) {
            memcpy(d->pending, p, (size_t)len);
            d->n_pending = len;
        } else if (cp == FL_UTF8_BAD) {
            memcpy(buf + o, replacement, sizeof replacement);
            o += sizeof replacement;
        } else {
            memcpy(buf + o, p, (size_t)len);
            o += (size_t)len;
        }
        p += len;
    }
    return o;
}

size_t fl_detok_push(fl_detok *d, int32_t id, char *buf, size_t cap)
{
    char in[sizeof d->pending + FL_MAX_TOKEN_BYTES];
    assert(cap >= 3 * sizeof in);
    (void)cap;
    if (fl_tokenizer_kind(d->t, id) == FL_TOKEN_CONTROL && !d->show_control) return 0;
    const fl_str s = fl_tokenizer_bytes(d->t, id);
    const size_t held = (size_t)d->n_pending;
    memcpy(in, d->pending, held);
    memcpy(in + held, s.p, s.n);
    return take(d, in, held + s.n, buf);
}

size_t fl_detok_flush(fl_detok *d, char *buf, size_t cap)
{
    assert(cap >= sizeof replacement);
    (void)cap;
    const bool cut = d->n_pending > 0;
    d->n_pending = 0;
    if (cut) memcpy(buf, replacement, sizeof replacement);
    return cut ? sizeof replacement : 0;
}
