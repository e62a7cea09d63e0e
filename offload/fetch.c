#include "offload/fetch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/pages.h"

enum { PAGE = 4096, TAG_PARTS = 4 };

typedef enum stage_state { IDLE, READING, COPYING, FINISHED } stage_state;

typedef struct stage {
    stage_state state;
    uint8_t *buf;
    const fl_expert_place *x;
    uint8_t *dst;
    uint64_t tag;
    uint64_t order; /* of start: earlier ones read first */
    int next_part;  /* first part that is not submitted yet */
    uint64_t room;  /* bytes of buf given to parts before it */
    int n_reading;  /* submitted, not complete */
    const void *data[FL_EXPERT_PARTS];
    fl_ticket ticket; /* of the last copy */
    fl_status status;
    fl_err err;
} stage;

struct fl_fetch {
    fl_device *dev;
    fl_io *io;
    stage *stage;
    int n_stages;
    int n_free;
    uint64_t stage_bytes;
    uint64_t n_started;
    uint8_t *memory;
};

fl_status fl_fetch_create(fl_fetch **out, fl_device *dev, fl_io *io, int n_stages,
                          uint64_t stage_bytes, fl_err *err)
{
    assert(n_stages > 0 && stage_bytes > 0 && stage_bytes % PAGE == 0);
    *out = NULL;
    const uint64_t bytes = (uint64_t)n_stages * stage_bytes;
    fl_fetch *f = calloc(1, sizeof *f);
    stage *s = calloc((size_t)n_stages, sizeof *s);
    void *m = fl_pages_take(bytes);
    if (!f || !s || !m) {
        const int sys = errno;
        fl_pages_give(m, bytes);
        free(s);
        free(f);
        return FL_FAIL(err, FL_E_NOMEM, sys, "host memory: staging buffers: %llu bytes refused: %s",
                       (unsigned long long)bytes, strerror(sys));
    }
    for (int i = 0; i < n_stages; i++) s[i].buf = (uint8_t *)m + (uint64_t)i * stage_bytes;
    *f = (fl_fetch){.dev = dev,
                    .io = io,
                    .stage = s,
                    .n_stages = n_stages,
                    .n_free = n_stages,
                    .stage_bytes = stage_bytes,
                    .memory = m};
    fl_io_register(io, m, bytes);
    *out = f;
    return FL_OK;
}

void fl_fetch_destroy(fl_fetch **fp)
{
    fl_fetch *f = *fp;
    if (!f) return;
    uint64_t tag;
    fl_status st;
    while (f->n_free < f->n_stages) {
        if (fl_fetch_next(f, true, &tag, &st, NULL)) continue;
        *fp = NULL;
        return;
    }
    fl_io_unregister(f->io);
    fl_pages_give(f->memory, fl_fetch_bytes(f));
    free(f->stage);
    free(f);
    *fp = NULL;
}

uint64_t fl_fetch_bytes(const fl_fetch *f) { return (uint64_t)f->n_stages * f->stage_bytes; }
int fl_fetch_free(const fl_fetch *f) { return f->n_free; }

static void fail(stage *s, fl_status st, const fl_err *err)
{
    if (s->status != FL_OK) return; /* the first cause stays */
    s->status = st;
    s->err = *err;
}

static void start_copies(fl_fetch *f, stage *s)
{
    uint64_t at = 0;
    s->state = COPYING;
    s->ticket = 0;
    for (int k = 0; k < FL_EXPERT_PARTS; k++) {
        const uint64_t bytes = s->x->part[k].bytes;
        if (!bytes) continue;
        fl_err err = {0};
        fl_ticket t;
        const fl_status st = fl_device_copy_async(f->dev, s->dst + at, s->data[k], bytes, &t, &err);
        if (st != FL_OK) { /* what was queued before still reads this stage: it is waited for */
            fail(s, st, &err);
            return;
        }
        s->ticket = t;
        at += fl_fetch_padded(bytes);
    }
}

/* All parts that could be submitted are complete. */
static void reads_done(fl_fetch *f, stage *s)
{
    if (s->status != FL_OK) {
        s->state = FINISHED;
    } else {
        start_copies(f, s);
    }
}

/* False: the io takes no more now. */
static bool submit_part(fl_fetch *f, stage *s)
{
    const int k = s->next_part;
    const fl_extent *x = &s->x->part[k];
    if (x->bytes) {
        const uint64_t cover = fl_io_cover(f->io, x->offset, x->bytes);
        assert(s->room + cover <= f->stage_bytes);
        fl_err err = {0};
        const uint64_t tag = (uint64_t)(s - f->stage) * TAG_PARTS + (uint64_t)k;
        const fl_status st = fl_io_submit(f->io, x, s->buf + s->room, tag, &err);
        if (st == FL_E_BUSY) return false;
        if (st == FL_OK) {
            s->n_reading++;
            s->room += (cover + PAGE - 1) & ~(uint64_t)(PAGE - 1);
        } else {
            fail(s, st, &err);
            s->next_part = FL_EXPERT_PARTS - 1; /* the rest is of no use */
        }
    }
    s->next_part++;
    if (s->next_part == FL_EXPERT_PARTS && s->n_reading == 0) reads_done(f, s);
    return true;
}

