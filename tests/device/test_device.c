/* The host device: the cap is hard and exact, copies run in order, the link rate holds. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clock.h"
#include "runtime/device/device.h"

static fl_device *open_host(uint64_t cap, uint64_t rate)
{
    fl_err err = {0};
    fl_device *dev;
    const fl_device_config cfg = {.kind = "host", .memory_cap = cap, .link_bytes_s = rate};
    if (fl_device_open(&dev, &cfg, &err) != FL_OK) fail_msg("%s", err.msg);
    return dev;
}

static void *take(fl_device *dev, uint64_t bytes)
{
    fl_err err = {0};
    void *p;
    if (fl_device_alloc(dev, bytes, "test", &p, &err) != FL_OK) fail_msg("%s", err.msg);
    return p;
}

static void test_open(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_device *dev;
    const fl_device_config other = {.kind = "abacus"};
    assert_int_equal(fl_device_open(&dev, &other, &err), FL_E_UNSUPPORTED);
    assert_null(dev);
    assert_non_null(strstr(err.msg, "--device abacus: this build has no such device"));
    dev = open_host(0, 0);
    assert_string_equal(fl_device_kind(dev), "host");
    assert_true(fl_device_budget(dev)->cap > 16 << 20); /* what is free now */
    assert_true(fl_device_budget(dev)->cap <
                (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) + 1);
    fl_device_close(&dev);
    assert_null(dev);
    fl_device_close(&dev); /* NULL is allowed */
}

static void test_cap_is_exact(void **state)
{
    (void)state;
    fl_device *dev = open_host(10000, 0);
    const fl_budget *b = fl_device_budget(dev);
    void *a = take(dev, 4097), *c = take(dev, 5903), *d;
    assert_int_equal(b->used, 10000);
    assert_int_equal((uintptr_t)a % 4096, 0);
    assert_int_equal((uintptr_t)c % 4096, 0);
    for (int i = 0; i < 4097; i++) assert_int_equal(((uint8_t *)a)[i], 0);
    fl_err err = {0};
    assert_int_equal(fl_device_alloc(dev, 1, "one byte more", &d, &err), FL_E_NOMEM);
    assert_null(d);
    assert_non_null(strstr(err.msg, "one byte more"));
    assert_non_null(strstr(err.msg, "10000"));
    fl_device_free(dev, &a);
    assert_null(a);
    assert_int_equal(b->used, 5903);
    a = take(dev, 4097);
    assert_int_equal(b->peak, 10000);
    fl_device_free(dev, &a);
    fl_device_free(dev, &c);
    fl_device_free(dev, &d);
    assert_int_equal(b->used, 0);
    fl_device_close(&dev);
}

static void test_machine_refuses(void **state)
{
    (void)state;
    fl_device *dev = open_host(UINT64_MAX, 0);
    fl_err err = {0};
    void *p;
    assert_int_equal(fl_device_alloc(dev, UINT64_C(1) << 60, "the moon", &p, &err), FL_E_NOMEM);
    assert_non_null(strstr(err.msg, "the moon"));
    assert_int_equal(fl_device_budget(dev)->used, 0);
    fl_device_close(&dev);
}

/* A chain: each copy reads what the one before it wrote, 2,000 of them through a queue of 256. */
static void test_copies_in_order(void **state)
{
    (void)state;
    enum { CELL = 64, N = 2000 };
    fl_device *dev = open_host((N + 1) * CELL, 0);
    uint8_t *m = take(dev, (N + 1) * CELL);
    fl_err err = {0};
    for (int i = 0; i < CELL; i++) m[i] = (uint8_t)(i * 7 + 1);
    fl_ticket t = 0, last = 0;
    assert_true(fl_device_done(dev, 0));
    for (int i = 0; i < N; i++) {
        assert_int_equal(
            fl_device_copy_async(dev, m + (i + 1) * CELL, m + i * CELL, CELL, &t, &err), FL_OK);
        assert_true(t > last);
        last = t;
    }
    assert_int_equal(fl_device_wait(dev, t, &err), FL_OK);
    assert_true(fl_device_done(dev, t) && fl_device_done(dev, 1));
    assert_memory_equal(m, m + N * CELL, CELL);
    assert_int_equal(fl_device_bytes_copied(dev), N * CELL);
    assert_int_equal(fl_device_copy_async(dev, m, m, 0, &t, &err), FL_OK); /* nothing to move */
    assert_int_equal(fl_device_wait(dev, t, &err), FL_OK);
    assert_int_equal(fl_device_wait(dev, 1, &err), FL_OK);
    void *p = m;
    fl_device_free(dev, &p);
    fl_device_close(&dev);
}

