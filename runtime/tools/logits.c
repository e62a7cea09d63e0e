#include "runtime/tools/logits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/tools/setup.h"

/* ---- what to run ---- */

/* A growing list of ids. */
typedef struct id_list {
    int32_t *p;
    size_t n, room;
} id_list;

static fl_status id_put(id_list *l, int32_t id, fl_err *err)
{
    if (l->n == l->room) {
        const size_t room = l->room ? 2 * l->room : 64;
        int32_t *grown = realloc(l->p, room * sizeof(*grown));
        if (!grown) return FL_FAIL(err, FL_E_NOMEM, 0, "token ids: out of memory");
        l->p = grown;
        l->room = room;
    }
    l->p[l->n++] = id;
    return FL_OK;
}

/* A decimal number at *at, advanced behind it; false when there is none up to `max`. */
static bool read_number(const char **at, long long max, long long *out)
{
    char *end = NULL;
    if (**at < '0' || **at > '9') return false;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    *at = end;
    return errno == 0 && *out <= max;
}

static fl_status parse_ids(const char *text, id_list *out, fl_err *err)
{
    for (const char *at = text;; at++) {
        long long id = 0;
        while (*at == ' ') at++;
        if (!read_number(&at, INT32_MAX, &id))
            return FL_FAIL(err, FL_E_ARG, 0, "--ids: expected numbers like 1,2,3 at '%.20s'", at);
        FL_TRY(id_put(out, (int32_t)id, err));
        if (*at == 0) return FL_OK;
        if (*at != ',') return FL_FAIL(err, FL_E_ARG, 0, "--ids: expected a comma at '%.20s'", at);
    }
}

/* Puts the mask id at every listed position. *first gets the first one. */
static fl_status put_masks(const char *text, int32_t mask_id, id_list *ids, int64_t *first,
                           fl_err *err)
{
    int64_t next = 0; /* positions rise */
    *first = -1;
    for (const char *at = text;; at++) {
        long long a = 0, b = 0;
        const char *start = at;
        if (!read_number(&at, FL_MAX_CONTEXT - 1, &a))
            return FL_FAIL(err, FL_E_ARG, 0,
                           "--denoise: expected positions like 64-95 or 70,72-75 at '%.20s'",
                           start);
        b = a;
        if (*at == '-') {
            at++;
            if (!read_number(&at, FL_MAX_CONTEXT - 1, &b))
                return FL_FAIL(err, FL_E_ARG, 0, "--denoise: expected a number at '%.20s'", at);
        }
        if (a < next || b < a)
            return FL_FAIL(err, FL_E_ARG, 0, "--denoise: positions must rise at '%.20s'", start);
        if (a > (long long)ids->n)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "--denoise: position %lld leaves a gap behind the last of %zu ids", a,
                           ids->n);
        if (*first < 0) *first = a;
        for (long long i = a; i <= b; i++) {
            if (i < (long long)ids->n)
                ids->p[i] = mask_id;
            else
                FL_TRY(id_put(ids, mask_id, err));
        }
        next = b + 1;
        if (*at == 0) return FL_OK;
        if (*at != ',')
            return FL_FAIL(err, FL_E_ARG, 0, "--denoise: expected a comma at '%.20s'", at);
    }
}

static fl_status read_ids(const fl_options *o, const fl_model *m, id_list *out, fl_err *err)
{
    if (o->ids) return parse_ids(o->ids, out, err);
    if (!m->tokenizer)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0, "%s holds no tokenizer; use --ids", o->args[0]);
    FL_TRY(
        fl_tokenizer_encode(m->tokenizer, o->text, strlen(o->text), true, &out->p, &out->n, err));
    out->room = out->n;
    if (out->n == 0) return FL_FAIL(err, FL_E_ARG, 0, "logits: the text gives no token");
    return FL_OK;
}

/* What a pass would refuse, before the weights are read. first: the first mask, or -1. */
static fl_status check_ids(const id_list *ids, const fl_model *m, const fl_engine *e, int64_t first,
                           fl_err *err)
{
    const long long n = (long long)ids->n, vocab = (long long)m->index->hp.n_vocab;
    for (size_t i = 0; i < ids->n; i++)
        if (ids->p[i] >= vocab)
            return FL_FAIL(err, FL_E_ARG, 0,
                           "token id %d at position %zu is outside the vocabulary of %lld",
                           (int)ids->p[i], i, vocab);
    if (n > e->params.n_ctx)
        return FL_FAIL(err, FL_E_ARG, 0, "%lld tokens do not fit into the context of %lld; %s", n,
                       (long long)e->params.n_ctx,
                       n > fl_engine_max_context(&m->index->hp) ? "this model takes no more"
                                                                : "raise --ctx");
    if (first < 0) return FL_OK;
    const long long start = first - first % e->params.block_size;
    if (n - start > e->params.block_size)
        return FL_FAIL(err, FL_E_ARG, 0,
                       "--denoise: %lld rows from position %lld on; a block has %d", n - start,
                       start, e->params.block_size);
    return FL_OK;
}

