#include "runtime/base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "tests/support/test.h"

enum { TASKS = 1000 };

typedef struct job {
    int done[TASKS];
    atomic_int in_worker[8];
    int n_threads;
} job;

static void count(void *arg, int task, int worker)
{
    job *j = arg;
    assert(worker >= 0 && worker < j->n_threads);
    j->done[task]++; /* disjoint: the thread sanitizer would see a task run twice */
    atomic_fetch_add(&j->in_worker[worker], 1);
}

static void each_task_runs_once(void **state)
{
    (void)state;
    fl_err err;
    for (int n = 1; n <= 4; n++) {
        fl_pool *p;
        ASSERT_OK(fl_pool_create(&p, n, &err));
        assert_int_equal(fl_pool_threads(p), n);
        for (int round = 0; round < 200; round++) {
            job j = {.n_threads = n};
            const int tasks = round % 7 == 0 ? round % 3 : TASKS - round;
            fl_pool_run(p, count, &j, tasks);
            for (int t = 0; t < TASKS; t++) assert_int_equal(j.done[t], t < tasks);
        }
        fl_pool_destroy(&p);
        assert_null(p);
    }
}

/* ---- order ---- */

enum { STEPS = 300 };

typedef struct chain {
    atomic_int done[STEPS];
    int sum[STEPS];
} chain;

/* Each task of the second half waits for one of the first: none of those can be behind it. */
static void link_task(void *arg, int task, int worker)
{
    chain *c = arg;
    (void)worker;
    if (task >= STEPS / 2)
        while (!atomic_load(&c->done[task - STEPS / 2])) sched_yield();
    c->sum[task] = task < STEPS / 2 ? task : 2 * c->sum[task - STEPS / 2];
    atomic_store(&c->done[task], 1);
}

static void a_task_may_wait_for_a_lower_one(void **state)
{
    (void)state;
    fl_err err;
    for (int n = 1; n <= 5; n += 2) {
        fl_pool *p;
        ASSERT_OK(fl_pool_create(&p, n, &err));
        for (int round = 0; round < 20; round++) {
            chain c = {.sum = {0}};
            fl_pool_run(p, link_task, &c, STEPS);
            for (int t = 0; t < STEPS / 2; t++) assert_int_equal(c.sum[STEPS / 2 + t], 2 * t);
        }
        fl_pool_destroy(&p);
    }
}

static void idle_rest(void)
{
    const struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
}

/* Workers that fell asleep come back, and an owner that waits long sleeps too. */
static void slow_task(void *arg, int task, int worker)
{
    (void)worker;
    idle_rest();
    ((int *)arg)[task] = 1;
}

static void sleepers_wake_up(void **state)
{
    (void)state;
    fl_err err;
    fl_pool *p;
    ASSERT_OK(fl_pool_create(&p, 3, &err));
    for (int round = 0; round < 20; round++) {
        int done[4] = {0};
        idle_rest();
        fl_pool_run(p, slow_task, done, 4);
        for (int t = 0; t < 4; t++) assert_int_equal(done[t], 1);
    }
    fl_pool_destroy(&p);
}

/* ---- where threads run ---- */

typedef struct masks {
    atomic_int arrived;
    int n;
    cpu_set_t of[8];
} masks;

/* As many tasks as threads, each waiting for all: every thread runs one. */
static void mask_task(void *arg, int task, int worker)
{
    masks *m = arg;
    (void)task;
    assert(sched_getaffinity(0, sizeof m->of[worker], &m->of[worker]) == 0);
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < m->n) sched_yield();
}

static void get_masks(fl_pool *p, masks *m)
{
    *m = (masks){.n = fl_pool_threads(p)};
    fl_pool_run(p, mask_task, m, m->n);
}

static int first_of(const cpu_set_t *set)
{
    int i = 0;
    while (!CPU_ISSET(i, set)) i++;
    return i;
}

/* Three threads where one processor, then where all of them are allowed. */
static void check_bound(const cpu_set_t *allowed)
{
    fl_err err;
    fl_pool *p;
    masks m;
    char text[256];
    assert_int_equal(sched_setaffinity(0, sizeof *allowed, allowed), 0);
    ASSERT_OK(fl_pool_create(&p, 3, &err));
    get_masks(p, &m);
    fl_pool_describe(p, text, sizeof text);
    assert_true(CPU_EQUAL(&m.of[0], allowed)); /* the owner stays as it was */
    const bool known = strstr(text, "workers on cpu") != NULL;
    if (CPU_COUNT(allowed) == 1) {
        assert_string_equal(text, "3 threads (1 core, 2 not bound)");
        for (int i = 1; i < 3; i++) assert_true(CPU_EQUAL(&m.of[i], allowed));
    } else if (known) {
        assert_int_equal(CPU_COUNT(&m.of[1]), 1);
        assert_true(CPU_ISSET(first_of(&m.of[1]), allowed));
        assert_int_equal(CPU_COUNT(&m.of[2]), CPU_COUNT(allowed) > 2 ? 1 : CPU_COUNT(allowed));
        if (CPU_COUNT(allowed) > 2) assert_false(CPU_EQUAL(&m.of[1], &m.of[2]));
    }
    fl_pool_destroy(&p);
}

