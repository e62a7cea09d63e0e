#ifndef FL_MODEL_PRETOKENIZER_H
#define FL_MODEL_PRETOKENIZER_H

#include <stdbool.h>

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* A pre-tokenizer: one regular expression whose matches, and the gaps between them, are the
 * pieces that BPE sees. The library behind it is seen by pretokenizer.c alone. Immutable after
 * creation; any number of threads may scan with it. */
typedef struct fl_pretok fl_pretok;

/* The expression of a name that GGUF files use ("qwen35", "qwen2", "gpt-2"); NULL when unknown. */
const char *fl_pretok_pattern(const char *gguf_name);
/* The reverse. */
const char *fl_pretok_name(fl_str pattern);

/* \s is White_Space; \p{L}, \p{M}, \p{N} are those of Unicode 16 whatever version the library
 * knows, as in Hugging Face's `tokenizers`. `where` names the file in errors. */
FL_CHECKED fl_status fl_pretok_create(fl_pretok **out, fl_str pattern, const char *where,
                                      fl_err *err);
void fl_pretok_destroy(fl_pretok **p);

/* One scan of valid UTF-8 that outlives the scan. */
typedef struct fl_pretok_scan fl_pretok_scan;
FL_CHECKED fl_status fl_pretok_scan_create(fl_pretok_scan **out, const fl_pretok *p, fl_err *err);
void fl_pretok_scan_destroy(fl_pretok_scan **s);
void fl_pretok_scan_start(fl_pretok_scan *s, fl_str text);
/* *end is the end of the next piece, never empty; false (in *more) at the end of the text. The
 * work per text is limited; a text that exceeds it is FL_E_ARG. */
FL_CHECKED fl_status fl_pretok_scan_next(fl_pretok_scan *s, size_t *end, bool *more, fl_err *err);

/* "PCRE2 10.42 2022-12-11". Returns buf. */
const char *fl_pretok_library(char buf[32]);

#endif
