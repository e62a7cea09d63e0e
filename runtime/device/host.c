#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/memory.h"
#include "runtime/base/pages.h"
#include "runtime/device/device.h"

enum { RING = 256, ALIGN = 4096 };
/* A rate-limited copy moves in pieces, so that its bytes trickle as they would over a link. */
static const uint64_t PIECE = 256 * 1024;

typedef struct block {
    struct block *next;
    uint8_t *ptr;
    uint64_t bytes;
} block;

typedef struct copy {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes;
} copy;

struct fl_device {
    fl_budget budget; /* owner */
    block *blocks;    /* owner */
    uint64_t pinned;  /* owner: bytes */
    int n_chunks;     /* owner: that were to be pinned so far */
    int refuse_pin;
    uint64_t link_bytes_s;
    uint64_t limit_ns;     /* owner: of a wait in which nothing is completed */
    uint64_t link_free_ns; /* engine: when the link has carried all it was given */

    pthread_t engine;
    pthread_mutex_t lock;
    pthread_cond_t queued, moved;
    copy ring[RING]; /* ticket t lies in ring[t % RING] */
    uint64_t issued; /* last ticket given out; written by the owner under the lock */
    bool quit;
    _Atomic uint64_t finished; /* last ticket reached; written by the engine under the lock */
    _Atomic uint64_t bytes_copied, copy_ns;
};

static void sleep_until(uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u),
                               .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

static void move(fl_device *dev, const copy *c)
{
    if (!dev->link_bytes_s) {
        if (c->bytes) memcpy(c->dst, c->src, c->bytes);
        return;
    }
    const uint64_t now = fl_clock_ns();
    if (dev->link_free_ns < now) dev->link_free_ns = now;
    for (uint64_t at = 0; at < c->bytes;) {
        const uint64_t n = c->bytes - at < PIECE ? c->bytes - at : PIECE;
        memcpy(c->dst + at, c->src + at, n);
        at += n;
        dev->link_free_ns += (uint64_t)((double)n * 1e9 / (double)dev->link_bytes_s);
        sleep_until(dev->link_free_ns);
    }
}

static void *engine_main(void *arg)
{
    fl_device *dev = arg;
    pthread_mutex_lock(&dev->lock);
    for (;;) {
        const uint64_t next = atomic_load_explicit(&dev->finished, memory_order_relaxed) + 1;
        if (next > dev->issued) {
            if (dev->quit) break;
            pthread_cond_wait(&dev->queued, &dev->lock);
            continue;
        }
        const copy c = dev->ring[next % RING];
        pthread_mutex_unlock(&dev->lock);
        const uint64_t since = fl_clock_ns();
        move(dev, &c);
        atomic_fetch_add_explicit(&dev->copy_ns, fl_clock_ns() - since, memory_order_relaxed);
        atomic_fetch_add_explicit(&dev->bytes_copied, c.bytes, memory_order_relaxed);
        pthread_mutex_lock(&dev->lock);
        /* Release: who sees the ticket reached sees the bytes. */
        atomic_store_explicit(&dev->finished, next, memory_order_release);
        pthread_cond_signal(&dev->moved);
    }
    pthread_mutex_unlock(&dev->lock);
    return NULL;
}

