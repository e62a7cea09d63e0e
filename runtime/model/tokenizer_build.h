#ifndef FL_MODEL_TOKENIZER_BUILD_H
#define FL_MODEL_TOKENIZER_BUILD_H

#include "runtime/model/tokenizer.h"

/* Tokens of more bytes are refused: the detokenizer's buffer contract rests on it. */
enum { FL_MAX_TOKEN_BYTES = 1024, FL_MAX_TOKENS = 1 << 24 };

typedef struct fl_merge_pair {
    fl_str left, right;
} fl_merge_pair;

/* What a file says about its tokenizer. Everything is borrowed for the call. */
typedef struct fl_vocab_spec {
    const char *where; /* names the file in errors */
    int32_t n_tokens;
    const fl_str *piece;       /* [n_tokens] */
    const uint8_t *kind;       /* [n_tokens], fl_token_kind */
    const uint8_t *normalized; /* [n_tokens], 1: added token looked for in the NFC text; or NULL */
    size_t n_merges;
    const fl_merge_pair *merge; /* [n_merges], by rank */
    fl_str pattern;             /* of the pre-tokenizer */
    bool nfc;
    bool ignore_merges; /* a word that is a token is that token */
} fl_vocab_spec;

FL_CHECKED fl_status fl_tokenizer_build(fl_tokenizer **out, const fl_vocab_spec *spec, fl_err *err);
/* The loader behind fl_tokenizer_from_json, from memory (fuzzing, tests). */
FL_CHECKED fl_status fl_tokenizer_parse_json(fl_tokenizer **out, const char *text, size_t n,
                                             const char *where, fl_err *err);

#endif
