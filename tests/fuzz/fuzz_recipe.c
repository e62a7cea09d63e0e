/* A recipe's text. Rules that are taken have patterns that matching ends for, and types that are
 * written or mean the source's. */
#include <stdlib.h>

#include "runtime/tools/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fl_recipe r;
    fl_err err = {0};
    if (fl_recipe_parse(&r, "x", (const char *)p, n, &err) != FL_OK) {
        if (err.code != FL_E_ARG || !err.msg[0]) abort();
        return 0;
    }
    for (int i = 0; i < r.n; i++) {
        const fl_rule *rule = &r.rule[i];
        if (rule->type != FL_RECIPE_KEEP && !fl_type_get(rule->type)) abort();
        if (!fl_recipe_matches(rule->pattern, "blk.10.ffn_down_exps.weight") &&
            rule->pattern[0] == '*' && !rule->pattern[1])
            abort();
        if (!fl_recipe_matches("*", rule->pattern)) abort();
    }
    fl_recipe_fini(&r);
    return 0;
}
