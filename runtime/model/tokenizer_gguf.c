#include <stdlib.h>
#include <string.h>

#include "runtime/model/pretokenizer.h"
#include "runtime/model/tokenizer_build.h"

typedef struct lists {
    fl_str *piece, *merge_text;
    uint8_t *kind;
    fl_merge_pair *merge;
} lists;

/* Without tokenizer.ggml.pre (older files of this family) the pre-tokenizer is Qwen3.5's. */
static fl_status find_pattern(const fl_gguf *g, const char *path, fl_str *pattern, fl_err *err)
{
    const fl_kv *kv = fl_gguf_find(g, "tokenizer.ggml.pre");
    const fl_str name = kv ? fl_kv_str(kv) : (fl_str){"qwen35", 6};
    char buf[64] = "";
    if (name.p && name.n < sizeof buf) memcpy(buf, name.p, name.n);
    const char *p = fl_pretok_pattern(buf);
    if (!p)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s: tokenizer.ggml.pre is \"%s\"; qwen35, qwen2 and gpt-2 are known", path,
                       buf);
    *pattern = (fl_str){p, strlen(p)};
    return FL_OK;
}

static fl_status check_model(const fl_gguf *g, const char *path, fl_err *err)
{
    const fl_str s = fl_kv_str(fl_gguf_find(g, "tokenizer.ggml.model"));
    if (s.n == 4 && !memcmp(s.p, "gpt2", 4)) return FL_OK;
    return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                   "%s: tokenizer.ggml.model is \"%.*s\"; gpt2 (byte-level BPE) was expected", path,
                   (int)(s.n < 64 ? s.n : 64), s.p ? s.p : "");
}

static fl_status read_kinds(lists *l, const fl_gguf *g, uint64_t n, const char *path, fl_err *err)
{
    const fl_kv *kv = fl_gguf_find(g, "tokenizer.ggml.token_type");
    if (kv && (kv->type != FL_GGUF_ARRAY || kv->count != n))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: tokenizer.ggml.token_type has %llu values for %llu tokens", path,
                       (unsigned long long)kv->count, (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        const int64_t k = kv ? fl_kv_int_at(kv, i, 0) : FL_TOKEN_NORMAL;
        l->kind[i] = k >= 0 && k <= 255 ? (uint8_t)k : 0;
    }
    return FL_OK;
}

static fl_status split_merges(lists *l, uint64_t n, const char *path, fl_err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const fl_str s = l->merge_text[i];
        const char *space = s.n ? memchr(s.p, ' ', s.n) : NULL;
        if (!space)
            return FL_FAIL(err, FL_E_FORMAT, 0,
                           "%s: tokenizer.ggml.merges %llu is \"%.*s\"; two parts expected", path,
                           (unsigned long long)i, (int)(s.n < 64 ? s.n : 64), s.p ? s.p : "");
        l->merge[i].left = (fl_str){s.p, (size_t)(space - s.p)};
        l->merge[i].right = (fl_str){space + 1, s.n - l->merge[i].left.n - 1};
    }
    return FL_OK;
}

static fl_status read_lists(lists *l, const fl_gguf *g, const fl_kv *tokens, const fl_kv *merges,
                            const char *path, fl_err *err)
{
    const uint64_t n = tokens->count, n_merges = merges ? merges->count : 0;
    l->piece = calloc(n + 1, sizeof *l->piece);
    l->kind = calloc(n + 1, 1);
    l->merge_text = calloc(n_merges + 1, sizeof *l->merge_text);
    l->merge = calloc(n_merges + 1, sizeof *l->merge);
    if (!l->piece || !l->kind || !l->merge_text || !l->merge)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for the vocabulary", path);
    if (!fl_kv_strings(tokens, l->piece) || (merges && !fl_kv_strings(merges, l->merge_text)))
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: tokenizer.ggml.tokens and merges must be arrays of strings", path);
    FL_TRY(read_kinds(l, g, n, path, err));
    return split_merges(l, n_merges, path, err);
}

fl_status fl_tokenizer_from_gguf(fl_tokenizer **out, const fl_gguf *g, const char *path,
                                 fl_err *err)
{
    const fl_kv *tokens = fl_gguf_find(g, "tokenizer.ggml.tokens");
    const fl_kv *merges = fl_gguf_find(g, "tokenizer.ggml.merges");
    *out = NULL;
    if (!tokens)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: the file has no tokenizer (tokenizer.ggml.tokens)",
                       path);
    FL_TRY(check_model(g, path, err));
    if (tokens->count > FL_MAX_TOKENS || (merges && merges->count > FL_MAX_TOKENS))
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: the vocabulary is too large", path);
    fl_vocab_spec spec = {.where = path,
                          .n_tokens = (int32_t)tokens->count,
                          .n_merges = merges ? (size_t)merges->count : 0,
                          .nfc = true};
    FL_TRY(find_pattern(g, path, &spec.pattern, err));
    lists l = {0};
    fl_status st = read_lists(&l, g, tokens, merges, path, err);
    spec.piece = l.piece;
    spec.kind = l.kind;
    spec.merge = l.merge;
    if (st == FL_OK) st = fl_tokenizer_build(out, &spec, err);
    free(l.piece);
    free(l.kind);
    free(l.merge_text);
    free(l.merge);
    return st;
}