static void test_pinning(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_device *dev;
    /* Never touched: the host device only counts. */
    uint8_t *memory = (uint8_t *)(uintptr_t)(UINT64_C(1) << 40);
    const uint64_t bytes = 3 * FL_PIN_CHUNK + 4096;
    for (int refuse = 0; refuse <= 5; refuse++) {
        const fl_device_config cfg = {.memory_cap = 4096, .refuse_pin = refuse};
        assert_int_equal(fl_device_open(&dev, &cfg, &err), FL_OK);
        const uint64_t pinned = fl_device_pin(dev, memory, bytes);
        assert_int_equal(
            pinned, refuse == 0 || refuse == 5 ? bytes : (uint64_t)(refuse - 1) * FL_PIN_CHUNK);
        const uint64_t more = fl_device_pin(dev, memory, 4096);
        assert_int_equal(more, refuse == 0 ? 4096 : 0); /* refused once, refused again */
        fl_device_unpin(dev, memory, pinned);
        fl_device_unpin(dev, memory, more);
        fl_device_close(&dev);
    }
}

static void test_link_rate(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    fl_device *dev = open_host(2 * BYTES, 20u << 20); /* 1 MiB takes 50 ms */
    uint8_t *src = malloc(BYTES);
    void *dst = take(dev, 2 * BYTES);
    memset(src, 0x5a, BYTES);
    fl_err err = {0};
    fl_ticket t1, t2;
    const uint64_t start = fl_clock_ns();
    assert_int_equal(fl_device_copy_async(dev, dst, src, BYTES, &t1, &err), FL_OK);
    assert_int_equal(fl_device_copy_async(dev, (uint8_t *)dst + BYTES, src, BYTES, &t2, &err),
                     FL_OK);
    assert_false(fl_device_done(dev, t2)); /* asynchronous */
    assert_int_equal(fl_device_wait(dev, t2, &err), FL_OK);
    assert_true(fl_clock_ns() - start >= 99 * 1000000u);
    assert_true(fl_device_copy_ns(dev) >= 49 * 1000000u);
    assert_memory_equal((uint8_t *)dst + BYTES, src, BYTES);
    /* An idle link saves nothing up. */
    const struct timespec nap = {.tv_nsec = 60 * 1000000};
    nanosleep(&nap, NULL);
    const uint64_t again = fl_clock_ns();
    assert_int_equal(fl_device_copy_async(dev, dst, src, BYTES, &t1, &err), FL_OK);
    assert_int_equal(fl_device_wait(dev, t1, &err), FL_OK);
    assert_true(fl_clock_ns() - again >= 49 * 1000000u);
    fl_device_free(dev, &dst);
    free(src);
    fl_device_close(&dev);
}

/* Freeing memory that a queued copy writes, and closing with a full queue, both wait. */
static void test_free_waits(void **state)
{
    (void)state;
    enum { BYTES = 1 << 18, N = 40 };
    fl_device *dev = open_host(0, UINT64_C(1) << 30);
    uint8_t *src = calloc(1, BYTES);
    void *dst = take(dev, BYTES);
    fl_err err = {0};
    fl_ticket t;
    for (int i = 0; i < N; i++)
        assert_int_equal(fl_device_copy_async(dev, dst, src, BYTES, &t, &err), FL_OK);
    fl_device_free(dev, &dst);
    assert_int_equal(fl_device_bytes_copied(dev), (uint64_t)N * BYTES);
    fl_device_close(&dev);
    free(src);
}

#ifdef __SANITIZE_ADDRESS__ /* the library keeps its asserts in this variant */
static void test_leak_is_caught(void **state)
{
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        fl_device *dev = open_host(4096, 0);
        (void)take(dev, 100);
        fl_device_close(&dev);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
#endif

/* 100 KB at 1 MB/s: given up after 5 ms, and complete later. */
static void test_link_hangs(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_ticket t;
    static uint8_t src[100000];
    memset(src, 7, sizeof(src));
    fl_device *dev = open_host(1 << 20, 1000000);
    void *dst = take(dev, sizeof(src));
    fl_device_set_limit(dev, 5000000);
    assert_int_equal(fl_device_copy_async(dev, dst, src, sizeof(src), &t, &err), FL_OK);
    assert_int_equal(fl_device_wait(dev, t, &err), FL_E_STALLED);
    assert_non_null(strstr(err.msg, "none of 1 copies was completed"));
    assert_int_equal(fl_device_copies_queued(dev), 1);
    assert_false(fl_device_done(dev, t));
    fl_device_set_limit(dev, UINT64_C(20000000000));
    assert_int_equal(fl_device_wait(dev, t, NULL), FL_OK);
    assert_memory_equal(dst, src, sizeof(src));
    assert_int_equal(fl_device_copies_queued(dev), 0);
    fl_device_free(dev, &dst);
    fl_device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef __SANITIZE_ADDRESS__
        cmocka_unit_test(test_leak_is_caught),
#endif
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_cap_is_exact),
        cmocka_unit_test(test_machine_refuses),
        cmocka_unit_test(test_copies_in_order),
        cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_link_rate),
        cmocka_unit_test(test_link_hangs),
        cmocka_unit_test(test_free_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
