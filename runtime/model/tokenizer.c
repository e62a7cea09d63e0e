#include "runtime/model/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/hash.h"
#include "runtime/base/utf8.h"
#include "runtime/model/bpe.h"
#include "runtime/model/nfc.h"
#include "runtime/model/pretokenizer.h"
#include "runtime/model/tokenizer_build.h"

/* Strings one behind the other; string i is text[at[i], at[i + 1]). */
typedef struct strings {
    char *text;
    uint32_t *at;
    size_t n;
} strings;

/* An added token to be found in text. */
typedef struct added {
    fl_str text;
    int32_t id;
} added;

/* Added tokens by first byte, longest first: tokens of byte b are list[first[b], first[b + 1]). */
typedef struct added_set {
    added *list;
    strings text;
    uint32_t first[257];
} added_set;

struct fl_tokenizer {
    int32_t n;
    strings piece, bytes, merge;
    uint8_t *kind;
    uint32_t *slot; /* id + 1 by hash of the piece, open addressing; 0 = empty */
    size_t mask;
    added_set raw, normalized;
    fl_bpe *bpe;
    fl_pretok *pretok;
    const char *gguf_pre;
    bool nfc, ignore_merges;
};

static fl_str string_at(const strings *s, size_t i)
{
    return (fl_str){s->text + s->at[i], s->at[i + 1] - s->at[i]};
}

static bool strings_init(strings *s, size_t n, size_t bytes)
{
    if (bytes > UINT32_MAX) return false;
    s->text = malloc(bytes + 1);
    s->at = calloc(n + 1, sizeof *s->at);
    return s->text && s->at;
}

static void strings_add(strings *s, fl_str a)
{
    if (a.n) memcpy(s->text + s->at[s->n], a.p, a.n);
    s->at[s->n + 1] = s->at[s->n] + (uint32_t)a.n;
    s->n++;
}

static bool same(fl_str a, fl_str b) { return a.n == b.n && (!a.n || !memcmp(a.p, b.p, a.n)); }

/* ---- the byte-level alphabet -------------------------------------------------------------- */

