#ifndef FL_MODEL_NFC_H
#define FL_MODEL_NFC_H

#include <stdint.h>

#include "runtime/base/status.h"
#include "runtime/base/str.h"

/* Reused memory of one caller; zero-initialise, give back with fl_nfc_fini. */
typedef struct fl_nfc {
    int32_t *cp;
    size_t cp_cap;
    char *text;
    size_t text_cap;
} fl_nfc;

/* Unicode normalisation form C of valid UTF-8, linear in its length (long runs of marks too).
 * *out is `in` itself when nothing changes, else memory of `s`, good until the next call.
 *
 * Vocabularies were made with Hugging Face's `tokenizers`, whose normalizer knows Unicode 9.
 * Characters that later versions made combining or composing therefore stay as they are here,
 * whatever version the installed utf8proc knows. Held by tests/model/test_tokenizer.c. */
FL_CHECKED fl_status fl_nfc_apply(fl_nfc *s, fl_str in, fl_str *out, fl_err *err);
void fl_nfc_fini(fl_nfc *s);

/* "utf8proc 2.8.0". Returns buf. */
const char *fl_nfc_library(char buf[32]);

#endif
