#include "tests/support/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ids count down, so that an id is never its byte by luck. */
int32_t fl_test_vocab_byte(uint8_t b) { return 255 - b; }

static const char head[] =
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}"
    "| "
    "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}}"
    ","
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
    "\"added_tokens\":[{\"id\":262,\"content\":\"<|c|>\",\"special\":true,\"normalized\":false},"
    "{\"id\":263,\"content\":\"<a>\",\"special\":false,\"normalized\":false},"
    "{\"id\":264,\"content\":\"<a>>\",\"special\":false,\"normalized\":false},"
    "{\"id\":265,\"content\":\"<think>\",\"special\":false,\"normalized\":false},"
    "{\"id\":266,\"content\":\"</think>\",\"special\":false,\"normalized\":false},"
    "{\"id\":267,\"content\":\"<n>\",\"special\":false,\"normalized\":true}],"
    "\"model\":{\"type\":\"BPE\",\"merges\":[\"a b\",\"ab c\",\"b c\",\"a bc\",\"c a\",\"ca b\"],"
    "\"vocab\":{\"ab\":256,\"abc\":257,\"bc\":258,\"ca\":259,\"cab\":260,\"abcd\":261";

char *fl_test_vocab_json(size_t *n)
{
    char *s = malloc(sizeof head + 256 * 24), *o = s;
    if (!s) abort();
    unsigned next = 0x100;
    o += sprintf(o, "%s", head);
    for (unsigned b = 0; b < 256; b++) {
        const int plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        o += sprintf(o, ",\"\\u%04x\":%d", plain ? b : next++, (int)fl_test_vocab_byte((uint8_t)b));
    }
    o += sprintf(o, "}}}");
    *n = (size_t)(o - s);
    return s;
}
