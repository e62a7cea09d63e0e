#include "runtime/tools/quantize.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/tools/conversion_meta.h"
#include "runtime/tools/guides.h"
#include "runtime/tools/output.h"
#include "runtime/tools/progress.h"
#include "runtime/tools/setup.h"
#include "runtime/tools/stream.h"
#include "runtime/tools/types.h"

static atomic_int interrupted; /* lock-free: set by a signal, read by threads */
static void on_signal(int sig)
{
    (void)sig;
    interrupted = 1;
}

static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_CAUGHT = sizeof caught / sizeof *caught };

typedef struct catcher {
    struct sigaction old[N_CAUGHT];
} catcher;

/* A signal that is ignored stays so (nohup). */
static void catch_signals(catcher *c)
{
    struct sigaction a = {.sa_handler = on_signal};
    interrupted = 0;
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < N_CAUGHT; i++) {
        sigaction(caught[i], NULL, &c->old[i]);
        if (c->old[i].sa_handler != SIG_IGN) sigaction(caught[i], &a, NULL);
    }
}

static void restore_signals(const catcher *c)
{
    for (int i = 0; i < N_CAUGHT; i++) sigaction(caught[i], &c->old[i], NULL);
}

typedef struct run {
    fl_source *src;
    fl_index *ix;
    fl_conv conv;
    fl_gguf_writer *w; /* until out has it */
    fl_output out;
    char *target;      /* where OUT leads */
    fl_guides *guides; /* or NULL */
    char *notes;       /* lines */
    fl_progress progress;
} run;

static fl_status tensor_done(void *ctx, int i, double relative, fl_err *err)
{
    run *r = ctx;
    const fl_conv_tensor *t = &r->conv.tensor[i];
    FL_TRY(fl_output_note(&r->out, (size_t)i, fl_conv_bytes(t, t->type), err));
    if (r->progress.terminal) return FL_OK;
    fprintf(stderr, "[%3d/%d] %-32s %s -> %s%s, ", i + 1, r->conv.n, t->name,
            fl_type_get(fl_conv_source(t, 0)->type)->name, fl_type_get(t->type)->name,
            t->fallback ? " (row length)" : "");
    if (relative < 0)
        fprintf(stderr, "copied\n");
    else
        fprintf(stderr, "error %.2f %%\n", 100 * relative);
    return FL_OK;
}

static void tick(void *ctx, const fl_stream_state *s)
{
    run *r = ctx;
    double spent;
    char line[FL_PROGRESS_LINE];
    if (!fl_progress_due(&r->progress, &spent)) return;
    const double rate = (double)s->values / spent;
    const int left = (int)((double)(s->values_total - s->values) / rate);
    snprintf(line, sizeof line,
             "%3.0f %%, %.1f M weights/s, reading %.0f MB/s, %d:%02d:%02d left, %s",
             100.0 * (double)s->values / (double)s->values_total, rate * 1e-6,
             (double)s->bytes_read / spent * 1e-6, left / 3600, left / 60 % 60, left % 60,
             r->conv.tensor[s->tensor].name);
    fl_progress_line(&r->progress, line);
}

static fl_status choose_arch(const run *r, const fl_options *o, const char **arch, fl_err *err)
{
    *arch = o->arch ? o->arch : r->ix->hp.arch;
    if (strcmp(*arch, "clover_moe") == 0 && !r->ix->clover.has_blocks)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: is %s, which knows no masks: it cannot be written as clover_moe",
                       o->args[0], r->ix->hp.arch);
    return FL_OK;
}

static fl_status prepare(run *r, const fl_options *o, fl_err *err)
{
    const char *arch;
    fl_wiring asked;
    FL_TRY(fl_source_open(&r->src, o->args[0], err));
    FL_TRY(fl_outfile_check(o->args[1], err));
    FL_TRY(fl_setup_check_output(r->src, o->args[1], err));
    FL_TRY(fl_file_target(o->args[1], &r->target, err));
    FL_TRY(fl_setup_asked(o, &asked, err));
    FL_TRY(fl_index_build_known(&r->ix, r->src, &asked, NULL, err));
    FL_TRY(choose_arch(r, o, &arch, err));
    FL_TRY(fl_conv_plan(&r->conv, r->ix, strcmp(arch, "clover_moe") == 0, err));
    FL_TRY(fl_types_choose(&r->conv, r->ix, o, arch, &r->notes, err));
    if (o->importance) FL_TRY(fl_guides_open(&r->guides, o->importance, &r->conv, err));
    FL_TRY(fl_gguf_writer_create(&r->w, r->target, 0, err));
    FL_TRY(fl_conv_declare(r->w, &r->conv, r->ix, arch, err));
    fl_gguf_writer_keep(r->w);
    fl_gguf_writer_split(r->w, o->split_size);
    return fl_gguf_writer_layout(r->w, err);
}