/* Printable Latin-1 stands for itself, the other 68 bytes in order for U+0100... (GPT-2). */
static bool is_plain(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

static uint32_t char_of_byte(unsigned b)
{
    uint32_t k = 0;
    if (is_plain(b)) return b;
    for (unsigned i = 0; i < b; i++) k += !is_plain(i);
    return 0x100 + k;
}

/* byte[cp] for cp < 0x144, -1 for the characters that stand for no byte. */
typedef struct byte_map {
    int16_t byte[0x144];
} byte_map;

static void byte_map_init(byte_map *m)
{
    for (int i = 0; i < 0x144; i++) m->byte[i] = -1;
    for (unsigned b = 0; b < 256; b++) m->byte[char_of_byte(b)] = (int16_t)b;
}

/* The bytes a token stands for into out[FL_MAX_TOKEN_BYTES]. A piece with characters outside the
 * alphabet is literal text, as in `tokenizers`. */
static fl_str token_bytes(const byte_map *m, fl_str piece, fl_token_kind kind, char *out)
{
    size_t n = 0;
    if (kind == FL_TOKEN_UNUSED) return (fl_str){NULL, 0};
    if (kind == FL_TOKEN_BYTE && piece.n == 6 && !memcmp(piece.p, "<0x", 3)) {
        const char hex[3] = {piece.p[3], piece.p[4], 0};
        out[0] = (char)strtoul(hex, NULL, 16);
        return (fl_str){out, 1};
    }
    if (kind != FL_TOKEN_NORMAL) return piece;
    for (const char *p = piece.p, *end = p + piece.n; p < end;) {
        uint32_t cp;
        p += fl_utf8_next(p, end, &cp);
        if (cp >= 0x144 || m->byte[cp] < 0) return piece;
        out[n++] = (char)m->byte[cp];
    }
    return (fl_str){out, n};
}

/* ---- pieces by text ----------------------------------------------------------------------- */

static int32_t find_piece(const fl_tokenizer *t, fl_str s)
{
    for (size_t i = (size_t)fl_hash64(s.p, s.n) & t->mask; t->slot[i]; i = (i + 1) & t->mask)
        if (same(string_at(&t->piece, t->slot[i] - 1), s)) return (int32_t)(t->slot[i] - 1);
    return -1;
}

static fl_status index_pieces(fl_tokenizer *t, fl_err *err)
{
    size_t size = 64;
    while (size < 2 * (size_t)t->n) size *= 2;
    t->slot = calloc(size, sizeof *t->slot);
    if (!t->slot) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %d tokens", t->n);
    t->mask = size - 1;
    for (int32_t id = 0; id < t->n; id++) {
        const fl_str s = string_at(&t->piece, (size_t)id);
        size_t i = (size_t)fl_hash64(s.p, s.n) & t->mask;
        while (t->slot[i] && !same(string_at(&t->piece, t->slot[i] - 1), s)) i = (i + 1) & t->mask;
        /* Of equal pieces the first counts. */
        if (!t->slot[i]) t->slot[i] = (uint32_t)id + 1;
    }
    return FL_OK;
}

/* ---- added tokens ------------------------------------------------------------------------- */

static int by_byte_then_length(const void *a, const void *b)
{
    const added *x = a, *y = b;
    const int bx = (uint8_t)x->text.p[0], by = (uint8_t)y->text.p[0];
    if (bx != by) return bx - by;
    if (x->text.n != y->text.n) return x->text.n > y->text.n ? -1 : 1;
    return x->id - y->id;
}

static bool is_added(uint8_t kind) { return kind == FL_TOKEN_CONTROL || kind == FL_TOKEN_USER; }

/* The added tokens whose `normalized` flag is `want`; those are looked for in their NFC. */
static fl_status added_init(added_set *set, const fl_tokenizer *t, const uint8_t *normalized,
                            bool want, fl_err *err)
{
    size_t n = 0, bytes = 0;
    for (int32_t id = 0; id < t->n; id++) {
        if (!is_added(t->kind[id]) || (normalized && normalized[id]) != want) continue;
        n++;
        bytes += string_at(&t->piece, (size_t)id).n;
    }
    set->list = calloc(n + 1, sizeof *set->list);
    /* NFC makes UTF-8 at most three times as long. */
    if (!set->list || !strings_init(&set->text, n, 3 * bytes))
        return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %zu added tokens", n);
    fl_nfc nfc = {0};
    fl_status st = FL_OK;
    for (int32_t id = 0; id < t->n && st == FL_OK; id++) {
        fl_str s = string_at(&t->piece, (size_t)id);
        if (!is_added(t->kind[id]) || s.n == 0 || (normalized && normalized[id]) != want) continue;
        if (want && t->nfc) st = fl_nfc_apply(&nfc, s, &s, err);
        strings_add(&set->text, s);
        set->list[set->text.n - 1] = (added){string_at(&set->text, set->text.n - 1), id};
    }
    fl_nfc_fini(&nfc);
    n = set->text.n;
    qsort(set->list, n, sizeof *set->list, by_byte_then_length);
    for (size_t i = 0; i < n; i++) set->first[(uint8_t)set->list[i].text.p[0] + 1]++;
    for (int b = 0; b < 256; b++) set->first[b + 1] += set->first[b];
    return st;
}

/* The longest added token at the leftmost place at or behind `from`; NULL when there is none.
 * kinds: not NULL = of each id, and control tokens are passed over. */
static const added *added_find(const added_set *set, const uint8_t *kinds, fl_str text, size_t from,
                               size_t *at)
{
    for (size_t i = from; i < text.n; i++) {
        const uint8_t b = (uint8_t)text.p[i];
        for (uint32_t k = set->first[b]; k < set->first[b + 1]; k++) {
            const fl_str s = set->list[k].text;
            if (kinds && kinds[set->list[k].id] == FL_TOKEN_CONTROL) continue;
            if (s.n > text.n - i || memcmp(s.p, text.p + i, s.n) != 0) continue;
            *at = i;
            return &set->list[k];
        }
    }
    return NULL;
}

/* ---- building ----------------------------------------------------------------------------- */

static fl_status copy_tokens(fl_tokenizer *t, const fl_vocab_spec *spec, fl_err *err)
{
    byte_map map;
    char buf[FL_MAX_TOKEN_BYTES];
    size_t total = 0;
    byte_map_init(&map);
    for (int32_t i = 0; i < spec->n_tokens; i++) {
        if (spec->piece[i].n > FL_MAX_TOKEN_BYTES)
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: token %d has %zu bytes; at most %d expected",
                           spec->where, i, spec->piece[i].n, FL_MAX_TOKEN_BYTES);
        if (spec->kind[i] < FL_TOKEN_NORMAL || spec->kind[i] > FL_TOKEN_BYTE)
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: token %d has type %d; 1 to 6 expected",
                           spec->where, i, spec->kind[i]);
        total += spec->piece[i].n;
    }
    t->kind = malloc((size_t)spec->n_tokens + 1);
    if (!t->kind || !strings_init(&t->piece, (size_t)spec->n_tokens, total) ||
        !strings_init(&t->bytes, (size_t)spec->n_tokens, total))
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for %d tokens", spec->where,
                       spec->n_tokens);
    t->n = spec->n_tokens;
    for (int32_t i = 0; i < t->n; i++) {
        const fl_str s = spec->piece[i];
        t->kind[i] = spec->kind[i];
        strings_add(&t->piece, s);
        strings_add(&t->bytes, token_bytes(&map, s, (fl_token_kind)t->kind[i], buf));
    }
    return FL_OK;
}

