/* Every backend reads the same files; each fallback is taken aloud; every fault is found. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "offload/io.h"
#include "offload/io_fake.h"
#include "tests/support/refuse.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_FILES = 3, DEPTH = 8, ROOM = 256 * 1024 };
/* "uring" comes last and only where the kernel grants it; test_uring_is_here says when it does
 * not. */
static const char *const backends[] = {"pread", "buffered", "fake", "uring"};
static size_t n_backends = 4;
static const uint64_t sizes[N_FILES] = {(1 << 20) + 123, 5000, 1};

static char *dir;
static char *paths[N_FILES];
static uint8_t *content[N_FILES];
static uint8_t *arena; /* DEPTH * ROOM */
static uint64_t seed = 7;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static void write_files(const char *folder, char *out[N_FILES])
{
    static const char *const names[N_FILES] = {"large.bin", "odd.bin", "one.bin"};
    for (int f = 0; f < N_FILES; f++) {
        out[f] = fl_tmp_path(folder, names[f]);
        fl_tmp_write(out[f], content[f], sizes[f]);
    }
}

static fl_io *open_io(const char *backend, int depth)
{
    fl_err err;
    fl_io *io;
    ASSERT_OK(fl_io_open(&io, backend, (const char *const *)paths, N_FILES, depth, &err));
    return io;
}

static bool right(const fl_extent *x, const uint8_t *data)
{
    return memcmp(data, content[x->file] + x->offset, x->bytes) == 0;
}

/* `n` random extents, DEPTH at a time, each compared byte by byte; returns how many were wrong. */
static int read_many(fl_io *io, int n, fl_err *err)
{
    const int depth = fl_io_depth(io);
    fl_extent x[DEPTH];
    bool busy[DEPTH] = {false};
    int sent = 0, got = 0, wrong = 0;
    while (got < n) {
        for (int s = 0; s < depth && sent < n; s++) {
            if (busy[s]) continue;
            x[s].file = (int32_t)rnd(N_FILES);
            const uint64_t size = sizes[x[s].file];
            x[s].offset = rnd((uint32_t)size);
            x[s].bytes = 1 + rnd((uint32_t)(size - x[s].offset));
            if (rnd(4) == 0) x[s].bytes = size - x[s].offset; /* up to the end of the file */
            if (x[s].bytes > ROOM - 8192) x[s].bytes = ROOM - 8192;
            uint8_t *dst = arena + (size_t)s * ROOM;
            memset(dst, 0xee, 64);
            if (fl_io_submit(io, &x[s], dst, (uint64_t)s, err) != FL_OK) return -1;
            busy[s] = true;
            sent++;
        }
        fl_io_done done[DEPTH];
        int k;
        const int min = (int)rnd(2), max = 1 + (int)rnd(DEPTH);
        if (fl_io_wait(io, done, min, max, &k, err) != FL_OK) return -1;
        if (k < min || k > max) return -1;
        for (int i = 0; i < k; i++) {
            const int s = (int)done[i].tag;
            const uint8_t *at = arena + (size_t)s * ROOM + x[s].offset % fl_io_align(io);
            wrong += !busy[s] || done[i].data != at || !right(&x[s], done[i].data);
            busy[s] = false;
            got++;
        }
    }
    return wrong;
}

static void test_uring_is_here(void **state)
{
    (void)state;
    if (n_backends < 4) skip();
    fl_io *io = open_io(NULL, DEPTH);
    assert_string_equal(fl_io_backend(io), "uring");
    fl_io_close(&io);
}

static void test_all_read_the_same(void **state)
{
    (void)state;
    fl_err err = {0};
    for (size_t b = 0; b < n_backends; b++) {
        fl_io *io = open_io(backends[b], DEPTH);
        assert_string_equal(fl_io_backend(io), backends[b]);
        assert_in_range(fl_io_align(io), 512, 4096);
        assert_int_equal(fl_io_cover(io, 0, 1), fl_io_align(io));
        assert_int_equal(fl_io_cover(io, fl_io_align(io) - 1, 2), 2 * fl_io_align(io));
        const int wrong = read_many(io, 200, &err);
        if (wrong) fail_msg("%s: %d wrong: %s", backends[b], wrong, err.msg);
        const fl_io_stats s = fl_io_get_stats(io);
        assert_int_equal(s.reads, 200);
        assert_true(s.bytes > 200 && s.busy_ns > 0);
        assert_int_equal(fl_io_in_flight(io), 0);
        fl_io_close(&io);
        assert_null(io);
    }
}

