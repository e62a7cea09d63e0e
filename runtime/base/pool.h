#ifndef FL_BASE_POOL_H
#define FL_BASE_POOL_H

#include "runtime/base/status.h"

/* A pool of worker threads for one owner. The owner takes part, so `n_threads` = 1 starts no
 * thread. Workers spin briefly and then sleep. Results must not depend on which worker runs a
 * task: tasks write disjoint memory. */
typedef struct fl_pool fl_pool;

typedef void (*fl_task_fn)(void *arg, int task, int worker);

/* n_threads 0 = number of physical cores this process may use. */
FL_CHECKED fl_status fl_pool_create(fl_pool **out, int n_threads, fl_err *err);
void fl_pool_destroy(fl_pool **pool);
int fl_pool_threads(const fl_pool *pool);

/* Runs fn(arg, t, worker) for t in [0, n_tasks), in any order, and returns when all are done.
 * worker is in [0, threads): an index for per-worker scratch. Only the owner thread calls. */
void fl_pool_run(fl_pool *pool, fl_task_fn fn, void *arg, int n_tasks);

#endif
