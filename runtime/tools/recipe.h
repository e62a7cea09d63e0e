#ifndef FL_TOOLS_RECIPE_H
#define FL_TOOLS_RECIPE_H

#include "runtime/base/text.h"
#include "runtime/tools/conversion.h"

/* Which tensor is written in which type: rules, of which the first that matches a name wins.
 *
 *     # a comment
 *     token_embd.weight        q8_0
 *     blk.[any].ffn_down_exps.weight  q5_k      ([any] stands for a star here)
 *     *                        q4_k
 *
 * A pattern is matched against the whole GGUF name of an output tensor: a star stands for any run
 * of characters, a question mark for one. The type is one that fl_recipe_types lists, in any case,
 * or `keep`: that of the source. Everything behind # is left out. */

enum { FL_RECIPE_KEEP = FL_TYPE_LIMIT };

typedef struct fl_rule {
    char pattern[FL_CONV_NAME];
    uint32_t type; /* or FL_RECIPE_KEEP */
    int line;
} fl_rule;

typedef struct fl_recipe {
    const char *name; /* borrowed: the file, or the name of a built-in recipe */
    bool built_in;
    fl_rule *rule; /* [n] */
    int n, cap;
} fl_recipe;

/* "q4_k, q5_k, ...": the types that rules may name. */
extern const char fl_recipe_types[];

/* Rules from text; `name` is borrowed and names it in messages. A line that is none, a type that is
 * not written, a text with NUL bytes: FL_E_ARG with the line's number. */
FL_CHECKED fl_status fl_recipe_parse(fl_recipe *r, const char *name, const char *text, size_t n,
                                     fl_err *err);
/* A built-in recipe (q4, q4_k_m, q5, q6, q8, q4_0, iq4_xs, bf16, f16, f32, keep) or a file. */
FL_CHECKED fl_status fl_recipe_open(fl_recipe *r, const char *name_or_file, const fl_index *ix,
                                    fl_err *err);
/* The built-in recipe that `--type` stands for. */
FL_CHECKED fl_status fl_recipe_of_type(fl_recipe *r, const char *type, const fl_index *ix,
                                       fl_err *err);
void fl_recipe_fini(fl_recipe *r);

bool fl_recipe_matches(const char *pattern, const char *name);

/* Gives each tensor whose done[i] is false the type of the first rule that matches it and sets
 * done[i]. A rule of a file that matches no tensor at all is FL_E_ARG; one that has no effect, or
 * matches tensors that stay F32, adds a line to `notes`. */
FL_CHECKED fl_status fl_recipe_apply(const fl_recipe *r, fl_conv *c, bool *done, fl_text *notes,
                                     fl_err *err);

#endif