static fl_status add_merges(fl_tokenizer *t, const fl_vocab_spec *spec, fl_err *err)
{
    int32_t byte_id[256];
    size_t total = 0;
    for (unsigned b = 0; b < 256; b++) {
        char c[4];
        byte_id[b] = find_piece(t, (fl_str){c, (size_t)fl_utf8_put(c, char_of_byte(b))});
    }
    FL_TRY(fl_bpe_create(&t->bpe, spec->n_merges, byte_id, err));
    for (size_t i = 0; i < spec->n_merges; i++)
        total += spec->merge[i].left.n + 1 + spec->merge[i].right.n;
    if (!strings_init(&t->merge, spec->n_merges, total))
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for %zu merges", spec->where,
                       spec->n_merges);
    for (size_t i = 0; i < spec->n_merges; i++) {
        const fl_str l = spec->merge[i].left, r = spec->merge[i].right;
        char both[FL_MAX_TOKEN_BYTES + 1];
        if (l.n + r.n > FL_MAX_TOKEN_BYTES)
            return FL_FAIL(err, FL_E_FORMAT, 0, "%s: merge %zu makes a token of %zu bytes",
                           spec->where, i, l.n + r.n);
        memcpy(both, l.p, l.n);
        memcpy(both + l.n, r.p, r.n);
        const int32_t a = find_piece(t, l), b = find_piece(t, r);
        const int32_t m = find_piece(t, (fl_str){both, l.n + r.n});
        if (a < 0 || b < 0 || m < 0) {
            const fl_str s = a < 0 ? l : b < 0 ? r : (fl_str){both, l.n + r.n};
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s: merge %zu needs the token \"%.*s\", which is not in the vocabulary",
                           spec->where, i, (int)s.n, s.p);
        }
        fl_bpe_add(t->bpe, a, b, m);
        memmove(both + l.n + 1, both + l.n, r.n);
        both[l.n] = ' ';
        strings_add(&t->merge, (fl_str){both, l.n + 1 + r.n});
    }
    return FL_OK;
}

static fl_status build(fl_tokenizer *t, const fl_vocab_spec *spec, fl_err *err)
{
    t->nfc = spec->nfc;
    t->ignore_merges = spec->ignore_merges;
    if (spec->nfc && !spec->ignore_merges) t->gguf_pre = fl_pretok_name(spec->pattern);
    FL_TRY(copy_tokens(t, spec, err));
    FL_TRY(index_pieces(t, err));
    FL_TRY(add_merges(t, spec, err));
    FL_TRY(added_init(&t->raw, t, spec->normalized, false, err));
    FL_TRY(added_init(&t->normalized, t, spec->normalized, true, err));
    return fl_pretok_create(&t->pretok, spec->pattern, spec->where, err);
}

fl_status fl_tokenizer_build(fl_tokenizer **out, const fl_vocab_spec *spec, fl_err *err)
{
    *out = NULL;
    if (spec->n_tokens < 1 || spec->n_tokens > FL_MAX_TOKENS)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: a vocabulary of %d tokens; 1 to %d expected",
                       spec->where, spec->n_tokens, FL_MAX_TOKENS);
    fl_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the tokenizer", spec->where);
    const fl_status st = build(t, spec, err);
    if (st != FL_OK) fl_tokenizer_close(&t);
    *out = t;
    return st;
}

void fl_tokenizer_close(fl_tokenizer **tp)
{
    fl_tokenizer *t = *tp;
    if (!t) return;
    strings *s[] = {&t->piece, &t->bytes, &t->merge, &t->raw.text, &t->normalized.text};
    for (size_t i = 0; i < sizeof s / sizeof s[0]; i++) {
        free(s[i]->text);
        free(s[i]->at);
    }
    free(t->kind);
    free(t->slot);
    free(t->raw.list);
    free(t->normalized.list);
    fl_bpe_destroy(&t->bpe);
    fl_pretok_destroy(&t->pretok);
    free(t);
    *tp = NULL;
}

/* ---- reading the vocabulary --------------------------------------------------------------- */

