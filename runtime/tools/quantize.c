#include "runtime/tools/quantize.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/pool.h"
#include "runtime/model/gguf_write.h"
#include "runtime/tools/conversion.h"
#include "runtime/tools/conversion_meta.h"
#include "runtime/tools/setup.h"
#include "runtime/tools/types.h"

enum { PIECE_VALUES = 1 << 20, TASK_VALUES = 1 << 14 };

static volatile sig_atomic_t interrupted;
static void on_signal(int sig)
{
    (void)sig;
    interrupted = 1;
}

static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_CAUGHT = sizeof caught / sizeof *caught };

typedef struct catcher {
    struct sigaction old[N_CAUGHT], old_pipe;
} catcher;

/* A signal that is ignored stays so (nohup). A reader of stderr that goes away ends nothing. */
static void catch_signals(catcher *c)
{
    struct sigaction a = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    interrupted = 0;
    sigemptyset(&a.sa_mask);
    sigemptyset(&ignore.sa_mask);
    for (int i = 0; i < N_CAUGHT; i++) {
        sigaction(caught[i], NULL, &c->old[i]);
        if (c->old[i].sa_handler != SIG_IGN) sigaction(caught[i], &a, NULL);
    }
    sigaction(SIGPIPE, &ignore, &c->old_pipe);
}

static void restore_signals(const catcher *c)
{
    for (int i = 0; i < N_CAUGHT; i++) sigaction(caught[i], &c->old[i], NULL);
    sigaction(SIGPIPE, &c->old_pipe, NULL);
}

/* Rounds rows of one piece; each task a run of whole rows, its error sums in its own place. */
typedef struct rounder {
    const float *x; /* NULL: `out` holds the source's blocks, and is only looked at */
    uint8_t *out;
    float *back; /* the written values again */
    const fl_type_info *ti;
    int64_t rows, cols, rows_per_task;
    uint64_t row_bytes;
    double *err2, *ref2; /* [tasks] */
} rounder;

static void round_task(void *arg, int task, int worker)
{
    (void)worker;
    const rounder *r = arg;
    const int64_t first = task * r->rows_per_task, left = r->rows - first;
    const int64_t n = (left < r->rows_per_task ? left : r->rows_per_task) * r->cols;
    const float *x = r->x ? r->x + first * r->cols : NULL;
    float *back = r->back + first * r->cols;
    uint8_t *out = r->out + (uint64_t)first * r->row_bytes;
    double err2 = 0, ref2 = 0;
    if (r->x) r->ti->quantize(x, out, n);
    r->ti->dequantize(out, back, n);
    for (int64_t i = 0; i < n; i++) {
        const double want = (double)(x ? x[i] : back[i]), d = (double)back[i] - want;
        err2 += d * d;
        ref2 += want * want;
    }
    r->err2[task] = err2;
    r->ref2[task] = ref2;
}

typedef struct run {
    fl_source *src;
    fl_index *ix;
    fl_conv conv;
    fl_gguf_writer *w;
    fl_pool *pool;
    const char *out;
    float *x, *back, *scratch;
    uint8_t *bytes;
    double *sums;
    bool terminal;
    char *notes; /* lines */
} run;

static int64_t piece_rows(const fl_conv_tensor *t)
{
    const int64_t n = PIECE_VALUES / t->cols;
    return n < 1 ? 1 : n < t->rows ? n : t->rows;
}

/* Buffers for the largest piece of any tensor. */
static fl_status take_buffers(run *r, fl_err *err)
{
    int64_t values = 1, tasks = 1, row = 1;
    for (int i = 0; i < r->conv.n; i++) {
        const fl_conv_tensor *t = &r->conv.tensor[i];
        const int64_t rows = piece_rows(t);
        values = rows * t->cols > values ? rows * t->cols : values;
        row = t->cols > row ? t->cols : row;
        tasks = rows > tasks ? rows : tasks;
    }
    r->x = malloc((size_t)values * sizeof(float));
    r->back = malloc((size_t)values * sizeof(float));
    r->scratch = malloc((size_t)(values + row) * sizeof(float));
    r->bytes = malloc((size_t)values * sizeof(float));
    r->sums = malloc(2 * (size_t)tasks * sizeof(double));
    if (!r->x || !r->back || !r->scratch || !r->bytes || !r->sums)
        return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for pieces of %lld values", r->out,
                       (long long)values);
    return FL_OK;
}

