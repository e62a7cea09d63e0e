#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/pretokenizer.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WHITE "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char qwen35[] = CONTRACTIONS
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" WHITE;
static const char qwen2[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WHITE;
static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* White_Space, for \s: PCRE2's own also has U+180E. */
static const char space_set[] = "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}"
                                "\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

/* What Unicode 15 and 16 added to the general categories that Unicode 14 (PCRE2 10.42) knows. */
static const char letters_added[] =
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
    "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"
    "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}"
    "\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}";
static const char marks_added[] =
    "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"
    "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}\\x{113D2}"
    "\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}\\x{11F3E}-\\x{11F42}"
    "\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}"
    "\\x{1E5EE}-\\x{1E5EF}";
static const char numbers_added[] =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

enum { MAX_PATTERN = 16384 };

struct fl_pretok {
    pcre2_code *code;
};

struct fl_pretok_scan {
    const fl_pretok *p;
    pcre2_match_data *md;
    pcre2_match_context *mc;
    fl_str text;
    size_t at;    /* end of the last piece given out */
    size_t match; /* end of a match found behind a gap; 0 when none waits */
};

static const struct {
    const char *name, *pattern;
} known[] = {{"qwen35", qwen35}, {"qwen2", qwen2}, {"gpt-2", gpt2}};
enum { N_KNOWN = sizeof known / sizeof known[0] };

const char *fl_pretok_pattern(const char *name)
{
    for (int i = 0; i < N_KNOWN; i++)
        if (!strcmp(name, known[i].name)) return known[i].pattern;
    return NULL;
}

const char *fl_pretok_name(fl_str p)
{
    for (int i = 0; i < N_KNOWN; i++)
        if (p.n == strlen(known[i].pattern) && !memcmp(p.p, known[i].pattern, p.n))
            return known[i].name;
    return NULL;
}

/* Rewrites \s, \S, \p{L}, \p{M}, \p{N} and their negations with the sets above; appends to out,
 * which has room. Negations inside brackets have no such form and stay as PCRE2 reads them. */
static size_t translate(fl_str in, char *out)
{
    size_t o = 0;
    bool in_set = false;
    for (size_t i = 0; i < in.n; i++) {
        const char *p = in.p + i;
        const size_t left = in.n - i;
        const char *set = NULL, *keep = "";
        size_t used = 0;
        bool negated = false;
        if (left >= 2 && p[0] == '\\' && (p[1] == 's' || p[1] == 'S')) {
            set = space_set;
            negated = p[1] == 'S';
            used = 2;
        } else if (left >= 5 && p[0] == '\\' && (p[1] == 'p' || p[1] == 'P') && p[2] == '{' &&
                   p[4] == '}' && p[3] && strchr("LMN", p[3])) {
            set = p[3] == 'L' ? letters_added : p[3] == 'M' ? marks_added : numbers_added;
            keep = p[3] == 'L' ? "\\p{L}" : p[3] == 'M' ? "\\p{M}" : "\\p{N}";
            negated = p[1] == 'P';
            used = 5;
        }
        if (set && !(negated && in_set)) {
            o += (size_t)sprintf(out + o, "%s%s%s%s",
                                 in_set    ? ""
                                 : negated ? "[^"
                                           : "[",
                                 keep, set, in_set ? "" : "]");
            i += used - 1;
            continue;
        }
        if (p[0] == '\\' && left >= 2) {
            out[o++] = *p;
            out[o++] = p[1];
            i++;
            continue;
        }
        if (!in_set && p[0] == '[') {
            /* A bracket right behind [ or [^ stands for itself. */
            size_t k = 1;
            if (left > k && p[k] == '^') k++;
            if (left > k && p[k] == ']') k++;
            memcpy(out + o, p, k);
            o += k;
            i += k - 1;
            in_set = true;
            continue;
        }
        if (in_set && p[0] == ']') in_set = false;
        out[o++] = *p;
    }
    return o;
}

fl_status fl_pretok_create(fl_pretok **out, fl_str pattern, const char *where, fl_err *err)
{
    *out = NULL;
    if (pattern.n == 0 || pattern.n > MAX_PATTERN)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the pre-tokenizer's expression has %zu bytes; 1 to %d are possible",
                       where, pattern.n, MAX_PATTERN);
    fl_pretok *p = calloc(1, sizeof *p);
    /* No element of the pattern grows by more than the longest set, and is 2 bytes or more. */
    char *text = malloc(pattern.n * (sizeof letters_added / 2 + 16));
    if (!p || !text) {
        free(p);
        free(text);
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the pre-tokenizer", where);
    }
    const size_t n = translate(pattern, text);
    int code;
    PCRE2_SIZE at;
    p->code = pcre2_compile((PCRE2_SPTR)text, n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE,
                            &code, &at, NULL);
    free(text);
    if (!p->code) {
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        free(p);
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: the pre-tokenizer's expression is not usable: %s",
                       where, why);
    }
    /* Where the system forbids code made at run time, matching is interpreted. */
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    *out = p;
    return FL_OK;
}

