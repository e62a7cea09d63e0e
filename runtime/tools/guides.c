#include "runtime/tools/guides.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tools/importance_sites.h"

/* A guide that several matrices share. Kept for a while after the last one: the next tensor is
 * likely to read the same rows. */
enum { N_SHARED = 8, MAX_IDLE = 2 };
typedef struct shared {
    char name[FL_SITE_NAME]; /* of its site; "" = free */
    fl_guide *guide;         /* NULL where nothing is known */
    bool full;
    bool ready; /* false: a thread is making it */
    int users;
    uint64_t used; /* by the clock of fl_guides, for whom to drop */
} shared;

struct fl_guides {
    fl_importance *im;
    pthread_mutex_t lock;
    pthread_cond_t made;
    shared shared[N_SHARED];
    struct lent *lent;
    uint64_t clock;
    bool by_tensor; /* an imatrix: what it has, it has of single tensors */
    int n_guided, n_plain, n_prior, n_repaired; /* matrices */
};

static bool is_searched(const fl_conv_tensor *t)
{
    return !t->copied && fl_type_get(t->type)->block_elems > 1;
}

fl_status fl_guides_open(fl_guides **out, const char *path, const fl_conv *c, fl_err *err)
{
    fl_guides *g = calloc(1, sizeof *g);
    float *diag = NULL;
    fl_status st = FL_OK;
    *out = NULL;
    if (!g) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->made, NULL);
    FL_GO(fl_importance_open(&g->im, path, err));
    g->by_tensor = strcmp(fl_importance_describe(g->im).kind, "imatrix") == 0;
    for (int i = 0; i < c->n; i++) {
        const fl_conv_tensor *t = &c->tensor[i];
        bool known;
        if (t->fixed) continue;
        free(diag);
        diag = malloc((size_t)t->cols * sizeof *diag);
        if (!diag) {
            st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory", path);
            goto out;
        }
        const int last = t->n_dims == 3 ? (int)t->ne[2] - 1 : 0;
        FL_GO(fl_guides_diag(g, t, last, diag, &known, err));
    }
    *out = g;
    g = NULL;
out:
    free(diag);
    fl_guides_close(&g);
    return st;
}

void fl_guides_close(fl_guides **g)
{
    if (!*g) return;
    for (int i = 0; i < N_SHARED; i++) fl_guide_destroy(&(*g)->shared[i].guide);
    fl_importance_close(&(*g)->im);
    pthread_cond_destroy(&(*g)->made);
    pthread_mutex_destroy(&(*g)->lock);
    free(*g);
    *g = NULL;
}

fl_status fl_guides_diag(const fl_guides *g, const fl_conv_tensor *t, int expert, float *diag,
                         bool *known, fl_err *err)
{
    fl_importance_found found = {0};
    FL_TRY(fl_importance_get(g->im, t->name, t->cols, expert, diag, NULL, &found, err));
    *known = found.diag;
    return FL_OK;
}

/* A guide from what the file has of a matrix: NULL where that is nothing. */
static fl_status make(const fl_guides *g, const char *name, int64_t cols, int expert,
                      fl_guide **out, fl_importance_found *found, fl_err *err)
{
    float *diag = malloc((size_t)cols * sizeof *diag);
    float *full = malloc((size_t)cols * (size_t)cols * sizeof *full);
    fl_status st = FL_OK;
    *out = NULL;
    *found = (fl_importance_found){0};
    if (!diag || !full) {
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its second moments", name);
        goto out;
    }
    FL_GO(fl_importance_get(g->im, name, cols, expert, diag, full, found, err));
    if (found->diag || found->full)
        st = fl_guide_create(
            out, &(fl_moment){cols, found->diag ? diag : NULL, found->full ? full : NULL}, err);
out:
    free(diag);
    free(full);
    return st;
}

/* The place of a site's guide: the one that has it, else a free one, else the one whose last user
 * left first; NULL when all are in use. Under the lock. */
