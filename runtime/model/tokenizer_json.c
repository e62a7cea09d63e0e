#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/model/pretokenizer.h"
#include "runtime/model/tokenizer_build.h"

/* A tokenizer.json (Hugging Face `tokenizers`): a byte-level BPE with at most one regular
 * expression. What would change ids and is not known here is refused, never skipped. */
typedef struct reader {
    const char *where;
    fl_err *err;
    int32_t n; /* highest id + 1 */
    fl_str *piece;
    uint8_t *kind, *normalized;
    fl_merge_pair *merge;
    size_t n_merges;
    fl_str pattern;
    bool byte_level, nfc;
} reader;

static fl_str str_of(const fl_json *j) { return (fl_str){fl_json_str(j, ""), fl_json_str_len(j)}; }

static bool is_str(const fl_json *j, const char *s)
{
    return fl_json_kind_of(j) == FL_JSON_STRING && !strcmp(fl_json_str(j, ""), s);
}

static bool is_null(const fl_json *j) { return fl_json_kind_of(j) == FL_JSON_NULL; }

static fl_status unsupported(reader *r, const char *what, const fl_json *j)
{
    return FL_FAIL(r->err, FL_E_UNSUPPORTED, 0,
                   "%s: %s \"%s\" is not known; a byte-level BPE as Qwen's was expected", r->where,
                   what, fl_json_str(j, "(none)"));
}

static fl_status read_normalizer(reader *r, const fl_json *j)
{
    if (is_null(j)) return FL_OK;
    const fl_json *type = fl_json_get(j, "type");
    if (is_str(type, "Sequence")) {
        const fl_json *list = fl_json_get(j, "normalizers");
        for (size_t i = 0; i < fl_json_size(list); i++) {
            const fl_json *part = fl_json_at(list, i);
            if (is_str(fl_json_get(part, "type"), "Sequence"))
                return unsupported(r, "nested normalizer", fl_json_get(part, "type"));
            FL_TRY(read_normalizer(r, part));
        }
        return FL_OK;
    }
    if (!is_str(type, "NFC")) return unsupported(r, "normalizer", type);
    r->nfc = true;
    return FL_OK;
}

static fl_status set_pattern(reader *r, fl_str pattern)
{
    if (r->pattern.p)
        return FL_FAIL(r->err, FL_E_UNSUPPORTED, 0,
                       "%s: more than one pre-tokenizer splits the text; one was expected",
                       r->where);
    r->pattern = pattern;
    return FL_OK;
}

static fl_status read_pretokenizer(reader *r, const fl_json *j, bool nested)
{
    const fl_json *type = fl_json_get(j, "type");
    if (is_str(type, "Sequence") && !nested) {
        const fl_json *list = fl_json_get(j, "pretokenizers");
        for (size_t i = 0; i < fl_json_size(list); i++)
            FL_TRY(read_pretokenizer(r, fl_json_at(list, i), true));
        return FL_OK;
    }
    if (is_str(type, "Split")) {
        const fl_json *pattern = fl_json_get(fl_json_get(j, "pattern"), "Regex");
        if (fl_json_kind_of(pattern) != FL_JSON_STRING)
            return unsupported(r, "split without a Regex", type);
        if (!is_str(fl_json_get(j, "behavior"), "Isolated"))
            return unsupported(r, "split behavior", fl_json_get(j, "behavior"));
        if (fl_json_bool(fl_json_get(j, "invert"), false))
            return unsupported(r, "inverted split", type);
        return set_pattern(r, str_of(pattern));
    }
    if (!is_str(type, "ByteLevel")) return unsupported(r, "pre-tokenizer", type);
    if (fl_json_bool(fl_json_get(j, "add_prefix_space"), true))
        return unsupported(r, "add_prefix_space of the pre-tokenizer", type);
    r->byte_level = true;
    const char *gpt2 = fl_pretok_pattern("gpt-2");
    return fl_json_bool(fl_json_get(j, "use_regex"), true)
               ? set_pattern(r, (fl_str){gpt2, strlen(gpt2)})
               : FL_OK;
}

