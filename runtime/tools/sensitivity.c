#include "runtime/tools/sensitivity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/pool.h"
#include "runtime/model/identity.h"
#include "runtime/model/model.h"
#include "runtime/tools/eval_plan.h"
#include "runtime/tools/interrupt.h"
#include "runtime/tools/logit_row.h"
#include "runtime/tools/quantize.h"
#include "runtime/tools/sensitivity_file.h"
#include "runtime/tools/setup.h"

enum { WINDOW = 512, MAX_ROWS = 1 << 12, BANDS = 8, PIECE_VALUES = 1 << 20, TASK_VALUES = 1 << 14 };
static const uint64_t max_reference = 1ull << 30;

/* Tensors that are rounded together. */
typedef struct part {
    const char *role; /* what stands behind blk.N. in their names */
    int band;
    bool known; /* measured by an earlier run */
} part;

typedef struct run {
    const fl_options *o;
    fl_source *src; /* the model, as conversion reads it */
    fl_index *ix;
    fl_conv conv;
    fl_source *copy; /* the file that is changed */
    char *work;
    int fd; /* of it */
    fl_pool *pool;
    float *x;
    void *scratch;
    uint16_t *half;
    part *part;
    int n_parts;
    int *part_of; /* [conv.n], -1: none */
    double *nats; /* [conv.n], -1: not measured */
    char head[256];

    fl_corpus text;
    fl_eval_plan plan;
    uint8_t *rows; /* the reference's */
    uint64_t row_bytes, n_rows, at;
    double kl[2]; /* sums over causal and block rows */
    int64_t n[2];
    bool compare;
} run;

/* ---- parts ---- */

static const char *role_of(const char *name)
{
    const char *role = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    if (!role) return name;
    role++;
    const bool gate = strstr(role, "alpha") || strstr(role, "beta");
    return gate ? "gates" : role;
}

static bool is_measured(const fl_conv_tensor *t)
{
    return !t->fixed && t->class != FL_CONV_MTP &&
           (fl_conv_bytes(t, FL_TYPE_Q4_K) || fl_conv_bytes(t, FL_TYPE_Q4_0));
}

static fl_status list_parts(run *r, fl_err *err)
{
    const int n_layer = r->ix->hp.n_layer;
    r->part = calloc((size_t)r->conv.n + 1, sizeof *r->part);
    r->part_of = calloc((size_t)r->conv.n + 1, sizeof *r->part_of);
    r->nats = calloc((size_t)r->conv.n + 1, sizeof *r->nats);
    if (!r->part || !r->part_of || !r->nats)
        return FL_FAIL(err, FL_E_NOMEM, 0, "sensitivity: no memory");
    for (int i = 0; i < r->conv.n; i++) {
        const fl_conv_tensor *t = &r->conv.tensor[i];
        const char *role = role_of(t->name);
        const int layer = role == t->name ? 0 : atoi(t->name + 4);
        const int band = n_layer <= BANDS ? layer : layer * BANDS / n_layer;
        r->nats[i] = r->part_of[i] = -1;
        if (!is_measured(t)) continue;
        int k = 0;
        while (k < r->n_parts && (r->part[k].band != band || strcmp(r->part[k].role, role) != 0))
            k++;
        if (k == r->n_parts) r->part[r->n_parts++] = (part){role, band, false};
        r->part_of[i] = k;
    }
    return FL_OK;
}

/* ---- the copy ---- */

typedef struct piece {
    float *x;
    void *blocks;
    uint16_t *half;
    int64_t rows, cols, rows_per_task;
    const fl_type_info *ti; /* NULL: as they are */
} piece;

static void write_rows(void *arg, int task, int worker)
{
    (void)worker;
    const piece *p = arg;
    const int64_t first = task * p->rows_per_task, left = p->rows - first;
    const int64_t n = (left < p->rows_per_task ? left : p->rows_per_task) * p->cols;
    float *x = p->x + first * p->cols;
    if (p->ti) {
        uint8_t *blocks = (uint8_t *)p->blocks + (size_t)(first * p->cols) * sizeof(float);
        p->ti->quantize(x, blocks, n);
        p->ti->dequantize(blocks, x, n);
    }
    fl_type_get(FL_TYPE_BF16)->quantize(x, p->half + first * p->cols, n);
}