static fl_status start_engine(fl_device *dev, fl_err *err)
{
    /* Signals go to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&dev->engine, NULL, engine_main, dev);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) return FL_FAIL(err, FL_E_NOMEM, rc, "host device: copy thread: %s", strerror(rc));
    return FL_OK;
}

fl_status fl_device_open(fl_device **out, const fl_device_config *cfg, fl_err *err)
{
    *out = NULL;
    if (cfg->kind && strcmp(cfg->kind, "host") != 0)
        return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                       "--device %s: this build has no %s device; --device host works everywhere",
                       cfg->kind, strcmp(cfg->kind, "cuda") == 0 ? "CUDA" : "such");
    fl_device *dev = calloc(1, sizeof *dev);
    if (!dev) return FL_FAIL(err, FL_E_NOMEM, errno, "host device: out of memory");
    dev->budget.name = "device";
    dev->budget.cap = cfg->memory_cap ? cfg->memory_cap : fl_memory_available();
    dev->link_bytes_s = cfg->link_bytes_s;
    dev->refuse_pin = cfg->refuse_pin;
    pthread_mutex_init(&dev->lock, NULL);
    pthread_cond_init(&dev->queued, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&dev->moved, &clock);
    pthread_condattr_destroy(&clock);
    const fl_status st = start_engine(dev, err);
    if (st != FL_OK) {
        free(dev);
        return st;
    }
    *out = dev;
    return FL_OK;
}

/* Under asan from the allocator that guards both ends; else straight from the kernel, which gives
 * zeroed pages when they are first touched. */
#ifdef __SANITIZE_ADDRESS__
static uint8_t *pages_take(uint64_t bytes)
{
    void *p = NULL;
    errno = posix_memalign(&p, ALIGN, bytes);
    if (errno) return NULL;
    return memset(p, 0, bytes);
}
static void pages_give(uint8_t *p, uint64_t bytes)
{
    (void)bytes;
    free(p);
}
#else
static uint8_t *pages_take(uint64_t bytes) { return fl_pages_take(bytes); }
static void pages_give(uint8_t *p, uint64_t bytes) { fl_pages_give(p, bytes); }
#endif

static void drain(fl_device *dev)
{
    pthread_mutex_lock(&dev->lock);
    while (atomic_load_explicit(&dev->finished, memory_order_acquire) < dev->issued)
        pthread_cond_wait(&dev->moved, &dev->lock);
    pthread_mutex_unlock(&dev->lock);
}

static void block_free(fl_device *dev, block **at)
{
    block *b = *at;
    *at = b->next;
    fl_budget_give(&dev->budget, b->bytes);
    pages_give(b->ptr, b->bytes);
    free(b);
}

void fl_device_close(fl_device **dev)
{
    fl_device *d = *dev;
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->quit = true;
    pthread_cond_signal(&d->queued);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->engine, NULL);
    assert(!d->blocks && "device memory still allocated at close");
    while (d->blocks) block_free(d, &d->blocks);
    assert(d->budget.used == 0);
    assert(d->pinned == 0 && "host memory still pinned at close");
    pthread_cond_destroy(&d->moved);
    pthread_cond_destroy(&d->queued);
    pthread_mutex_destroy(&d->lock);
    free(d);
    *dev = NULL;
}

const char *fl_device_kind(const fl_device *dev)
{
    (void)dev;
    return "host";
}

const fl_budget *fl_device_budget(const fl_device *dev) { return &dev->budget; }

fl_status fl_device_alloc(fl_device *dev, uint64_t bytes, const char *what, void **ptr, fl_err *err)
{
    assert(bytes > 0);
    *ptr = NULL;
    FL_TRY(fl_budget_take(&dev->budget, bytes, what, err));
    block *b = malloc(sizeof *b);
    uint8_t *p = b ? pages_take(bytes) : NULL;
    if (!p) {
        const int sys = errno;
        free(b);
        fl_budget_give(&dev->budget, bytes);
        return FL_FAIL(err, FL_E_NOMEM, sys,
                       "device memory: %s: the machine refused %llu bytes: %s; lower --vram", what,
                       (unsigned long long)bytes, strerror(sys));
    }
    *b = (block){.next = dev->blocks, .ptr = p, .bytes = bytes};
    dev->blocks = b;
    *ptr = p;
    return FL_OK;
}

void fl_device_free(fl_device *dev, void **ptr)
{
    if (!*ptr) return;
    drain(dev);
    block **at = &dev->blocks;
    while (*at && (*at)->ptr != *ptr) at = &(*at)->next;
    assert(*at && "not memory of this device");
    if (*at) block_free(dev, at);
    *ptr = NULL;
}