int32_t fl_tokenizer_size(const fl_tokenizer *t) { return t->n; }

int32_t fl_tokenizer_special(const fl_tokenizer *t, const char *text)
{
    const int32_t id = find_piece(t, (fl_str){text, strlen(text)});
    return id >= 0 && is_added(t->kind[id]) ? id : -1;
}

static bool in_range(const fl_tokenizer *t, int32_t id) { return id >= 0 && id < t->n; }

fl_token_kind fl_tokenizer_kind(const fl_tokenizer *t, int32_t id)
{
    return in_range(t, id) ? (fl_token_kind)t->kind[id] : FL_TOKEN_UNUSED;
}

fl_str fl_tokenizer_piece(const fl_tokenizer *t, int32_t id)
{
    return in_range(t, id) ? string_at(&t->piece, (size_t)id) : (fl_str){"", 0};
}

fl_str fl_tokenizer_bytes(const fl_tokenizer *t, int32_t id)
{
    return in_range(t, id) ? string_at(&t->bytes, (size_t)id) : (fl_str){"", 0};
}

size_t fl_tokenizer_n_merges(const fl_tokenizer *t) { return t->merge.n; }

fl_str fl_tokenizer_merge(const fl_tokenizer *t, size_t i)
{
    return i < t->merge.n ? string_at(&t->merge, i) : (fl_str){"", 0};
}

const char *fl_tokenizer_gguf_pre(const fl_tokenizer *t) { return t->gguf_pre; }

/* ---- encoding ----------------------------------------------------------------------------- */

/* NFC may triple a text, and positions have 31 bits. */
enum { MAX_TEXT = 512 * 1024 * 1024 };

/* One call's memory. The tokenizer itself is shared by threads and only read. */
typedef struct encoding {
    const fl_tokenizer *t;
    bool no_control; /* control tokens in the text are plain text */
    char *repaired;
    fl_str text; /* valid UTF-8 */
    fl_nfc nfc;
    fl_pretok_scan *scan;
    fl_bpe_out out;
    fl_err *err;
} encoding;

static fl_status encoding_init(encoding *e, const fl_tokenizer *t, const char *text, size_t n,
                               fl_err *err)
{
    *e = (encoding){.t = t, .text = {text, n}, .err = err};
    if (n > MAX_TEXT)
        return FL_FAIL(err, FL_E_ARG, 0, "a text of %zu bytes; at most %d can be tokenized", n,
                       MAX_TEXT);
    size_t n_fixed;
    FL_TRY(fl_utf8_repair(text, n, &e->repaired, &n_fixed, err));
    if (e->repaired) e->text = (fl_str){e->repaired, n_fixed};
    return fl_pretok_scan_create(&e->scan, t->pretok, err);
}

static void encoding_fini(encoding *e)
{
    free(e->repaired);
    fl_nfc_fini(&e->nfc);
    fl_pretok_scan_destroy(&e->scan);
    fl_bpe_out_fini(&e->out);
}

/* The token whose bytes are the word, or -1. */
static int32_t find_word(const fl_tokenizer *t, fl_str word)
{
    char mapped[FL_MAX_TOKEN_BYTES + 2];
    size_t n = 0;
    for (size_t i = 0; i < word.n; i++) {
        if (n >= FL_MAX_TOKEN_BYTES) return -1;
        n += (size_t)fl_utf8_put(mapped + n, char_of_byte((uint8_t)word.p[i]));
    }
    return find_piece(t, (fl_str){mapped, n});
}

/* Pre-tokens of NFC text, each by BPE. */
static fl_status encode_words(encoding *e, fl_str text)
{
    size_t start = 0, end;
    bool more;
    fl_pretok_scan_start(e->scan, text);
    for (;; start = end) {
        FL_TRY(fl_pretok_scan_next(e->scan, &end, &more, e->err));
        if (!more) return FL_OK;
        const fl_str word = {text.p + start, end - start};
        const int32_t whole = e->t->ignore_merges ? find_word(e->t, word) : -1;
        if (whole >= 0)
            FL_TRY(fl_bpe_push(&e->out, whole, e->err));
        else
            FL_TRY(fl_bpe_encode(e->t->bpe, word, &e->out, e->err));
    }
}

typedef fl_status (*encode_fn)(encoding *e, fl_str text);

/* Calls `rest` for what lies between the added tokens of `set`. */
static fl_status encode_around(encoding *e, const added_set *set, fl_str text, encode_fn rest)
{
    size_t from = 0;
    while (from < text.n) {
        size_t at = text.n;
        const added *a = added_find(set, e->no_control ? e->t->kind : NULL, text, from, &at);
        if (at > from) FL_TRY(rest(e, (fl_str){text.p + from, at - from}));
        if (!a) break;
        FL_TRY(fl_bpe_push(&e->out, a->id, e->err));
        from = at + a->text.n;
    }
    return FL_OK;
}