void fl_pretok_destroy(fl_pretok **p)
{
    if (!*p) return;
    pcre2_code_free((*p)->code);
    free(*p);
    *p = NULL;
}

fl_status fl_pretok_scan_create(fl_pretok_scan **out, const fl_pretok *p, fl_err *err)
{
    fl_pretok_scan *s = calloc(1, sizeof *s);
    if (s) {
        s->p = p;
        s->md = pcre2_match_data_create(1, NULL);
        s->mc = pcre2_match_context_create(NULL);
    }
    *out = s;
    if (!s || !s->md || !s->mc) {
        fl_pretok_scan_destroy(out);
        return FL_FAIL(err, FL_E_NOMEM, 0, "no memory to split text");
    }
    return FL_OK;
}

void fl_pretok_scan_destroy(fl_pretok_scan **s)
{
    if (!*s) return;
    pcre2_match_data_free((*s)->md);
    pcre2_match_context_free((*s)->mc);
    free(*s);
    *s = NULL;
}

void fl_pretok_scan_start(fl_pretok_scan *s, fl_str text)
{
    s->text = text;
    s->at = s->match = 0;
    /* One match of a sane expression backtracks at most once per byte (a run of white space
     * without a line end). */
    const uint64_t limit = 1000000 + 16 * (uint64_t)text.n;
    pcre2_set_match_limit(s->mc, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    pcre2_set_heap_limit(s->mc, 256 * 1024); /* KiB */
}

/* First non-empty match at or behind `from`; *start = text length when there is none. */
static fl_status find(fl_pretok_scan *s, size_t from, size_t *start, size_t *end, fl_err *err)
{
    const PCRE2_SPTR subject = (PCRE2_SPTR)s->text.p;
    const uint32_t opt = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int rc = pcre2_match(s->p->code, subject, s->text.n, from, opt, s->md, s->mc);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->p->code, subject, s->text.n, from, opt | PCRE2_NO_JIT, s->md, s->mc);
    *start = *end = s->text.n;
    if (rc == PCRE2_ERROR_NOMATCH) return FL_OK;
    if (rc < 0) {
        char why[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return FL_FAIL(err, rc == PCRE2_ERROR_NOMEMORY ? FL_E_NOMEM : FL_E_ARG, 0,
                       "text cannot be split into words at byte %zu: %s", from, why);
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(s->md);
    /* \K can report a match that starts behind its end. */
    if (v[0] >= from && v[1] > v[0]) {
        *start = v[0];
        *end = v[1];
    }
    return FL_OK;
}

fl_status fl_pretok_scan_next(fl_pretok_scan *s, size_t *end, bool *more, fl_err *err)
{
    *more = s->at < s->text.n;
    *end = s->text.n;
    if (!*more) return FL_OK;
    if (s->match) {
        *end = s->match;
        s->match = 0;
    } else {
        size_t a, b;
        FL_TRY(find(s, s->at, &a, &b, err));
        /* A gap before the match is a piece of its own. */
        *end = a > s->at ? a : b;
        if (a > s->at && b > a) s->match = b;
    }
    s->at = *end;
    return FL_OK;
}

const char *fl_pretok_library(char buf[32])
{
    char version[64];
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) > (int)sizeof version ||
        pcre2_config(PCRE2_CONFIG_VERSION, version) < 0)
        version[0] = '\0';
    snprintf(buf, 32, "PCRE2 %.25s", version);
    return buf;
}