static inline bool owns(const fl_device *dev, const uint8_t *p, uint64_t bytes)
{
    for (const block *b = dev->blocks; b; b = b->next)
        if (p >= b->ptr && p <= b->ptr + b->bytes && bytes <= (uint64_t)(b->ptr + b->bytes - p))
            return true;
    return false;
}

fl_status fl_device_copy_async(fl_device *dev, void *dst, const void *src, uint64_t bytes,
                               fl_ticket *ticket, fl_err *err)
{
    (void)err;
    assert(owns(dev, dst, bytes));
    pthread_mutex_lock(&dev->lock);
    while (dev->issued - atomic_load_explicit(&dev->finished, memory_order_relaxed) == RING)
        pthread_cond_wait(&dev->moved, &dev->lock);
    *ticket = ++dev->issued;
    dev->ring[*ticket % RING] = (copy){.dst = dst, .src = src, .bytes = bytes};
    pthread_cond_signal(&dev->queued);
    pthread_mutex_unlock(&dev->lock);
    return FL_OK;
}

bool fl_device_done(const fl_device *dev, fl_ticket ticket)
{
    assert(ticket <= dev->issued);
    return atomic_load_explicit(&dev->finished, memory_order_acquire) >= ticket;
}

/* Under the lock: until one more copy is done. False: none was, for the limit's time. */
static bool wait_one(fl_device *dev)
{
    const uint64_t before = atomic_load_explicit(&dev->finished, memory_order_acquire);
    const struct timespec until =
        fl_clock_time(dev->limit_ns ? fl_clock_ns() + dev->limit_ns : UINT64_MAX);
    for (bool late = false;;) {
        if (atomic_load_explicit(&dev->finished, memory_order_acquire) != before) return true;
        if (late) return false;
        late = pthread_cond_timedwait(&dev->moved, &dev->lock, &until) == ETIMEDOUT;
    }
}

fl_status fl_device_wait(fl_device *dev, fl_ticket ticket, fl_err *err)
{
    bool moves = true;
    assert(ticket <= dev->issued);
    if (fl_device_done(dev, ticket)) return FL_OK;
    pthread_mutex_lock(&dev->lock);
    while (moves && atomic_load_explicit(&dev->finished, memory_order_acquire) < ticket)
        moves = wait_one(dev);
    pthread_mutex_unlock(&dev->lock);
    if (moves) return FL_OK;
    return FL_FAIL(err, FL_E_STALLED, 0,
                   "host device: none of %llu copies was completed for %.1f s: the link hangs",
                   (unsigned long long)fl_device_copies_queued(dev), (double)dev->limit_ns * 1e-9);
}

void fl_device_set_limit(fl_device *dev, uint64_t ns) { dev->limit_ns = ns; }

uint64_t fl_device_copies_queued(const fl_device *dev)
{
    return dev->issued - atomic_load_explicit(&dev->finished, memory_order_relaxed);
}

uint64_t fl_device_bytes_copied(const fl_device *dev)
{
    return atomic_load_explicit(&dev->bytes_copied, memory_order_relaxed);
}

uint64_t fl_device_copy_ns(const fl_device *dev)
{
    return atomic_load_explicit(&dev->copy_ns, memory_order_relaxed);
}

/* ---- pinning ---- */

uint64_t fl_device_pin(fl_device *dev, void *base, uint64_t bytes)
{
    assert((uintptr_t)base % ALIGN == 0);
    (void)base;
    uint64_t done = 0;
    while (done < bytes) {
        if (++dev->n_chunks >= dev->refuse_pin && dev->refuse_pin) break;
        done += bytes - done < FL_PIN_CHUNK ? bytes - done : FL_PIN_CHUNK;
    }
    dev->pinned += done;
    return done;
}

void fl_device_unpin(fl_device *dev, void *base, uint64_t pinned)
{
    (void)base;
    assert(dev->pinned >= pinned);
    dev->pinned -= pinned;
}
