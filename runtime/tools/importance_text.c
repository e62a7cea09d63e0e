#include "runtime/tools/importance_text.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/hash.h"
#include "runtime/tools/corpus.h"
#include "runtime/tools/masked.h"

enum { CLEAN_ROWS = 256 /* of a pass without a block */ };

typedef struct planner {
    fl_importance_text *t;
    const fl_clover *sw;
    bool blocks;
    int64_t most_ctx; /* positions that the model takes */
    int32_t fill;     /* what follows a window to the end of its last block */
} planner;

/* Room for the passes of n more tokens, block rows included. */
static fl_status make_room(planner *p, int64_t n, fl_err *err)
{
    fl_sweep_text *s = &p->t->sweep;
    const size_t passes = (size_t)(s->n_passes + n + 2);
    const size_t rows = (size_t)(s->n_rows + 2 * n + 2 * p->sw->block_size);
    fl_sweep_pass *pass = realloc(p->t->pass, passes * sizeof *pass);
    if (pass) p->t->pass = pass;
    int32_t *ids = realloc(p->t->ids, rows * sizeof *ids);
    if (ids) p->t->ids = ids;
    return pass && ids ? FL_OK : FL_FAIL(err, FL_E_NOMEM, 0, "text: out of memory");
}

/* A piece of a document; positions from `from` on may be masked. */
typedef struct window {
    const int32_t *ids;
    int64_t n, from;
} window;

static void add_pass(planner *p, const window *w, int64_t at, int n_write, int n_block)
{
    fl_sweep_text *s = &p->t->sweep;
    const int level = (int)((at / p->sw->block_size + s->n_seqs) % FL_MASK_LEVELS);
    int32_t *row = p->t->ids + s->n_rows;
    for (int64_t i = 0; i < n_write + n_block; i++) {
        const int64_t pos = at + i;
        const bool open = i >= n_write && pos >= w->from;
        row[i] = pos < w->n ? w->ids[pos] : p->fill;
        if (open && fl_mask_at(s->n_seqs, pos, level)) row[i] = p->sw->mask_id;
    }
    p->t->pass[s->n_passes++] =
        (fl_sweep_pass){.seq = s->n_seqs, .at = at, .n_write = n_write, .n_block = n_block};
    s->n_rows += n_write + n_block;
    p->t->tokens += n_write;
    p->t->block_rows += n_block;
    if (n_write + n_block > s->max_rows) s->max_rows = n_write + n_block;
    if (n_block > s->max_block) s->max_block = n_block;
    if (at + n_write + n_block > s->n_ctx) s->n_ctx = at + n_write + n_block;
}

/* Clean rows up to each block's beginning, with the block behind them. */
static fl_status add_window(planner *p, const window *w, fl_err *err)
{
    const int size = p->sw->block_size;
    const bool aligned = p->sw->block_align == FL_ALIGN_ABSOLUTE;
    int64_t next = p->blocks && w->from < w->n ? w->from - (aligned ? w->from % size : 0) : w->n;
    FL_TRY(make_room(p, w->n, err));
    for (int64_t at = 0; at < w->n;) {
        const int64_t left = (next < w->n ? next : w->n) - at;
        const int n_write = (int)(left < CLEAN_ROWS ? left : CLEAN_ROWS);
        const bool begins = at + n_write == next && next < w->n;
        const bool block = begins && next + size <= p->most_ctx;
        if (n_write > 0 || block) add_pass(p, w, at, n_write, block ? size : 0);
        at += n_write;
        if (begins) next += size;
    }
    p->t->sweep.n_seqs++;
    return FL_OK;
}

static fl_status add_windows(planner *p, const fl_corpus *c, int64_t ctx, int64_t limit,
                             fl_err *err)
{
    for (int i = 0; i < c->n_docs; i++) {
        const fl_corpus_doc *d = &c->doc[i];
        for (int64_t at = 0, n; at < d->n && p->t->tokens < limit; at += n) {
            n = d->n - at < ctx ? d->n - at : ctx;
            if (n > limit - p->t->tokens) n = limit - p->t->tokens;
            const window w = {.ids = c->ids + d->start + at,
                              .n = n,
                              .from = d->prompt > at ? d->prompt - at : p->sw->block_size};
            FL_TRY(add_window(p, &w, err));
        }
    }
    return FL_OK;
}

fl_status fl_importance_text_open(fl_importance_text *t, const fl_model *model, const fl_clover *sw,
                                  const char *const *paths, int n_paths, int64_t ctx, int64_t limit,
                                  fl_err *err)
{
    fl_corpus c = {0};
    fl_clover plain = *sw;
    if (plain.block_size < 1) plain.block_size = 1; /* no blocks: never used */
    planner p = {.t = t,
                 .sw = &plain,
                 .blocks = sw->has_blocks,
                 .most_ctx = fl_engine_max_context(&model->index->hp),
                 .fill = fl_mask_fill(model)};
    fl_status st = FL_OK;
    *t = (fl_importance_text){0};
    if (!model->tokenizer)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "%s holds no tokenizer: put tokenizer.json beside the weights",
                       fl_source_paths(model->src)[0]);
    FL_GO(fl_corpus_open(&c, model->tokenizer, paths, n_paths, err));
    FL_GO(add_windows(&p, &c, ctx, limit > 0 ? limit : INT64_MAX, err));
    if (t->sweep.n_rows > INT32_MAX / (model->index->hp.top_k + 1))
        FL_GO(FL_FAIL(err, FL_E_ARG, 0,
                      "%lld rows of text are too many at once: give --tokens, and merge",
                      (long long)t->sweep.n_rows));
    t->sweep.pass = t->pass;
    t->sweep.ids = t->ids;
    t->hash = fl_hash64(t->ids, (size_t)t->sweep.n_rows * sizeof *t->ids);
    for (int64_t i = 0; i < t->sweep.n_passes; i++) {
        const int64_t pass[4] = {t->pass[i].seq, t->pass[i].at, t->pass[i].n_write,
                                 t->pass[i].n_block};
        t->hash = fl_hash64_seeded(pass, sizeof pass, t->hash);
    }
out:
    fl_corpus_close(&c);
    if (st != FL_OK) fl_importance_text_close(t);
    return st;
}

void fl_importance_text_close(fl_importance_text *t)
{
    free(t->pass);
    free(t->ids);
    *t = (fl_importance_text){0};
}