static fl_status write_all(int fd, const void *data, size_t n, uint64_t at, const char *path,
                           fl_err *err)
{
    for (size_t done = 0; done < n;) {
        const ssize_t k = pwrite(fd, (const char *)data + done, n - done, (off_t)(at + done));
        if (k <= 0)
            return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be written: %s", path, strerror(errno));
        done += (size_t)k;
    }
    return FL_OK;
}

/* A tensor's values into the copy, rounded or as they are. */
static fl_status write_tensor(run *r, const fl_conv_tensor *t, bool rounded, fl_err *err)
{
    const fl_tensor *to = fl_source_find(r->copy, t->name);
    const bool k = fl_conv_bytes(t, FL_TYPE_Q4_K) > 0;
    const int64_t most = PIECE_VALUES / t->cols > 0 ? PIECE_VALUES / t->cols : 1;
    piece p = {.x = r->x, .blocks = r->scratch, .half = r->half, .cols = t->cols};
    p.ti = rounded ? fl_type_get(k ? FL_TYPE_Q4_K : FL_TYPE_Q4_0) : NULL;
    p.rows_per_task = TASK_VALUES / t->cols > 0 ? TASK_VALUES / t->cols : 1;
    if (!to || to->type != FL_TYPE_BF16)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: %s is not there as bf16", r->work, t->name);
    for (int64_t row = 0; row < t->rows; row += p.rows) {
        p.rows = t->rows - row < most ? t->rows - row : most;
        FL_TRY(fl_conv_read(&r->conv, t, row, p.rows, r->x, r->scratch, err));
        fl_pool_run(r->pool, write_rows, &p,
                    (int)((p.rows + p.rows_per_task - 1) / p.rows_per_task));
        FL_TRY(write_all(r->fd, r->half, (size_t)(p.rows * t->cols) * sizeof *r->half,
                         to->offset + (uint64_t)(row * t->cols) * sizeof *r->half, r->work, err));
    }
    return FL_OK;
}

static fl_status write_part(run *r, int k, bool rounded, fl_err *err)
{
    for (int i = 0; i < r->conv.n; i++)
        if (r->part_of[i] == k) FL_TRY(write_tensor(r, &r->conv.tensor[i], rounded, err));
    if (fdatasync(r->fd) != 0)
        return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be written: %s", r->work, strerror(errno));
    return FL_OK;
}

static fl_status make_copy(run *r, fl_err *err)
{
    const char *args[2] = {r->o->args[0], r->work};
    fl_options q = *r->o;
    q.command = "quantize";
    q.args = args;
    q.n_args = 2;
    q.type = "bf16";
    q.recipe = NULL;
    FL_TRY(fl_tool_quantize(&q, err));
    FL_TRY(fl_source_open(&r->copy, r->work, err));
    r->fd = open(r->work, O_WRONLY | O_CLOEXEC);
    if (r->fd < 0)
        return FL_FAIL(err, FL_E_IO, errno, "%s: cannot be opened: %s", r->work, strerror(errno));
    int64_t values = PIECE_VALUES;
    for (int i = 0; i < r->conv.n; i++)
        if (r->conv.tensor[i].cols > values) values = r->conv.tensor[i].cols;
    r->x = malloc((size_t)values * sizeof *r->x);
    r->half = malloc((size_t)values * sizeof *r->half);
    r->scratch = malloc(2 * (size_t)values * sizeof(float));
    if (!r->x || !r->half || !r->scratch)
        return FL_FAIL(err, FL_E_NOMEM, 0, "sensitivity: no memory");
    return FL_OK;
}

/* ---- the measurement ---- */

static fl_status take_rows(void *arg, const fl_eval_rows *rows, fl_err *err)
{
    run *r = arg;
    const int64_t vocab = r->ix->hp.n_vocab;
    if (fl_interrupted()) return FL_FAIL(err, FL_E_CANCELED, 0, "sensitivity: interrupted");
    for (int i = 0; i < rows->n; i++, r->at++) {
        void *row = r->rows + r->at * r->row_bytes;
        const float *logits = rows->logits + i * vocab;
        if (!r->compare) {
            fl_logit_row_pack(row, logits, vocab, 0);
            continue;
        }
        const int kind = rows->level != FL_EVAL_CAUSAL;
        r->kl[kind] += fl_logit_row_compare(row, logits, vocab).kl;
        r->n[kind]++;
    }
    return FL_OK;
}

