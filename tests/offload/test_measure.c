/* What calibration measures of links and files: what it tries, what it leaves, what it concludes.
 * How fast anything is depends on the machine and is asked for nowhere but where a limit is set. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "offload/measure_link.h"
#include "offload/measure_reads.h"
#include "runtime/base/samples.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;

/* ---- samples ---- */

static void the_least_one_is_taken(void **state)
{
    (void)state;
    static const uint64_t ns[] = {50, 10, 40, 20, 1000};
    static const uint64_t least[] = {50, 10, 10, 10, 10};
    fl_samples s = {0};
    assert_true(fl_samples_want(&s, 1, 0));
    for (int i = 0; i < 5; i++) {
        fl_samples_add(&s, ns[i]);
        assert_int_equal(s.least_ns, least[i]);
    }
    assert_true(fl_samples_want(&s, 6, 57));
    assert_false(fl_samples_want(&s, 6, 56)); /* twenty times of it are over */
    assert_false(fl_samples_want(&s, 5, 1120));
    assert_true(fl_samples_want(&s, 5, 1121));
    while (s.n < FL_SAMPLES_MAX) fl_samples_add(&s, 0);
    assert_false(fl_samples_want(&s, 5, UINT64_MAX / 20));
    assert_int_equal(fl_rate_per_s(3000, 1500), 2000000000);
    assert_int_equal(fl_rate_per_s(3000, 0), 0);
}

/* ---- links ---- */

static fl_link_rates measure_link_as(const fl_device_config *cfg)
{
    fl_link_rates l;
    fl_device *dev = NULL;
    ASSERT_OK(fl_device_open(&dev, cfg, &err));
    ASSERT_OK(fl_link_measure(dev, &l, &err));
    assert_int_equal(fl_device_budget(dev)->used, 0);
    fl_device_close(&dev);
    return l;
}

static fl_link_rates measure_link(uint64_t cap, uint64_t limit)
{
    const fl_device_config cfg = {.memory_cap = cap, .link_bytes_s = limit};
    return measure_link_as(&cfg);
}

static void sizes_that_the_device_has_room_for(void **state)
{
    (void)state;
    const fl_link_rates l = measure_link(2 << 20, 0);
    assert_int_equal(l.n, 3);
    for (int i = 0; i < l.n; i++) {
        assert_int_equal(l.sample[i].bytes, (64 << 10) << 2 * i);
        assert_true(l.sample[i].pageable_bytes_s > 0);
        assert_true(l.sample[i].pinned_bytes_s > 0);
    }
    assert_true(l.bytes_s > 0 && l.pageable_bytes_s > 0);
    assert_int_equal(measure_link((2 << 20) - 1, 0).n, 2);
    assert_int_equal(measure_link((128 << 10) - 1, 0).n, 0);
    assert_int_equal(measure_link(64 << 20, 0).n, 5);
}

static void memory_that_cannot_be_pinned(void **state)
{
    (void)state;
    const fl_device_config cfg = {.memory_cap = 2 << 20, .refuse_pin = 1};
    const fl_link_rates l = measure_link_as(&cfg);
    assert_false(l.pinned);
    for (int i = 0; i < l.n; i++) assert_int_equal(l.sample[i].pinned_bytes_s, 0);
    assert_true(l.bytes_s > 0);
    assert_int_equal(l.bytes_s, l.pageable_bytes_s);
}

/* A busy machine may be slower than the limit, never faster. */
static void a_limited_link_is_seen_as_such(void **state)
{
    (void)state;
    const fl_link_rates l = measure_link(2 << 20, 100000000);
    assert_true(l.pageable_bytes_s > 0 && l.pageable_bytes_s < 120000000);
    assert_true(l.bytes_s > 0 && l.bytes_s < 120000000);
}

/* ---- reads ---- */

enum { EXTENT = 100000, N_EXTENTS = 40 };
static char *dir, *path;
static fl_extent extent[N_EXTENTS];

static int setup(void **state)
{
    (void)state;
    fl_tmp_begin(&dir, &path, "weights");
    uint8_t *data = calloc(N_EXTENTS, EXTENT);
    fl_tmp_write(path, data, (size_t)N_EXTENTS * EXTENT);
    free(data);
    const int fd = open(path, O_RDONLY);
    assert_int_equal(fsync(fd), 0); /* pages that are not on the disk yet stay */
    close(fd);
    for (int i = 0; i < N_EXTENTS; i++)
        extent[i] = (fl_extent){.offset = (uint64_t)(i * 7 % N_EXTENTS) * EXTENT, .bytes = EXTENT};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return fl_tmp_end(dir, path);
}

static int parts;
static void count_part(void *arg, const char *part)
{
    assert_ptr_equal(arg, &parts);
    assert_non_null(strstr(part, "at once"));
    parts++;
}