static void submit_all(fl_fetch *f)
{
    for (;;) {
        stage *first = NULL;
        for (int i = 0; i < f->n_stages; i++) {
            stage *s = &f->stage[i];
            if (s->state == READING && s->next_part < FL_EXPERT_PARTS &&
                (!first || s->order < first->order))
                first = s;
        }
        if (!first || !submit_part(f, first)) break;
    }
    fl_io_flush(f->io);
}

/* Takes in completed reads; with `block` waits for one, FL_E_STALLED when none comes. */
static fl_status collect(fl_fetch *f, bool block, fl_err *stall)
{
    for (int n = 1; n > 0; block = false) {
        /* One at a time: each failure keeps its own message. */
        fl_err err = {0};
        fl_io_done done;
        const fl_status st = fl_io_wait(f->io, &done, block, 1, &n, &err);
        if (n == 0) return st == FL_OK ? FL_OK : FL_FAIL(stall, st, err.sys, "%s", err.msg);
        stage *s = &f->stage[done.tag / TAG_PARTS];
        assert(s->state == READING && s->n_reading > 0);
        s->n_reading--;
        s->data[done.tag % TAG_PARTS] = done.data;
        if (st != FL_OK) {
            fail(s, st, &err);
            s->next_part = FL_EXPERT_PARTS;
        }
        if (s->next_part == FL_EXPERT_PARTS && s->n_reading == 0) reads_done(f, s);
    }
    return FL_OK;
}

/* Waits for the oldest copy. FL_E_STALLED: it goes on. */
static fl_status wait_copy(fl_fetch *f, fl_err *stall)
{
    stage *first = NULL;
    for (int i = 0; i < f->n_stages; i++) {
        stage *s = &f->stage[i];
        if (s->state == COPYING && (!first || s->ticket < first->ticket)) first = s;
    }
    fl_err err = {0};
    const fl_status st = fl_device_wait(f->dev, first->ticket, &err);
    if (st == FL_E_STALLED) return FL_FAIL(stall, st, err.sys, "%s", err.msg);
    if (st != FL_OK) fail(first, st, &err);
    first->state = FINISHED;
    return FL_OK;
}

static stage *pick_finished(fl_fetch *f, int *n_copying)
{
    stage *first = NULL;
    *n_copying = 0;
    for (int i = 0; i < f->n_stages; i++) {
        stage *s = &f->stage[i];
        if (s->state == COPYING && fl_device_done(f->dev, s->ticket)) s->state = FINISHED;
        *n_copying += s->state == COPYING;
        if (s->state == FINISHED && (!first || s->order < first->order)) first = s;
    }
    return first;
}

void fl_fetch_start(fl_fetch *f, const fl_expert_place *x, uint8_t *dst, uint64_t tag)
{
    assert(f->n_free > 0);
    stage *s = f->stage;
    while (s->state != IDLE) s++;
    f->n_free--;
    *s = (stage){
        .state = READING, .buf = s->buf, .x = x, .dst = dst, .tag = tag, .order = ++f->n_started};
    submit_all(f);
}

bool fl_fetch_next(fl_fetch *f, bool block, uint64_t *tag, fl_status *st, fl_err *err)
{
    assert(!block || f->n_free < f->n_stages);
    stage *s;
    *st = FL_OK;
    for (;;) {
        int n_copying;
        submit_all(f);
        *st = collect(f, false, err);
        submit_all(f);
        s = pick_finished(f, &n_copying);
        if (s || !block) break;
        /* A copy is short; while it is waited for, the reads go on in the kernel. */
        *st = n_copying ? wait_copy(f, err) : collect(f, true, err);
        if (*st != FL_OK) return false;
    }
    if (!s) return false;
    *tag = s->tag;
    *st = s->status;
    if (s->status != FL_OK && err && err->code == FL_OK) *err = s->err;
    s->state = IDLE;
    f->n_free++;
    return true;
}

void fl_fetch_describe(const fl_fetch *f, uint64_t tag, fl_text *out)
{
    for (int i = 0; i < f->n_stages; i++) {
        const stage *s = &f->stage[i];
        if (s->state == IDLE || s->tag != tag) continue;
        if (s->state == READING)
            fl_text_printf(out, "%d reads to come", s->n_reading + FL_EXPERT_PARTS - s->next_part);
        else
            fl_text_puts(out, s->state == COPYING ? "being copied" : "there");
    }
}