static shared *place_for(fl_guides *g, const char *name)
{
    shared *best = NULL;
    for (int i = 0; i < N_SHARED; i++) {
        shared *s = &g->shared[i];
        if (strcmp(s->name, name) == 0) return s;
        if (s->users == 0 && (!best || s->used < best->used)) best = s;
    }
    return best;
}

/* The guide of a site, made by the first who asks for it, with one more user. `name` and `cols` are
 * of a matrix that reads there. *out is NULL when too many sites are in use: whoever waited for a
 * place might hold the rows that would free one. */
static fl_status take_shared(fl_guides *g, const char *site, const char *name, int64_t cols,
                             shared **out, fl_importance_found *found, fl_err *err)
{
    shared *s;
    *found = (fl_importance_found){0};
    pthread_mutex_lock(&g->lock);
    while ((s = place_for(g, site)) && strcmp(s->name, site) == 0 && !s->ready)
        pthread_cond_wait(&g->made, &g->lock);
    *out = s;
    if (!s) {
        pthread_mutex_unlock(&g->lock);
        return FL_OK;
    }
    s->users++;
    const bool there = strcmp(s->name, site) == 0;
    if (!there) {
        fl_guide_destroy(&s->guide);
        snprintf(s->name, sizeof s->name, "%s", site);
        s->ready = false;
    }
    pthread_mutex_unlock(&g->lock);
    if (there) return FL_OK;
    fl_guide *made = NULL;
    const fl_status st = make(g, name, cols, 0, &made, found, err);
    pthread_mutex_lock(&g->lock);
    s->guide = made;
    s->full = found->full;
    s->ready = true;
    if (st != FL_OK) {
        s->name[0] = 0;
        s->users--;
    }
    pthread_cond_broadcast(&g->made);
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* Under the lock. */
static void leave_shared(fl_guides *g, shared *s)
{
    shared *oldest = NULL;
    int idle = 0;
    s->users--;
    s->used = ++g->clock;
    for (int i = 0; i < N_SHARED; i++) {
        shared *x = &g->shared[i];
        if (x->users > 0 || !x->guide) continue;
        idle++;
        if (!oldest || x->used < oldest->used) oldest = x;
    }
    if (idle <= MAX_IDLE) return;
    fl_guide_destroy(&oldest->guide);
    oldest->name[0] = 0;
}

/* An expert's gate or up: the moment of all rows of the layer with the expert's mean squares. */
static fl_status derive(fl_guides *g, const fl_conv_tensor *t, int expert, const fl_guide *base,
                        fl_guide **out, fl_importance_found *found, fl_err *err)
{
    float *diag = malloc((size_t)t->cols * sizeof *diag);
    if (!diag) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory for its mean squares", t->name);
    fl_status st = fl_importance_get(g->im, t->name, t->cols, expert, diag, NULL, found, err);
    *out = NULL;
    if (st == FL_OK && found->diag)
        st = base ? fl_guide_derive(out, base, diag, err)
                  : fl_guide_create(out, &(fl_moment){t->cols, diag, NULL}, err);
    free(diag);
    return st;
}

/* What `get` handed out, so that `put` knows what it was. */
typedef struct lent {
    const fl_guide *guide;
    fl_guide *own; /* to destroy, or NULL */
    shared *from;  /* to leave, or NULL */
    struct lent *next;
} lent;

/* Guide `own`, or where that is NULL the one of `from`. Always takes over both. */
static fl_status lend(fl_guides *g, fl_guide *own, shared *from, const fl_importance_found *found,
                      const fl_guide **out, fl_err *err)
{
    lent *l = malloc(sizeof *l);
    *out = l ? (own ? own : from ? from->guide : NULL) : NULL;
    pthread_mutex_lock(&g->lock);
    if (*out) {
        *l = (lent){*out, own, from, g->lent};
        g->lent = l;
    } else if (from) {
        leave_shared(g, from);
    }
    *(*out ? &g->n_guided : &g->n_plain) += 1;
    g->n_prior += found->prior;
    g->n_repaired += found->repaired > 0;
    pthread_mutex_unlock(&g->lock);
    if (*out) return FL_OK;
    free(l);
    fl_guide_destroy(&own);
    return l ? FL_OK : FL_FAIL(err, FL_E_NOMEM, 0, "no memory for a guide");
}

static fl_status get_expert_in(fl_guides *g, const fl_conv_tensor *t, int layer, int expert,
                               const fl_guide **out, fl_err *err)
{
    char site[FL_SITE_NAME], name[FL_SITE_NAME];
    fl_importance_found found, own_found = {0};
    fl_guide *own = NULL;
    shared *from = NULL;
    fl_site_name(site, FL_SITE_FFN_IN, layer, "");
    snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", layer);
    FL_TRY(take_shared(g, site, name, t->cols, &from, &found, err));
    fl_status st = FL_OK;
    if (!from)
        st = make(g, t->name, t->cols, expert, &own, &own_found, err);
    else
        st = derive(g, t, expert, from->full ? from->guide : NULL, &own, &own_found, err);
    if (st == FL_OK && own) return lend(g, own, from, &own_found, out, err);
    pthread_mutex_lock(&g->lock);
    if (from) leave_shared(g, from);
    pthread_mutex_unlock(&g->lock);
    return st == FL_OK ? lend(g, NULL, NULL, &own_found, out, err) : st;
}

static fl_status get(void *ctx, const fl_conv_tensor *t, int expert, const fl_guide **out,
                     fl_err *err)
{
    fl_guides *g = ctx;
    fl_importance_found found = {0};
    fl_guide *own = NULL;
    fl_site site;
    int layer;
    *out = NULL;
    if (!is_searched(t) || !fl_site_of(t->name, &site, &layer)) return FL_OK;
    if (site == FL_SITE_EXPERT_IN && !g->by_tensor)
        return get_expert_in(g, t, layer, expert, out, err);
    if (t->n_dims < 3) {
        char name[FL_SITE_NAME];
        shared *from;
        /* The embedding reads what the output does only where it is the output. */
        if (g->by_tensor || t->class == FL_CONV_EMBED)
            snprintf(name, sizeof name, "%s", t->name);
        else
            fl_site_name(name, site, layer, "");
        FL_TRY(take_shared(g, name, t->name, t->cols, &from, &found, err));
        if (from) return lend(g, NULL, from, &found, out, err);
    }
    FL_TRY(make(g, t->name, t->cols, expert, &own, &found, err));
    return lend(g, own, NULL, &found, out, err);
}

static void put(void *ctx, const fl_conv_tensor *t, int expert, const fl_guide *guide)
{
    fl_guides *g = ctx;
    lent *l = NULL;
    (void)t;
    (void)expert;
    if (!guide) return;
    pthread_mutex_lock(&g->lock);
    for (lent **at = &g->lent; *at; at = &(*at)->next) {
        if ((*at)->guide != guide) continue;
        l = *at;
        *at = l->next;
        break;
    }
    assert(l);
    fl_guide_destroy(&l->own); /* before its base may go */
    if (l->from) leave_shared(g, l->from);
    pthread_mutex_unlock(&g->lock);
    free(l);
}

fl_stream_guides fl_guides_stream(fl_guides *g)
{
    return (fl_stream_guides){.ctx = g, .get = get, .put = put};
}

const char *fl_guides_summary(fl_guides *g, char buf[256])
{
    pthread_mutex_lock(&g->lock);
    int n = snprintf(buf, 256, "importance led %d matrices, %d were rounded without", g->n_guided,
                     g->n_plain);
    if (g->n_prior)
        n += snprintf(buf + n, 256 - (size_t)n, "; %d experts saw few rows: mostly their layer's",
                      g->n_prior);
    if (g->n_repaired)
        snprintf(buf + n, 256 - (size_t)n, "; %d had columns that were no numbers", g->n_repaired);
    pthread_mutex_unlock(&g->lock);
    return buf;
}