/* ---- npy ---- */

/* The header of npy 1.0 for float32 [rows][cols]: 128 bytes. */
static fl_status write_header(fl_outfile *f, int64_t rows, int64_t cols, fl_err *err)
{
    char h[129];
    memcpy(h, "\x93NUMPY\x01\x00\x76\x00", 10);
    const int n = snprintf(h + 10, sizeof(h) - 10,
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                           (long long)rows, (long long)cols);
    memset(h + 10 + n, ' ', (size_t)(128 - 10 - n));
    h[127] = '\n';
    return fl_outfile_write(f, h, 128, err);
}

/* Rows [row0, row0 + n) of the last pass. */
static fl_status write_rows(fl_outfile *f, fl_engine *e, int row0, int n, fl_err *err)
{
    int rows[FL_MAX_BLOCK];
    const float *logits = NULL;
    for (int done = 0; done < n;) {
        const int take = n - done < e->params.block_size ? n - done : e->params.block_size;
        for (int i = 0; i < take; i++) rows[i] = row0 + done + i;
        FL_TRY(fl_forward_logits(e, rows, take, &logits, err));
        FL_TRY(fl_outfile_write(
            f, logits, (uint64_t)take * (uint64_t)e->weights.output.rows * sizeof(float), err));
        done += take;
    }
    return FL_OK;
}

/* ---- the two kinds ---- */

static fl_status write_clean(fl_outfile *f, fl_engine *e, const id_list *ids, bool all, fl_err *err)
{
    const int64_t n = (int64_t)ids->n;
    FL_TRY(write_header(f, all ? n : 1, e->weights.output.rows, err));
    for (int64_t done = 0; done < n;) {
        const int64_t rows = n - done < e->params.chunk ? n - done : e->params.chunk;
        FL_TRY(fl_forward_clean(e, ids->p + done, rows, err));
        done += rows;
        if (all)
            FL_TRY(write_rows(f, e, 0, (int)rows, err));
        else if (done == n)
            FL_TRY(write_rows(f, e, (int)rows - 1, 1, err));
    }
    return FL_OK;
}

static fl_status write_denoised(fl_outfile *f, fl_engine *e, const id_list *ids, int64_t first,
                                const fl_clover *sw, fl_err *err)
{
    const int64_t start = first - first % e->params.block_size;
    const int64_t n = (int64_t)ids->n - start;
    if (start > 0) FL_TRY(fl_forward_clean(e, ids->p, start, err));
    FL_TRY(fl_forward_denoise(e, ids->p + start, (int)n, sw, err));
    FL_TRY(write_header(f, n, e->weights.output.rows, err));
    return write_rows(f, e, 0, (int)n, err);
}

fl_status fl_tool_logits(const fl_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    fl_model *model = NULL;
    fl_engine *engine = NULL;
    fl_outfile *f = NULL;
    id_list ids = {0};
    int64_t first = -1;
    fl_gen_config c;

    FL_GO(fl_setup_open(o, &model, &engine, &c, err));
    FL_GO(fl_setup_check_output(model->src, o->out, err));
    FL_GO(read_ids(o, model, &ids, err));
    if (o->denoise) {
        if (c.clover.mask_id < 0)
            FL_GO(FL_FAIL(err, FL_E_ARG, 0, "--denoise: %s knows no mask token", o->args[0]));
        FL_GO(put_masks(o->denoise, c.clover.mask_id, &ids, &first, err));
    }
    FL_GO(check_ids(&ids, model, engine, first, err));
    FL_GO(fl_outfile_open(&f, o->out, err));
    FL_GO(fl_setup_load(engine, err));
    if (o->block_mode && !o->denoise)
        fprintf(stderr, "note: --block-mode has no effect without --denoise\n");
    if (o->denoise)
        FL_GO(write_denoised(f, engine, &ids, first, &c.clover, err));
    else
        FL_GO(write_clean(f, engine, &ids, o->all, err));
    st = fl_outfile_commit(&f, err);
out:
    fl_outfile_discard(&f);
    free(ids.p);
    fl_engine_close(&engine);
    fl_model_close(&model);
    return st;
}
