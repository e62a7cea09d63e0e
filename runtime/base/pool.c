#include "runtime/base/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/cores.h"
#include "runtime/base/groups.h"
#include "runtime/base/latch.h"

/* One job at a time. `left` counts its tasks that nobody has taken, `undone` those that are not
 * done; `bell` changes with each job, for workers that wait for one. The owner never waits for a
 * worker that has taken nothing, so a worker whose core is busy elsewhere only fails to help.
 *
 * A worker may look at `left` at any time, even when it slept through some jobs: having taken tasks
 * it knows that the job they belong to cannot end before it says so, and only then reads what the
 * job is. */
typedef struct run_times {
    uint64_t ran_ns, waited_ns;
} run_times;

typedef struct worker {
    struct fl_pool *pool;
    pthread_t thread;
    int index;
    int cpu, kind; /* cpu -1: never bound */
    /* The worker's own: whether it is bound now, since when it watches its core or keeps away, its
     * times then, and half the time that it will keep away. */
    bool bound;
    int times_fd; /* -1: none */
    uint64_t since_ns, away_ns;
    run_times times;
} worker;

struct fl_pool {
    int n_threads, n_started; /* the owner counts as one */
    int n_cores, n_kinds;
    fl_task_fn fn;
    void *arg;
    int n_tasks;
    /* On lines of their own: workers write one while others read the next. */
    _Alignas(64) atomic_int left;
    _Alignas(64) fl_latch undone;
    _Alignas(64) fl_latch bell;
    atomic_bool quit;
    cpu_set_t allowed; /* where a worker may run that is not bound */
    worker worker[FL_MAX_THREADS];
};

/* Takes the next range of tasks: [first, first + count), counted from the end. Large ranges keep a
 * thread on neighbouring memory, single tasks at the end keep the threads from waiting for each
 * other. */
static int take(fl_pool *p, int *left)
{
    int have = atomic_load_explicit(&p->left, memory_order_relaxed), n;
    do {
        if (have == 0) return 0;
        n = (have + 2 * p->n_threads - 1) / (2 * p->n_threads);
    } while (!atomic_compare_exchange_weak_explicit(&p->left, &have, have - n, memory_order_acq_rel,
                                                    memory_order_relaxed));
    *left = have;
    return n;
}

/* Runs tasks until none is left; how many it ran. */
static unsigned work(fl_pool *p, int index)
{
    unsigned done = 0;
    int n, left;
    while ((n = take(p, &left)) > 0) {
        const int first = p->n_tasks - left;
        for (int t = first; t < first + n; t++) p->fn(p->arg, t, index);
        done += (unsigned)n;
    }
    return done;
}

/* ---- cores that others use too ----
 *
 * A worker that has to wait for its core is better off where the kernel puts it: bound, it would
 * sit out every turn of another process, and the owner with it, while another core may be idle. It
 * is bound again after a while, and each time that proves wrong after twice as long. */

enum { LEAST_SHARE = 4 }; /* of the time that it wanted to run it waited a LEAST_SHARE-th */
static const uint64_t LEAST_NS = 20000000, WATCH_NS = 100000000;
static const uint64_t AWAY_NS = 2000000000, LONGEST_AWAY_NS = 64000000000;

static void one_cpu(int cpu, cpu_set_t *set)
{
    CPU_ZERO(set);
    CPU_SET(cpu, set);
}

/* This thread's times since it began: running, and ready to run without a core. Zeros where the
 * kernel does not count. */
static run_times get_times(int fd)
{
    char text[64];
    run_times t = {0, 0};
    const ssize_t n = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : 0;
    if (n <= 0) return t;
    text[n] = '\0';
    char *end;
    t.ran_ns = strtoull(text, &end, 10);
    t.waited_ns = strtoull(end, NULL, 10);
    return t;
}

/* Between two jobs. */
static void watch_core(worker *w)
{
    const uint64_t now = fl_clock_ns(), passed = now - w->since_ns;
    if (w->cpu < 0 || passed < (w->bound ? WATCH_NS : w->away_ns)) return;
    const run_times t = get_times(w->times_fd);
    const uint64_t waited = t.waited_ns - w->times.waited_ns;
    const uint64_t wanted = t.ran_ns - w->times.ran_ns + waited;
    cpu_set_t own;
    one_cpu(w->cpu, &own);
    if (!w->bound) {
        w->bound = sched_setaffinity(0, sizeof own, &own) == 0;
    } else if (wanted < LEAST_NS) {
        return;
    } else if (waited * LEAST_SHARE >= wanted) {
        w->bound = sched_setaffinity(0, sizeof own, &w->pool->allowed) != 0;
        w->away_ns = w->away_ns < LONGEST_AWAY_NS ? 2 * w->away_ns : w->away_ns;
    } else {
        w->away_ns = AWAY_NS / 2;
    }
    w->since_ns = now;
    w->times = t;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    fl_pool *p = w->pool;
    w->times_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    while (!atomic_load_explicit(&p->quit, memory_order_acquire)) {
        const unsigned seen = atomic_load_explicit(&p->bell.value, memory_order_acquire);
        const unsigned done = work(p, w->index);
        if (done == 0) {
            fl_latch_wait_change(&p->bell, seen);
            continue;
        }
        fl_latch_arrive(&p->undone, done);
        watch_core(w);
    }
    if (w->times_fd >= 0) close(w->times_fd);
    return NULL;
}

/* ---- start and end ---- */

/* Bound from its first instruction on, or (the kernel does not let us) not at all. */
static int start_bound(worker *w)
{
    cpu_set_t set;
    pthread_attr_t attr;
    if (w->cpu < 0 || pthread_attr_init(&attr) != 0) return EINVAL;
    one_cpu(w->cpu, &set);
    int e = pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    if (e == 0) e = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    return e;
}

