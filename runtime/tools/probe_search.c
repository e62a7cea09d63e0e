#include "runtime/tools/probe_search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What generation behind the text needs of the context, two blocks included. */
enum { ROOM = 160, LONGEST = 400, MAX_ROUNDS = 3, SCREENED = 3, MOST_MASKS = 64, MOST_BEHIND = 24 };
static const double sure_errors = 3.0, sure_nats = 0.1;

int fl_probe_pick(const fl_probe_entry *e, int n)
{
    int best = 0;
    for (int i = 0; i < n; i++)
        if (e[i].base) best = i;
    const int base = best;
    for (int i = 0; i < n; i++) {
        const double margin = e[i].se > 0 ? sure_errors * e[i].se : sure_nats;
        if (i != base && e[i].diff < -margin && e[i].diff < e[best].diff) best = i;
    }
    return best;
}

/* ---- opening ------------------------------------------------------------------------------ */

static void close_model(fl_probe *p)
{
    fl_engine_close(&p->engine);
    fl_index_free(&p->model.index);
}

/* Reads the files anew as `w` says; the switches of blocks are then the file's own. */
static fl_status open_as(fl_probe *p, const fl_wiring *w, fl_err *err)
{
    close_model(p);
    p->wiring = *w;
    p->wiring.probed = false;
    FL_TRY(fl_index_build_as(&p->model.index, p->src, &p->wiring, err));
    FL_TRY(fl_engine_open(&p->engine, &p->model, &p->params, err));
    return fl_engine_load(p->engine, NULL, NULL, err);
}

static void say(const fl_probe *p, const char *what)
{
    if (p->progress) p->progress(p->arg, what, p->n_measured);
}

/* ---- how the file stores things ----------------------------------------------------------- */

static fl_probe_entry *new_entry(fl_probe *p, const char *guess, const char *value)
{
    fl_probe_entry *e =
        &p->entry[p->n_entries < FL_PROBE_ENTRIES ? p->n_entries++ : FL_PROBE_ENTRIES - 1];
    *e = (fl_probe_entry){.mean = 0};
    snprintf(e->guess, sizeof e->guess, "%s", guess);
    snprintf(e->value, sizeof e->value, "%s", value);
    return e;
}

static fl_status measure_form(fl_probe *p, bool base, fl_err *err)
{
    const fl_hparams *hp = &p->model.index->hp;
    char value[64];
    snprintf(value, sizeof value, "norms %s, decay %s, heads %s", hp->norm_add_one ? "w" : "1+w",
             hp->a_is_log ? "A_log" : "-exp", hp->v_grouped ? "grouped" : "tiled");
    fl_probe_entry *e = new_entry(p, "file form", value);
    say(p, "file form");
    p->n_measured++;
    FL_TRY(fl_probe_causal(p->engine, &p->text, &e->mean, err));
    e->base = base;
    return FL_OK;
}

/* All eight combinations; heads of value are a matter of the forward pass alone. */
static fl_status settle_form(fl_probe *p, fl_err *err)
{
    const fl_hparams found = p->model.index->hp;
    fl_wiring w = p->wiring, form[8];
    int n = 0;
    for (int bits = 0; bits < 8; bits++) {
        const bool add = bits & 4, log = bits & 2, grouped = bits & 1;
        if (p->asked.v_grouped >= 0 && grouped != p->asked.v_grouped) continue;
        w.norm_add_one = add;
        w.a_is_log = log;
        w.v_grouped = grouped;
        form[n++] = w;
        if (grouped && n > 1 && form[n - 2].norm_add_one == add && form[n - 2].a_is_log == log)
            p->model.index->hp.v_grouped = true;
        else
            FL_TRY(open_as(p, &w, err));
        FL_TRY(measure_form(
            p, add == found.norm_add_one && log == found.a_is_log && grouped == found.v_grouped,
            err));
    }
    int base = 0;
    for (int i = 0; i < n; i++)
        if (p->entry[i].base) base = i;
    for (int i = 0; i < n; i++) p->entry[i].diff = p->entry[i].mean - p->entry[base].mean;
    const int best = fl_probe_pick(p->entry, n);
    p->entry[best].taken = true;
    p->causal = p->entry[best].mean;
    return open_as(p, &form[best], err);
}

