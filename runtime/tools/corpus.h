#ifndef FL_TOOLS_CORPUS_H
#define FL_TOOLS_CORPUS_H

#include "runtime/model/tokenizer.h"

/* Text to run a model over, as token ids. A file is plain text or, when its name ends in .jsonl,
 * one JSON object a line:
 *
 *   {"text": T}                    plain text
 *   {"prompt": P, "completion": C} a turn that is rendered already, with its control tokens
 *   {"messages": M, "tools": L}    a conversation, rendered in the chat format (tools may lack)
 *
 * The first form that a line has counts in the order prompt, messages, text; other keys are for
 * others. Lines follow each other in one stream. In plain text the spelling of a control token is
 * plain text (as llama.cpp's tools read it); ill-formed UTF-8 becomes U+FFFD. */
typedef struct fl_corpus_part { /* one file */
    const char *path;           /* borrowed from the caller */
    int64_t start, n;           /* its ids */
} fl_corpus_part;

typedef struct fl_corpus {
    int32_t *ids;
    int64_t n;
    fl_corpus_part *part;
    int n_parts;
} fl_corpus;

/* Up to 512 MiB a file. FL_E_IO, FL_E_FORMAT (names the line), FL_E_ARG: a file without a token. */
FL_CHECKED fl_status fl_corpus_open(fl_corpus *out, const fl_tokenizer *t, const char *const *paths,
                                    int n_paths, fl_err *err);
void fl_corpus_close(fl_corpus *c);
/* XXH3 of the ids and of where each file ends: the same text in the same tokens. */
uint64_t fl_corpus_hash(const fl_corpus *c);

#endif
