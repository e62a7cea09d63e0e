#include "runtime/decode/roles.h"

#include <stdlib.h>
#include <string.h>

fl_status fl_roles_check(const fl_roles *r, int64_t n_prompt, fl_err *err)
{
    if (r->n < 0 || r->n > n_prompt || (r->n > 0 && !r->start))
        return FL_FAIL(err, FL_E_ARG, 0, "role map: %lld message starts in a prompt of %lld tokens",
                       (long long)r->n, (long long)n_prompt);
    int64_t least = 0;
    for (int64_t i = 0; i < r->n; i++) {
        if (r->start[i] < least || r->start[i] >= n_prompt)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "role map: message %lld starts at token %lld; expected %lld to %lld",
                           (long long)i, (long long)r->start[i], (long long)least,
                           (long long)n_prompt - 1);
        least = r->start[i] + 1;
    }
    return FL_OK;
}

/* The tokens from ids on spell `text` at their beginning. */
static bool spells(const fl_tokenizer *t, const int32_t *ids, int64_t n, const char *text)
{
    size_t left = strlen(text);
    for (int64_t i = 0; i < n && left > 0; i++) {
        if (ids[i] < 0 || ids[i] >= fl_tokenizer_size(t)) return false;
        const fl_str s = fl_tokenizer_bytes(t, ids[i]);
        const size_t k = s.n < left ? s.n : left;
        if (memcmp(s.p, text, k) != 0) return false;
        text += k;
        left -= k;
    }
    return left == 0;
}

fl_status fl_roles_find(fl_roles *r, int64_t **starts, const fl_tokenizer *t, const int32_t *ids,
                        int64_t n, fl_err *err)
{
    const int32_t start = fl_tokenizer_special(t, "<|im_start|>");
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += start >= 0 && ids[i] == start;
    *r = (fl_roles){.n = count};
    *starts = malloc(((size_t)count + 1) * sizeof(**starts));
    if (!*starts) return FL_FAIL(err, FL_E_NOMEM, 0, "role map: out of memory");
    r->start = *starts;
    count = 0;
    for (int64_t i = 0; i < n; i++)
        if (start >= 0 && ids[i] == start) (*starts)[count++] = i;
    if (count > 0) r->has_head = spells(t, ids + r->start[0] + 1, n - r->start[0] - 1, "system\n");
    return FL_OK;
}