static void test_depth(void **state)
{
    (void)state;
    fl_err err = {0};
    for (size_t b = 0; b < n_backends; b++) {
        fl_io *io = open_io(backends[b], 2);
        const fl_extent x = {.file = 0, .offset = 777, .bytes = 100000};
        fl_io_done done[4];
        int n;
        ASSERT_OK(
            fl_io_wait(io, done, 1, 4, &n, &err)); /* nothing in flight: nothing to wait for */
        assert_int_equal(n, 0);
        ASSERT_OK(fl_io_submit(io, &x, arena, 1, &err));
        ASSERT_OK(fl_io_submit(io, &x, arena + ROOM, 2, &err));
        assert_int_equal(fl_io_submit(io, &x, arena + 2 * ROOM, 3, &err), FL_E_BUSY);
        assert_int_equal(err.code, FL_OK);
        assert_int_equal(fl_io_in_flight(io), 2);
        ASSERT_OK(fl_io_wait(io, done, 2, 4, &n, &err));
        assert_int_equal(n, 2);
        assert_int_equal(done[0].tag + done[1].tag, 3);
        ASSERT_OK(fl_io_submit(io, &x, arena + 2 * ROOM, 3, &err));
        ASSERT_OK(fl_io_submit(io, &x, arena, 4, &err));
        fl_io_close(&io); /* with two reads in flight */
    }
}

static void test_open_errors(void **state)
{
    (void)state;
    fl_err err;
    fl_io *io;
    char *missing = fl_tmp_path(dir, "missing.bin");
    const char *bad[2] = {paths[0], missing};
    ASSERT_FAILS(fl_io_open(&io, NULL, bad, 2, DEPTH, &err), FL_E_IO, "missing.bin");
    assert_null(io);
    bad[1] = dir;
    ASSERT_FAILS(fl_io_open(&io, "pread", bad, 2, DEPTH, &err), err.code, dir);
    assert_int_not_equal(err.code, FL_OK);
    ASSERT_FAILS(fl_io_open(&io, "smoke", bad, 1, DEPTH, &err), FL_E_ARG, "smoke");
    free(missing);
}

static void test_past_the_end(void **state)
{
    (void)state;
    fl_err err;
    for (size_t b = 0; b < n_backends; b++) {
        fl_io *io = open_io(backends[b], DEPTH);
        const fl_extent bad[] = {{1, 4000, 1001},
                                 {1, 5000, 1},
                                 {1, UINT64_MAX - 3, 4},
                                 {1, 4, UINT64_MAX - 3},
                                 {1, 1u << 30, 4096}};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            ASSERT_FAILS(fl_io_submit(io, &bad[i], arena, 0, &err), FL_E_FORMAT, "odd.bin");
            assert_non_null(strstr(err.msg, "5000"));
        }
        assert_int_equal(fl_io_in_flight(io), 0);
        fl_io_close(&io);
    }
}

/* One read that must fail since the file was changed. */
static void refuse_changed(fl_io *io, const fl_extent *x, const char *words)
{
    fl_err err;
    fl_io_done done;
    int n;
    ASSERT_OK(fl_io_submit(io, x, arena, 5, &err));
    ASSERT_FAILS(fl_io_wait(io, &done, 1, 1, &n, &err), FL_E_IO, words);
    assert_non_null(strstr(err.msg, "changes.bin"));
    assert_non_null(strstr(err.msg, "changed while in use"));
    assert_int_equal(n, 1);
    assert_int_equal(done.status, FL_E_IO);
    assert_int_equal(done.tag, 5);
}

static fl_io *open_changing(const char *backend, const char *path)
{
    fl_err err;
    fl_io *io;
    uint8_t *data = calloc(1, sizes[0]);
    fl_tmp_write(path, data, sizes[0]);
    free(data);
    ASSERT_OK(fl_io_open(&io, backend, &path, 1, DEPTH, &err));
    return io;
}

