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
} planner;

/* Room for the passes of n more tokens, block rows included. */
static fl_status make_room(planner *p, int64_t n, fl_err *err)
{
    fl_sweep_text *s = &p->t->sweep;
    const size_t passes = (size_t)(s->n_passes + n + 1), rows = (size_t)(s->n_rows + 2 * n + 1);
    fl_sweep_pass *pass = realloc(p->t->pass, passes * sizeof *pass);
    if (pass) p->t->pass = pass;
    int32_t *ids = realloc(p->t->ids, rows * sizeof *ids);
    if (ids) p->t->ids = ids;
    return pass && ids ? FL_OK : FL_FAIL(err, FL_E_NOMEM, 0, "text: out of memory");
}

static void add_pass(planner *p, const int32_t *ids, int64_t at, int n_write, int n_block)
{
    fl_sweep_text *s = &p->t->sweep;
    const int level = (int)((at / p->sw->block_size + s->n_seqs) % FL_MASK_LEVELS);
    int32_t *row = p->t->ids + s->n_rows;
    for (int i = 0; i < n_write + n_block; i++) {
        const bool masked = i >= n_write && fl_mask_at(s->n_seqs, at + i, level);
        row[i] = masked ? p->sw->mask_id : ids[at + i];
    }
    p->t->pass[s->n_passes++] =
        (fl_sweep_pass){.seq = s->n_seqs, .at = at, .n_write = n_write, .n_block = n_block};
    s->n_rows += n_write + n_block;
    p->t->tokens += n_write;
    p->t->block_rows += n_block;
    if (n_write + n_block > s->max_rows) s->max_rows = n_write + n_block;
    if (n_block > s->max_block) s->max_block = n_block;
}

static fl_status add_window(planner *p, const int32_t *ids, int64_t n, fl_err *err)
{
    const int size = p->sw->block_size;
    FL_TRY(make_room(p, n, err));
    for (int64_t at = 0; at < n;) {
        const int64_t most = p->blocks ? size : CLEAN_ROWS;
        const int n_write = (int)(n - at < most ? n - at : most);
        const bool block = p->blocks && at + n_write + size <= n;
        add_pass(p, ids, at, n_write, block ? size : 0);
        at += n_write;
    }
    p->t->sweep.n_seqs++;
    if (n > p->t->sweep.n_ctx) p->t->sweep.n_ctx = n;
    return FL_OK;
}

static fl_status add_windows(planner *p, const fl_corpus *c, int64_t ctx, int64_t limit,
                             fl_err *err)
{
    for (int i = 0; i < c->n_docs; i++) {
        const int64_t end = c->doc[i].start + c->doc[i].n;
        for (int64_t at = c->doc[i].start, n; at < end && p->t->tokens < limit; at += n) {
            n = end - at < ctx ? end - at : ctx;
            if (n > limit - p->t->tokens) n = limit - p->t->tokens;
            FL_TRY(add_window(p, c->ids + at, n, err));
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
    planner p = {.t = t, .sw = &plain, .blocks = sw->has_blocks};
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