static fl_status file_form(fl_probe *p, fl_err *err)
{
    fl_status st = FL_OK;
    if (fl_source_kind_of(p->src) == FL_SOURCE_GGUF) {
        st = settle_form(p, err);
    } else {
        st = measure_form(p, true, err); /* Hugging Face form by definition */
        p->causal = p->entry[0].mean;
        p->entry[0].taken = true;
    }
    p->n_file = p->n_entries;
    return st;
}

static bool same_roles(const fl_role_map *a, const fl_role_map *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++)
        same = strcmp(a->item[i].role, b->item[i].role) == 0 &&
               strcmp(a->item[i].name, b->item[i].name) == 0;
    return same;
}

static bool same_wiring(const fl_wiring *a, const fl_wiring *b)
{
    const fl_clover *x = &a->clover, *y = &b->clover;
    bool same = x->mask_id == y->mask_id && x->pred_shift == y->pred_shift &&
                x->pool_c == y->pool_c && same_roles(&a->roles, &b->roles);
    for (const fl_switch *s = fl_switches; same && s->name; s++)
        same = strcmp(fl_clover_word(x, s->name), fl_clover_word(y, s->name)) == 0;
    return same;
}

/* ---- masked text -------------------------------------------------------------------------- */

/* Rows under the wiring, measured or remembered. The files are read anew when another assignment
 * of roles asks for it. */
static fl_status rows_of(fl_probe *p, const fl_wiring *w, fl_probe_part part,
                         const fl_probe_rows **out, fl_err *err)
{
    for (int i = 0; i < p->n_memo; i++)
        if (p->memo[i].part == part && same_wiring(&p->memo[i].key, w)) {
            *out = &p->memo[i].rows;
            return FL_OK;
        }
    if (p->n_memo == FL_PROBE_MEMO) /* forget all; measured again where needed */
        while (p->n_memo > 0) fl_probe_rows_free(&p->memo[--p->n_memo].rows);
    if (!same_roles(&w->roles, &p->wiring.roles)) FL_TRY(open_as(p, w, err));
    fl_probe_rows rows = {0};
    FL_TRY(fl_probe_rows_init(&rows, &p->text, part, err));
    const fl_status st = fl_probe_masked(p->engine, &p->text, &w->clover, part, &rows, err);
    if (st != FL_OK) {
        fl_probe_rows_free(&rows);
        return st;
    }
    p->n_measured++;
    p->memo[p->n_memo].key = *w;
    p->memo[p->n_memo].part = part;
    p->memo[p->n_memo].rows = rows;
    *out = &p->memo[p->n_memo++].rows;
    return FL_OK;
}

/* The alternatives of one guess, each a whole wiring. */
typedef struct alternatives {
    const char *guess;
    fl_wiring w[FL_PROBE_ASSIGNMENTS + 4];
    char value[FL_PROBE_ASSIGNMENTS + 4][64];
    int n, base;
    fl_probe_part part;
} alternatives;

static void offer(alternatives *a, const fl_wiring *w, const char *value)
{
    if (a->n == FL_PROBE_ASSIGNMENTS + 4) return;
    a->w[a->n] = *w;
    snprintf(a->value[a->n++], sizeof a->value[0], "%s", value);
}

/* Measures all of them and makes `*w` the one to take; their entries stay in the table. */
static fl_status settle(fl_probe *p, const alternatives *a, fl_wiring *w, bool *changed,
                        fl_err *err)
{
    const int first = p->n_entries;
    fl_probe_rows base = {0};
    const fl_probe_rows *rows;
    fl_status st = FL_OK;
    say(p, a->guess);
    FL_GO(rows_of(p, &a->w[a->base], a->part, &rows, err));
    FL_GO(fl_probe_rows_init(&base, &p->text, a->part, err));
    memcpy(base.nll, rows->nll, (size_t)(base.n_answer * base.n_levels) * sizeof *base.nll);
    for (int i = 0; i < a->n; i++) {
        fl_probe_entry *e = new_entry(p, a->guess, a->value[i]);
        say(p, a->guess);
        FL_GO(rows_of(p, &a->w[i], a->part, &rows, err));
        const fl_probe_diff d = fl_probe_compare(rows, &base);
        for (int l = 0; l < FL_MASK_LEVELS; l++) e->nll[l] = fl_probe_mean(rows, l);
        e->mean = fl_probe_mean(rows, -1);
        e->diff = d.mean;
        e->se = d.se;
        e->base = i == a->base;
    }
    const int best = fl_probe_pick(p->entry + first, a->n);
    p->entry[first + best].taken = true;
    *changed |= !same_wiring(w, &a->w[best]);
    *w = a->w[best];
out:
    fl_probe_rows_free(&base);
    return st;
}

