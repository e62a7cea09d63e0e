/* Reads of expert-sized extents by each backend, side by side in one run. One JSON line a sample
 * on standard output, a summary on standard error.
 *   bench/io [FILE [EXTENT_BYTES [READS [DEPTH [ROUNDS [BACKEND]]]]]]
 * Without FILE it writes one of 512 MiB under $TMPDIR or /tmp and removes it. The extents of a
 * round never overlap and the page cache is dropped before each sample, so that what is measured
 * is the drive. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "offload/io.h"
#include "runtime/base/pages.h"

enum { MAX_ROUNDS = 64, N_BACKENDS = 3, LARGE_PAGE = 2 << 20 };
static const char *const backends[N_BACKENDS] = {"uring", "pread", "buffered"};
static const uint64_t OWN_FILE_BYTES = UINT64_C(512) << 20;

typedef struct setup {
    const char *path;
    uint64_t file_bytes, extent_bytes;
    int reads, depth, rounds;
    fl_extent *extents; /* [reads], shuffled */
} setup;

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "bench/io: %s: %s\n", what, why);
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static uint64_t rng = 88172645463325252u;
static uint64_t next_random(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

static char *write_own_file(void)
{
    const char *dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    char *path = NULL;
    if (asprintf(&path, "%s/fl_bench_io_XXXXXX", dir) < 0) die("file name", strerror(errno));
    const int fd = mkstemp(path);
    if (fd < 0) die(path, strerror(errno));
    static uint64_t block[1 << 17];
    for (uint64_t at = 0; at < OWN_FILE_BYTES; at += sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof *block; i++) block[i] = next_random();
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block) {
            const int sys = errno;
            unlink(path);
            die(path, strerror(sys));
        }
    }
    if (fsync(fd) || close(fd)) die(path, strerror(errno));
    return path;
}

/* Extents that start as in a GGUF file: at any multiple of 32. */
static void choose_extents(setup *s)
{
    const uint64_t room = s->file_bytes / s->extent_bytes;
    if (room < 2) die(s->path, "too small for one extent");
    if ((uint64_t)s->reads > room - 1) s->reads = (int)(room - 1);
    s->extents = calloc((size_t)s->reads, sizeof *s->extents);
    if (!s->extents) die("extents", strerror(errno));
    const uint64_t phase = next_random() % (s->extent_bytes / 32) * 32;
    for (int i = 0; i < s->reads; i++)
        s->extents[i] =
            (fl_extent){.offset = phase + (uint64_t)i * s->extent_bytes, .bytes = s->extent_bytes};
    for (int i = s->reads - 1; i > 0; i--) {
        const int j = (int)(next_random() % (uint64_t)(i + 1));
        const fl_extent x = s->extents[i];
        s->extents[i] = s->extents[j];
        s->extents[j] = x;
    }
}

static void drop_cache(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) die(path, strerror(errno));
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void read_all(const setup *s, fl_io *io, uint8_t *memory, uint64_t stride)
{
    fl_err err = {0};
    int sent = 0, done = 0;
    while (done < s->reads) {
        /* A read takes over the buffer of one that is complete. */
        fl_io_done d;
        int n = 0;
        int place = sent;
        if (sent >= s->depth || sent == s->reads) {
            if (fl_io_wait(io, &d, 1, 1, &n, &err) != FL_OK) die("read", err.msg);
            done++;
            place = (int)d.tag;
        }
        if (sent == s->reads) continue;
        if (fl_io_submit(io, &s->extents[sent], memory + (uint64_t)place * stride, (uint64_t)place,
                         &err) != FL_OK)
            die("submit", err.msg);
        sent++;
    }
}

/* One sample; GB/s, or 0 when the machine has no such backend. */
static double sample(const setup *s, const char *backend, int round, uint8_t *memory,
                     uint64_t stride)
{
    fl_err err = {0};
    fl_io *io;
    drop_cache(s->path);
    if (fl_io_open(&io, backend, &s->path, 1, s->depth, &err) != FL_OK) {
        if (round == 0) fprintf(stderr, "bench/io: %s: %s\n", backend, err.msg);
        return 0;
    }
    fl_io_register(io, memory, (uint64_t)s->depth * stride);
    if (round == 0 && fl_io_note(io))
        fprintf(stderr, "bench/io: %s: %s\n", backend, fl_io_note(io));
    const double cpu = cpu_seconds(), start = seconds(CLOCK_MONOTONIC);
    read_all(s, io, memory, stride);
    const double took = seconds(CLOCK_MONOTONIC) - start;
    const double used = cpu_seconds() - cpu;
    const double bytes = (double)s->extent_bytes * s->reads;
    printf("{\"bench\": \"io\", \"backend\": \"%s\", \"round\": %d, \"depth\": %d, "
           "\"extent_bytes\": %" PRIu64 ", \"reads\": %d, \"align\": %u, \"seconds\": %.6f, "
           "\"cpu_seconds\": %.6f, \"gb_s\": %.4f}\n",
           backend, round, s->depth, s->extent_bytes, s->reads, fl_io_align(io), took, used,
           bytes / took / 1e9);
    fflush(stdout);
    fl_io_close(&io);
    return bytes / took / 1e9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    setup s = {.path = argc > 1 ? argv[1] : NULL,
               .extent_bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 589824,
               .reads = argc > 3 ? atoi(argv[3]) : 600,
               .depth = argc > 4 ? atoi(argv[4]) : 32,
               .rounds = argc > 5 ? atoi(argv[5]) : 5};
    const char *only = argc > 6 ? argv[6] : NULL;
    if (s.extent_bytes < 32 || s.reads < 1 || s.depth < 1 || s.depth > 1024 || s.rounds < 1 ||
        s.rounds > MAX_ROUNDS)
        die("arguments",
            "FILE EXTENT_BYTES READS DEPTH ROUNDS BACKEND (at most 1024 deep, 64 rounds)");
    char *own = s.path ? NULL : write_own_file();
    if (own) s.path = own;
    struct stat st;
    if (stat(s.path, &st)) die(s.path, strerror(errno));
    s.file_bytes = (uint64_t)st.st_size;
    choose_extents(&s);
    const uint64_t stride = (s.extent_bytes + 3 * 4096) & ~UINT64_C(4095);
    /* Whole large pages, as the store's stages are. */
    const size_t room = ((size_t)s.depth * stride + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    uint8_t *memory = fl_pages_take(room);
    if (!memory) die("buffers", strerror(errno));
    memset(memory, 0, room);
    double gb_s[N_BACKENDS][MAX_ROUNDS];
    for (int r = 0; r < s.rounds; r++)
        for (int b = 0; b < N_BACKENDS; b++)
            if (!only || strcmp(only, backends[b]) == 0)
                gb_s[b][r] = sample(&s, backends[b], r, memory, stride);
    for (int b = 0; b < N_BACKENDS; b++) {
        if (only && strcmp(only, backends[b]) != 0) continue;
        qsort(gb_s[b], (size_t)s.rounds, sizeof(double), compare);
        fprintf(stderr, "%-10s median %.2f GB/s, %.2f to %.2f\n", backends[b],
                gb_s[b][s.rounds / 2], gb_s[b][0], gb_s[b][s.rounds - 1]);
    }
    if (own) unlink(own);
    free(own);
    fl_pages_give(memory, room);
    free(s.extents);
    return 0;
}
