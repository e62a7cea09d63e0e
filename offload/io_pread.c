#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/io_backend.h"
#include "runtime/base/clock.h"

/* Threads that pread. They sleep in the kernel nearly always: their number is the queue depth that
 * the drive sees. */
enum { MAX_THREADS = 8 };

typedef struct pool {
    fl_io *io;
    pthread_t thread[MAX_THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    int *wanted; /* ring [depth] of request indices that no thread has taken yet */
    int wanted_at, n_wanted;
    fl_io_event *event; /* ring [depth] */
    int event_at, n_events;
    bool quit;
} pool;

static void *reader(void *arg)
{
    pool *p = arg;
    const int depth = p->io->depth;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->n_wanted && !p->quit) pthread_cond_wait(&p->work, &p->lock);
        if (p->quit) break;
        const int i = p->wanted[p->wanted_at];
        p->wanted_at = (p->wanted_at + 1) % depth;
        p->n_wanted--;
        pthread_mutex_unlock(&p->lock);
        const fl_io_req *r = &p->io->req[i];
        const ssize_t got =
            pread(p->io->file[r->x.file].fd, r->raw_dst, r->raw_bytes, (off_t)r->raw_offset);
        const int64_t res = got < 0 ? -(int64_t)errno : got;
        pthread_mutex_lock(&p->lock);
        p->event[(p->event_at + p->n_events++) % depth] = (fl_io_event){.req = i, .res = res};
        pthread_cond_signal(&p->finished);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pread_close(fl_io *io)
{
    pool *p = io->impl;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->event);
    free(p->wanted);
    free(p);
    io->impl = NULL;
}

static fl_status pread_open(fl_io *io, fl_err *err)
{
    pool *p = calloc(1, sizeof *p);
    if (!p) return FL_FAIL(err, FL_E_NOMEM, errno, "i/o threads: out of memory");
    io->impl = p;
    p->io = io;
    p->wanted = calloc((size_t)io->depth, sizeof *p->wanted);
    p->event = calloc((size_t)io->depth, sizeof *p->event);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&p->finished, &clock);
    pthread_condattr_destroy(&clock);
    /* Signals go to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = p->wanted && p->event ? 0 : ENOMEM;
    while (!rc && p->n_threads < io->depth && p->n_threads < MAX_THREADS) {
        rc = pthread_create(&p->thread[p->n_threads], NULL, reader, p);
        if (!rc) p->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (p->n_threads) return FL_OK; /* fewer than wanted only cost speed */
    pread_close(io);
    return FL_FAIL(err, FL_E_NOMEM, rc, "i/o threads: %s", strerror(rc));
}

static int pread_queue(fl_io *io, int req)
{
    pool *p = io->impl;
    pthread_mutex_lock(&p->lock);
    p->wanted[(p->wanted_at + p->n_wanted++) % io->depth] = req;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static int pread_reap(fl_io *io, fl_io_event *ev, int max, uint64_t until_ns)
{
    pool *p = io->impl;
    int n = 0;
    const struct timespec until = fl_clock_time(until_ns);
    pthread_mutex_lock(&p->lock);
    while (until_ns && !p->n_events)
        if (pthread_cond_timedwait(&p->finished, &p->lock, &until) == ETIMEDOUT) break;
    for (; n < max && p->n_events; n++, p->n_events--) {
        ev[n] = p->event[p->event_at];
        p->event_at = (p->event_at + 1) % io->depth;
    }
    pthread_mutex_unlock(&p->lock);
    return n;
}

const fl_io_ops fl_io_pread_ops = {.name = "pread",
                                   .direct = true,
                                   .open = pread_open,
                                   .close = pread_close,
                                   .queue = pread_queue,
                                   .reap = pread_reap};

const fl_io_ops fl_io_buffered_ops = {.name = "buffered",
                                      .open = pread_open,
                                      .close = pread_close,
                                      .queue = pread_queue,
                                      .reap = pread_reap};