static fl_status read_model(reader *r, const fl_json *model)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const fl_json *type = fl_json_get(model, "type");
    if (fl_json_kind_of(model) != FL_JSON_OBJECT || (type && !is_str(type, "BPE")))
        return unsupported(r, "model", type);
    for (int i = 0; i < 2; i++) {
        const fl_json *v = fl_json_get(model, empty[i]);
        if (!is_null(v) && !is_str(v, "")) return unsupported(r, empty[i], v);
    }
    if (fl_json_num(fl_json_get(model, "dropout"), 0) != 0)
        return unsupported(r, "merge dropout in model", type);
    if (fl_json_bool(fl_json_get(model, "byte_fallback"), false))
        return unsupported(r, "byte_fallback of model", type);
    if (fl_json_kind_of(fl_json_get(model, "vocab")) != FL_JSON_OBJECT)
        return FL_FAIL(r->err, FL_E_FORMAT, 0, "%s: model.vocab is missing", r->where);
    if (fl_json_kind_of(fl_json_get(model, "merges")) != FL_JSON_ARRAY)
        return FL_FAIL(r->err, FL_E_FORMAT, 0, "%s: model.merges is missing", r->where);
    return FL_OK;
}

static fl_status raise_n(reader *r, const fl_json *id)
{
    const int64_t v = fl_json_int(id, -1);
    if (v < 0 || v >= FL_MAX_TOKENS)
        return FL_FAIL(r->err, FL_E_FORMAT, 0, "%s: a token id is %lld; 0 to %d expected", r->where,
                       (long long)v, FL_MAX_TOKENS - 1);
    if (v >= r->n) r->n = (int32_t)v + 1;
    return FL_OK;
}

static fl_status set_token(reader *r, int64_t id, fl_str text, fl_token_kind kind)
{
    fl_str *p = &r->piece[id];
    if (r->kind[id] != FL_TOKEN_UNUSED && (p->n != text.n || memcmp(p->p, text.p, text.n) != 0))
        return FL_FAIL(r->err, FL_E_FORMAT, 0, "%s: id %lld is both \"%.*s\" and \"%.*s\"",
                       r->where, (long long)id, (int)(p->n < 64 ? p->n : 64), p->p,
                       (int)(text.n < 64 ? text.n : 64), text.p);
    *p = text;
    r->kind[id] = (uint8_t)kind;
    return FL_OK;
}

/* As llama.cpp's converter marks them: special ones and every <|...|> are control tokens. */
static fl_token_kind added_kind(const fl_json *a, fl_str s)
{
    const bool control = fl_json_bool(fl_json_get(a, "special"), false) ||
                         (s.n >= 4 && !memcmp(s.p, "<|", 2) && !memcmp(s.p + s.n - 2, "|>", 2));
    return control ? FL_TOKEN_CONTROL : FL_TOKEN_USER;
}

static fl_status read_added(reader *r, const fl_json *list)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    for (size_t i = 0; i < fl_json_size(list); i++) {
        const fl_json *a = fl_json_at(list, i);
        const fl_json *content = fl_json_get(a, "content");
        const int64_t id = fl_json_int(fl_json_get(a, "id"), -1);
        if (fl_json_kind_of(content) != FL_JSON_STRING || id < 0)
            return FL_FAIL(r->err, FL_E_FORMAT, 0, "%s: added token %zu has no id or content",
                           r->where, i);
        for (int k = 0; k < 3; k++)
            if (fl_json_bool(fl_json_get(a, flags[k]), false))
                return unsupported(r,
                                   "an added token with lstrip, rstrip or single_word:", content);
        const bool special = fl_json_bool(fl_json_get(a, "special"), false);
        FL_TRY(set_token(r, id, str_of(content), added_kind(a, str_of(content))));
        r->normalized[id] = fl_json_bool(fl_json_get(a, "normalized"), !special);
    }
    return FL_OK;
}

static fl_status read_tokens(reader *r, const fl_json *vocab, const fl_json *added)
{
    void *it = NULL;
    const char *key;
    const fl_json *id;
    while (fl_json_next(vocab, &it, &key, &id)) FL_TRY(raise_n(r, id));
    for (size_t i = 0; i < fl_json_size(added); i++)
        FL_TRY(raise_n(r, fl_json_get(fl_json_at(added, i), "id")));
    r->piece = calloc((size_t)r->n + 1, sizeof *r->piece);
    r->kind = malloc((size_t)r->n + 1);
    r->normalized = calloc((size_t)r->n + 1, 1);
    if (!r->piece || !r->kind || !r->normalized)
        return FL_FAIL(r->err, FL_E_NOMEM, 0, "%s: no memory for %d tokens", r->where, r->n);
    for (int32_t i = 0; i < r->n; i++) {
        r->piece[i].p = "";
        r->kind[i] = FL_TOKEN_UNUSED;
    }
    it = NULL;
    while (fl_json_next(vocab, &it, &key, &id))
        FL_TRY(set_token(r, fl_json_int(id, 0), (fl_str){key, strlen(key)}, FL_TOKEN_NORMAL));
    return read_added(r, added);
}

