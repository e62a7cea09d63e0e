#include "runtime/tools/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

static const uint64_t sync_bytes = UINT64_C(256) << 20;

/* Removes the temporaries of an earlier run that wrote n files. */
static void remove_parts(const char *target, int n)
{
    for (int i = 0; i < n; i++) {
        char *name = fl_gguf_part_name(target, i, n), *tmp = NULL;
        if (name && asprintf(&tmp, "%s" FL_OUTFILE_PART, name) > 0) unlink(tmp);
        if (name) free(tmp);
        free(name);
    }
}

static fl_status check_key(const fl_output_plan *p, const fl_journal_key *want,
                           const fl_journal_key *found, fl_err *err)
{
    if (found->source != want->source)
        return FL_FAIL(
            err, FL_E_ARG, 0,
            "%s: --resume: the files that it is made from have changed since; begin anew "
            "without --resume",
            p->target);
    if (found->options != want->options || found->n_tensors != want->n_tensors ||
        found->n_parts != want->n_parts)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: --resume: it was begun with other options; give those, or begin anew "
                       "without --resume",
                       p->target);
    return FL_OK;
}

static fl_status begin(fl_output *out, const fl_output_plan *p, fl_err *err)
{
    fl_journal_key found = {0};
    const fl_journal_key want = {.options = p->options,
                                 .source = p->source,
                                 .n_tensors = p->n_tensors,
                                 .n_parts = (uint32_t)fl_gguf_writer_parts(out->w)};
    uint64_t *hash = NULL;
    size_t n = 0;
    bool any = false;
    fl_status st;
    FL_GO(fl_journal_load(out->journal, &found, &hash, &n, &any, err));
    out->keep = any;
    if (any && p->resume) {
        FL_GO(check_key(p, &want, &found, err));
        FL_GO(fl_gguf_writer_resume(out->w, hash, n, err));
        out->resumed = fl_gguf_writer_next(out->w);
        FL_GO(fl_journal_go_on(out->journal, &want, out->resumed, err));
    } else {
        if (any) remove_parts(p->target, (int)found.n_parts);
        out->keep = false;
        FL_GO(fl_journal_start(out->journal, &want, err));
        FL_GO(fl_gguf_writer_begin(out->w, err));
    }
    out->keep = false;
out:
    free(hash);
    return st;
}

fl_status fl_output_open(fl_output *out, fl_gguf_writer **w, const fl_output_plan *p, fl_err *err)
{
    *out = (fl_output){.w = *w, .n = p->n_tensors};
    *w = NULL;
    out->target = strdup(p->target);
    fl_status st = out->target ? FL_OK : FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", p->target);
    if (st == FL_OK) st = fl_journal_open(&out->journal, p->target, err);
    if (st == FL_OK) st = begin(out, p, err);
    if (st != FL_OK) fl_output_close(out);
    return st;
}

fl_status fl_output_note(fl_output *out, size_t i, uint64_t bytes, fl_err *err)
{
    FL_TRY(fl_gguf_writer_flush(out->w, err)); /* the journal says what a kill leaves */
    FL_TRY(fl_journal_add(out->journal, fl_gguf_writer_hash(out->w, i), err));
    out->unsynced += bytes;
    if (out->unsynced < sync_bytes) return FL_OK;
    out->unsynced = 0;
    FL_TRY(fl_gguf_writer_sync(out->w, err));
    return fl_journal_sync(out->journal, err);
}

fl_status fl_output_commit(fl_output *out, fl_err *err)
{
    const fl_status st = fl_gguf_writer_commit(&out->w, err);
    if (st == FL_OK) fl_journal_remove(&out->journal);
    return st;
}

fl_status fl_output_interrupted(fl_output *out, fl_err *err)
{
    const size_t n = fl_journal_count(out->journal);
    out->keep = n > 0;
    if (n == 0)
        return FL_FAIL(err, FL_E_CANCELED, 0, "%s: interrupted; nothing was changed", out->target);
    return FL_FAIL(err, FL_E_CANCELED, 0,
                   "%s: interrupted; %zu of %zu tensors are kept (" FL_OUTFILE_PART
                   ", .resume): the same command with --resume goes on, without it begins anew",
                   out->target, n, out->n);
}

void fl_output_close(fl_output *out)
{
    fl_err ignored = {0};
    /* A last sync that fails leaves what a kill would leave. */
    if (out->w && out->keep && fl_gguf_writer_suspend(&out->w, &ignored) != FL_OK) out->w = NULL;
    fl_gguf_writer_discard(&out->w);
    if (out->journal && !out->keep) fl_journal_remove(&out->journal);
    fl_journal_close(&out->journal);
    free(out->target);
    *out = (fl_output){0};
}
