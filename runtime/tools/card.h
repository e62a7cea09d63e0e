#ifndef FL_TOOLS_CARD_H
#define FL_TOOLS_CARD_H

#include "runtime/base/status.h"

/* What a model's folder says about its licence and its parents, as the Hub's model cards do: the
 * front matter of README.md, lines between two "---":
 *
 *     license: apache-2.0
 *     base_model:
 *     - Qwen/Qwen3.5-35B-A3B
 *
 * Read are `license`, `license_name`, `license_link` (a text) and `base_model` (a text, a list of
 * lines, or [a, b]); all else is passed over, and so are values that are not printable ASCII or
 * too long. What is not stated is empty. Held by tests/tools/test_card.c. */
enum { FL_CARD_VALUE = 256, FL_CARD_BASES = 16 };

typedef struct fl_card {
    char license[FL_CARD_VALUE], license_name[FL_CARD_VALUE], license_link[FL_CARD_VALUE];
    char base[FL_CARD_BASES][FL_CARD_VALUE]; /* ORG/NAME or an address */
    int n_base;
} fl_card;

/* `text`: a whole README.md, NUL-terminated. */
void fl_card_parse(fl_card *c, const char *text);
/* README.md of the folder; without one the card is empty. FL_E_IO, FL_E_FORMAT (over 16 MiB). */
FL_CHECKED fl_status fl_card_read(fl_card *c, const char *dir, fl_err *err);

/* The parts of a base model as llama.cpp's converter writes them, each "" when it is not known:
 * "acme/tiny-moe-v2.1-7b" -> name "Tiny Moe v2.1 7b", organization "Acme", repo_url
 * "https://huggingface.co/acme/tiny-moe-v2.1-7b". A Hub address gives the same. */
typedef struct fl_card_base {
    char name[FL_CARD_VALUE], organization[FL_CARD_VALUE], repo_url[FL_CARD_VALUE + 32];
} fl_card_base;
void fl_card_split_base(fl_card_base *b, const char *id);

#endif
