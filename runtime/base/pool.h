#ifndef FL_BASE_POOL_H
#define FL_BASE_POOL_H

#include <stddef.h>

#include "runtime/base/status.h"

/* A pool of worker threads for one owner. The owner takes part, so `n_threads` = 1 starts no
 * thread. Workers spin briefly and then sleep. Results must not depend on which worker runs a
 * task: tasks write disjoint memory.
 *
 * Each worker is bound to a core of its own, the strongest kind first (cores.h); the first core is
 * left to the owner, whose own affinity is not touched: threads that it starts would inherit it. A
 * worker that keeps losing its core to other processes runs unbound for two seconds, or longer. */
typedef struct fl_pool fl_pool;

typedef void (*fl_task_fn)(void *arg, int task, int worker);

enum { FL_MAX_THREADS = 256 };

/* n_threads 0 = number of physical cores this process may use: by its affinity mask, and no more
 * than its control groups' quota of time. */
FL_CHECKED fl_status fl_pool_create(fl_pool **out, int n_threads, fl_err *err);
void fl_pool_destroy(fl_pool **pool);
int fl_pool_threads(const fl_pool *pool);

/* "4 threads (8 cores, workers on cpu 1-3)"; where there are several kinds of cores, each group of
 * cpus names its own. Cut off where `size` (at least 1) is too small. */
void fl_pool_describe(const fl_pool *pool, char *out, size_t size);

/* Runs fn(arg, t, worker) for t in [0, n_tasks) and returns when all are done. Tasks are handed out
 * in rising order, in ranges that shrink towards the end; a thread runs its range in rising order.
 * So a task may wait for a lower one. worker is in [0, threads): an index for per-worker scratch.
 * Only the owner thread calls. */
void fl_pool_run(fl_pool *pool, fl_task_fn fn, void *arg, int n_tasks);

#endif