static fl_status write_tensor(run *r, const fl_conv_tensor *t, double *relative, fl_err *err)
{
    double err2 = 0, ref2 = 0;
    rounder k = {.x = t->copied ? NULL : r->x,
                 .out = r->bytes,
                 .back = r->back,
                 .cols = t->cols,
                 .err2 = r->sums};
    k.ti = fl_type_get(t->type);
    k.row_bytes = fl_type_row_bytes(t->type, (uint64_t)t->cols);
    k.rows_per_task = TASK_VALUES / t->cols > 0 ? TASK_VALUES / t->cols : 1;
    for (int64_t at = 0; at < t->rows; at += k.rows) {
        k.rows = t->rows - at < piece_rows(t) ? t->rows - at : piece_rows(t);
        if (interrupted)
            return FL_FAIL(err, FL_E_CANCELED, 0, "%s: interrupted; nothing was changed", r->out);
        FL_TRY(t->copied ? fl_conv_read_bytes(&r->conv, t, at, k.rows, r->bytes, r->scratch, err)
                         : fl_conv_read(&r->conv, t, at, k.rows, r->x, r->scratch, err));
        const int tasks = (int)((k.rows + k.rows_per_task - 1) / k.rows_per_task);
        k.ref2 = k.err2 + tasks;
        fl_pool_run(r->pool, round_task, &k, tasks);
        for (int i = 0; i < tasks; i++) {
            err2 += k.err2[i];
            ref2 += k.ref2[i];
        }
        FL_TRY(fl_gguf_writer_write(r->w, r->bytes, (uint64_t)k.rows * k.row_bytes, err));
    }
    if (!isfinite(err2) && t->copied)
        return FL_FAIL(err, FL_E_NAN, 0, "%s: values of %s are not finite: the weights are damaged",
                       fl_source_paths(r->src)[0], t->name);
    if (!isfinite(err2))
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: values of %s do not fit %s (its range is 65504); take --type bf16",
                       r->out, t->name, k.ti->name);
    *relative = ref2 > 0 ? sqrt(err2 / ref2) : 0;
    return FL_OK;
}

static void report(const run *r, int i, double relative)
{
    const fl_conv_tensor *t = &r->conv.tensor[i];
    const fl_tensor *src = t->many ? t->many[0] : t->one;
    fprintf(stderr, "%s[%3d/%d] %-32s %s -> %s%s, error %.2f %%%s", r->terminal ? "\r\033[K" : "",
            i + 1, r->conv.n, t->name, fl_type_get(src->type)->name, fl_type_get(t->type)->name,
            t->fallback ? " (row length)" : "", 100 * relative, r->terminal ? "" : "\n");
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
    FL_TRY(fl_setup_check_output(r->src, r->out, err));
    FL_TRY(fl_setup_asked(o, &asked, err));
    FL_TRY(fl_index_build_known(&r->ix, r->src, &asked, NULL, err));
    FL_TRY(choose_arch(r, o, &arch, err));
    FL_TRY(fl_conv_plan(&r->conv, r->ix, strcmp(arch, "clover_moe") == 0, err));
    FL_TRY(fl_types_choose(&r->conv, r->ix, o, &r->notes, err));
    FL_TRY(fl_gguf_writer_create(&r->w, r->out, 0, err));
    FL_TRY(fl_conv_metadata(r->w, r->ix, arch, fl_conv_main_type(&r->conv), err));
    for (int i = 0; i < r->conv.n; i++) {
        const fl_conv_tensor *t = &r->conv.tensor[i];
        FL_TRY(fl_gguf_add_tensor(r->w, t->name, t->type, t->n_dims, t->ne, err));
    }
    FL_TRY(take_buffers(r, err));
    return fl_pool_create(&r->pool, o->threads, err);
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

fl_status fl_tool_quantize(const fl_options *o, fl_err *err)
{
    run r = {.out = o->args[1], .terminal = isatty(STDERR_FILENO)};
    catcher c;
    char size[32];
    fl_status st;
    catch_signals(&c);
    FL_GO(prepare(&r, o, err));
    const uint64_t bytes = fl_gguf_writer_bytes(r.w);
    say_notes(&r);
    if (o->dry_run) {
        st = fl_types_report(&r.conv, bytes, o->json, err);
        goto out;
    }
    FL_GO(fl_gguf_writer_begin(r.w, err));
    fl_gguf_writer_stop_on(r.w, &interrupted);
    for (int i = 0; i < r.conv.n; i++) {
        double relative = 0;
        FL_GO(write_tensor(&r, &r.conv.tensor[i], &relative, err));
        report(&r, i, relative);
    }
    if (r.terminal) fprintf(stderr, "\r\033[Kreading it again");
    FL_GO(fl_gguf_writer_commit(&r.w, err));
    fprintf(stderr, "%s%s: %d tensors, %s, verified\n", r.terminal ? "\r\033[K" : "", r.out,
            r.conv.n, fl_size_format(size, bytes));
out:
    if (st != FL_OK && r.terminal) fprintf(stderr, "\r\033[K");
    restore_signals(&c);
    fl_gguf_writer_discard(&r.w);
    fl_pool_destroy(&r.pool);
    fl_conv_fini(&r.conv);
    fl_index_free(&r.ix);
    fl_source_close(&r.src);
    free(r.x);
    free(r.back);
    free(r.scratch);
    free(r.bytes);
    free(r.sums);
    free(r.notes);
    return st;
}