/* The file is cut while it is open: at an aligned place, at an odd one, to nothing. */
static void test_file_shrinks(void **state)
{
    (void)state;
    const uint64_t cuts[] = {524288, 524288 + 1234, 600001, 0};
    char *path = fl_tmp_path(dir, "changes.bin");
    for (size_t b = 0; b < n_backends; b++)
        for (size_t c = 0; c < 4; c++) {
            fl_io *io = open_changing(backends[b], path);
            assert_int_equal(truncate(path, (off_t)cuts[c]), 0);
            char found[64];
            snprintf(found, sizeof found, "ends at %llu, expected 1048699",
                     (unsigned long long)cuts[c]);
            refuse_changed(io, &(fl_extent){.offset = 524289, .bytes = 200000}, found);
            /* What is left is not what was there either. */
            if (cuts[c]) refuse_changed(io, &(fl_extent){.offset = 100, .bytes = 100}, found);
            fl_io_close(&io);
        }
    free(path);
}

/* Written over in place, by the same number of bytes; or longer. */
static void test_file_is_written(void **state)
{
    (void)state;
    char *path = fl_tmp_path(dir, "changes.bin");
    const fl_extent x = {.offset = 5000, .bytes = 200000};
    for (size_t b = 0; b < n_backends; b++) {
        fl_io *io = open_changing(backends[b], path);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* a file system's clock ticks */
        fl_tmp_write(path, content[0], sizes[0]);
        refuse_changed(io, &x, "written to");
        fl_io_close(&io);
        io = open_changing(backends[b], path);
        assert_int_equal(truncate(path, (off_t)sizes[0] + 1), 0);
        refuse_changed(io, &x, "ends at 1048700, expected 1048699");
        fl_io_close(&io);
    }
    free(path);
}

/* ---- the fake's faults ---- */

static void test_storm(void **state)
{
    (void)state;
    fl_err err = {0};
    for (uint64_t s = 1; s <= 10; s++) {
        fl_io *io = open_io("fake", DEPTH);
        fl_io_fake_set(io, &(fl_io_fake_config){.seed = s,
                                                .short_chance = 400,
                                                .again_chance = 200,
                                                .fail_at = -1,
                                                .reorder = true,
                                                .stall_chance = 300,
                                                .stall_polls = 9});
        const int wrong = read_many(io, 200, &err);
        if (wrong) fail_msg("seed %d: %d wrong: %s", (int)s, wrong, err.msg);
        assert_true(fl_io_get_stats(io).short_reads > 10);
        assert_true(fl_io_get_stats(io).retries > 10);
        fl_io_close(&io);
    }
}

/* An error that passes is not seen; one that stays is, after four tries; one that cannot pass, at
 * once. */
static void test_tries(void **state)
{
    (void)state;
    fl_err err = {0};
    const struct {
        int sys, more, tries;
        bool good;
    } t[] = {{EIO, 0, 1, true},    {EIO, 2, 3, true},    {EIO, 3, 3, false},
             {ENOMEM, 2, 3, true}, {EBADF, 0, 0, false}, {EINVAL, 0, 0, false}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        fl_io *io = open_io("fake", DEPTH);
        const fl_extent x = {.file = 0, .offset = 5000, .bytes = 9000};
        fl_io_done d;
        int n;
        fl_io_fake_set(
            io, &(fl_io_fake_config){.fail_at = 0, .fail_more = t[i].more, .fail_errno = t[i].sys});
        ASSERT_OK(fl_io_submit(io, &x, arena, 1, &err));
        const fl_status st = fl_io_wait(io, &d, 1, 1, &n, &err);
        assert_int_equal(st, t[i].good ? FL_OK : FL_E_IO);
        assert_int_equal(n, 1);
        assert_int_equal(fl_io_get_stats(io).retries, t[i].tries);
        if (t[i].good)
            assert_true(right(&x, d.data));
        else
            assert_int_equal(err.sys, t[i].sys);
        assert_int_equal(strstr(err.msg, "again and again") != NULL, !t[i].good && t[i].tries);
        fl_io_close(&io);
    }
}

