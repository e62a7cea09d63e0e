#ifndef FL_TOOLS_PROBE_ROLES_H
#define FL_TOOLS_PROBE_ROLES_H

#include "runtime/model/index.h"

/* Which of a file's unknown tensors may be the backward branch of the GDN layers, told by shape,
 * then by what their names say, then by values. */

/* A tensor that every GDN layer has, by its name with '*' in place of the layer's number. */
typedef struct fl_probe_pattern {
    char name[FL_ROLE_BYTES];
    const fl_tensor *first;
    int count;
} fl_probe_pattern;

/* Assignments of all six roles that are possible; the measured likelihood decides among them. */
enum { FL_PROBE_ASSIGNMENTS = 12, FL_PROBE_PATTERNS = 64 };
typedef struct fl_probe_roles {
    fl_probe_pattern pattern[FL_PROBE_PATTERNS]; /* of all tensors outside the model */
    int n_patterns;
    fl_role_map option[FL_PROBE_ASSIGNMENTS];
    int n_options; /* 0: the tensors that there are do not make a branch */
} fl_probe_roles;

/* ix: the index without these tensors. */
FL_CHECKED fl_status fl_probe_roles_guess(fl_probe_roles *r, const fl_index *ix, fl_err *err);
/* "ssm_bwd_alpha.weight or ssm_bwd_beta.weight" by shape, "" when it fits nothing. */
const char *fl_probe_roles_text(const fl_index *ix, const fl_tensor *t, char buf[160]);

#endif
