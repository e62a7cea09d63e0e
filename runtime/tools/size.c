#include "runtime/tools/size.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/gguf_write.h"

/* Rows that a tensor's rounding is measured on: runs of a few, of as many experts. */
enum { RUNS = 8, RUN_ROWS = 4 };
enum { MAX_CHOICES = 5, MAX_STEPS = 1 << 17, TABLE_BYTES = 1 << 26 };

/* In order of size. Rows that are no multiple of 256 take Q4_0 or Q8_0. */
static const uint32_t candidates[] = {FL_TYPE_IQ4_XS, FL_TYPE_Q4_K, FL_TYPE_Q4_0,
                                      FL_TYPE_Q5_K,   FL_TYPE_Q6_K, FL_TYPE_Q8_0};
enum { N_CANDIDATES = sizeof candidates / sizeof *candidates };

typedef struct choice {
    uint32_t type;
    uint64_t bytes; /* with padding */
    double loss;
} choice;

typedef struct item {
    fl_conv_tensor *t;
    double sensitivity;
    choice choice[MAX_CHOICES]; /* bytes rise, losses fall */
    int n;
} item;

struct fl_size {
    fl_conv *c;
    item *item; /* tensors with more than one choice */
    int n;
    uint64_t rest; /* bytes of the others */
};

static uint64_t padded(uint64_t bytes)
{
    return (bytes + FL_GGUF_ALIGN - 1) / FL_GGUF_ALIGN * FL_GGUF_ALIGN;
}

/* ---- what each type costs a tensor ---- */

typedef struct rows {
    const fl_conv *c;
    const fl_stream_guides *guides;
    const fl_conv_tensor *t;
    float *x, *y;
    void *blocks, *scratch;
} rows;

/* Squared error of rounding n rows to a type, in the norm of the guide. */
static double error_of(const rows *r, const fl_guide *g, bool guided, uint32_t type, int64_t n)
{
    const int64_t cols = r->t->cols;
    double sum = 0;
    fl_guide_round(guided ? g : NULL, type, r->x, n, cols, r->blocks, r->scratch);
    fl_type_get(type)->dequantize(r->blocks, r->y, n * cols);
    if (g) return fl_guide_loss(g, r->x, r->y, n);
    for (int64_t i = 0; i < n * cols; i++) {
        const double d = (double)r->x[i] - (double)r->y[i];
        sum += d * d;
    }
    return sum;
}

/* What a sensitivity is measured in: plain Q4_K, or Q4_0 where that does not fit. A source that is
 * Q4_K itself would lose nothing; the other type of 4 bits stands in for it. */
static uint32_t yardstick(const fl_conv_tensor *t)
{
    if (fl_type_row_bytes(FL_TYPE_Q4_K, (uint64_t)t->cols) == 0) return FL_TYPE_Q4_0;
    return fl_conv_copies(t, FL_TYPE_Q4_K) ? FL_TYPE_IQ4_XS : FL_TYPE_Q4_K;
}

/* Adds the errors of one run of rows: of the yardstick, and of each of the item's types. */
static fl_status add_run(const rows *r, item *it, int64_t row, int64_t n, double *plain,
                         fl_err *err)
{
    const fl_conv_tensor *t = r->t;
    const fl_guide *g = NULL;
    const int expert = t->n_dims == 3 ? (int)(row / t->ne[1]) : 0;
    FL_TRY(fl_conv_read(r->c, t, row, n, r->x, r->scratch, err));
    if (r->guides) FL_TRY(r->guides->get(r->guides->ctx, t, expert, &g, err));
    *plain += error_of(r, g, false, yardstick(t), n);
    for (int i = 0; i < it->n; i++)
        if (!fl_conv_copies(t, it->choice[i].type))
            it->choice[i].loss += error_of(r, g, true, it->choice[i].type, n);
    if (r->guides) r->guides->put(r->guides->ctx, t, expert, g);
    return FL_OK;
}

/* The first row of run i: runs are spread over the rows, or over the experts, and then not at the
 * same rows of each. */
static int64_t run_start(const fl_conv_tensor *t, int i, int64_t n)
{
    const int64_t experts = t->n_dims == 3 ? t->ne[2] : 1, each = t->rows / experts;
    if (experts == 1) return (t->rows - n) * i / RUNS;
    return experts * i / RUNS * each + (each - n) * i / RUNS;
}