/* No file that is read may be one that is written, under whatever name. */
static fl_status check_parts(const run *r, fl_err *err)
{
    for (int i = 0; i < fl_gguf_writer_parts(r->w); i++) {
        const char *part = fl_gguf_writer_part(r->w, i);
        char *tmp = NULL;
        if (asprintf(&tmp, "%s" FL_OUTFILE_PART, part) < 0)
            return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its name", part);
        fl_status st = fl_outfile_check(part, err);
        if (st == FL_OK) st = fl_setup_check_output(r->src, part, err);
        if (st == FL_OK) st = fl_setup_check_output(r->src, tmp, err);
        free(tmp);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

/* Tells a file from another, and from itself once it was changed. */
static uint64_t stat_identity(const struct stat *sb, uint64_t seed)
{
    const int64_t facts[3] = {sb->st_size, sb->st_mtim.tv_sec, sb->st_mtim.tv_nsec};
    return fl_hash64_seeded(facts, sizeof facts, seed);
}

static uint64_t source_identity(const fl_source *src)
{
    uint64_t id = (uint64_t)fl_source_n_files(src);
    for (int i = 0; i < fl_source_n_files(src); i++) {
        struct stat sb = {0};
        (void)fstat(fl_source_fd(src, i), &sb); /* all zero is an identity too */
        id = stat_identity(&sb, id);
    }
    return id;
}

/* The same for a file that is named; 0 without one. */
static uint64_t file_identity(const char *path)
{
    struct stat sb;
    return path && stat(path, &sb) == 0 ? stat_identity(&sb, 1) : 0;
}

static fl_status open_output(run *r, const fl_options *o, fl_err *err)
{
    const uint64_t parts[2] = {fl_gguf_writer_identity(r->w), file_identity(o->importance)};
    const fl_output_plan p = {
        .target = r->target,
        .resume = o->resume,
        .options = fl_hash64_seeded(parts, sizeof parts, fl_hash64(fl_version, strlen(fl_version))),
        .source = source_identity(r->src),
        .n_tensors = (size_t)r->conv.n};
    FL_TRY(fl_output_open(&r->out, &r->w, &p, err));
    if (o->resume && r->out.resumed == 0)
        fprintf(stderr, "note: %s: nothing to go on with, it is begun anew\n", o->args[1]);
    if (r->out.resumed > 0)
        fprintf(stderr, "note: %s: %zu of %d tensors are there already\n", o->args[1],
                r->out.resumed, r->conv.n);
    return FL_OK;
}

static fl_status write_output(run *r, const fl_options *o, fl_err *err)
{
    fl_stream_guides from = {0};
    if (r->guides) from = fl_guides_stream(r->guides);
    const fl_stream_job job = {.conv = &r->conv,
                               .writer = r->out.w,
                               .guides = r->guides ? &from : NULL,
                               .threads = o->threads,
                               .io = o->io,
                               .stop = &interrupted,
                               .ctx = r,
                               .done = tensor_done,
                               .tick = tick};
    fl_gguf_writer_stop_on(r->out.w, &interrupted);
    fl_progress_start(&r->progress);
    FL_TRY(fl_stream_run(&job, err));
    if (r->progress.terminal) {
        fl_progress_line(&r->progress, "reading it again");
        r->progress.shown = true;
    }
    return fl_output_commit(&r->out, err);
}

static void say_notes(run *r)
{
    char *save = NULL;
    for (char *l = strtok_r(r->notes, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
        fprintf(stderr, strncmp(l, "warning: ", 9) ? "note: %s\n" : "%s\n", l);
    for (int i = 0; i < r->ix->n_notes; i++) fprintf(stderr, "note: %s\n", r->ix->note[i]);
    if (r->conv.n_dropped > 0)
        fprintf(stderr, "note: %d tensors of the source are not part of the output\n",
                r->conv.n_dropped);
}

/* From here on a signal ends the run with what is written kept for --resume; before, there is
 * nothing to keep, and a long measurement for --size ends at once. */
static fl_status write_caught(run *r, const fl_options *o, fl_err *err)
{
    fl_err why = {0};
    catcher c;
    catch_signals(&c);
    fl_status st = open_output(r, o, err);
    if (st == FL_OK) {
        st = write_output(r, o, &why);
        fl_progress_end(&r->progress);
        if (st == FL_E_CANCELED)
            st = fl_output_interrupted(&r->out, err);
        else if (st != FL_OK)
            st = FL_FAIL(err, st, why.sys, "%s", why.msg);
    }
    fl_output_close(&r->out);
    restore_signals(&c);
    return st;
}

fl_status fl_tool_quantize(const fl_options *o, fl_err *err)
{
    /* A reader of stderr that goes away ends nothing. */
    struct sigaction pipe, ignore = {.sa_handler = SIG_IGN};
    run r = {0};
    char size[32], files[32] = "";
    fl_status st;
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, &pipe);
    FL_GO(prepare(&r, o, err));
    const uint64_t bytes = fl_gguf_writer_bytes(r.w);
    const int n_files = fl_gguf_writer_parts(r.w);
    say_notes(&r);
    if (o->dry_run) {
        st = fl_types_report(&r.conv, bytes, o->json, err);
        goto out;
    }
    FL_GO(check_parts(&r, err));
    FL_GO(write_caught(&r, o, err));
    if (r.guides) fprintf(stderr, "%s\n", fl_guides_summary(r.guides, (char[256]){0}));
    if (n_files > 1) snprintf(files, sizeof files, " in %d files", n_files);
    fprintf(stderr, "%s: %d tensors, %s%s, verified\n", o->args[1], r.conv.n,
            fl_size_format(size, bytes), files);
out:
    sigaction(SIGPIPE, &pipe, NULL);
    fl_gguf_writer_discard(&r.w);
    fl_guides_close(&r.guides);
    fl_conv_fini(&r.conv);
    fl_index_free(&r.ix);
    fl_source_close(&r.src);
    free(r.target);
    free(r.notes);
    return st;
}
