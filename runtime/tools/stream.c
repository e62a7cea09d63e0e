#include "runtime/tools/stream.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/io.h"
#include "runtime/base/memory.h"
#include "runtime/base/options.h"
#include "runtime/base/pool.h"
#include "runtime/tools/slices.h"

enum { DEPTH = 16, ALIGN = 4096, CHUNK_VALUES = 1 << 14 };

/* ---- what is shared ---- */

typedef enum slot_state { READING, READY, WORKING, DONE } slot_state;
typedef enum guide_state { UNASKED, ASKED, GIVEN } guide_state;

/* The rows of one expert's matrix, from the first slice that is read to the last that is rounded.
 */
typedef struct group {
    guide_state state;
    const fl_guide *guide;
    int tensor, expert;
    int64_t rows_left; /* to be rounded */
} group;

/* A slice on its way from the disk to the disk. */
typedef struct slot {
    slot_state state;
    fl_slice slice;
    group *group;
    uint8_t *in, *out;
    fl_slice_part *part; /* [most_parts] */
    int n_parts, missing;
    double err2, ref2; /* sums of squares: of the rounding error, of the values */
    fl_status status;
    fl_err err;
} slot;

/* Sizes of the largest slice. */
typedef struct sizes {
    uint64_t in, out, values, cols;
    int parts;
} sizes;

typedef struct worker {
    float *x, *back, *scratch;
    uint8_t *guide_scratch;
    uint64_t guide_bytes;
} worker;

typedef struct stream {
    const fl_stream_job *job;
    const fl_conv *conv;
    sizes most;
    fl_io *io;
    fl_pool *pool;
    int n_workers, n_slots, n_groups;
    slot *slot;     /* [n_slots]: slice number k is in slot k % n_slots */
    group *group;   /* [n_groups], likewise */
    worker *worker; /* [n_workers] */
    uint8_t *arena;
    fl_stream_state state;
    /* under the lock: */
    pthread_mutex_t lock;
    pthread_cond_t for_reader, for_worker, for_writer;
    uint64_t issued, written; /* slices given to read, and done with */
    bool all_issued, ended;   /* ended: by a failure */
    fl_status status;
    fl_err *err;
} stream;

static slot *slot_of(stream *s, uint64_t k) { return &s->slot[k % (uint64_t)s->n_slots]; }

/* The first failure ends the run. */
static void end_run(stream *s, fl_status st, const fl_err *e)
{
    pthread_mutex_lock(&s->lock);
    if (!s->ended) {
        s->ended = true;
        s->status = st;
        if (s->err) *s->err = *e;
    }
    pthread_cond_broadcast(&s->for_reader);
    pthread_cond_broadcast(&s->for_worker);
    pthread_cond_broadcast(&s->for_writer);
    pthread_mutex_unlock(&s->lock);
}

static bool stopped(const stream *s) { return s->job->stop && *s->job->stop; }

/* ---- reading ---- */

static void read_failed(const stream *s, slot *t, fl_status st, const fl_err *why)
{
    if (t->status == FL_OK)
        t->status = FL_FAIL(&t->err, st, why->sys, "%s: %s", s->conv->tensor[t->slice.tensor].name,
                            why->msg);
}

static void part_arrived(stream *s, slot *t)
{
    if (--t->missing > 0) return;
    pthread_mutex_lock(&s->lock);
    t->state = t->status == FL_OK ? READY : DONE;
    pthread_cond_broadcast(&s->for_worker);
    pthread_cond_broadcast(&s->for_writer);
    pthread_mutex_unlock(&s->lock);
}

static fl_status reap(stream *s, fl_err *err)
{
    fl_io_done done[DEPTH];
    int n;
    fl_err why = {0};
    const fl_status st = fl_io_wait(s->io, done, 1, DEPTH, &n, &why);
    if (n == 0) return st != FL_OK ? FL_FAIL(err, st, why.sys, "%s", why.msg) : FL_OK;
    for (int i = 0; i < n; i++) {
        const int at = (int)(done[i].tag / (uint64_t)s->most.parts);
        slot *t = &s->slot[at];
        t->part[done[i].tag % (uint64_t)s->most.parts].data = done[i].data;
        if (done[i].status != FL_OK) read_failed(s, t, done[i].status, &why);
        part_arrived(s, t);
    }
    return FL_OK;
}