static void test_eio(void **state)
{
    (void)state;
    fl_err err = {0};
    fl_io *io = open_io("fake", DEPTH);
    fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = 2, .fail_more = INT_MAX, .fail_errno = EIO});
    for (uint64_t i = 0; i < 5; i++) {
        const fl_extent x = {.file = 0, .offset = 10000 * i, .bytes = 900};
        ASSERT_OK(fl_io_submit(io, &x, arena + i * ROOM, i, &err));
    }
    fl_io_done done[5];
    int n;
    ASSERT_FAILS(fl_io_wait(io, done, 5, 5, &n, &err), FL_E_IO, "offset 20000");
    assert_int_equal(err.sys, EIO);
    assert_non_null(strstr(err.msg, "large.bin"));
    assert_int_equal(n, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(done[i].status, done[i].tag == 2 ? FL_E_IO : FL_OK);
    const fl_extent again = {.file = 0, .offset = 20000, .bytes = 900};
    fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = -1});
    ASSERT_OK(fl_io_submit(io, &again, arena, 2, &err));
    ASSERT_OK(fl_io_wait(io, done, 1, 1, &n, &err));
    assert_true(right(&again, done[0].data));
    /* A drive that is busy for ever is an error, not a hang. */
    fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = -1, .again_chance = 1024});
    ASSERT_OK(fl_io_submit(io, &again, arena, 2, &err));
    ASSERT_FAILS(fl_io_wait(io, done, 1, 1, &n, &err), FL_E_IO, "large.bin");
    /* Reads that bring nothing although the file is long enough: the same. */
    fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = -1, .short_chance = 1024});
    const fl_extent tiny = {.file = 2, .offset = 0, .bytes = 1};
    ASSERT_OK(fl_io_submit(io, &tiny, arena, 2, &err));
    ASSERT_FAILS(fl_io_wait(io, done, 1, 1, &n, &err), FL_E_IO, "does not go on");
    fl_io_close(&io);
}

/* ---- a drive that hangs ---- */

static const uint64_t MS = 1000000;
static const fl_extent hung[2] = {{.file = 0, .offset = 5000, .bytes = 9000},
                                  {.file = 0, .offset = 70000, .bytes = 9000}};

static fl_io *open_hanging(uint64_t stall_ns, uint64_t limit_ns)
{
    fl_err err;
    fl_io *io = open_io("fake", DEPTH);
    fl_io_fake_set(io,
                   &(fl_io_fake_config){.fail_at = -1, .stall_chance = 1024, .stall_ns = stall_ns});
    fl_io_set_limit(io, limit_ns);
    for (uint64_t i = 0; i < 2; i++)
        ASSERT_OK(fl_io_submit(io, &hung[i], arena + i * ROOM, i, &err));
    return io;
}

static void test_hangs(void **state)
{
    (void)state;
    fl_err err;
    fl_io_done d[2];
    fl_text t = {0};
    int n;
    fl_io *io = open_hanging(UINT64_MAX, 20 * MS);
    ASSERT_OK(fl_io_wait(io, d, 0, 2, &n, &err)); /* a poll is no wait */
    for (int again = 0; again < 2; again++) {
        ASSERT_FAILS(fl_io_wait(io, d, 1, 2, &n, &err), FL_E_STALLED, "large.bin");
        assert_non_null(strstr(err.msg, "9000 bytes at offset 5000"));
        assert_non_null(strstr(err.msg, "none of 2 reads"));
        assert_int_equal(n, 0);
        assert_int_equal(fl_io_in_flight(io), 2);
    }
    fl_io_describe(io, &t);
    assert_non_null(memmem(t.p, t.n, "9000 bytes at offset 70000, 0 of them there, for 0.", 51));
    fl_text_fini(&t);
    /* The drive moves again: nothing was lost. */
    fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = -1});
    ASSERT_OK(fl_io_wait(io, d, 2, 2, &n, &err));
    assert_int_equal(n, 2);
    for (int i = 0; i < 2; i++) assert_true(right(&hung[d[i].tag], d[i].data));
    fl_io_close(&io);
}

/* Slow is not hung, and what hangs beside others that move is waited for while they do. */
static void test_slow(void **state)
{
    (void)state;
    fl_err err;
    fl_io_done d[2];
    int n;
    fl_io *io = open_hanging(40 * MS, 2000 * MS);
    ASSERT_OK(fl_io_wait(io, d, 2, 2, &n, &err));
    assert_int_equal(n, 2);
    fl_io_close(&io);
    io = open_hanging(UINT64_MAX, 20 * MS);
    fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = -1, .stall_ns = 1}); /* only new ones */
    ASSERT_OK(fl_io_submit(io, &hung[0], arena + 2 * ROOM, 2, &err));
    ASSERT_OK(fl_io_wait(io, d, 2, 2, &n, &err));
    assert_int_equal(n, 1);
    assert_int_equal(d[0].tag, 2);
    ASSERT_FAILS(fl_io_wait(io, d, 1, 2, &n, &err), FL_E_STALLED, "none of 2 reads");
    fl_io_fake_set(io, &(fl_io_fake_config){.fail_at = -1});
    fl_io_close(&io);
}