/* ---- mask token and row ------------------------------------------------------------------- */

static bool in_text(const fl_probe_text *t, int32_t id)
{
    for (int d = 0; d < t->n_docs; d++)
        for (int i = 0; i < t->doc[d].n; i++)
            if (t->doc[d].ids[i] == id) return true;
    return false;
}

/* Ids that may be masks: added tokens, and ids behind the vocabulary's texts; none of the text. */
static int mask_candidates(const fl_probe *p, int32_t *id)
{
    const int32_t named = fl_tokenizer_size(p->tokenizer);
    const int64_t vocab = p->model.index->hp.n_vocab;
    int n = 0, behind = 0;
    for (int32_t i = 0; i < vocab && n < MOST_MASKS; i++) {
        const bool added = i < named && fl_tokenizer_kind(p->tokenizer, i) != FL_TOKEN_NORMAL;
        if (!added && i < named) continue;
        if (i >= named && ++behind > MOST_BEHIND) break;
        if (i != p->text.fill && !in_text(&p->text, i)) id[n++] = i;
    }
    return n;
}

/* How a mask id does on a little of the text, at its better row and the better of two modes. */
static fl_status screen(fl_probe *p, const fl_wiring *w, int32_t id, double *nll, fl_err *err)
{
    fl_wiring x = *w;
    const fl_probe_rows *rows;
    x.clover.mask_id = id;
    *nll = INFINITY;
    for (int k = 0; k < 4; k++) {
        x.clover.pred_shift = k & 1;
        if (k & 2) x.clover.gdn_block_mode = FL_GDN_CAUSAL;
        FL_TRY(rows_of(p, &x, FL_PROBE_QUICK, &rows, err));
        const double mean = fl_probe_mean(rows, -1);
        if (mean < *nll) *nll = mean;
    }
    return FL_OK;
}

static fl_status settle_mask(fl_probe *p, int32_t definition, fl_wiring *w, bool *changed,
                             fl_err *err)
{
    int32_t id[MOST_MASKS], best[SCREENED];
    double nll[SCREENED], x;
    int n_best = 0;
    const int n = mask_candidates(p, id);
    for (int i = 0; i < n; i++) {
        say(p, "mask token");
        FL_TRY(screen(p, w, id[i], &x, err));
        int at = n_best < SCREENED ? n_best++ : SCREENED;
        while (at > 0 && x < nll[at - 1]) {
            if (at < SCREENED) {
                nll[at] = nll[at - 1];
                best[at] = best[at - 1];
            }
            at--;
        }
        if (at == SCREENED) continue;
        nll[at] = x;
        best[at] = id[i];
    }
    alternatives a = {.guess = "mask token, row"};
    fl_wiring v = *w;
    bool offered = false;
    for (int i = 0; i < n_best; i++) offered |= best[i] == definition;
    if (!offered && definition >= 0 && n_best > 0) best[n_best - 1] = definition;
    for (int i = 0; i < n_best; i++)
        for (int shift = 0; shift < 2; shift++) {
            char value[64];
            v.clover.mask_id = best[i];
            v.clover.pred_shift = shift;
            snprintf(value, sizeof value, "%d, row %s predicts row i", (int)best[i],
                     shift ? "i-1" : "i");
            if (best[i] == definition && shift == 0) a.base = a.n;
            offer(&a, &v, value);
        }
    return a.n > 0 ? settle(p, &a, w, changed, err) : FL_OK;
}

/* ---- the guesses about blocks ------------------------------------------------------------- */

/* GDN modes; with renamed tensors each assignment of their roles is one. The backward branch is
 * tried as `branch` says. */
