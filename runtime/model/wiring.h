#ifndef FL_MODEL_WIRING_H
#define FL_MODEL_WIRING_H

#include "runtime/model/clover.h"

/* What is known of a model beside its own files: by the user's word, or measured by `fourleaf
 * probe` and kept among the facts on it. */

/* Which tensor plays which role, where a file uses other names. A role is called what GGUF files
 * call its tensor behind "blk.N." ("ssm_bwd_alpha.weight"); its tensor in layer N has `name` with
 * the layer's number in place of '*'. */
enum { FL_ROLE_MAP_ROOM = 48, FL_ROLE_BYTES = 128 };
typedef struct fl_role_name {
    char role[FL_ROLE_BYTES], name[FL_ROLE_BYTES];
} fl_role_name;
typedef struct fl_role_map {
    int n;
    fl_role_name item[FL_ROLE_MAP_ROOM];
} fl_role_map;

/* Lines of "ROLE NAME"; empty ones and what follows a '#' are skipped. `what` names the text in
 * errors. FL_E_FORMAT names the line: a role that no tensor has or that is given twice, a name
 * without exactly one '*', too long a word, more or fewer than two words. */
FL_CHECKED fl_status fl_role_map_parse(fl_role_map *r, const char *text, size_t n, const char *what,
                                       fl_err *err);
/* From a file. FL_E_IO too. */
FL_CHECKED fl_status fl_role_map_load(fl_role_map *r, const char *path, fl_err *err);
/* Adds one under the same conditions. */
FL_CHECKED fl_status fl_role_map_put(fl_role_map *r, const char *role, const char *name,
                                     const char *what, fl_err *err);
/* The name pattern of a role, or NULL. */
const char *fl_role_map_get(const fl_role_map *r, const char *role);

typedef struct fl_wiring {
    /* How a GGUF file stores what the published one stores otherwise: 1, 0, -1 = by what its
     * metadata and values show (fl_hparams has the meanings). */
    int norm_add_one, a_is_log, v_grouped;
    fl_role_map roles;
    bool probed;      /* clover and what is set above come from the probe */
    fl_clover clover; /* when probed: its switches, mask id, pool size and verdict hold */
} fl_wiring;

/* Nothing known. */
fl_wiring fl_wiring_none(void);

/* The section "probe" of a model's facts, as written and read again; probed is set. Reading gives
 * false, and nothing known, for a section of another version or with a value that cannot be. */
fl_json *fl_wiring_to_json(const fl_wiring *w);
bool fl_wiring_from_json(fl_wiring *w, const fl_json *section);
/* "mask token 2041, row i predicts row i, ..." into buf; returns buf. */
const char *fl_wiring_text(const fl_wiring *w, char buf[256]);

#endif