/* Of the text's windows as many as the rows allow, spread over it. */
static void thin_out(run *r)
{
    fl_eval_plan *p = &r->plan;
    const uint64_t row = fl_logit_row_bytes(r->ix->hp.n_vocab);
    const uint64_t fit = max_reference / row;
    const uint64_t most = fit < MAX_ROWS ? fit : MAX_ROWS;
    const uint64_t all = (uint64_t)fl_eval_all_rows(p);
    int64_t n = p->n_windows;
    if (all > most) n = (int64_t)((double)n * (double)most / (double)all);
    if (r->o->windows > 0 && r->o->windows < n) n = r->o->windows;
    const int64_t kept = n > 0 ? n : p->n_windows > 0;
    for (int64_t i = 0; i < kept; i++) p->window[i] = p->window[i * p->n_windows / kept];
    p->n_windows = kept;
}

/* What is measured, known with the first engine. */
static fl_status plan_rows(run *r, const fl_engine *e, const fl_model *m, fl_err *err)
{
    const bool all = e->plan.n_resident == e->plan.n_total;
    if (m->index->clover.has_blocks && !all)
        fprintf(stderr, "note: not all experts fit into device memory: block passes, which would "
                        "read most of the file each, are left out\n");
    FL_TRY(fl_corpus_open(&r->text, m->tokenizer, r->o->args + 1, r->o->n_args - 1, err));
    r->plan =
        (fl_eval_plan){.text = &r->text, .causal = true, .prompts = true, .fill = fl_mask_fill(m)};
    r->plan.ctx = e->params.n_ctx < WINDOW ? (int)e->params.n_ctx : WINDOW;
    r->plan.block_size = m->index->clover.has_blocks && all ? e->params.block_size : 0;
    FL_TRY(fl_eval_plan_windows(&r->plan, m->index->clover.block_align, err));
    thin_out(r);
    r->row_bytes = fl_logit_row_bytes(r->ix->hp.n_vocab);
    r->n_rows = (uint64_t)fl_eval_all_rows(&r->plan);
    if (r->n_rows == 0)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "%s: no window of %d tokens in it, of %" PRId64 "; give more text",
                       r->o->args[1], r->plan.ctx, r->text.n);
    r->rows = malloc(r->n_rows * r->row_bytes);
    if (!r->rows)
        return FL_FAIL(err, FL_E_NOMEM, 0, "sensitivity: no memory for %" PRIu64 " rows of logits",
                       r->n_rows);
    return FL_OK;
}

/* Runs the copy as it is over the rows. */
static fl_status measure(run *r, fl_err *err)
{
    fl_model *m = NULL;
    fl_engine *e = NULL;
    fl_engine_params p;
    fl_status st;
    r->at = 0;
    memset(r->kl, 0, sizeof r->kl);
    memset(r->n, 0, sizeof r->n);
    FL_GO(fl_setup_engine_params(r->o, &p, err));
    p.act_f32 = true;
    p.kv_type = FL_TYPE_F32;
    FL_GO(fl_model_open(&m, r->work, err));
    FL_GO(fl_engine_open(&e, m, &p, err));
    if (!r->rows) FL_GO(plan_rows(r, e, m, err));
    FL_GO(fl_engine_load(e, NULL, NULL, err));
    for (int64_t w = 0; w < r->plan.n_windows; w++)
        FL_GO(fl_eval_run_window(e, &m->index->clover, &r->plan, w, take_rows, r, err));
    r->compare = true;
out:
    fl_engine_close(&e);
    fl_model_close(&m);
    return st;
}

/* ---- the file ---- */

static fl_status make_head(run *r, fl_err *err)
{
    uint64_t id;
    FL_TRY(fl_model_identity(r->src, &id, err));
    snprintf(r->head, sizeof r->head,
             "# fourleaf sensitivity: model %016" PRIx64 ", text %016" PRIx64 ", %" PRId64
             " windows of %d, %s\n",
             id, fl_corpus_hash(&r->text), r->plan.n_windows, r->plan.ctx,
             r->plan.block_size ? "causal and block rows" : "causal rows");
    return FL_OK;
}

