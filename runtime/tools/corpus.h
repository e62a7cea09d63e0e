#ifndef FL_TOOLS_CORPUS_H
#define FL_TOOLS_CORPUS_H

#include "runtime/model/tokenizer.h"

/* Text to run a model over, as token ids. A file is plain text, one document, or, when its name
 * ends in .jsonl, one JSON object a line, each a document of its own:
 *
 *   {"prompt": P, "completion": C} rendered already, with its control tokens
 *   {"messages": M, "tools": L}    a conversation, rendered in the chat format (tools may lack)
 *   {"text": T}                    plain text
 *
 * The first form that a line has counts; other keys are for others. In plain text the spelling of
 * a control token is plain text (as llama.cpp's tools read it); ill-formed UTF-8 becomes U+FFFD. */
typedef struct fl_corpus_doc {
    const char *path; /* borrowed from the caller */
    int line;         /* of the file; 0: the document is the file */
    int64_t start, n; /* its ids */
    int64_t prompt;   /* of them, those before the completion or the first answer; 0: none */
} fl_corpus_doc;

typedef struct fl_corpus {
    int32_t *ids;
    int64_t n, room;
    fl_corpus_doc *doc;
    int n_docs, doc_room;
} fl_corpus;

/* Up to 512 MiB a file. FL_E_IO, FL_E_FORMAT (names the line), FL_E_ARG: a file without a token. */
FL_CHECKED fl_status fl_corpus_open(fl_corpus *out, const fl_tokenizer *t, const char *const *paths,
                                    int n_paths, fl_err *err);
void fl_corpus_close(fl_corpus *c);
/* XXH3 of the ids and of where each document ends: the same text in the same tokens. */
uint64_t fl_corpus_hash(const fl_corpus *c);

#endif
