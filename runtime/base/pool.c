#include "runtime/base/pool.h"

#include <errno.h>
#ifndef FL_MINIMAL
#include <hwloc.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 256, SPIN = 2000 };

/* One job at a time. A job is announced by raising `epoch` under the lock; tasks are handed out
 * by an atomic counter; the last finished task wakes the owner. Workers poll `epoch` for a short
 * while before they sleep: spinning longer collapses when a neighbour takes the core. */
struct fl_pool {
    int n_threads;
    pthread_t thread[MAX_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    atomic_uint epoch;
    int active; /* workers inside the current job, under the lock */
    bool quit;  /* under the lock */
    fl_task_fn fn;
    void *arg;
    int n_tasks;
    atomic_int next;
};

typedef struct worker_arg {
    fl_pool *pool;
    int index;
} worker_arg;

/* Cores of the machine, or 0 when nobody knows: then every processor counts as one. */
static int machine_cores(void)
{
    int n = 0;
#ifndef FL_MINIMAL
    hwloc_topology_t topo;
    /* Without sysfs (a bare chroot) hwloc knows no cores and says so on standard error. */
    if (access("/sys/devices/system/cpu/cpu0/topology", F_OK) == 0 &&
        hwloc_topology_init(&topo) == 0) {
        if (hwloc_topology_load(topo) == 0) n = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
        hwloc_topology_destroy(topo);
    }
#endif
    return n;
}

static int physical_cores(void)
{
    int n = machine_cores();
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        const int allowed = CPU_COUNT(&set);
        if (n <= 0 || n > allowed) n = allowed;
    }
    return n > 0 ? n : 1;
}

static void run_tasks(fl_pool *p, fl_task_fn fn, void *arg, int n_tasks, int worker)
{
    for (;;) {
        const int t = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (t >= n_tasks) return;
        fn(arg, t, worker);
    }
}

static void *worker_main(void *arg)
{
    fl_pool *p = ((worker_arg *)arg)->pool;
    const int index = ((worker_arg *)arg)->index;
    free(arg);
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPIN && atomic_load_explicit(&p->epoch, memory_order_acquire) == seen;
             i++)
#if defined(__x86_64__)
            __builtin_ia32_pause();
#else
            ;
#endif
        pthread_mutex_lock(&p->lock);
        while (!p->quit && atomic_load_explicit(&p->epoch, memory_order_relaxed) == seen)
            pthread_cond_wait(&p->wake, &p->lock);
        seen = atomic_load_explicit(&p->epoch, memory_order_relaxed);
        const bool quit = p->quit;
        /* Copies: the owner clears p->fn as soon as no task is left to hand out. */
        const fl_task_fn fn = quit ? NULL : p->fn;
        void *const job = p->arg;
        const int n_tasks = p->n_tasks;
        if (fn) p->active++;
        pthread_mutex_unlock(&p->lock);
        if (quit) return NULL;
        if (!fn) continue; /* the job was over before this worker woke */
        run_tasks(p, fn, job, n_tasks, index);
        pthread_mutex_lock(&p->lock);
        if (--p->active == 0) pthread_cond_signal(&p->idle);
        pthread_mutex_unlock(&p->lock);
    }
}

fl_status fl_pool_create(fl_pool **out, int n_threads, fl_err *err)
{
    *out = NULL;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return FL_FAIL(err, FL_E_ARG, 0, "--threads %d: expected 1 to %d", n_threads, MAX_THREADS);
    if (n_threads == 0) n_threads = physical_cores();
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    fl_pool *p = calloc(1, sizeof *p);
    if (!p) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for the thread pool");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->n_threads = 1;
    for (int i = 1; i < n_threads; i++) {
        worker_arg *a = malloc(sizeof *a);
        int e = ENOMEM;
        if (a) {
            *a = (worker_arg){p, i};
            e = pthread_create(&p->thread[i], NULL, worker_main, a);
        }
        if (e != 0) {
            free(a);
            fl_pool_destroy(&p);
            return FL_FAIL(err, FL_E_NOMEM, e, "thread %d of %d cannot be started: %s", i + 1,
                           n_threads, strerror(e));
        }
        p->n_threads = i + 1;
    }
    *out = p;
    return FL_OK;
}

void fl_pool_destroy(fl_pool **pool)
{
    fl_pool *p = *pool;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    atomic_fetch_add(&p->epoch, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < p->n_threads; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    free(p);
    *pool = NULL;
}

int fl_pool_threads(const fl_pool *pool) { return pool->n_threads; }

void fl_pool_run(fl_pool *p, fl_task_fn fn, void *arg, int n_tasks)
{
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (int t = 0; t < n_tasks; t++) fn(arg, t, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    run_tasks(p, fn, arg, n_tasks, 0);
    pthread_mutex_lock(&p->lock);
    p->fn = NULL; /* a worker that wakes now finds no job and goes back to sleep */
    while (p->active) pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