static fl_status normalise(encoding *e, fl_str *text)
{
    return e->t->nfc ? fl_nfc_apply(&e->nfc, *text, text, e->err) : FL_OK;
}

static fl_status encode_plain(encoding *e, fl_str text)
{
    FL_TRY(normalise(e, &text));
    return encode_words(e, text);
}

static fl_status encode_normalized(encoding *e, fl_str text)
{
    FL_TRY(normalise(e, &text));
    return encode_around(e, &e->t->normalized, text, encode_words);
}

/* Hands the ids over when st is FL_OK; callers free *ids even when it is empty. */
static fl_status finish(encoding *e, fl_status st, int32_t **ids, size_t *n_ids)
{
    if (st == FL_OK && !e->out.ids) {
        e->out.ids = calloc(1, sizeof *e->out.ids);
        if (!e->out.ids) st = FL_FAIL(e->err, FL_E_NOMEM, 0, "no memory for tokens");
    }
    if (st == FL_OK) {
        *ids = e->out.ids;
        *n_ids = e->out.n;
        e->out.ids = NULL;
    }
    encoding_fini(e);
    return st;
}

fl_status fl_tokenizer_encode(const fl_tokenizer *t, const char *text, size_t n, bool parse_added,
                              int32_t **ids, size_t *n_ids, fl_err *err)
{
    encoding e;
    *ids = NULL;
    *n_ids = 0;
    fl_status st = encoding_init(&e, t, text, n, err);
    if (st == FL_OK)
        st = parse_added ? encode_around(&e, &t->raw, e.text, encode_normalized)
                         : encode_plain(&e, e.text);
    return finish(&e, st, ids, n_ids);
}

static fl_status encode_format(encoding *e, const fl_token_place *places, size_t n_places)
{
    size_t from = 0;
    if (e->repaired)
        return FL_FAIL(e->err, FL_E_ARG, 0, "a text with places of tokens must be valid UTF-8");
    e->no_control = true;
    for (size_t i = 0; i <= n_places; i++) {
        const fl_token_place p = i < n_places ? places[i] : (fl_token_place){e->text.n, 0};
        const fl_str token = {e->text.p + p.at, p.n};
        const int32_t id = p.n ? find_piece(e->t, token) : -1;
        assert(p.at >= from && p.at + p.n <= e->text.n);
        /* A vocabulary without the token spells it out, together with what stands around it. */
        if (i < n_places && (id < 0 || !is_added(e->t->kind[id]))) continue;
        FL_TRY(encode_around(e, &e->t->raw, (fl_str){e->text.p + from, p.at - from},
                             encode_normalized));
        if (id >= 0) FL_TRY(fl_bpe_push(&e->out, id, e->err));
        from = p.at + p.n;
    }
    return FL_OK;
}

fl_status fl_tokenizer_encode_format(const fl_tokenizer *t, const char *text, size_t n,
                                     const fl_token_place *places, size_t n_places, int32_t **ids,
                                     size_t *n_ids, fl_err *err)
{
    encoding e;
    *ids = NULL;
    *n_ids = 0;
    fl_status st = encoding_init(&e, t, text, n, err);
    if (st == FL_OK) st = encode_format(&e, places, n_places);
    return finish(&e, st, ids, n_ids);
}

fl_status fl_tokenizer_split(const fl_tokenizer *t, const char *text, size_t n, size_t **ends,
                             size_t *n_ends, fl_err *err)
{
    encoding e;
    size_t *list = NULL, count = 0, cap = 0;
    bool more = true;
    fl_status st = encoding_init(&e, t, text, n, err);
    fl_str s = e.text;
    if (st == FL_OK) st = normalise(&e, &s);
    if (st == FL_OK) fl_pretok_scan_start(e.scan, s);
    while (st == FL_OK && more) {
        if (count == cap) {
            cap = 2 * cap + 64;
            size_t *grown = realloc(list, cap * sizeof *list);
            if (!grown) {
                st = FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %zu words", cap);
                break;
            }
            list = grown;
        }
        st = fl_pretok_scan_next(e.scan, &list[count], &more, err);
        count += st == FL_OK && more;
    }
    encoding_fini(&e);
    if (st != FL_OK) {
        free(list);
        list = NULL;
        count = 0;
    }
    *ends = list;
    *n_ends = count;
    return st;
}