/* "left right", or [left, right] (newer files). */
static bool read_merge(const fl_json *j, fl_merge_pair *m)
{
    if (fl_json_kind_of(j) == FL_JSON_ARRAY) {
        const fl_json *a = fl_json_at(j, 0), *b = fl_json_at(j, 1);
        *m = (fl_merge_pair){str_of(a), str_of(b)};
        return fl_json_size(j) == 2 && m->left.n && m->right.n;
    }
    const fl_str s = str_of(j);
    const char *space = memchr(s.p, ' ', s.n);
    if (!space) return false;
    m->left = (fl_str){s.p, (size_t)(space - s.p)};
    m->right = (fl_str){space + 1, s.n - m->left.n - 1};
    return m->left.n && m->right.n && !memchr(m->right.p, ' ', m->right.n);
}

static fl_status read_merges(reader *r, const fl_json *list)
{
    r->n_merges = fl_json_size(list);
    r->merge = calloc(r->n_merges + 1, sizeof *r->merge);
    if (!r->merge)
        return FL_FAIL(r->err, FL_E_NOMEM, 0, "%s: no memory for %zu merges", r->where,
                       r->n_merges);
    for (size_t i = 0; i < r->n_merges; i++)
        if (!read_merge(fl_json_at(list, i), &r->merge[i]))
            return FL_FAIL(r->err, FL_E_FORMAT, 0,
                           "%s: merge %zu is not a pair \"left right\" or [left, right]", r->where,
                           i);
    return FL_OK;
}

static fl_status read_all(reader *r, const fl_json *root, fl_tokenizer **out)
{
    const fl_json *model = fl_json_get(root, "model");
    FL_TRY(read_model(r, model));
    FL_TRY(read_normalizer(r, fl_json_get(root, "normalizer")));
    FL_TRY(read_pretokenizer(r, fl_json_get(root, "pre_tokenizer"), false));
    if (!r->byte_level || !r->pattern.p)
        return FL_FAIL(r->err, FL_E_UNSUPPORTED, 0,
                       "%s: a pre-tokenizer with ByteLevel and one expression was expected",
                       r->where);
    FL_TRY(read_tokens(r, fl_json_get(model, "vocab"), fl_json_get(root, "added_tokens")));
    FL_TRY(read_merges(r, fl_json_get(model, "merges")));
    const fl_vocab_spec spec = {
        .where = r->where,
        .n_tokens = r->n,
        .piece = r->piece,
        .kind = r->kind,
        .normalized = r->normalized,
        .n_merges = r->n_merges,
        .merge = r->merge,
        .pattern = r->pattern,
        .nfc = r->nfc,
        .ignore_merges = fl_json_bool(fl_json_get(model, "ignore_merges"), false),
    };
    return fl_tokenizer_build(out, &spec, r->err);
}

fl_status fl_tokenizer_parse_json(fl_tokenizer **out, const char *text, size_t n, const char *where,
                                  fl_err *err)
{
    fl_json *root = NULL;
    *out = NULL;
    FL_TRY(fl_json_parse(text, n, where, &root, err));
    reader r = {.where = where, .err = err};
    const fl_status st = read_all(&r, root, out);
    free(r.piece);
    free(r.kind);
    free(r.normalized);
    free(r.merge);
    fl_json_free(&root);
    return st;
}

fl_status fl_tokenizer_from_json(fl_tokenizer **out, const char *path, fl_err *err)
{
    enum { MAX_FILE = 256 * 1024 * 1024 };
    char *text = NULL;
    uint64_t n = 0;
    *out = NULL;
    FL_TRY(fl_file_load(path, MAX_FILE, &text, &n, err));
    const fl_status st = fl_tokenizer_parse_json(out, text, n, path, err);
    free(text);
    return st;
}