/* Gives a slot's parts to read; they lie behind each other in its memory. */
static fl_status ask(stream *s, slot *t, fl_err *err)
{
    uint8_t *dst = t->in;
    t->missing = t->n_parts;
    for (int i = 0; i < t->n_parts; i++) {
        const fl_slice_part *p = &t->part[i];
        const fl_extent x = {p->src->file, p->src->offset + p->skip, p->bytes};
        const uint64_t tag = (uint64_t)(t - s->slot) * (uint64_t)s->most.parts + (uint64_t)i;
        fl_err why = {0};
        fl_status st;
        while ((st = fl_io_submit(s->io, &x, dst, tag, &why)) == FL_E_BUSY) FL_TRY(reap(s, err));
        if (st != FL_OK) {
            read_failed(s, t, st, &why);
            part_arrived(s, t);
        }
        dst += (fl_io_cover(s->io, x.offset, x.bytes) + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    }
    return FL_OK;
}

static group *group_of(stream *s, const fl_slice *x, uint64_t *n_groups)
{
    if (x->first || *n_groups == 0) {
        const fl_conv_tensor *t = &s->conv->tensor[x->tensor];
        group *g = &s->group[*n_groups % (uint64_t)s->n_groups];
        ++*n_groups;
        *g = (group){.state = s->job->guides && !t->copied ? UNASKED : GIVEN,
                     .tensor = x->tensor,
                     .expert = x->expert,
                     .rows_left = t->n_dims == 3 ? t->ne[1] : t->rows};
    }
    return &s->group[(*n_groups - 1) % (uint64_t)s->n_groups];
}

/* Takes the next free slot for a slice; false when there is none and none can be waited for: reads
 * are in flight, or the run is over. */
static bool take_slot(stream *s, const fl_slice *x, uint64_t *n_groups, slot **t)
{
    pthread_mutex_lock(&s->lock);
    while (!s->ended && s->issued - s->written == (uint64_t)s->n_slots &&
           fl_io_in_flight(s->io) == 0)
        pthread_cond_wait(&s->for_reader, &s->lock);
    const bool free_slot = !s->ended && s->issued - s->written < (uint64_t)s->n_slots;
    if (free_slot) {
        *t = slot_of(s, s->issued);
        (*t)->state = READING;
        (*t)->slice = *x;
        (*t)->group = group_of(s, x, n_groups);
        (*t)->status = FL_OK;
        (*t)->err = (fl_err){0};
        s->issued++;
    }
    pthread_mutex_unlock(&s->lock);
    return free_slot;
}

static bool has_ended(stream *s)
{
    pthread_mutex_lock(&s->lock);
    const bool ended = s->ended;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

static fl_status read_all(stream *s, fl_err *err)
{
    fl_slice x = {.tensor = (int)fl_gguf_writer_next(s->job->writer)};
    uint64_t n_groups = 0;
    bool more = fl_slice_next(s->conv, &x);
    while (more && !has_ended(s)) {
        slot *t;
        if (take_slot(s, &x, &n_groups, &t)) {
            t->n_parts = fl_slice_parts(s->conv, &x, t->part, s->most.parts);
            FL_TRY(ask(s, t, err));
            more = fl_slice_next(s->conv, &x);
        } else if (fl_io_in_flight(s->io) > 0) {
            FL_TRY(reap(s, err));
        }
    }
    while (fl_io_in_flight(s->io) > 0) FL_TRY(reap(s, err));
    return FL_OK;
}

static void *reader_main(void *arg)
{
    stream *s = arg;
    fl_err err = {0};
    const fl_status st = read_all(s, &err);
    pthread_mutex_lock(&s->lock);
    s->all_issued = true;
    pthread_cond_broadcast(&s->for_worker);
    pthread_cond_broadcast(&s->for_writer);
    pthread_mutex_unlock(&s->lock);
    if (st != FL_OK) end_run(s, st, &err);
    return NULL;
}

/* ---- rounding ---- */

/* Bytes of a slot's parts, for fl_conv_values. */
static fl_status fetch(void *ctx, const fl_tensor *src, uint64_t skip, uint64_t bytes,
                       const void **data, fl_err *err)
{
    const slot *t = ctx;
    (void)err;
    for (int i = 0; i < t->n_parts; i++) {
        const fl_slice_part *p = &t->part[i];
        if (p->src != src || skip < p->skip || skip + bytes > p->skip + p->bytes) continue;
        *data = p->data + (skip - p->skip);
        return FL_OK;
    }
    assert(!"a slice asks for bytes that it did not read");
    return FL_E_ARG;
}

/* Eight lanes, so that the compiler may use vectors of any width and the sums stay the same. */
static void add_errors(slot *t, const float *x, const float *y, int64_t n)
{
    double e[8] = {0}, r[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) {
            const double v = (double)x[i + k], d = (double)y[i + k] - v;
            e[k] += d * d;
            r[k] += v * v;
        }
    for (; i < n; i++) {
        const double v = (double)x[i], d = (double)y[i] - v;
        e[0] += d * d;
        r[0] += v * v;
    }
    for (int k = 0; k < 8; k++) {
        t->err2 += e[k];
        t->ref2 += r[k];
    }
}

/* Rows [at, at + n) of a slot's slice. */
static fl_status round_rows(const stream *s, worker *w, slot *t, int64_t at, int64_t n, fl_err *err)
{
    const fl_conv_tensor *ct = &s->conv->tensor[t->slice.tensor];
    const fl_conv_fetch from = {t, fetch};
    const fl_type_info *ti = fl_type_get(ct->type);
    uint8_t *out = t->out + (uint64_t)at * fl_type_row_bytes(ct->type, (uint64_t)ct->cols);
    const int64_t row = t->slice.row0 + at, values = n * ct->cols;
    FL_TRY(fl_conv_values(s->conv, ct, row, n, &from, w->x, w->scratch, err));
    if (ct->copied) return fl_conv_blocks(ct, row, n, &from, out, w->scratch, err);
    fl_guide_round(t->group->guide, ct->type, w->x, n, ct->cols, out, w->guide_scratch);
    if (ct->type == FL_TYPE_F32) {
        add_errors(t, w->x, w->x, values);
        return FL_OK;
    }
    ti->dequantize(out, w->back, values);
    add_errors(t, w->x, w->back, values);
    return FL_OK;
}

static fl_status round_slice(const stream *s, worker *w, slot *t, fl_err *err)
{
    const fl_conv_tensor *ct = &s->conv->tensor[t->slice.tensor];
    const fl_guide *g = t->group->guide;
    /* Plain rounding goes through pieces that stay in the core's cache. */
    int64_t step = CHUNK_VALUES / ct->cols > 0 ? CHUNK_VALUES / ct->cols : 1;
    t->err2 = t->ref2 = 0;
    if (g) {
        const uint64_t need = fl_guide_scratch_bytes(ct->cols, true);
        if (need > w->guide_bytes) {
            free(w->guide_scratch);
            w->guide_bytes = 0;
            w->guide_scratch = aligned_alloc(64, (need + 63) & ~UINT64_C(63));
            if (!w->guide_scratch)
                return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to round it", ct->name);
            w->guide_bytes = need;
        }
        step = t->slice.rows;
    }
    for (int64_t at = 0; at < t->slice.rows; at += step) {
        const int64_t left = t->slice.rows - at;
        FL_TRY(round_rows(s, w, t, at, left < step ? left : step, err));
    }
    return FL_OK;
}

/* The first slice that can be rounded now, or whose guide is still to be made; NULL: none. */
static slot *find_work(stream *s)
{
    for (uint64_t k = s->written; k < s->issued; k++) {
        slot *t = slot_of(s, k);
        if (t->state == READY && t->group->state != ASKED) return t;
    }
    return NULL;
}

static bool work_may_come(stream *s)
{
    if (!s->all_issued) return true;
    for (uint64_t k = s->written; k < s->issued; k++)
        if (slot_of(s, k)->state < WORKING) return true;
    return false;
}

static slot *take_work(stream *s)
{
    slot *t = NULL;
    pthread_mutex_lock(&s->lock);
    while (!s->ended && !(t = find_work(s)) && work_may_come(s))
        pthread_cond_wait(&s->for_worker, &s->lock);
    if (s->ended) t = NULL;
    if (t) {
        t->state = WORKING;
        if (t->group->state == UNASKED) t->group->state = ASKED;
    }
    pthread_mutex_unlock(&s->lock);
    return t;
}

/* The guide of a slot's rows; the one who finds it not asked for makes it. */
static fl_status need_guide(stream *s, slot *t, fl_err *err)
{
    group *g = t->group;
    if (g->state == GIVEN) return FL_OK; /* it was when the slot was taken, or is this worker's */
    const fl_guide *guide = NULL;
    const fl_stream_guides *from = s->job->guides;
    const fl_status st = from->get(from->ctx, &s->conv->tensor[g->tensor], g->expert, &guide, err);
    pthread_mutex_lock(&s->lock);
    g->guide = st == FL_OK ? guide : NULL;
    g->state = GIVEN; /* after a failure too: slices before this one must reach the writer */
    pthread_cond_broadcast(&s->for_worker);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static void give_back(const stream *s, group *g)
{
    const fl_stream_guides *from = s->job->guides;
    if (g->guide) from->put(from->ctx, &s->conv->tensor[g->tensor], g->expert, g->guide);
    g->guide = NULL;
}

static void work_task(void *arg, int task, int index)
{
    stream *s = arg;
    (void)task;
    for (slot *t; (t = take_work(s));) {
        t->status = need_guide(s, t, &t->err);
        if (t->status == FL_OK) t->status = round_slice(s, &s->worker[index], t, &t->err);
        pthread_mutex_lock(&s->lock);
        t->group->rows_left -= t->slice.rows;
        const bool over = t->group->rows_left == 0;
        pthread_mutex_unlock(&s->lock);
        if (over) give_back(s, t->group);
        pthread_mutex_lock(&s->lock);
        t->state = DONE;
        pthread_cond_broadcast(&s->for_writer);
        if (s->all_issued) pthread_cond_broadcast(&s->for_worker);
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- writing ---- */

static slot *take_done(stream *s)
{
    pthread_mutex_lock(&s->lock);
    slot *t = NULL;
    for (;;) {
        const bool some = s->written < s->issued;
        t = some ? slot_of(s, s->written) : NULL;
        if (s->ended || (t && t->state == DONE) || (!some && s->all_issued)) break;
        pthread_cond_wait(&s->for_writer, &s->lock);
    }
    if (s->ended) t = NULL;
    pthread_mutex_unlock(&s->lock);
    return t;
}

static void free_slot(stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->written++;
    pthread_cond_signal(&s->for_reader);
    pthread_mutex_unlock(&s->lock);
}

static fl_status end_tensor(stream *s, int i, double err2, double ref2, fl_err *err)
{
    const fl_conv_tensor *t = &s->conv->tensor[i];
    if (!isfinite(err2)) {
        const fl_tensor *src = fl_conv_source(t, 0);
        return FL_FAIL(
            err, FL_E_ARG, 0, "%s: values of %s do not fit %s (its range is 65504); take bf16",
            fl_source_paths(s->conv->src)[src->file], t->name, fl_type_get(t->type)->name);
    }
    const double relative = t->copied ? -1 : ref2 > 0 ? sqrt(err2 / ref2) : 0;
    return s->job->done ? s->job->done(s->job->ctx, i, relative, err) : FL_OK;
}

static fl_status write_all(stream *s, fl_err *err)
{
    double err2 = 0, ref2 = 0;
    for (slot *t; (t = take_done(s));) {
        const fl_slice x = t->slice;
        const fl_conv_tensor *ct = &s->conv->tensor[x.tensor];
        if (stopped(s))
            return FL_FAIL(err, FL_E_CANCELED, 0, "interrupted while %s was made", ct->name);
        if (t->status != FL_OK) {
            *err = t->err;
            return t->status;
        }
        const uint64_t row_bytes = fl_type_row_bytes(ct->type, (uint64_t)ct->cols);
        FL_TRY(fl_gguf_writer_write(s->job->writer, t->out, (uint64_t)x.rows * row_bytes, err));
        err2 += t->err2;
        ref2 += t->ref2;
        s->state.tensor = x.tensor;
        s->state.values += (uint64_t)(x.rows * ct->cols);
        s->state.bytes_written += (uint64_t)x.rows * row_bytes;
        for (int i = 0; i < t->n_parts; i++) s->state.bytes_read += t->part[i].bytes;
        free_slot(s);
        if (s->job->tick) s->job->tick(s->job->ctx, &s->state);
        if (!x.end) continue;
        FL_TRY(end_tensor(s, x.tensor, err2, ref2, err));
        err2 = ref2 = 0;
    }
    return FL_OK;
}

static void *writer_main(void *arg)
{
    stream *s = arg;
    fl_err err = {0};
    const fl_status st = write_all(s, &err);
    if (st != FL_OK) end_run(s, st, &err);
    return NULL;
}

/* ---- memory ---- */

static void grow(uint64_t *most, uint64_t v) { *most = v > *most ? v : *most; }

static sizes measure(const fl_conv *c, int first)
{
    sizes m = {.parts = 1};
    for (fl_slice x = {.tensor = first}; fl_slice_next(c, &x);) {
        const fl_conv_tensor *t = &c->tensor[x.tensor];
        const int n = fl_slice_parts(c, &x, NULL, 0);
        uint64_t in = 0;
        for (int64_t r = x.row0; r < x.row0 + x.rows;) {
            const fl_conv_run run = fl_conv_run_at(t, r, x.row0 + x.rows - r);
            in += (uint64_t)run.rows * run.row_bytes;
            r += run.rows;
        }
        /* The cover of each part: up to a page more on both sides. */
        grow(&m.in, ((in + ALIGN - 1) & ~(uint64_t)(ALIGN - 1)) + 2 * ALIGN * (uint64_t)n);
        grow(&m.out, (uint64_t)x.rows * fl_type_row_bytes(t->type, (uint64_t)t->cols));
        grow(&m.values, (uint64_t)(x.rows * t->cols));
        grow(&m.cols, (uint64_t)t->cols);
        m.parts = n > m.parts ? n : m.parts;
    }
    m.out = (m.out + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    return m;
}

/* Slices on their way: one in work for each thread, as many read ahead or waiting for their turn to
 * be written, and some for those that pass by a slice whose guide is being made. */
static int slots_for(int threads) { return 2 * threads + 8; }

static uint64_t worker_bytes(const sizes *m)
{
    return (2 * m->values + m->values + m->cols) * sizeof(float);
}

static uint64_t bytes_of(const sizes *m, int threads)
{
    const uint64_t slots = (uint64_t)slots_for(threads);
    return slots * (m->in + m->out + (uint64_t)m->parts * sizeof(fl_slice_part) + sizeof(slot)) +
           (uint64_t)threads * worker_bytes(m);
}

uint64_t fl_stream_bytes(const fl_conv *c, int threads)
{
    const sizes m = measure(c, 0);
    return bytes_of(&m, threads);
}

/* A lack of memory is told before the work, not by the kernel in the middle of it. */
static fl_status check_memory(const stream *s, fl_err *err)
{
    char need[32], have[32];
    const uint64_t bytes = bytes_of(&s->most, s->n_workers), room = fl_memory_available();
    if (bytes <= room) return FL_OK;
    return FL_FAIL(err, FL_E_NOMEM, 0, "%d threads need %s of memory, %s are free; take fewer",
                   s->n_workers, fl_size_format(need, bytes), fl_size_format(have, room));
}

static fl_status take_memory(stream *s, fl_err *err)
{
    const sizes *m = &s->most;
    const size_t slots = (size_t)s->n_slots, workers = (size_t)s->n_workers;
    s->slot = calloc(slots, sizeof *s->slot);
    s->group = calloc((size_t)s->n_groups, sizeof *s->group);
    s->worker = calloc(workers, sizeof *s->worker);
    fl_slice_part *parts = calloc(slots * (size_t)m->parts, sizeof *parts);
    s->arena = aligned_alloc(ALIGN, slots * (m->in + m->out));
    bool ok = s->slot && s->group && s->worker && parts && s->arena;
    /* Taken now: a lack of memory shows at the start, and what is in use stays the same. */
    if (s->arena) memset(s->arena, 0, slots * (m->in + m->out));
    if (s->slot) s->slot[0].part = parts; /* owns them all */
    for (size_t i = 0; ok && i < slots; i++) {
        s->slot[i].part = parts + i * (size_t)m->parts;
        s->slot[i].in = s->arena + i * (m->in + m->out);
        s->slot[i].out = s->slot[i].in + m->in;
    }
    for (size_t i = 0; ok && i < workers; i++) {
        s->worker[i].x = malloc(worker_bytes(m));
        ok = s->worker[i].x != NULL;
        if (!ok) break;
        s->worker[i].back = s->worker[i].x + m->values;
        s->worker[i].scratch = s->worker[i].back + m->values;
    }
    if (ok) return FL_OK;
    if (!s->slot) free(parts);
    return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %zu slices of %llu values", slots,
                   (unsigned long long)m->values);
}

static void give_memory(stream *s)
{
    for (int i = 0; s->group && i < s->n_groups; i++) give_back(s, &s->group[i]);
    for (int i = 0; s->worker && i < s->n_workers; i++) {
        free(s->worker[i].x);
        free(s->worker[i].guide_scratch);
    }
    if (s->slot) free(s->slot[0].part);
    free(s->slot);
    free(s->group);
    free(s->worker);
    free(s->arena);
}

/* ---- the whole ---- */

static fl_status run_threads(stream *s, fl_err *err)
{
    pthread_t reader, writer;
    int e = pthread_create(&reader, NULL, reader_main, s);
    if (e != 0) return FL_FAIL(err, FL_E_NOMEM, e, "no thread for reading: %s", strerror(e));
    e = pthread_create(&writer, NULL, writer_main, s);
    if (e != 0) {
        fl_err why = {0};
        const fl_status st = FL_FAIL(&why, FL_E_NOMEM, e, "no thread for writing: %s", strerror(e));
        end_run(s, st, &why);
        pthread_join(reader, NULL);
        return s->status;
    }
    fl_pool_run(s->pool, work_task, s, s->n_workers);
    pthread_join(reader, NULL);
    pthread_join(writer, NULL);
    return s->status;
}

fl_status fl_stream_run(const fl_stream_job *job, fl_err *err)
{
    fl_err why = {0};
    stream s = {.job = job, .conv = job->conv, .err = &why};
    const int first = (int)fl_gguf_writer_next(job->writer);
    const fl_source *src = job->conv->src;
    fl_status st;
    for (int i = 0; i < s.conv->n; i++) {
        const uint64_t n = (uint64_t)(s.conv->tensor[i].rows * s.conv->tensor[i].cols);
        if (i >= first) s.state.values_total += n;
    }
    if (first == s.conv->n) return FL_OK;
    s.most = measure(s.conv, first);
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.for_reader, NULL);
    pthread_cond_init(&s.for_worker, NULL);
    pthread_cond_init(&s.for_writer, NULL);
    FL_GO(fl_pool_create(&s.pool, job->threads, err));
    s.n_workers = fl_pool_threads(s.pool);
    s.n_slots = slots_for(s.n_workers);
    s.n_groups = s.n_slots + 2;
    FL_GO(check_memory(&s, err));
    FL_GO(take_memory(&s, err));
    FL_GO(fl_io_open(&s.io, job->io, fl_source_paths(src), fl_source_n_files(src), DEPTH, err));
    if (fl_io_fallback(s.io)) fprintf(stderr, "note: %s\n", fl_io_fallback(s.io));
    st = run_threads(&s, &why);
    if (st != FL_OK && err && err->code == FL_OK) *err = why;
out:
    fl_io_close(&s.io);
    give_memory(&s);
    fl_pool_destroy(&s.pool);
    pthread_cond_destroy(&s.for_reader);
    pthread_cond_destroy(&s.for_worker);
    pthread_cond_destroy(&s.for_writer);
    pthread_mutex_destroy(&s.lock);
    return st;
}