/* Real reads, given up at once: they come later, complete. */
static void test_impatient(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++) {
        fl_err err;
        fl_io *io = open_io(backends[b], DEPTH);
        fl_io_set_limit(io, 1);
        for (uint64_t i = 0; i < 2; i++)
            ASSERT_OK(fl_io_submit(io, &hung[i], arena + i * ROOM, i, &err));
        for (int got = 0; got < 2;) {
            fl_io_done d;
            int n;
            const fl_status st = fl_io_wait(io, &d, 1, 1, &n, &err);
            assert_true(st == FL_OK || (st == FL_E_STALLED && n == 0));
            if (n) assert_true(right(&hung[d.tag], d.data));
            got += n;
        }
        fl_io_close(&io);
    }
}

static bool child_closes_hanging(void *arg)
{
    (void)arg;
    fl_io *io = open_hanging(UINT64_MAX, 5 * MS);
    fl_io_close(&io); /* does not wait for ever */
    return io == NULL;
}

static void test_close_hanging(void **state)
{
    (void)state;
    assert_true(fl_in_child(child_closes_hanging, NULL));
}

/* ---- what the kernel may refuse ---- */

#define CHECK(cond)                                                 \
    do {                                                            \
        if (!(cond)) {                                              \
            fprintf(stderr, "# line %d: %s: %s\n", __LINE__, #cond, \
                    err.code != FL_OK ? err.msg : "");              \
            return false;                                           \
        }                                                           \
    } while (0)

static bool child_no_direct(void *arg)
{
    fl_err err = {0};
    const char *backend = arg;
    fl_io *io = NULL;
    fl_refuse(&(fl_refusal){SYS_fcntl, 2, O_DIRECT, O_DIRECT, EINVAL});
    CHECK(fl_io_open(&io, backend, (const char *const *)paths, N_FILES, DEPTH, &err) == FL_OK);
    CHECK(fl_io_note(io) &&
          strstr(fl_io_note(io), "large.bin: O_DIRECT refused (Invalid argument)"));
    CHECK(strstr(fl_io_fallback(io), "O_DIRECT refused")); /* of the first file alone */
    CHECK(strstr(strstr(fl_io_fallback(io), "O_DIRECT") + 1, "O_DIRECT") == NULL);
    CHECK(strcmp(fl_io_backend(io), backend) == 0);
    CHECK(read_many(io, 100, &err) == 0);
    fl_io_close(&io);
    return true;
}

static void test_direct_refused(void **state)
{
    (void)state;
    assert_true(fl_in_child(child_no_direct, (void *)(uintptr_t) "uring"));
    assert_true(fl_in_child(child_no_direct, (void *)(uintptr_t) "pread"));
    assert_true(fl_in_child(child_no_direct, (void *)(uintptr_t) "fake"));
}

/* A file system in memory, which has no direct reads or only pretends to. */
static void test_tmpfs(void **state)
{
    (void)state;
    char *kept[N_FILES];
    char *shm = strdup("/dev/shm/fl_test_io_XXXXXX");
    assert_non_null(mkdtemp(shm));
    memcpy(kept, paths, sizeof kept);
    write_files(shm, paths);
    fl_err err = {0};
    for (size_t b = 0; b < n_backends; b++) {
        fl_io *io = open_io(backends[b], DEPTH);
        assert_int_equal(read_many(io, 100, &err), 0);
        fl_io_close(&io);
    }
    for (int f = 0; f < N_FILES; f++) free(paths[f]);
    memcpy(paths, kept, sizeof kept);
    fl_tmp_remove(shm);
}