static fl_status start_worker(fl_pool *p, int index, const fl_cores *cores, fl_err *err)
{
    worker *w = &p->worker[index];
    *w = (worker){.pool = p, .index = index, .cpu = -1, .since_ns = fl_clock_ns()};
    w->away_ns = AWAY_NS / 2;
    if (index < cores->n_cpus) {
        w->cpu = cores->cpu[index].id;
        w->kind = cores->cpu[index].kind;
        w->bound = true;
    }
    int e = start_bound(w);
    if (e != 0) {
        w->cpu = -1;
        e = pthread_create(&w->thread, NULL, worker_main, w);
    }
    if (e != 0)
        return FL_FAIL(err, FL_E_NOMEM, e, "thread %d of %d cannot be started: %s", index + 1,
                       p->n_threads, strerror(e));
    p->n_started = index + 1;
    return FL_OK;
}

static void list_cores(fl_pool *p, fl_cores *cores)
{
    const bool known = sched_getaffinity(0, sizeof p->allowed, &p->allowed) == 0;
    fl_cores_list(cores, known ? &p->allowed : NULL, NULL);
    if (!known) cores->n_cpus = 0; /* more processors than the mask has: the kernel places them */
    p->n_cores = cores->n_cores;
    p->n_kinds = cores->n_kinds;
}

static int default_threads(const fl_cores *cores)
{
    const int quota = fl_groups_cpus(NULL);
    const int n = quota > 0 && quota < cores->n_cores ? quota : cores->n_cores;
    return n < FL_MAX_THREADS ? n : FL_MAX_THREADS;
}

fl_status fl_pool_create(fl_pool **out, int n_threads, fl_err *err)
{
    fl_cores cores;
    *out = NULL;
    if (n_threads < 0 || n_threads > FL_MAX_THREADS)
        return FL_FAIL(err, FL_E_ARG, 0, "--threads %d: expected 1 to %d", n_threads,
                       FL_MAX_THREADS);
    fl_pool *p = aligned_alloc(_Alignof(fl_pool), sizeof *p);
    if (!p) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for the thread pool");
    memset(p, 0, sizeof *p);
    list_cores(p, &cores);
    p->n_threads = n_threads > 0 ? n_threads : default_threads(&cores);
    p->n_started = 1;
    for (int i = 1; i < p->n_threads; i++) {
        const fl_status st = start_worker(p, i, &cores, err);
        if (st == FL_OK) continue;
        fl_pool_destroy(&p);
        return st;
    }
    *out = p;
    return FL_OK;
}

void fl_pool_destroy(fl_pool **pool)
{
    fl_pool *p = *pool;
    if (!p) return;
    atomic_store_explicit(&p->quit, true, memory_order_release);
    fl_latch_bump(&p->bell);
    for (int i = 1; i < p->n_started; i++) pthread_join(p->worker[i].thread, NULL);
    free(p);
    *pool = NULL;
}

int fl_pool_threads(const fl_pool *pool) { return pool->n_threads; }

/* ---- in words ---- */

/* Appends to text that may be cut off. */
__attribute__((format(printf, 3, 4))) static void add(char *out, size_t size, const char *f, ...)
{
    const size_t n = strnlen(out, size);
    va_list a;
    va_start(a, f);
    vsnprintf(out + n, size - n, f, a);
    va_end(a);
}

/* Workers from i on that are bound to rising neighbours of one kind; the one behind them. */
static int end_of_run(const fl_pool *p, int i)
{
    const worker *w = p->worker;
    for (i++; i < p->n_threads; i++)
        if (w[i].cpu != w[i - 1].cpu + 1 || w[i].kind != w[i - 1].kind) break;
    return i;
}

static void add_cpus(const fl_pool *p, char *out, size_t size)
{
    const worker *w = p->worker;
    const char *before = ", workers on cpu ";
    for (int i = 1, end; i < p->n_threads; i = end) {
        end = w[i].cpu < 0 ? i + 1 : end_of_run(p, i);
        if (w[i].cpu < 0) continue;
        add(out, size, "%s%d", before, w[i].cpu);
        if (end > i + 1) add(out, size, "-%d", w[end - 1].cpu);
        before = ",";
        if (p->n_kinds < 2 || (end < p->n_threads && w[end].kind == w[i].kind)) continue;
        add(out, size, " (kind %d of %d)", w[i].kind + 1, p->n_kinds);
    }
}

void fl_pool_describe(const fl_pool *p, char *out, size_t size)
{
    int unbound = 0;
    for (int i = 1; i < p->n_threads; i++) unbound += p->worker[i].cpu < 0;
    out[0] = '\0';
    add(out, size, "%d thread%s (%d core%s", p->n_threads, p->n_threads > 1 ? "s" : "", p->n_cores,
        p->n_cores > 1 ? "s" : "");
    if (unbound < p->n_threads - 1) add_cpus(p, out, size);
    if (unbound > 0) add(out, size, ", %d not bound", unbound);
    add(out, size, ")");
}

/* ---- jobs ---- */

void fl_pool_run(fl_pool *p, fl_task_fn fn, void *arg, int n_tasks)
{
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (int t = 0; t < n_tasks; t++) fn(arg, t, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_tasks = n_tasks;
    fl_latch_set(&p->undone, (unsigned)n_tasks);
    atomic_store_explicit(&p->left, n_tasks, memory_order_release);
    fl_latch_bump(&p->bell);
    fl_latch_arrive(&p->undone, work(p, 0));
    fl_latch_wait(&p->undone);
}