static fl_read_rates measure_reads(const char *backend)
{
    const char *const paths[] = {path};
    const fl_read_job job = {.paths = paths,
                             .n_paths = 1,
                             .backend = backend,
                             .extent = extent,
                             .n_extents = N_EXTENTS,
                             .sample_ms = 20,
                             .progress = count_part,
                             .arg = &parts};
    fl_read_rates r;
    parts = 0;
    ASSERT_OK(fl_reads_measure(&job, &r, &err));
    assert_int_equal(parts, FL_READ_DEPTHS);
    for (int i = 0; i < FL_READ_DEPTHS; i++) {
        assert_int_equal(r.sample[i].depth, 1 << i);
        assert_true(r.sample[i].direct_bytes_s > 0);
    }
    assert_true(r.depth > 0 && r.bytes_s > 0);
    return r;
}

/* Where the folder has a drive below it both ways are measured; in memory a note says why not. */
static void all_depths_are_read(void **state)
{
    (void)state;
    const fl_read_rates r = measure_reads("pread");
    assert_string_equal(r.backend, "pread");
    for (int i = 0; i < FL_READ_DEPTHS; i++)
        assert_true(r.sample[i].buffered_bytes_s > 0 || r.note[0] != '\0');
    assert_int_equal(r.buffered_depth > 0, r.buffered_bytes_s > 0);
    assert_string_not_equal(measure_reads(NULL).backend, "");
}

/* Pages that a program holds mapped cannot be dropped: reading them says nothing of the drive. */
static void a_warm_cache_is_not_measured(void **state)
{
    (void)state;
    const size_t bytes = (size_t)N_EXTENTS * EXTENT;
    const int fd = open(path, O_RDONLY);
    volatile const uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    assert_true(map != MAP_FAILED);
    for (size_t i = 0; i < bytes; i += 4096) assert_int_equal(map[i], 0);
    const fl_read_rates r = measure_reads("pread");
    munmap((void *)(uintptr_t)map, bytes);
    assert_non_null(strstr(r.note, "page cache"));
    for (int i = 0; i < FL_READ_DEPTHS; i++) assert_int_equal(r.sample[i].buffered_bytes_s, 0);
    assert_int_equal(r.buffered_depth, 0);
    assert_false(r.buffered_wins);
}

static void failures_are_told(void **state)
{
    (void)state;
    const char *const paths[] = {path};
    const fl_extent past = {.offset = (uint64_t)N_EXTENTS * EXTENT, .bytes = 10};
    fl_read_rates r;
    fl_read_job job = {.paths = paths, .n_paths = 1, .extent = &past, .n_extents = 1};
    ASSERT_FAILS(fl_reads_measure(&job, &r, &err), FL_E_FORMAT, "truncated");
    job.extent = extent;
    job.backend = "none";
    ASSERT_FAILS(fl_reads_measure(&job, &r, &err), FL_E_ARG, "none");
}

static fl_read_rates chosen(const uint64_t *direct, const uint64_t *buffered)
{
    fl_read_rates r = {0};
    for (int i = 0; i < FL_READ_DEPTHS; i++)
        r.sample[i] = (fl_read_sample){1 << i, direct[i] * 1000, buffered[i] * 1000};
    fl_reads_choose(&r);
    return r;
}

static void the_least_depth_that_will_do(void **state)
{
    (void)state;
    static const uint64_t direct[] = {100, 500, 970, 990, 1000, 999, 10}, none[7] = {0};
    fl_read_rates r = chosen(direct, none);
    assert_int_equal(r.depth, 4);
    assert_int_equal(r.bytes_s, 970000);
    assert_int_equal(r.buffered_depth, 0);
    assert_false(r.buffered_wins);
    r = chosen(none, direct);
    assert_int_equal(r.depth, 0);
    assert_true(r.buffered_wins);
}

static void the_page_cache_has_to_win_by_three_percent(void **state)
{
    (void)state;
    static const uint64_t direct[] = {0, 0, 0, 0, 0, 0, 1000};
    static const uint64_t same[] = {0, 0, 0, 0, 0, 0, 1030}, more[] = {0, 0, 0, 0, 0, 0, 1031};
    assert_false(chosen(direct, direct).buffered_wins);
    assert_false(chosen(direct, same).buffered_wins);
    assert_true(chosen(direct, more).buffered_wins);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_one_is_taken),
        cmocka_unit_test(sizes_that_the_device_has_room_for),
        cmocka_unit_test(memory_that_cannot_be_pinned),
        cmocka_unit_test(a_limited_link_is_seen_as_such),
        cmocka_unit_test_setup_teardown(all_depths_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(a_warm_cache_is_not_measured, setup, teardown),
        cmocka_unit_test_setup_teardown(failures_are_told, setup, teardown),
        cmocka_unit_test(the_least_depth_that_will_do),
        cmocka_unit_test(the_page_cache_has_to_win_by_three_percent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