static bool child_no_uring(void *arg)
{
    fl_err err = {0};
    const int error = *(int *)arg;
    fl_io *io = NULL;
    fl_refuse(&(fl_refusal){SYS_io_uring_setup, -1, 0, 0, error});
    CHECK(fl_io_open(&io, NULL, (const char *const *)paths, N_FILES, DEPTH, &err) == FL_OK);
    CHECK(strcmp(fl_io_backend(io), "pread") == 0);
    const char *note = fl_io_note(io);
    CHECK(note && strstr(note, "io_uring refused") && strstr(note, strerror(error)));
    CHECK(strstr(note, "reading with pread threads"));
    CHECK(strstr(fl_io_fallback(io), "reading with pread threads"));
    CHECK(strstr(note + 20, "io_uring refused") == NULL); /* once */
    CHECK((error == ENOMEM) == (strstr(note, "ulimit -l") != NULL));
    CHECK((error == EPERM) == (strstr(note, "seccomp") != NULL));
    CHECK(read_many(io, 100, &err) == 0);
    fl_io_close(&io);
    /* Asked for by name: no silent substitute. */
    CHECK(fl_io_open(&io, "uring", (const char *const *)paths, N_FILES, DEPTH, &err) ==
          FL_E_UNSUPPORTED);
    CHECK(strstr(err.msg, "io_uring refused") && io == NULL);
    return true;
}

static void test_uring_refused(void **state)
{
    (void)state;
    int errors[] = {EPERM, ENOMEM, ENOSYS};
    for (int i = 0; i < 3; i++) assert_true(fl_in_child(child_no_uring, &errors[i]));
}

/* Granted, but its reads fail: found out at open. */
static bool child_no_enter(void *arg)
{
    (void)arg;
    fl_err err = {0};
    fl_io *io = NULL;
    fl_refuse(&(fl_refusal){SYS_io_uring_enter, -1, 0, 0, EOPNOTSUPP});
    CHECK(fl_io_open(&io, NULL, (const char *const *)paths, N_FILES, DEPTH, &err) == FL_OK);
    CHECK(strcmp(fl_io_backend(io), "pread") == 0 && strstr(fl_io_note(io), "first read"));
    CHECK(read_many(io, 20, &err) == 0);
    fl_io_close(&io);
    return true;
}

/* Taken away while it runs. */
static bool child_ring_dies(void *arg)
{
    (void)arg;
    fl_err err = {0};
    fl_io *io = NULL;
    CHECK(fl_io_open(&io, "uring", (const char *const *)paths, N_FILES, DEPTH, &err) == FL_OK);
    const fl_extent x = {.file = 0, .offset = 5, .bytes = 100000};
    CHECK(fl_io_submit(io, &x, arena, 1, &err) == FL_OK);
    fl_io_flush(io);
    fl_refuse(&(fl_refusal){SYS_io_uring_enter, -1, 0, 0, EBADF});
    CHECK(fl_io_submit(io, &x, arena + ROOM, 2, &err) == FL_OK);
    fl_io_flush(io);
    CHECK(fl_io_submit(io, &x, arena + 2 * ROOM, 3, &err) == FL_E_IO);
    CHECK(strstr(err.msg, "stopped working"));
    fl_io_done done[2];
    int n;
    CHECK(fl_io_wait(io, done, 1, 2, &n, &err) == FL_E_IO && n == 2);
    CHECK(done[0].tag + done[1].tag == 3 && fl_io_in_flight(io) == 0);
    CHECK(done[0].status == FL_E_IO && done[1].status == FL_E_IO);
    CHECK(fl_io_submit(io, &x, arena, 3, &err) == FL_E_IO);
    fl_io_close(&io);
    return io == NULL;
}

static void test_ring_stops(void **state)
{
    (void)state;
    if (n_backends < 4) skip();
    assert_true(fl_in_child(child_no_enter, NULL));
    assert_true(fl_in_child(child_ring_dies, NULL));
}

static bool child_no_register(void *arg)
{
    (void)arg;
    fl_err err = {0};
    fl_io *io = NULL;
    fl_refuse(&(fl_refusal){SYS_io_uring_register, 1, ~0u, IORING_REGISTER_BUFFERS, ENOMEM});
    CHECK(fl_io_open(&io, "uring", (const char *const *)paths, N_FILES, DEPTH, &err) == FL_OK);
    CHECK(fl_io_note(io) == NULL);
    fl_io_register(io, arena, (uint64_t)DEPTH * ROOM);
    CHECK(fl_io_note(io) && strstr(fl_io_note(io), "ulimit -l"));
    CHECK(fl_io_fallback(io) == NULL);
    CHECK(read_many(io, 100, &err) == 0);
    fl_io_unregister(io);
    fl_io_close(&io);
    return true;
}

