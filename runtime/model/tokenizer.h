#ifndef FL_MODEL_TOKENIZER_H
#define FL_MODEL_TOKENIZER_H

#include "runtime/model/source.h"

/* Byte-level BPE with Qwen's pre-tokenizer. Encoding: split at added tokens, NFC, regex, BPE.
 * Immutable after creation; a tokenizer may be used from several threads at once. */
typedef struct fl_tokenizer fl_tokenizer;

typedef enum fl_token_kind { /* numbers of tokenizer.ggml.token_type */
                             FL_TOKEN_NORMAL = 1,
                             FL_TOKEN_UNKNOWN = 2,
                             FL_TOKEN_CONTROL = 3,
                             FL_TOKEN_USER = 4, /* added, printed: <think>, <tool_call> */
                             FL_TOKEN_UNUSED = 5,
                             FL_TOKEN_BYTE = 6
} fl_token_kind;

/* From GGUF metadata (tokenizer.ggml.*) or a tokenizer.json: a byte-level BPE, the pre-tokenizers
 * of Qwen and GPT-2 (GGUF) or one regular expression (JSON). What would change ids and is not
 * known is FL_E_UNSUPPORTED, a vocabulary that contradicts itself FL_E_FORMAT. Tokens have at most
 * 1,024 bytes. The full Qwen3.6 vocabulary loads in 0.1 s (GGUF) or 0.5 s (JSON). */
FL_CHECKED fl_status fl_tokenizer_from_gguf(fl_tokenizer **out, const fl_gguf *g, const char *path,
                                            fl_err *err);
FL_CHECKED fl_status fl_tokenizer_from_json(fl_tokenizer **out, const char *path, fl_err *err);
/* Whichever the source has. */
FL_CHECKED fl_status fl_tokenizer_open(fl_tokenizer **out, const fl_source *src, fl_err *err);
void fl_tokenizer_close(fl_tokenizer **t);

int32_t fl_tokenizer_size(const fl_tokenizer *t);
/* Id of an added token by its exact text, or -1. */
int32_t fl_tokenizer_special(const fl_tokenizer *t, const char *text);
fl_token_kind fl_tokenizer_kind(const fl_tokenizer *t, int32_t id);
/* Text of a token as the vocabulary spells it (byte-level characters for normal ones), and the
 * bytes it stands for. */
fl_str fl_tokenizer_piece(const fl_tokenizer *t, int32_t id);
fl_str fl_tokenizer_bytes(const fl_tokenizer *t, int32_t id);
/* The pieces needed to write the vocabulary into another file. */
size_t fl_tokenizer_n_merges(const fl_tokenizer *t);
fl_str fl_tokenizer_merge(const fl_tokenizer *t, size_t i); /* "left right" */
/* What GGUF files call this pre-tokenizer (tokenizer.ggml.pre); NULL when they cannot say it. */
const char *fl_tokenizer_gguf_pre(const fl_tokenizer *t);

/* Any bytes, up to 512 MiB (else FL_E_ARG). Each maximal ill-formed part of the UTF-8 is read as
 * U+FFFD, as Python's bytes.decode(errors="replace") gives it. parse_added = 0 reads added tokens
 * in the text as plain text. Where the vocabulary
 * lacks a byte, FL_E_UNSUPPORTED. *ids is malloc'ed, also when it is empty. Time n log n whatever
 * the text. Ids equal those of Hugging Face's `tokenizers`: tests/model/test_tokenizer.c. */
FL_CHECKED fl_status fl_tokenizer_encode(const fl_tokenizer *t, const char *text, size_t n,
                                         bool parse_added, int32_t **ids, size_t *n_ids,
                                         fl_err *err);
/* Text of a format that has control tokens at known places, in rising order: there they are taken
 * by their spelling, and nowhere else. What looks like one in between (a message that would forge
 * the end of its turn) is plain text; other added tokens are found everywhere. The text must be
 * valid UTF-8 (else FL_E_ARG). Without forgeries the ids are those of fl_tokenizer_encode. */
typedef struct fl_token_place {
    size_t at, n; /* bytes of the text */
} fl_token_place;
FL_CHECKED fl_status fl_tokenizer_encode_format(const fl_tokenizer *t, const char *text, size_t n,
                                                const fl_token_place *places, size_t n_places,
                                                int32_t **ids, size_t *n_ids, fl_err *err);
/* Pre-token boundaries alone (tests): end offsets in the NFC text of one piece without added
 * tokens. *ends is malloc'ed. */
FL_CHECKED fl_status fl_tokenizer_split(const fl_tokenizer *t, const char *text, size_t n,
                                        size_t **ends, size_t *n_ends, fl_err *err);

/* Streaming decode: give ids one by one, take only whole characters. An incomplete tail stays
 * inside until it is completed; other bytes behind it, or a flush, make it U+FFFD. A hidden control
 * token does not cut a character. */
typedef struct fl_detok {
    const fl_tokenizer *t;
    char pending[8];
    int n_pending;
    bool show_control; /* print control tokens' text, else they are silent */
} fl_detok;
void fl_detok_init(fl_detok *d, const fl_tokenizer *t, bool show_control);
/* Appends the text that became final to buf (capacity cap, at least 4,096); returns its length. */
size_t fl_detok_push(fl_detok *d, int32_t id, char *buf, size_t cap);
size_t fl_detok_flush(fl_detok *d, char *buf, size_t cap);

#endif