static fl_status settle_mode(fl_probe *p, const fl_wiring *branch, fl_wiring *w, bool *changed,
                             fl_err *err)
{
    static const char *const modes[] = {"blockend", "causal", "mixed"};
    alternatives a = {.guess = "GDN in a block"};
    fl_wiring v = *w;
    for (int i = 0; i < 3; i++) {
        fl_clover_set(&v.clover, "gdn_block_mode", modes[i]);
        offer(&a, &v, modes[i]);
    }
    v = *branch;
    if (p->roles.n_options == 0 && p->model.index->clover.has_bwd) {
        a.base = a.n;
        offer(&a, &v, "bidir");
    }
    double best = INFINITY; /* no assignment is the definition's: the likeliest stands for it */
    for (int i = 0; i < p->roles.n_options; i++) {
        char value[64];
        const fl_probe_rows *rows;
        v.roles = p->roles.option[i];
        snprintf(value, sizeof value, "bidir, assignment of roles %d", i + 1);
        say(p, a.guess);
        FL_TRY(rows_of(p, &v, FL_PROBE_ALL, &rows, err));
        if (fl_probe_mean(rows, -1) < best) {
            best = fl_probe_mean(rows, -1);
            a.base = a.n;
        }
        offer(&a, &v, value);
    }
    return settle(p, &a, w, changed, err);
}

/* A switch of words, all of them. */
static fl_status settle_word(fl_probe *p, const char *guess, const char *name, fl_wiring *w,
                             bool *changed, fl_err *err)
{
    alternatives a = {.guess = guess};
    if (strcmp(name, "block_align") == 0) a.part = FL_PROBE_FIRST;
    const fl_switch *s = fl_switches;
    while (strcmp(s->name, name) != 0) s++;
    for (int i = 0; s->words[i]; i++) {
        fl_wiring v = *w;
        fl_clover_set(&v.clover, name, s->words[i]);
        offer(&a, &v, s->words[i]);
    }
    return settle(p, &a, w, changed, err);
}

static fl_status settle_pool(fl_probe *p, fl_wiring *w, bool *changed, fl_err *err)
{
    const int n = p->model.index->hp.n_expert, k = p->model.index->hp.top_k;
    const int sizes[] = {3 * n / 4, n / 2, 3 * n / 16};
    alternatives a = {.guess = "expert pool"};
    fl_wiring v = *w;
    char value[64];
    v.clover.pool = FL_POOL_OFF;
    offer(&a, &v, "off");
    v.clover.pool = FL_POOL_MAX;
    for (int i = 0; i < 3; i++) {
        if (sizes[i] < k || sizes[i] >= n) continue;
        v.clover.pool_c = sizes[i];
        snprintf(value, sizeof value, "max, %d of %d", sizes[i], n);
        offer(&a, &v, value);
    }
    v = *w;
    v.clover.pool = FL_POOL_MASS;
    if (n > 16) offer(&a, &v, "mass 0.6, at least 16");
    return settle(p, &a, w, changed, err);
}

static fl_status settle_branch(fl_probe *p, fl_wiring *w, bool *changed, fl_err *err)
{
    FL_TRY(settle_word(p, "backward scan", "gdn_scan", w, changed, err));
    FL_TRY(settle_word(p, "combination", "gdn_combine", w, changed, err));
    return settle_word(p, "convolution's edge", "gdn_conv_edge", w, changed, err);
}

/* First how the branch works, as if it were in use: wrongly wired it may lose to rows that see
 * nothing to their right. Where the roles of its tensors are guesses, they come first. */
static fl_status settle_gdn(fl_probe *p, fl_wiring *w, bool *changed, fl_err *err)
{
    const bool known = p->model.index->clover.has_bwd && p->roles.n_options == 0;
    bool tried = false;
    fl_wiring branch = *w;
    branch.clover.gdn_block_mode = FL_GDN_BIDIR;
    if (known) FL_TRY(settle_branch(p, &branch, &tried, err));
    FL_TRY(settle_mode(p, &branch, w, changed, err));
    const bool taken = w->clover.gdn_block_mode == FL_GDN_BIDIR;
    return taken && !known ? settle_branch(p, w, changed, err) : FL_OK;
}

