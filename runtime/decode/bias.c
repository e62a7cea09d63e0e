#include "runtime/decode/bias.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- by token ---- */

static bool parse_id(const char *at, const char *colon, int32_t *id)
{
    char *end = NULL;
    errno = 0;
    const long long v = isdigit((unsigned char)*at) ? strtoll(at, &end, 10) : -1;
    *id = (int32_t)v;
    return v >= 0 && v <= INT32_MAX && end == colon && !errno;
}

static bool parse_value(const char *at, const char *stop, float *value)
{
    char *end = NULL;
    if (stop - at == 4 && strncmp(at, "-inf", 4) == 0) {
        *value = -INFINITY;
        return true;
    }
    /* strtod would also read blanks, hexadecimal, inf and nan. */
    if (at == stop || strspn(at, "+-.0123456789eE") < (size_t)(stop - at)) return false;
    const double v = strtod(at, &end);
    *value = (float)v;
    return end == stop && fabs(v) <= FL_BIAS_LIMIT;
}

static fl_status parse_item(const char *at, int length, fl_logit_bias *b, fl_err *err)
{
    const char *colon = memchr(at, ':', (size_t)length);
    const int shown = length < 40 ? length : 40;
    if (length == 0)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--logit-bias: an item is empty (a comma too many?); expected "
                       "ID:VALUE,ID:VALUE as in 42:-5,7:1.5");
    if (!colon || !parse_id(at, colon, &b->id) || !parse_value(colon + 1, at + length, &b->value))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--logit-bias '%.*s': expected ID:VALUE with a token id and -%d to %d or "
                       "-inf, as in 42:-5,7:1.5",
                       shown, at, FL_BIAS_LIMIT, FL_BIAS_LIMIT);
    return FL_OK;
}

fl_status fl_logit_bias_parse(const char *text, fl_logit_bias out[FL_MAX_BIASES], int *n,
                              fl_err *err)
{
    *n = 0;
    for (const char *at = text;; at++) {
        const int length = (int)strcspn(at, ",");
        if (*n == FL_MAX_BIASES)
            return FL_FAIL(err, FL_E_ARG, 0, "--logit-bias: at most %d tokens", FL_MAX_BIASES);
        FL_TRY(parse_item(at, length, &out[*n], err));
        for (int i = 0; i < *n; i++)
            if (out[i].id == out[*n].id)
                return FL_FAIL(err, FL_E_ARG, 0, "--logit-bias: token %d is there twice",
                               out[i].id);
        (*n)++;
        at += length;
        if (!*at) return FL_OK;
    }
}

/* ---- by length ---- */

void fl_soft_begin(fl_soft *s, const fl_soft_config *c, fl_soft_ids ids, const int32_t *prompt,
                   int64_t n_prompt)
{
    *s = (fl_soft){.c = *c, .ids = ids, .start = n_prompt, .close_at = INT64_MAX};
    int64_t i = n_prompt - 1;
    while (i >= 0 && (prompt[i] < 0 || (prompt[i] != ids.open && prompt[i] != ids.close))) i--;
    s->open_at = i >= 0 && prompt[i] == ids.open ? n_prompt - 1 : INT64_MAX;
}

void fl_soft_take(fl_soft *s, int32_t id, int64_t pos)
{
    if (id < 0) return;
    if (id == s->ids.open && pos < s->open_at) s->open_at = pos;
    if (id == s->ids.close && pos < s->close_at) s->close_at = pos;
}

fl_logit_bias fl_soft_at(const fl_soft *s, int64_t pos)
{
    const bool closed = s->close_at < pos, thinking = s->open_at < pos && !closed;
    const int64_t from = closed ? s->close_at + 1 : s->start;
    const int64_t length = thinking ? s->c.think : s->c.answer, beyond = pos - from - length;
    const int32_t id = thinking ? s->ids.close : s->ids.end;
    if (length <= 0 || beyond <= 0 || id < 0) return (fl_logit_bias){-1, 0.0f};
    return (fl_logit_bias){id, (float)(s->c.slope * (double)beyond)};
}
