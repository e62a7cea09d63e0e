#ifndef TESTS_SUPPORT_VOCAB_H
#define TESTS_SUPPORT_VOCAB_H

#include <stddef.h>
#include <stdint.h>

/* A small byte-level vocabulary with Qwen's pre-tokenizer and NFC: the 256 bytes (id of byte b is
 * fl_test_vocab_byte(b)), the merges "a b", "ab c", "b c", "a bc", "c a", "ca b", and the added
 * tokens "<|c|>" (special), "<a>", "<a>>", "<think>", "</think>" and "<n>" (which is looked for in
 * the normalised text). malloc'ed tokenizer.json text. */
char *fl_test_vocab_json(size_t *n);
int32_t fl_test_vocab_byte(uint8_t b);

#endif
