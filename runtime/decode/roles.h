#ifndef FL_DECODE_ROLES_H
#define FL_DECODE_ROLES_H

#include <stdbool.h>

#include "runtime/model/tokenizer.h"

/* Where the messages of a prompt start: the places where another prompt of the same chat may part
 * from this one, and so where the state is worth a copy. Nothing but time depends on it. */
typedef struct fl_roles {
    const int64_t *start; /* [n] token positions, rising, each below the prompt's length */
    int64_t n;            /* 0: nothing is known */
    bool has_head;        /* the first message is system text and tools */
} fl_roles;

/* FL_E_ARG with the number of the first start that is out of order or out of range. */
FL_CHECKED fl_status fl_roles_check(const fl_roles *r, int64_t n_prompt, fl_err *err);
/* Finds the starts by the chat format's token for them; *starts is malloc'ed and what r->start
 * points to. A tokenizer without that token gives none. has_head: whether the first message reads
 * as "system". */
FL_CHECKED fl_status fl_roles_find(fl_roles *r, int64_t **starts, const fl_tokenizer *t,
                                   const int32_t *ids, int64_t n, fl_err *err);

#endif
