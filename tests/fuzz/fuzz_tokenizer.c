/* First byte '{': the input is a tokenizer.json, used on a short text if it loads. Else: the rest
 * is text for a small tokenizer; the ids must give the text back (repaired, in NFC). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/model/nfc.h"
#include "runtime/model/tokenizer_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void need(bool ok)
{
    if (!ok) abort();
}

static void try_loader(const char *text, size_t n)
{
    static const char sample[] = "a  <b> 'll \xC3\xA9\xFF\n12";
    fl_err err = {0};
    fl_tokenizer *t;
    if (fl_tokenizer_parse_json(&t, text, n, "fuzz", &err) != FL_OK) {
        need(!t && err.msg[0]);
        return;
    }
    char buf[4096];
    fl_detok d;
    fl_detok_init(&d, t, true);
    for (int added = 0; added < 2; added++) {
        int32_t *ids;
        size_t n_ids;
        if (fl_tokenizer_encode(t, sample, sizeof sample - 1, added, &ids, &n_ids, &err) != FL_OK)
            continue;
        for (size_t i = 0; i < n_ids; i++) {
            need(ids[i] >= 0 && ids[i] < fl_tokenizer_size(t));
            (void)fl_detok_push(&d, ids[i], buf, sizeof buf);
        }
        free(ids);
    }
    fl_tokenizer_close(&t);
}

/* 256 bytes, a few merges, added tokens of both kinds. */
static fl_tokenizer *small(void)
{
    static fl_tokenizer *t;
    static char name[256][4];
    static const char *const more[] = {"aa", "aaaa", "<a>", "<a>>", "<|c|>"};
    if (t) return t;
    fl_str piece[261];
    uint8_t kind[261];
    uint32_t next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        const bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        piece[b] = (fl_str){name[b], (size_t)fl_utf8_put(name[b], plain ? b : next++)};
        kind[b] = FL_TOKEN_NORMAL;
    }
    for (int i = 0; i < 5; i++) {
        piece[256 + i] = (fl_str){more[i], strlen(more[i])};
        kind[256 + i] = i < 2 ? FL_TOKEN_NORMAL : i < 4 ? FL_TOKEN_USER : FL_TOKEN_CONTROL;
    }
    const fl_merge_pair merge[] = {{{"a", 1}, {"a", 1}}, {{"aa", 2}, {"aa", 2}}};
    static const char pattern[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
        "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    const fl_vocab_spec spec = {.where = "small",
                                .n_tokens = 261,
                                .piece = piece,
                                .kind = kind,
                                .n_merges = 2,
                                .merge = merge,
                                .pattern = {pattern, sizeof pattern - 1},
                                .nfc = true};
    need(fl_tokenizer_build(&t, &spec, NULL) == FL_OK);
    return t;
}

static void try_text(const char *text, size_t n)
{
    const fl_tokenizer *t = small();
    fl_err err = {0};
    fl_nfc nfc = {0};
    char *fixed, buf[4096];
    size_t n_fixed, n_ids, at = 0;
    fl_str want;
    int32_t *ids;
    need(fl_utf8_repair(text, n, &fixed, &n_fixed, &err) == FL_OK);
    need(fl_nfc_apply(&nfc, (fl_str){fixed ? fixed : text, n_fixed}, &want, &err) == FL_OK);
    need(fl_tokenizer_encode(t, text, n, false, &ids, &n_ids, &err) == FL_OK);
    fl_detok d;
    fl_detok_init(&d, t, true);
    for (size_t i = 0; i < n_ids; i++) {
        const size_t k = fl_detok_push(&d, ids[i], buf, sizeof buf);
        need(at + k <= want.n && !memcmp(want.p + at, buf, k));
        at += k;
    }
    need(at == want.n && fl_detok_flush(&d, buf, sizeof buf) == 0);
    free(ids);
    /* With added tokens the text may be normalised in other pieces, but ids stay in range. */
    need(fl_tokenizer_encode(t, text, n, true, &ids, &n_ids, &err) == FL_OK);
    for (size_t i = 0; i < n_ids; i++) need(ids[i] >= 0 && ids[i] < 261);
    free(ids);
    /* A text whose format wrote no control token has none. */
    const fl_str valid = {fixed ? fixed : text, n_fixed};
    need(fl_tokenizer_encode_format(t, valid.p, valid.n, NULL, 0, &ids, &n_ids, &err) == FL_OK);
    for (size_t i = 0; i < n_ids; i++) need(fl_tokenizer_kind(t, ids[i]) != FL_TOKEN_CONTROL);
    free(ids);
    fl_nfc_fini(&nfc);
    free(fixed);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    if (n && p[0] == '{')
        try_loader((const char *)p, n);
    else if (n)
        try_text((const char *)p + 1, n - 1);
    return 0;
}
