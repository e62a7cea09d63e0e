#include <assert.h>
#include <math.h>
#include <string.h>

#include "quant/format.h"
#include "quant/law.h"
#include "quant/round.h"
#include "runtime/tools/conversion.h"

/* Source value head of output head n (grouped to tiled). */
static int64_t source_head(const fl_conv_tensor *t, int64_t n)
{
    return (int64_t)t->n_r * (n % t->n_k) + n / t->n_k;
}

/* Source row of output row r, and how many rows from there on lie behind each other. */
static int64_t source_row(const fl_conv_tensor *t, int64_t r, int64_t *run)
{
    switch (t->map) {
    case FL_CONV_HEADS:
        if (r < t->first) {
            *run = t->first - r;
            return r;
        } else {
            const int64_t head = (r - t->first) / t->unit, in = (r - t->first) % t->unit;
            *run = t->unit - in;
            return t->first + source_head(t, head) * t->unit + in;
        }
    case FL_CONV_HALF:
        *run = t->unit - r % t->unit;
        return (2 * (r / t->unit) + t->half) * t->unit + r % t->unit;
    default: *run = t->rows_per_src - r % t->rows_per_src; return r % t->rows_per_src;
    }
}

/* `head`: bytes of one head's columns in a row. */
static void permute_cols(const fl_conv_tensor *t, void *row, void *copy, size_t head)
{
    const int64_t heads = t->cols / t->unit;
    memcpy(copy, row, (size_t)heads * head);
    for (int64_t n = 0; n < heads; n++)
        memcpy((char *)row + (size_t)n * head, (char *)copy + (size_t)source_head(t, n) * head,
               head);
}

static void apply_op(const fl_conv_tensor *t, float *v, int64_t n)
{
    if (t->op == FL_CONV_ADD_ONE)
        for (int64_t i = 0; i < n; i++) v[i] += 1.0f;
    if (t->op == FL_CONV_NEG_EXP)
        for (int64_t i = 0; i < n; i++) v[i] = (float)-fl_law_exp64((double)v[i]);
}

const fl_tensor *fl_conv_source(const fl_conv_tensor *t, int64_t row)
{
    return t->many ? t->many[3 * (row / t->rows_per_src)] : t->one;
}

fl_conv_run fl_conv_run_at(const fl_conv_tensor *t, int64_t row, int64_t most)
{
    fl_conv_run run = {.src = fl_conv_source(t, row)};
    run.from = source_row(t, row, &run.rows);
    if (run.rows > most) run.rows = most;
    run.row_bytes = fl_type_row_bytes(run.src->type, (uint64_t)t->cols);
    return run;
}

static fl_status get(const fl_conv_fetch *fetch, const fl_conv_run *run, const void **data,
                     fl_err *err)
{
    return fetch->get(fetch->ctx, run->src, (uint64_t)run->from * run->row_bytes,
                      (uint64_t)run->rows * run->row_bytes, data, err);
}

static void apply_factors(const fl_conv_tensor *t, int64_t row0, int64_t n, float *v)
{
    const int64_t each = t->rows / t->n_factors;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < t->cols; i++) v[r * t->cols + i] *= t->factor[(row0 + r) / each];
}

static fl_status check_finite(const fl_conv *c, const fl_conv_tensor *t, const fl_conv_run *run,
                              const float *v, fl_err *err)
{
    const int64_t bad = fl_round_nonfinite(v, run->rows * t->cols);
    if (bad < 0) return FL_OK;
    return FL_FAIL(err, FL_E_NAN, 0, "%s: %s: row %lld, column %lld is %f: the weights are damaged",
                   fl_source_paths(c->src)[run->src->file], run->src->name,
                   (long long)(run->from + bad / t->cols), (long long)(bad % t->cols),
                   (double)v[bad]);
}

fl_status fl_conv_values(const fl_conv *c, const fl_conv_tensor *t, int64_t row0, int64_t n,
                         const fl_conv_fetch *fetch, float *dst, void *scratch, fl_err *err)
{
    assert(row0 >= 0 && n > 0 && row0 + n <= t->rows);
    for (int64_t r = row0; r < row0 + n;) {
        const fl_conv_run run = fl_conv_run_at(t, r, row0 + n - r);
        float *out = dst + (r - row0) * t->cols;
        const void *data;
        FL_TRY(get(fetch, &run, &data, err));
        /* A file may begin its tensors at odd places. */
        if ((uintptr_t)data % sizeof(float) != 0)
            data = memcpy(scratch, data, (size_t)run.rows * run.row_bytes);
        fl_type_get(run.src->type)->dequantize(data, out, run.rows * t->cols);
        FL_TRY(check_finite(c, t, &run, out, err));
        r += run.rows;
    }
    if (t->factor) apply_factors(t, row0, n, dst);
    apply_op(t, dst, n * t->cols);
    if (t->map == FL_CONV_HEAD_COLS)
        for (int64_t r = 0; r < n; r++)
            permute_cols(t, dst + r * t->cols, scratch, (size_t)t->unit * sizeof *dst);
    return FL_OK;
}

fl_status fl_conv_blocks(const fl_conv_tensor *t, int64_t row0, int64_t n,
                         const fl_conv_fetch *fetch, void *dst, void *scratch, fl_err *err)
{
    assert(t->copied && row0 >= 0 && n > 0 && row0 + n <= t->rows);
    const uint64_t row_bytes = fl_type_row_bytes(t->type, (uint64_t)t->cols);
    uint8_t *out = dst;
    for (int64_t r = row0; r < row0 + n;) {
        const fl_conv_run run = fl_conv_run_at(t, r, row0 + n - r);
        const void *data;
        FL_TRY(get(fetch, &run, &data, err));
        memcpy(out + (uint64_t)(r - row0) * row_bytes, data, (size_t)run.rows * row_bytes);
        r += run.rows;
    }
    if (t->map == FL_CONV_HEAD_COLS)
        for (int64_t r = 0; r < n; r++)
            permute_cols(t, out + (uint64_t)r * row_bytes, scratch,
                         (size_t)fl_type_row_bytes(t->type, (uint64_t)t->unit));
    return FL_OK;
}

/* From the file, into memory of its own. */
typedef struct file_fetch {
    const fl_source *src;
    void *room;
} file_fetch;

static fl_status fetch_from_file(void *ctx, const fl_tensor *t, uint64_t skip, uint64_t bytes,
                                 const void **data, fl_err *err)
{
    const file_fetch *f = ctx;
    *data = f->room;
    return fl_source_read(f->src, t, skip, f->room, bytes, err);
}

fl_status fl_conv_read(const fl_conv *c, const fl_conv_tensor *t, int64_t row0, int64_t n,
                       float *dst, void *scratch, fl_err *err)
{
    file_fetch f = {c->src, scratch};
    const fl_conv_fetch fetch = {&f, fetch_from_file};
    return fl_conv_values(c, t, row0, n, &fetch, dst, scratch, err);
}
