/* fourleaf quantize on broken input: one line that names tensor and file, and nothing written. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static const char down[] = "model.language_model.layers.1.mlp.experts.down_proj";

static fl_err err;
static fl_workplace place;
static char *shard; /* the file of `down` */

static int setup(void **state)
{
    (void)state;
    fl_make m = fl_layout(1);
    m.st_files = 3;
    m.st_type = FL_TYPE_F32;
    place = fl_workplace_make();
    fl_make_safetensors(&m, place.hf);
    fl_source *s = fl_open_source(place.hf);
    shard = strdup(fl_source_paths(s)[fl_need_tensor(s, down)->file]);
    fl_source_close(&s);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(shard);
    fl_workplace_remove(&place);
    return 0;
}

/* The run ends with this message, which also names the file, in one line; nothing else is there. */
static void refused(fl_status status, const char *words, const char *file)
{
    ASSERT_FAILS(fl_quantize(place.hf, place.out, NULL, NULL, &err), status, words);
    if (!strstr(err.msg, file)) fail_msg("'%s' is not in: %s", file, err.msg);
    assert_null(strchr(err.msg, '\n'));
    assert_int_equal(fl_tmp_count(place.dir), 1);
}

/* ---- a shard's header ---- */

static void rewrite(const char *path, const char *text, size_t n)
{
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, text, n, 8), n);
    close(fd);
}

/* The entry of a tensor in a header: from its name to the end of its braces. */
static char *entry_of(char *header, const char *name)
{
    char *at = strstr(header, name);
    if (!at) fail_msg("no %s", name);
    return at;
}

static char *load_header(const char *path, size_t *n)
{
    char *data;
    uint64_t size, len;
    ASSERT_OK(fl_file_load(path, 64 << 20, &data, &size, &err));
    memcpy(&len, data, 8);
    memmove(data, data + 8, len);
    data[len] = 0;
    *n = len;
    return data;
}

/* Moves a tensor's place; the numbers keep their digits. */
static void move(const char *path, const char *name, int64_t by)
{
    size_t n;
    char *header = load_header(path, &n), now[64], then[64];
    char *at = strstr(entry_of(header, name), "\"data_offsets\":[");
    uint64_t a, b;
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"data_offsets\":[%" SCNu64 ",%" SCNu64 "]", &a, &b), 2);
    const int k = snprintf(now, sizeof now, "[%" PRIu64 ",%" PRIu64 "]", a, b);
    assert_int_equal(snprintf(then, sizeof then, "[%" PRIu64 ",%" PRIu64 "]", a + (uint64_t)by,
                              b + (uint64_t)by),
                     k);
    memcpy(strstr(at, now), then, (size_t)k);
    rewrite(path, header, n);
    free(header);
}

static void replace(const char *path, const char *entry, const char *old, const char *new)
{
    size_t n;
    char *header = load_header(path, &n), *at = strstr(entry_of(header, entry), old);
    assert_non_null(at);
    assert_int_equal(strlen(old), strlen(new));
    memcpy(at, new, strlen(new));
    rewrite(path, header, n);
    free(header);
}

/* The tensor that lies last in a shard. */
static void last_of(const char *path, char name[128])
{
    fl_source *s = fl_open_source(place.hf);
    uint64_t most = 0;
    for (size_t i = 0; i < fl_source_n_tensors(s); i++) {
        const fl_tensor *t = fl_source_tensor(s, i);
        if (strcmp(fl_source_paths(s)[t->file], path) != 0 || t->offset < most) continue;
        most = t->offset;
        snprintf(name, 128, "%s", t->name);
    }
    fl_source_close(&s);
}

static void grow(const char *path, off_t by)
{
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(truncate(path, sb.st_size + by), 0);
}

static void a_missing_shard(void **state)
{
    (void)state;
    assert_int_equal(unlink(shard), 0);
    refused(FL_E_FORMAT, "is missing", shard);
    assert_non_null(strstr(err.msg, "tensor 'model.language_model."));
}

static void a_truncated_shard(void **state)
{
    (void)state;
    char last[128];
    last_of(shard, last);
    grow(shard, -4);
    refused(FL_E_FORMAT, last, shard);
    assert_non_null(strstr(err.msg, "truncated"));
}

static void a_wrong_shape(void **state)
{
    (void)state;
    size_t n;
    char *header = load_header(shard, &n), shape[64], turned[64];
    int a, b, c;
    assert_int_equal(
        sscanf(strstr(entry_of(header, down), "\"shape\":["), "\"shape\":[%d,%d,%d]", &a, &b, &c),
        3);
    assert_int_not_equal(a, b);
    snprintf(shape, sizeof shape, "[%d,%d,%d]", a, b, c);
    snprintf(turned, sizeof turned, "[%d,%d,%d]", b, a, c);
    free(header);
    replace(shard, down, shape, turned);
    refused(FL_E_FORMAT, "layers.1.mlp.experts.down_proj", place.hf);
}

static void a_name_twice(void **state)
{
    (void)state;
    fl_source *s = fl_open_source(place.hf);
    const char *far = "model.language_model.layers.3.mlp.experts.down_proj";
    char *second = strdup(fl_source_paths(s)[fl_need_tensor(s, far)->file]);
    fl_source_close(&s);
    replace(second, far, far, down);
    refused(FL_E_FORMAT, down, second);
    free(second);
}

static void overlaps_and_gaps(void **state)
{
    (void)state;
    char last[128];
    last_of(shard, last);
    move(shard, last, -4);
    refused(FL_E_FORMAT, "overlap", shard);
    assert_non_null(strstr(err.msg, last));
    move(shard, last, 4);
    grow(shard, 4);
    refused(FL_E_FORMAT, "4 bytes at its end belong to no tensor", shard);
    move(shard, last, 4);
    refused(FL_E_FORMAT, last, shard);
    assert_non_null(strstr(err.msg, "4 bytes before"));
}

static void an_index_that_leads_out(void **state)
{
    (void)state;
    char *path = fl_tmp_path(place.hf, "model.safetensors.index.json"), *text, *at;
    uint64_t n;
    ASSERT_OK(fl_file_load(path, 1 << 20, &text, &n, &err));
    at = strstr(strstr(text, down), "model-0000");
    assert_non_null(at);
    memcpy(at, "../../evil", 10);
    fl_tmp_write(path, text, n);
    refused(FL_E_FORMAT, down, path);
    free(text);
    free(path);
}

/* Found in the middle of the run: what was written before is gone. */
static void values_that_are_no_numbers(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        fl_source *s = fl_open_source(place.hf);
        const fl_tensor *t = fl_need_tensor(s, down);
        const off_t at = (off_t)(t->offset + 4 * (uint64_t)(t->ne[0] + 3));
        fl_source_close(&s);
        const int fd = open(shard, O_WRONLY);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, &bad[i], sizeof bad[i], at), sizeof bad[i]);
        close(fd);
        refused(FL_E_NAN, down, shard);
        assert_non_null(strstr(err.msg, "row 1, column 3"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_missing_shard, setup, teardown),
        cmocka_unit_test_setup_teardown(a_truncated_shard, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wrong_shape, setup, teardown),
        cmocka_unit_test_setup_teardown(a_name_twice, setup, teardown),
        cmocka_unit_test_setup_teardown(overlaps_and_gaps, setup, teardown),
        cmocka_unit_test_setup_teardown(an_index_that_leads_out, setup, teardown),
        cmocka_unit_test_setup_teardown(values_that_are_no_numbers, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
