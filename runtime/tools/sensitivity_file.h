#ifndef FL_TOOLS_SENSITIVITY_FILE_H
#define FL_TOOLS_SENSITIVITY_FILE_H

#include "runtime/tools/conversion.h"

/* How much a model's distributions suffer when one tensor alone is rounded: mean KL divergence from
 * those of the exact weights, in nats, with the tensor in Q4_K, plain rounding. Measured by
 * `fourleaf sensitivity`; a text file of lines
 *
 *     blk.3.attn_output.weight 0.00041
 *
 * with comments behind #. */
typedef struct fl_sensitivity {
    struct fl_sensitivity_line {
        char name[FL_CONV_NAME];
        double nats;
    } * line; /* [n], sorted by name */
    int n, cap;
    double scale; /* of the file's values to the usual ones */
} fl_sensitivity;

/* `name` is for messages. FL_E_FORMAT names the line: not NAME NUMBER, a number that is not finite
 * or below 0, a name that was there before. */
FL_CHECKED fl_status fl_sensitivity_parse(fl_sensitivity *s, const char *name, const char *text,
                                          size_t n, fl_err *err);
FL_CHECKED fl_status fl_sensitivity_load(fl_sensitivity *s, const char *path, fl_err *err);
void fl_sensitivity_fini(fl_sensitivity *s);

/* That of a tensor: the file's; else, scaled to what the file has, the measured one of its kind in
 * clover-tiny (FORMAT.md, section 5). *known: whether the file has it. `s` may be NULL or empty. */
double fl_sensitivity_of(const fl_sensitivity *s, const fl_conv_tensor *t, bool *known);

#endif
