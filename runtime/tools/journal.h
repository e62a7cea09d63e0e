#ifndef FL_TOOLS_JOURNAL_H
#define FL_TOOLS_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/status.h"

/* What a run that writes a large file remembers beside it, in OUT.resume, so that a later one can
 * go on: what decides the bytes of the output, and the hash of each tensor that is written. The
 * file is locked while a run has it, which keeps two runs off one OUT. Held by
 * tests/tools/test_journal.c. */
typedef struct fl_journal fl_journal;

typedef struct fl_journal_key {
    uint64_t options;   /* stands for all that the user asked for */
    uint64_t source;    /* stands for the files that are read */
    uint64_t n_tensors; /* of the output */
    uint32_t n_parts;   /* files that OUT is split into; 1: it is one file */
} fl_journal_key;

/* Opens TARGET.resume, made when it is not there, and locks it: FL_E_IO when another run has it.
 */
FL_CHECKED fl_status fl_journal_open(fl_journal **out, const char *target, fl_err *err);
/* What an earlier run left. *found: it left something that can be read; then *hash (malloc'ed, the
 * caller's) has *n entries, those of the first tensors. A torn or damaged end is left out. */
FL_CHECKED fl_status fl_journal_load(fl_journal *j, fl_journal_key *key, uint64_t **hash, size_t *n,
                                     bool *found, fl_err *err);
/* Begins the journal of a run from the first tensor on. */
FL_CHECKED fl_status fl_journal_start(fl_journal *j, const fl_journal_key *key, fl_err *err);
/* Goes on with the loaded one, whose key this is, behind its first n tensors. */
FL_CHECKED fl_status fl_journal_go_on(fl_journal *j, const fl_journal_key *key, size_t n,
                                      fl_err *err);
/* One tensor more is written. */
FL_CHECKED fl_status fl_journal_add(fl_journal *j, uint64_t hash, fl_err *err);
FL_CHECKED fl_status fl_journal_sync(fl_journal *j, fl_err *err);
size_t fl_journal_count(const fl_journal *j); /* tensors noted */
void fl_journal_close(fl_journal **j);        /* leaves the file */
void fl_journal_remove(fl_journal **j);       /* the file goes */

/* The bytes of a journal: false when they are none. hash has room for n / 16 entries. */
bool fl_journal_parse(const uint8_t *data, size_t n, fl_journal_key *key, uint64_t *hash,
                      size_t *n_hash);

#endif
