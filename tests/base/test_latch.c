/* Latches: what was written before is seen after; short waits that spin and long ones that sleep;
 * many waiters. */
#include "runtime/base/latch.h"

#include <pthread.h>
#include <time.h>

#include "tests/support/test.h"

enum { WAITERS = 4, PARTS = 3 };

typedef struct shared {
    fl_latch latch;
    int part[PARTS]; /* plain: the thread sanitizer watches the order */
    int sum[WAITERS];
    atomic_int started;
    long pause_ns; /* of each writer, before it arrives */
} shared;

typedef struct one {
    pthread_t thread;
    shared *s;
    int index;
} one;

static void rest(long ns)
{
    const struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

static int sum_of(const shared *s)
{
    int sum = 0;
    for (int i = 0; i < PARTS; i++) sum += s->part[i];
    return sum;
}

static void *wait_for_all(void *arg)
{
    const one *o = arg;
    atomic_fetch_add(&o->s->started, 1);
    fl_latch_wait(&o->s->latch);
    o->s->sum[o->index] = sum_of(o->s);
    return NULL;
}

static void *wait_for_change(void *arg)
{
    const one *o = arg;
    atomic_fetch_add(&o->s->started, 1);
    fl_latch_wait_change(&o->s->latch, 7);
    o->s->sum[o->index] = sum_of(o->s);
    return NULL;
}

static void *write_part(void *arg)
{
    const one *o = arg;
    rest(o->s->pause_ns);
    o->s->part[o->index] = 10 + o->index;
    fl_latch_arrive(&o->s->latch, (unsigned)o->index + 1);
    return NULL;
}

static void start(one *o, int n, shared *s, void *(*fn)(void *))
{
    for (int i = 0; i < n; i++) {
        o[i] = (one){.s = s, .index = i};
        assert_int_equal(pthread_create(&o[i].thread, NULL, fn, &o[i]), 0);
    }
}

static void join(const one *o, int n)
{
    for (int i = 0; i < n; i++) pthread_join(o[i].thread, NULL);
}

static void all_sums_are_whole(const shared *s)
{
    for (int i = 0; i < WAITERS; i++) assert_int_equal(s->sum[i], 10 + 11 + 12);
}

static void a_count_lets_go_when_all_are_there(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        shared s = {.pause_ns = round % 3 == 0 ? 0 : round % 3 == 1 ? 20000 : 2000000};
        one waiter[WAITERS], writer[PARTS];
        fl_latch_set(&s.latch, 1 + 2 + 3);
        start(waiter, WAITERS, &s, wait_for_all);
        start(writer, PARTS, &s, write_part);
        join(writer, PARTS);
        join(waiter, WAITERS);
        all_sums_are_whole(&s);
        assert_int_equal(atomic_load(&s.latch.value), 0);
        assert_int_equal(atomic_load(&s.latch.sleepers), 0);
    }
}

static void a_change_lets_all_go(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        shared s = {0};
        one waiter[WAITERS];
        fl_latch_set(&s.latch, 7);
        start(waiter, WAITERS, &s, wait_for_change);
        if (round % 2) /* they sleep by then */
            for (rest(1000000); atomic_load(&s.started) < WAITERS;) rest(100000);
        for (int i = 0; i < PARTS; i++) s.part[i] = 10 + i;
        fl_latch_bump(&s.latch);
        join(waiter, WAITERS);
        all_sums_are_whole(&s);
        assert_int_equal(atomic_load(&s.latch.value), 8);
    }
}

static void nothing_to_wait_for(void **state)
{
    (void)state;
    fl_latch l = {0};
    fl_latch_wait(&l);
    fl_latch_wait_change(&l, 1);
    fl_latch_arrive(&l, 0);
    assert_int_equal(atomic_load(&l.value), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_count_lets_go_when_all_are_there),
        cmocka_unit_test(a_change_lets_all_go),
        cmocka_unit_test(nothing_to_wait_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