static bool child_no_register_files(void *arg)
{
    (void)arg;
    fl_err err = {0};
    fl_io *io = NULL;
    fl_refuse(&(fl_refusal){SYS_io_uring_register, -1, 0, 0, EINVAL});
    CHECK(fl_io_open(&io, "uring", (const char *const *)paths, N_FILES, DEPTH, &err) == FL_OK);
    CHECK(read_many(io, 100, &err) == 0);
    fl_io_close(&io);
    return true;
}

static void test_registered_buffers(void **state)
{
    (void)state;
    if (n_backends < 4) skip();
    fl_err err = {0};
    fl_io *io = open_io("uring", DEPTH);
    for (int half = 0; half < 2; half++) { /* all reads inside, then half of them outside */
        fl_io_register(io, arena, (uint64_t)DEPTH * ROOM / (half ? 2 : 1));
        assert_int_equal(read_many(io, 100, &err), 0);
        fl_io_unregister(io);
    }
    assert_int_equal(read_many(io, 200, &err), 0);
    fl_io_close(&io);
    assert_true(fl_in_child(child_no_register, NULL));
    assert_true(fl_in_child(child_no_register_files, NULL));
    io = open_io("pread", DEPTH);
    fl_io_register(io, arena, (uint64_t)DEPTH * ROOM); /* nothing to do, nothing to say */
    fl_io_unregister(io);
    assert_null(fl_io_note(io));
    fl_io_close(&io);
}

static void *other_thread(void *arg)
{
    fl_err err = {0};
    return read_many(arg, 50, &err) == 0 ? arg : NULL;
}

/* Loaded by one thread, used by another. */
static void test_owner_changes(void **state)
{
    (void)state;
    for (size_t b = 0; b < n_backends; b++) {
        fl_err err = {0};
        fl_io *io = open_io(backends[b], DEPTH);
        assert_int_equal(read_many(io, 50, &err), 0);
        pthread_t t;
        void *ok;
        assert_int_equal(pthread_create(&t, NULL, other_thread, io), 0);
        assert_int_equal(pthread_join(t, &ok), 0);
        assert_non_null(ok);
        assert_int_equal(read_many(io, 50, &err), 0);
        fl_io_close(&io);
    }
}

static int setup(void **state)
{
    (void)state;
    dir = fl_tmp_make();
    for (int f = 0; f < N_FILES; f++) {
        content[f] = malloc(sizes[f]);
        for (uint64_t i = 0; i < sizes[f]; i++) content[f][i] = (uint8_t)rnd(256);
    }
    write_files(dir, paths);
    arena = mmap(NULL, DEPTH * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fl_io *io;
    if (fl_io_open(&io, "uring", (const char *const *)paths, N_FILES, 1, NULL) == FL_E_UNSUPPORTED)
        n_backends = 3;
    else
        fl_io_close(&io);
    return arena == MAP_FAILED;
}

static int teardown(void **state)
{
    (void)state;
    munmap(arena, DEPTH * ROOM);
    for (int f = 0; f < N_FILES; f++) {
        free(content[f]);
        free(paths[f]);
    }
    fl_tmp_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct_refused),  cmocka_unit_test(test_uring_refused),
        cmocka_unit_test(test_ring_stops),      cmocka_unit_test(test_registered_buffers),
        cmocka_unit_test(test_uring_is_here),   cmocka_unit_test(test_all_read_the_same),
        cmocka_unit_test(test_depth),           cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_past_the_end),    cmocka_unit_test(test_file_shrinks),
        cmocka_unit_test(test_file_is_written), cmocka_unit_test(test_tries),
        cmocka_unit_test(test_storm),           cmocka_unit_test(test_eio),
        cmocka_unit_test(test_hangs),           cmocka_unit_test(test_slow),
        cmocka_unit_test(test_impatient),       cmocka_unit_test(test_close_hanging),
        cmocka_unit_test(test_tmpfs),           cmocka_unit_test(test_owner_changes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