static fl_status measure(const fl_size *s, item *it, const fl_stream_guides *guides, fl_err *err)
{
    fl_conv_tensor asked = *it->t;
    rows r = {.c = s->c, .guides = guides, .t = &asked};
    const int64_t experts = asked.n_dims == 3 ? asked.ne[2] : 1, each = asked.rows / experts;
    const int64_t n = each < RUN_ROWS ? each : RUN_ROWS;
    const size_t values = (size_t)(n * asked.cols), one = (size_t)asked.cols;
    const uint64_t guide_bytes = fl_guide_scratch_bytes(asked.cols, true);
    const size_t scratch = (values + one) * sizeof(float);
    double plain = 0;
    fl_status st = FL_OK;
    asked.type = it->choice[0].type; /* one that a guide leads */
    asked.copied = false;
    r.x = malloc(values * sizeof(float));
    r.y = malloc(values * sizeof(float));
    r.blocks = malloc(values * sizeof(float));
    r.scratch = aligned_alloc(64, ((guide_bytes > scratch ? guide_bytes : scratch) + 63) / 64 * 64);
    if (!r.x || !r.y || !r.blocks || !r.scratch)
        st = FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to measure its rounding", asked.name);
    for (int i = 0; i < RUNS && st == FL_OK; i++)
        st = add_run(&r, it, run_start(&asked, i, n), n, &plain, err);
    for (int i = 0; i < it->n; i++)
        it->choice[i].loss = plain > 0 ? it->sensitivity * it->choice[i].loss / plain : 0;
    free(r.x);
    free(r.y);
    free(r.blocks);
    free(r.scratch);
    return st;
}

typedef struct job {
    const fl_size *s;
    const fl_stream_guides *guides;
    fl_status *st; /* [items] */
    fl_err *err;
} job;

static void measure_task(void *arg, int task, int worker)
{
    (void)worker;
    const job *j = arg;
    j->st[task] = measure(j->s, &j->s->item[task], j->guides, &j->err[task]);
}

static fl_status measure_all(const fl_size *s, const fl_stream_guides *guides, fl_pool *pool,
                             fl_err *err)
{
    job j = {s, guides, calloc((size_t)s->n + 1, sizeof *j.st), NULL};
    j.err = calloc((size_t)s->n + 1, sizeof *j.err);
    fl_status st = FL_OK;
    if (j.st && j.err)
        fl_pool_run(pool, measure_task, &j, s->n);
    else
        st = FL_FAIL(err, FL_E_NOMEM, 0, "no memory to measure %d tensors", s->n);
    for (int i = 0; i < s->n && st == FL_OK; i++) {
        st = j.st[i];
        if (st != FL_OK && err) *err = j.err[i];
    }
    free(j.st);
    free(j.err);
    return st;
}

/* ---- choices ---- */

static void list_choices(item *it)
{
    const bool k = fl_conv_bytes(it->t, FL_TYPE_Q4_K) > 0;
    for (int i = 0; i < N_CANDIDATES; i++) {
        const uint32_t type = candidates[i];
        const uint64_t bytes = fl_conv_bytes(it->t, type);
        if (bytes == 0 || !fl_type_get(type)->quantize || (type == FL_TYPE_Q4_0 && k)) continue;
        it->choice[it->n++] = (choice){type, padded(bytes), 0};
    }
}

/* A tensor that a measurement of a few rows finds to cost nothing still costs something: bytes that
 * are left over are not left unused. */
static void lift_zeros(fl_size *s)
{
    double sum = 0;
    for (int i = 0; i < s->n; i++) sum += s->item[i].sensitivity;
    const double least = sum > 0 ? 1e-4 * sum / s->n : 1;
    for (int i = 0; i < s->n; i++)
        if (s->item[i].sensitivity < least) s->item[i].sensitivity = least;
}

/* Drops what costs no less than a choice of no more bytes (padding makes some equal). */
static void drop_dominated(item *it)
{
    int kept = 0;
    for (int i = 0; i < it->n; i++) {
        const choice c = it->choice[i];
        while (kept > 0 && it->choice[kept - 1].bytes >= c.bytes &&
               it->choice[kept - 1].loss > c.loss)
            kept--;
        if (kept == 0 || c.loss < it->choice[kept - 1].loss) it->choice[kept++] = c;
    }
    it->n = kept;
}

fl_status fl_size_create(fl_size **out, fl_conv *c, const bool *done, const fl_sensitivity *known,
                         const fl_stream_guides *guides, fl_pool *pool, fl_err *err)
{
    fl_size *s = calloc(1, sizeof *s);
    fl_status st = FL_OK;
    *out = NULL;
    if (s) s->item = calloc((size_t)c->n + 1, sizeof *s->item);
    if (!s || !s->item) {
        st = FL_FAIL(err, FL_E_NOMEM, 0, "no memory to weigh %d tensors", c->n);
        goto out;
    }
    s->c = c;
    for (int i = 0; i < c->n; i++) {
        bool in_file;
        fl_conv_tensor *t = &c->tensor[i];
        item *it = &s->item[s->n];
        it->t = t;
        it->sensitivity = fl_sensitivity_of(known, t, &in_file);
        if (!t->fixed && !done[i]) {
            fl_conv_set_type(t, FL_TYPE_Q8_0); /* where there is no choice */
            list_choices(it);
        }
        if (it->n > 1)
            s->n++;
        else
            s->rest += padded(fl_conv_bytes(t, t->type));
        if (it->n <= 1) *it = (item){0};
    }
    lift_zeros(s);
    FL_GO(measure_all(s, guides, pool, err));
    for (int i = 0; i < s->n; i++) drop_dominated(&s->item[i]);
    *out = s;
    s = NULL;
out:
    fl_size_destroy(&s);
    return st;
}