/* Alignment before the branch: rows of the prompt in a block that knew none would tell against the
 * branch. */
static fl_status settle_all(fl_probe *p, int32_t mask, fl_wiring *w, bool *changed, fl_err *err)
{
    FL_TRY(settle_mask(p, mask, w, changed, err));
    FL_TRY(settle_word(p, "block alignment", "block_align", w, changed, err));
    FL_TRY(settle_gdn(p, w, changed, err));
    FL_TRY(settle_word(p, "convolution's tail", "gdn_tail", w, changed, err));
    FL_TRY(settle_word(p, "commit", "commit_mode", w, changed, err));
    return settle_pool(p, w, changed, err);
}

/* The definition's wiring, from which the descent starts: in GDN mode causal as long as the roles
 * of the branch are guessed, since a wrong branch would hide everything else. */
static void start(const fl_probe *p, fl_wiring *w)
{
    const fl_clover *file = &p->model.index->clover;
    *w = p->wiring;
    w->clover = (fl_clover){.has_blocks = true,
                            .has_bwd = file->has_bwd,
                            .block_size = file->block_size,
                            .mask_id = file->mask_id,
                            .threshold = file->threshold,
                            .pool_c = file->pool_c,
                            .conf = file->conf,
                            .verdict = -1};
    w->clover.gdn_block_mode = file->has_bwd ? FL_GDN_BIDIR : FL_GDN_CAUSAL;
}

static fl_status descend(fl_probe *p, fl_err *err)
{
    fl_wiring w;
    const fl_probe_rows *rows;
    bool changed = true;
    start(p, &w);
    const int32_t mask = w.clover.mask_id;
    for (int round = 0; round < MAX_ROUNDS && changed; round++) {
        changed = false;
        p->n_entries = p->n_file; /* the last round's table is the one that counts */
        FL_TRY(settle_all(p, mask, &w, &changed, err));
    }
    FL_TRY(rows_of(p, &w, FL_PROBE_ALL, &rows, err));
    for (int l = 0; l < FL_MASK_LEVELS; l++) p->winner[l] = fl_probe_mean(rows, l);
    fl_wiring plain = w;
    plain.clover.gdn_block_mode = FL_GDN_CAUSAL;
    FL_TRY(rows_of(p, &plain, FL_PROBE_ALL, &rows, err));
    for (int l = 0; l < FL_MASK_LEVELS; l++) p->plain[l] = fl_probe_mean(rows, l);
    if (!same_roles(&w.roles, &p->wiring.roles)) FL_TRY(open_as(p, &w, err));
    p->wiring = w;
    return FL_OK;
}

fl_status fl_probe_search(fl_probe *p, fl_err *err)
{
    p->model.src = (fl_source *)p->src;
    p->model.tokenizer = (fl_tokenizer *)p->tokenizer;
    p->memo = calloc(FL_PROBE_MEMO, sizeof *p->memo);
    if (!p->memo) return FL_FAIL(err, FL_E_NOMEM, 0, "probe: no memory for its figures");
    FL_TRY(fl_index_build_as(&p->model.index, p->src, &p->asked, err));
    const int64_t most = fl_engine_max_context(&p->model.index->hp);
    const int limit = most - ROOM > LONGEST ? LONGEST : (int)(most - ROOM);
    FL_TRY(fl_probe_text_open(&p->text, &p->model, limit, err));
    p->params.n_ctx = p->text.longest + ROOM;
    FL_TRY(open_as(p, &p->asked, err));
    FL_TRY(file_form(p, err));
    FL_TRY(fl_probe_roles_guess(&p->roles, p->model.index, err));
    if (p->model.index->clover.has_bwd) p->roles.n_options = 0; /* they are known already */
    p->wiring.clover = p->model.index->clover;
    return strcmp(p->model.index->hp.arch, "clover_moe") == 0 ? descend(p, err) : FL_OK;
}

void fl_probe_fini(fl_probe *p)
{
    close_model(p);
    fl_probe_text_free(&p->text);
    for (int i = 0; i < p->n_memo; i++) fl_probe_rows_free(&p->memo[i].rows);
    free(p->memo);
    p->memo = NULL;
}
