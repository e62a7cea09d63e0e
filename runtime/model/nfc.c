#include "runtime/model/nfc.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/base/utf8.h"

/* Code points of Unicode 10 to 17 with a combining class, a decomposition or a part in a
 * composition. U+105D2 and U+105DA are first halves of compositions with the older U+0307. */
static const struct {
    uint32_t first, last;
} inert[] = {
    {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},
    {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
    {0x1715, 0x1715},   {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x105C9, 0x105C9}, {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x105E4, 0x105E4},
    {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF},
    {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11383, 0x11383}, {0x11385, 0x11385},
    {0x1138E, 0x1138E}, {0x11391, 0x11391}, {0x113B8, 0x113B8}, {0x113BB, 0x113BB},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C9}, {0x113CE, 0x113D0},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x16129}, {0x1612F, 0x1612F},
    {0x16D67, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1D127, 0x1D128}, {0x1D250, 0x1D252},
    {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF},
    {0x1E6F5, 0x1E6F5},
};

static bool is_inert(uint32_t cp)
{
    if (cp < inert[0].first) return false;
    size_t lo = 0, hi = sizeof inert / sizeof inert[0];
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (cp > inert[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof inert / sizeof inert[0] && cp >= inert[lo].first;
}

/* The array with room for `need` elements, or NULL (and the array stays as it was). */
static void *grown(void *array, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return array;
    const size_t cap_new = need + need / 2 + 64;
    void *q = cap_new <= SIZE_MAX / elem ? realloc(array, cap_new * elem) : NULL;
    if (q) *cap = cap_new;
    return q;
}

static int ccc(int32_t cp) { return (uint8_t)utf8proc_get_property(cp)->combining_class; }

/* Canonical order of one run of marks: stable by combining class. Long runs (an attack, not a
 * language) are counted, short ones inserted. */
static fl_status order_marks(int32_t *cp, size_t n, fl_err *err)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            const int32_t c = cp[i];
            size_t j = i;
            for (; j > 0 && ccc(cp[j - 1]) > ccc(c); j--) cp[j] = cp[j - 1];
            cp[j] = c;
        }
        return FL_OK;
    }
    int32_t *copy = malloc(n * sizeof *copy);
    if (!copy) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory to normalise %zu marks", n);
    memcpy(copy, cp, n * sizeof *copy);
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++) at[ccc(copy[i]) + 1]++;
    for (int k = 1; k < 257; k++) at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++) cp[at[ccc(copy[i])]++] = copy[i];
    free(copy);
    return FL_OK;
}

/* Normalises cp[0..n), which is decomposed; returns the new length. */
static fl_status compose(int32_t *cp, size_t n, size_t *n_out, fl_err *err)
{
    for (size_t i = 0; i < n;) {
        if (!ccc(cp[i])) {
            i++;
            continue;
        }
        size_t j = i + 1;
        while (j < n && ccc(cp[j])) j++;
        FL_TRY(order_marks(cp + i, j - i, err));
        i = j;
    }
    const utf8proc_ssize_t m =
        utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert(m >= 0 && (size_t)m <= n);
    *n_out = (size_t)m;
    return FL_OK;
}

static fl_status apply_all(fl_nfc *s, fl_str in, fl_str *out, fl_err *err)
{
    enum { MAX_DECOMPOSITION = 8 };
    const char *p = in.p, *end = in.p + in.n;
    size_t n = 0, run = 0; /* cp[run..n) waits for composition */
    while (p < end) {
        uint32_t c;
        p += fl_utf8_next(p, end, &c);
        int32_t *cp = grown(s->cp, &s->cp_cap, n + MAX_DECOMPOSITION, sizeof *cp);
        if (!cp) goto nomem;
        s->cp = cp;
        if (is_inert(c)) {
            FL_TRY(compose(s->cp + run, n - run, &n, err));
            n += run;
            s->cp[n++] = (int32_t)c;
            run = n;
            continue;
        }
        int boundclass = 0;
        const utf8proc_ssize_t k =
            utf8proc_decompose_char((int32_t)c, s->cp + n, MAX_DECOMPOSITION,
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundclass);
        assert(k > 0 && k <= MAX_DECOMPOSITION);
        n += (size_t)k;
    }
    FL_TRY(compose(s->cp + run, n - run, &n, err));
    n += run;
    char *text = n <= SIZE_MAX / 4 ? grown(s->text, &s->text_cap, 4 * n + 1, 1) : NULL;
    if (!text) goto nomem;
    s->text = text;
    size_t o = 0;
    for (size_t i = 0; i < n; i++) o += (size_t)fl_utf8_put(s->text + o, (uint32_t)s->cp[i]);
    *out = (fl_str){s->text, o};
    return FL_OK;
nomem:
    return FL_FAIL(err, FL_E_NOMEM, 0, "no memory to normalise %zu bytes of text", in.n);
}

fl_status fl_nfc_apply(fl_nfc *s, fl_str in, fl_str *out, fl_err *err)
{
    /* Nothing below U+0300 (lead byte 0xCC) composes or changes. */
    for (size_t i = 0; i < in.n; i++)
        if ((uint8_t)in.p[i] >= 0xCC) return apply_all(s, in, out, err);
    *out = in;
    return FL_OK;
}

void fl_nfc_fini(fl_nfc *s)
{
    free(s->cp);
    free(s->text);
    *s = (fl_nfc){0};
}

const char *fl_nfc_library(char buf[32])
{
    snprintf(buf, 32, "utf8proc %s", utf8proc_version());
    return buf;
}