/* What an earlier run measured of the same. */
static fl_status read_earlier(run *r, fl_err *err)
{
    fl_sensitivity s = {0};
    char *text = NULL;
    uint64_t n;
    fl_err none = {0};
    if (fl_file_load(r->o->out, 16 << 20, &text, &n, &none) != FL_OK) return FL_OK;
    const size_t head = strlen(r->head);
    fl_status st = FL_OK;
    if (n >= head && memcmp(text, r->head, head) == 0)
        st = fl_sensitivity_parse(&s, r->o->out, text, n, err);
    for (int i = 0; i < r->conv.n && st == FL_OK; i++) {
        bool known;
        const double nats = fl_sensitivity_of(&s, &r->conv.tensor[i], &known);
        if (!known || r->part_of[i] < 0) continue;
        r->nats[i] = nats;
        r->part[r->part_of[i]].known = true;
    }
    fl_sensitivity_fini(&s);
    free(text);
    return st;
}

static fl_status write_file(const run *r, fl_err *err)
{
    fl_outfile *f;
    FL_TRY(fl_outfile_open(&f, r->o->out, err));
    fl_status st = fl_outfile_write(f, r->head, strlen(r->head), err);
    for (int i = 0; i < r->conv.n && st == FL_OK; i++) {
        char line[128];
        if (r->nats[i] < 0) continue;
        const int n = snprintf(line, sizeof line, "%s %.4e\n", r->conv.tensor[i].name, r->nats[i]);
        st = fl_outfile_write(f, line, (uint64_t)n, err);
    }
    if (st == FL_OK) return fl_outfile_commit(&f, err);
    fl_outfile_discard(&f);
    return st;
}

static double mean_kl(const run *r)
{
    double sum = 0;
    int kinds = 0;
    for (int k = 0; k < 2; k++) {
        if (r->n[k] == 0) continue;
        sum += r->kl[k] / (double)r->n[k];
        kinds++;
    }
    return kinds ? sum / kinds : 0;
}

static fl_status measure_part(run *r, int k, fl_err *err)
{
    int tensors = 0;
    FL_TRY(write_part(r, k, true, err));
    FL_TRY(measure(r, err));
    FL_TRY(write_part(r, k, false, err));
    const double nats = mean_kl(r);
    for (int i = 0; i < r->conv.n; i++) tensors += r->part_of[i] == k;
    for (int i = 0; i < r->conv.n; i++)
        if (r->part_of[i] == k) r->nats[i] = nats / tensors;
    fprintf(stderr, "[%3d/%d] %-24s %3d tensors from layer %d on: %.3e\n", k + 1, r->n_parts,
            r->part[k].role, tensors,
            r->part[k].band * r->ix->hp.n_layer /
                (r->ix->hp.n_layer < BANDS ? r->ix->hp.n_layer : BANDS),
            nats);
    return write_file(r, err);
}

static fl_status open_model(run *r, fl_err *err)
{
    fl_wiring asked;
    FL_TRY(fl_source_open(&r->src, r->o->args[0], err));
    FL_TRY(fl_setup_check_output(r->src, r->o->out, err));
    FL_TRY(fl_setup_asked(r->o, &asked, err));
    FL_TRY(fl_index_build_known(&r->ix, r->src, &asked, NULL, err));
    FL_TRY(fl_conv_plan(&r->conv, r->ix, strcmp(r->ix->hp.arch, "clover_moe") == 0, err));
    FL_TRY(list_parts(r, err));
    return fl_pool_create(&r->pool, r->o->threads, err);
}

fl_status fl_tool_sensitivity(const fl_options *o, fl_err *err)
{
    run r = {.o = o, .fd = -1};
    fl_status st;
    char work[4096];
    snprintf(work, sizeof work, "%s.work.gguf", o->out);
    r.work = work;
    FL_GO(open_model(&r, err));
    FL_GO(make_copy(&r, err));
    fl_interrupt_catch();
    FL_GO(measure(&r, err));
    FL_GO(make_head(&r, err));
    FL_GO(read_earlier(&r, err));
    for (int k = 0; k < r.n_parts; k++)
        if (!r.part[k].known) FL_GO(measure_part(&r, k, err));
    st = write_file(&r, err);
out:
    fl_interrupt_release();
    if (r.fd >= 0) close(r.fd);
    if (r.copy) (void)unlink(work);
    fl_source_close(&r.copy);
    fl_corpus_close(&r.text);
    fl_pool_destroy(&r.pool);
    fl_conv_fini(&r.conv);
    fl_index_free(&r.ix);
    fl_source_close(&r.src);
    free(r.x);
    free(r.half);
    free(r.scratch);
    free(r.part);
    free(r.part_of);
    free(r.nats);
    free(r.rows);
    free(r.plan.window);
    return st;
}
