#include <assert.h>
#include <stdatomic.h>

#include "runtime/base/pool.h"
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
        cmocka_unit_test(default_is_the_cores),
        cmocka_unit_test(bad_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
