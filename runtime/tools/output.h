#ifndef FL_TOOLS_OUTPUT_H
#define FL_TOOLS_OUTPUT_H

#include "runtime/model/gguf_write.h"
#include "runtime/tools/journal.h"

/* The output of a run that may take hours: a kept GGUF writer (OUT.part, or one per file of a
 * split) and its journal (OUT.resume).
 *
 *   killed, or interrupted behind the first tensor:  both stay, --resume goes on
 *   failed (disk full, damaged source, ...):         both are removed
 *   begun anew without --resume:                     what an earlier run left is removed
 *
 * One run at a time on one OUT. */
typedef struct fl_output {
    fl_gguf_writer *w; /* the owner's until open, then this one's */
    fl_journal *journal;
    char *target; /* where OUT leads */
    bool keep;    /* what is there stays when the run fails now */
    size_t n, resumed;
    uint64_t unsynced; /* bytes since the last fsync */
} fl_output;

typedef struct fl_output_plan {
    const char *target;       /* fl_file_target of OUT */
    bool resume;              /* go on with what is there */
    uint64_t options, source; /* as in fl_journal_key */
    size_t n_tensors;
} fl_output_plan;

/* Takes over *w (kept, laid out) and begins it; resumed says from which tensor. With `resume` and
 * nothing there it begins anew. FL_E_ARG for a resume with other options or another source: then
 * what is there stays. */
FL_CHECKED fl_status fl_output_open(fl_output *out, fl_gguf_writer **w, const fl_output_plan *p,
                                    fl_err *err);
/* Tensor i of `bytes` is written. */
FL_CHECKED fl_status fl_output_note(fl_output *out, size_t i, uint64_t bytes, fl_err *err);
/* fl_gguf_writer_commit, and the journal goes. */
FL_CHECKED fl_status fl_output_commit(fl_output *out, fl_err *err);
/* Ends a run that was interrupted: the line to say, and whether something is kept. */
FL_CHECKED fl_status fl_output_interrupted(fl_output *out, fl_err *err);
/* Removes or leaves what is there, as above. */
void fl_output_close(fl_output *out);

#endif