static void workers_are_bound_within_the_mask(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    check_bound(&all);
    CPU_ZERO(&one);
    CPU_SET(first_of(&all), &one);
    check_bound(&one);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static atomic_bool hog_ends;

static void *hog(void *arg)
{
    (void)arg;
    while (!atomic_load_explicit(&hog_ends, memory_order_relaxed)) {}
    return NULL;
}

static void some_work(void *arg, int task, int worker)
{
    (void)arg, (void)task, (void)worker;
    const uint64_t start = fl_clock_ns();
    while (fl_clock_ns() - start < 20000) {}
}

/* Works until the worker's mask has one processor, or more than one; false after a minute. */
static bool work_until(fl_pool *p, bool bound)
{
    const uint64_t start = fl_clock_ns();
    masks m;
    do {
        fl_pool_run(p, some_work, NULL, 40);
        get_masks(p, &m);
        if ((CPU_COUNT(&m.of[1]) == 1) == bound) return true;
    } while (fl_clock_ns() - start < 60000000000u);
    return false;
}

static void a_worker_leaves_a_core_that_it_keeps_losing(void **state)
{
    (void)state;
    fl_err err;
    fl_pool *p;
    masks m;
    pthread_t thread[2];
    ASSERT_OK(fl_pool_create(&p, 2, &err));
    get_masks(p, &m);
    if (CPU_COUNT(&m.of[0]) > 1 && CPU_COUNT(&m.of[1]) == 1) {
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_create(&thread[i], NULL, hog, NULL), 0);
            assert_int_equal(pthread_setaffinity_np(thread[i], sizeof m.of[1], &m.of[1]), 0);
        }
        assert_true(work_until(p, false));
        atomic_store(&hog_ends, true);
        for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
        assert_true(work_until(p, true));
    }
    fl_pool_destroy(&p);
}

static void it_is_described(void **state)
{
    (void)state;
    fl_err err;
    fl_pool *p;
    char text[256], cut[12];
    int threads = 0, cores = 0;
    ASSERT_OK(fl_pool_create(&p, 1, &err));
    fl_pool_describe(p, text, sizeof text);
    assert_int_equal(sscanf(text, "%d thread (%d core", &threads, &cores), 2);
    assert_int_equal(threads, 1);
    fl_pool_destroy(&p);
    ASSERT_OK(fl_pool_create(&p, 0, &err));
    assert_in_range(fl_pool_threads(p), 1, cores);
    fl_pool_destroy(&p);
    ASSERT_OK(fl_pool_create(&p, 40, &err));
    fl_pool_describe(p, text, sizeof text);
    assert_memory_equal(text, "40 threads (", 12);
    fl_pool_describe(p, cut, sizeof cut);
    assert_string_equal(cut, "40 threads ");
    fl_pool_destroy(&p);
}

static void default_is_the_cores(void **state)
{
    (void)state;
    fl_err err;
    fl_pool *p;
    ASSERT_OK(fl_pool_create(&p, 0, &err));
    assert_true(fl_pool_threads(p) >= 1);
    fl_pool_destroy(&p);
    fl_pool_destroy(&p); /* NULL is fine */
}

static void bad_counts_are_refused(void **state)
{
    (void)state;
    fl_err err;
    fl_pool *p;
    ASSERT_FAILS(fl_pool_create(&p, -1, &err), FL_E_ARG, "--threads -1");
    ASSERT_FAILS(fl_pool_create(&p, 257, &err), FL_E_ARG, "1 to 256");
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_runs_once),
        cmocka_unit_test(a_task_may_wait_for_a_lower_one),
        cmocka_unit_test(sleepers_wake_up),
        cmocka_unit_test(workers_are_bound_within_the_mask),
        cmocka_unit_test(a_worker_leaves_a_core_that_it_keeps_losing),
        cmocka_unit_test(it_is_described),
        cmocka_unit_test(default_is_the_cores),
        cmocka_unit_test(bad_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