void fl_size_destroy(fl_size **s)
{
    if (!*s) return;
    free((*s)->item);
    free(*s);
    *s = NULL;
}

uint64_t fl_size_floor(const fl_size *s)
{
    uint64_t sum = s->rest;
    for (int i = 0; i < s->n; i++) sum += s->item[i].choice[0].bytes;
    return sum;
}

uint64_t fl_size_ceiling(const fl_size *s)
{
    uint64_t sum = s->rest;
    for (int i = 0; i < s->n; i++) sum += s->item[i].choice[s->item[i].n - 1].bytes;
    return sum;
}

/* ---- the assignment ---- */

static uint64_t above_floor(const item *it, int k)
{
    return it->choice[k].bytes - it->choice[0].bytes;
}

/* best[b]: the least loss of the items so far within b steps above the floor; pick[i][b]: the
 * choice of item i in it. An item's bytes are rounded up to steps. */
static void fill_table(const fl_size *s, uint64_t step, size_t steps, double *best, uint8_t *pick)
{
    for (size_t b = 0; b <= steps; b++) best[b] = 0;
    for (int i = 0; i < s->n; i++) {
        const item *it = &s->item[i];
        uint8_t *row = pick + (size_t)i * (steps + 1);
        for (size_t b = steps + 1; b-- > 0;) {
            double least = best[b] + it->choice[0].loss;
            row[b] = 0;
            for (int k = 1; k < it->n; k++) {
                const size_t cost = (size_t)((above_floor(it, k) + step - 1) / step);
                if (cost > b) break;
                if (best[b - cost] + it->choice[k].loss >= least) continue;
                least = best[b - cost] + it->choice[k].loss;
                row[b] = (uint8_t)k;
            }
            best[b] = least;
        }
    }
}

/* Spends what is left where a byte gains most. */
static void spend(const fl_size *s, uint64_t left, int *taken)
{
    for (;;) {
        int at = -1, to = 0;
        double most = 0;
        for (int i = 0; i < s->n; i++) {
            const item *it = &s->item[i];
            const choice *now = &it->choice[taken[i]];
            for (int k = taken[i] + 1; k < it->n && it->choice[k].bytes - now->bytes <= left; k++) {
                const double gain =
                    (now->loss - it->choice[k].loss) / (double)(it->choice[k].bytes - now->bytes);
                if (gain <= most) continue;
                most = gain;
                at = i;
                to = k;
            }
        }
        if (at < 0) return;
        left -= s->item[at].choice[to].bytes - s->item[at].choice[taken[at]].bytes;
        taken[at] = to;
    }
}

fl_status fl_size_choose(const fl_size *s, uint64_t bytes, double *loss, fl_err *err)
{
    const uint64_t floor = fl_size_floor(s), ceiling = fl_size_ceiling(s);
    const uint64_t room = (bytes < ceiling ? bytes : ceiling) - floor;
    const size_t most = TABLE_BYTES / (size_t)(s->n + 1);
    const size_t limit = most < MAX_STEPS ? most : MAX_STEPS;
    const uint64_t step = room / limit < FL_GGUF_ALIGN ? FL_GGUF_ALIGN : room / limit + 1;
    const size_t steps = (size_t)(room / step);
    assert(bytes >= floor);
    double *best = malloc((steps + 1) * sizeof *best);
    uint8_t *pick = malloc((size_t)(s->n + 1) * (steps + 1));
    int *taken = calloc((size_t)s->n + 1, sizeof *taken);
    fl_status st = FL_OK;
    if (!best || !pick || !taken) {
        st = FL_FAIL(err, FL_E_NOMEM, 0, "no memory to choose the types of %d tensors", s->n);
        goto out;
    }
    fill_table(s, step, steps, best, pick);
    uint64_t used = 0;
    for (size_t i = (size_t)s->n, b = steps; i-- > 0;) {
        taken[i] = pick[i * (steps + 1) + b];
        const uint64_t cost = above_floor(&s->item[i], taken[i]);
        b -= (size_t)((cost + step - 1) / step);
        used += cost;
    }
    spend(s, room - used, taken);
    *loss = 0;
    for (int i = 0; i < s->n; i++) {
        const choice *c = &s->item[i].choice[taken[i]];
        fl_conv_set_type(s->item[i].t, c->type);
        *loss += c->loss;
    }
out:
    free(best);
    free(pick);
    free(taken);
    return st;
}
