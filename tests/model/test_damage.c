/* Damaged and hostile files against everything that opens a model: one error line or a normal
 * load, never a crash, a hang or a large allocation. FL_TEST_LONG=1: forty times the flips. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/model/model.h"
#include "tests/support/bytes.h"
#include "tests/support/files.h"
#include "tests/support/heap.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

/* ---- memory ---- */

static void the_counter_counts(void **state)
{
    (void)state;
    const int64_t before = fl_heap_now();
    fl_heap_mark();
    void *volatile p = malloc(10 << 20);
    assert_true(fl_heap_now() - before >= 10 << 20);
    free(p);
    assert_true(fl_heap_now() - before < 1 << 20);
    assert_true(fl_heap_peak() - before >= 10 << 20);
    p = calloc(3, 1 << 20);
    p = realloc(p, 5 << 20);
    assert_true(fl_heap_now() - before >= 5 << 20);
    assert_true(fl_heap_now() - before < 6 << 20);
    free(p);
    char *text = NULL; /* allocated inside the C library */
    assert_true(asprintf(&text, "%*d", 2 << 20, 1) > 0);
    assert_true(fl_heap_now() - before >= 2 << 20);
    free(text);
}

/* ---- one try -------------------------------------------------------------------------------- */

static char *st; /* the weights of fl_files.folder */

enum { SECONDS_PER_TRY = 60, HEAP_MARGIN = 64 << 20 };

/* Every extent of a model that loaded lies inside its file. */
static void check_extents(const fl_index *ix)
{
    for (size_t i = 0; i < fl_source_n_tensors(ix->src); i++) {
        const fl_tensor *t = fl_source_tensor(ix->src, i);
        const uint64_t file = fl_source_file_bytes(ix->src, t->file);
        assert_true(t->offset <= file && t->bytes <= file - t->offset);
    }
    for (int l = 0; l < ix->hp.n_layer; l++)
        for (int e = 0; e < ix->hp.n_expert; e++)
            for (int part = 0; part < 3; part++) {
                fl_expert_mat x;
                fl_index_expert(ix, l, e, part, &x);
                const uint64_t file = fl_source_file_bytes(ix->src, x.file);
                assert_true(x.bytes > 0 && x.offset <= file && x.bytes <= file - x.offset);
            }
}

/* Opens the model: a load that is sound, or one line that names the path. `file_bytes` bounds the
 * memory. */
static fl_status try_open(const char *path, uint64_t file_bytes, const char *what)
{
    fl_err err = {0};
    fl_model *m = NULL;
    const int64_t before = fl_heap_now();
    fl_heap_mark();
    alarm(SECONDS_PER_TRY);
    const fl_status s = fl_model_open(&m, path, &err);
    if (s == FL_OK) check_extents(m->index);
    const int64_t took = fl_heap_peak() - before;
    fl_model_close(&m);
    alarm(0);
    if (took > (int64_t)file_bytes + HEAP_MARGIN)
        fail_msg("%s: %lld bytes allocated for a file of %llu", what, (long long)took,
                 (unsigned long long)file_bytes);
    if (fl_heap_now() != before)
        fail_msg("%s: %lld bytes leaked", what, (long long)(fl_heap_now() - before));
    if (s == FL_OK) return s;
    if (s == FL_E_BUSY || s != err.code || !*err.msg || strchr(err.msg, '\n') ||
        strlen(err.msg) >= sizeof err.msg - 1 || !strstr(err.msg, fl_files.dir))
        fail_msg("%s: status %s, message '%s'", what, fl_status_name(s), err.msg);
    return s;
}

static int setup(void **state)
{
    fl_files_setup(state);
    st = fl_tmp_path(fl_files.folder, "model.safetensors");
    return 0;
}

static int teardown(void **state)
{
    free(st);
    return fl_files_teardown(state);
}

static uint64_t bytes_of(const char *path)
{
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    return (uint64_t)s.st_size;
}

/* Where the tensor data of a file begins. */
static uint64_t header_of(const char *path)
{
    fl_err err;
    fl_source *src;
    uint64_t first = UINT64_MAX;
    ASSERT_OK(fl_source_open(&src, path, &err));
    for (size_t i = 0; i < fl_source_n_tensors(src); i++)
        if (fl_source_tensor(src, i)->offset < first) first = fl_source_tensor(src, i)->offset;
    fl_source_close(&src);
    return first;
}

/* ---- truncation ----------------------------------------------------------------------------- */

static void truncate_everywhere(const char *path)
{
    const uint64_t size = bytes_of(path), header = header_of(path);
    char *whole, what[64];
    fl_err err;
    uint64_t n;
    ASSERT_OK(fl_file_load(path, 1 << 28, &whole, &n, &err));
    assert_int_equal(try_open(path, size, "whole"), FL_OK);
    for (int i = 199; i >= 0; i--) {
        const uint64_t cut = i < 12    ? (uint64_t)i
                             : i < 110 ? header * (uint64_t)(i - 11) / 99
                             : i < 198 ? header + (size - header) * (uint64_t)(i - 110) / 88
                                       : size - (uint64_t)(200 - i);
        assert_int_equal(truncate(path, (off_t)cut), 0);
        snprintf(what, sizeof what, "cut after %llu bytes", (unsigned long long)cut);
        if (try_open(path, cut, what) == FL_OK) fail_msg("%s: loads", what);
    }
    fl_tmp_write(path, whole, size);
    free(whole);
}

static void cut_files_are_refused(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    fl_make_gguf(&m, fl_files.gguf);
    truncate_everywhere(fl_files.gguf);
    fl_make_safetensors(&m, fl_files.folder);
    truncate_everywhere(st);
    m.n_files = 3;
    fl_make_gguf(&m, fl_files.gguf);
    char *second = fl_tmp_path(fl_files.dir, "model-00002-of-00003.gguf");
    truncate_everywhere(second);
    free(second);
}

/* ---- flipped bytes -------------------------------------------------------------------------- */

static uint64_t rnd = 0x9e3779b97f4a7c15ull;

static uint64_t next(void)
{
    rnd ^= rnd >> 12;
    rnd ^= rnd << 25;
    rnd ^= rnd >> 27;
    return rnd * 0x2545f4914f6cdd1dull;
}

static int times(int n) { return getenv("FL_TEST_LONG") ? n * 40 : n; }

/* n single bytes of [from, to) of `path`, one at a time; opens `model`. Returns how many tries were
 * refused. */
static int flip(const char *path, const char *model, uint64_t from, uint64_t to, int n)
{
    const uint64_t size = bytes_of(path);
    const int fd = open(path, O_RDWR);
    int refused = 0;
    char what[128];
    assert_true(fd >= 0);
    for (int i = 0; i < n; i++) {
        const uint64_t at = from + next() % (to - from);
        uint8_t was, now;
        assert_int_equal(pread(fd, &was, 1, (off_t)at), 1);
        now = was ^ (uint8_t)(1 + next() % 255);
        assert_int_equal(pwrite(fd, &now, 1, (off_t)at), 1);
        snprintf(what, sizeof what, "%s byte %llu: %02x for %02x", strrchr(path, '/') + 1,
                 (unsigned long long)at, now, was);
        refused += try_open(model, size, what) != FL_OK;
        assert_int_equal(pwrite(fd, &was, 1, (off_t)at), 1);
    }
    close(fd);
    assert_int_equal(try_open(model, size, "restored"), FL_OK);
    return refused;
}

static void flips_in_headers_are_harmless(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.mtp = true;
    fl_make_gguf(&m, fl_files.gguf);
    fl_make_safetensors(&m, fl_files.folder);
    /* Most bytes of a header matter: far more than half of the tries must be noticed or the
     * flips do not reach the reader. */
    assert_true(flip(fl_files.gguf, fl_files.gguf, 0, header_of(fl_files.gguf), times(500)) >
                times(100));
    assert_true(flip(st, fl_files.folder, 0, header_of(st), times(500)) > times(250));
}

static void flips_in_data_are_harmless(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    fl_make_gguf(&m, fl_files.gguf);
    fl_make_safetensors(&m, fl_files.folder);
    flip(fl_files.gguf, fl_files.gguf, header_of(fl_files.gguf), bytes_of(fl_files.gguf),
         times(100));
    flip(st, fl_files.folder, header_of(st), bytes_of(st), times(100));
}

static void flips_beside_the_weights_are_harmless(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "model.safetensors.index.json"};
    fl_make m = fl_make_tiny();
    m.st_files = 2;
    fl_make_safetensors(&m, fl_files.folder);
    for (int i = 0; i < 4; i++) {
        char *path = fl_tmp_path(fl_files.folder, files[i]);
        flip(path, fl_files.folder, 0, bytes_of(path), times(100));
        free(path);
    }
}

/* ---- hostile files -------------------------------------------------------------------------- */

typedef enum claim {
    KEY,     /* a key of 5 GiB */
    BYTES,   /* an array of 5 G bytes */
    KEYS,    /* more keys than there is file */
    TENSORS, /* more tensors */
    STRINGS, /* an array of 600 M strings */
    HEADER   /* the longest header that safetensors allows, all hole */
} claim;

static void put_claim(fl_bytes *b, claim c)
{
    if (c == HEADER) {
        fl_bytes_u64(b, 100 * 1000 * 1000);
        fl_bytes_text(b, "{\"");
        return;
    }
    fl_bytes_gguf_head(b, 3, c == TENSORS ? 1u << 18 : 0, c == KEYS ? 1u << 16 : c != TENSORS);
    if (c == KEY) fl_bytes_u64(b, 5ull << 30);
    if (c != BYTES && c != STRINGS) return;
    fl_bytes_str(b, "general.x");
    fl_bytes_u32(b, 9);
    fl_bytes_u32(b, c == BYTES ? 0 : 8);
    fl_bytes_u64(b, c == BYTES ? 5ull << 30 : 600ull << 20);
}

/* A file of 6 GiB that is nearly all hole is refused, and may take so much memory meanwhile. */
static void check_claim(claim c, uint64_t allowed)
{
    fl_bytes b = {0};
    const char *path = c == HEADER ? st : fl_files.gguf;
    if (c == HEADER) assert_int_equal(mkdir(fl_files.folder, 0777), 0);
    put_claim(&b, c);
    fl_tmp_write(path, b.p, b.n);
    assert_int_equal(truncate(path, 6ll << 30), 0);
    const int64_t before = fl_heap_now();
    assert_int_not_equal(try_open(path, allowed, "large claim"), FL_OK);
    assert_int_equal(fl_heap_now(), before);
    fl_bytes_free(&b);
    unlink(path);
}

static void large_claims_take_no_memory(void **state)
{
    (void)state;
    for (claim c = KEY; c <= TENSORS; c++) check_claim(c, 0);
}

/* These are read before they are refused: 100 MB each. */
static void large_headers_are_refused_when_read(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip();
#endif
    check_claim(STRINGS, 6ull << 30);
    check_claim(HEADER, 6ull << 30);
}

static void put_file(const char *name, const char *head, const char *unit, size_t n)
{
    fl_bytes b = {0};
    fl_bytes_text(&b, head);
    while (b.n < n) fl_bytes_text(&b, unit);
    char *path = fl_tmp_path(fl_files.folder, name);
    fl_tmp_write(path, b.p, b.n);
    free(path);
    fl_bytes_free(&b);
}

/* JSON that would make a tree far larger than its text, or too deep. */
static void swelling_json_takes_no_memory(void **state)
{
    (void)state;
    static const struct {
        const char *name, *head, *unit;
    } files[] = {
        {"config.json", "{\"a\":[", "1,"},
        {"config.json", "", "["},
        {"config.json", "", "{\"a\":"},
        {"generation_config.json", "{\"a\":[", "{},"},
        {"model.safetensors.index.json", "{\"weight_map\":{},\"a\":[", "1,"},
        {"model.safetensors.index.json", "{\"weight_map\":{", "\"\":\"\","},
        {"model.safetensors.index.json", "", "["},
    };
    fl_make m = fl_make_tiny();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        fl_make_safetensors(&m, fl_files.folder);
        for (int big = 0; big < 2; big++) {
            const size_t n = big ? 8 << 20 : 500 * 1000;
            put_file(files[i].name, files[i].head, files[i].unit, n);
            assert_int_not_equal(try_open(fl_files.folder, n, files[i].name), FL_OK);
        }
        char *path = fl_tmp_path(fl_files.folder, files[i].name);
        unlink(path);
        free(path);
    }
}

/* A safetensors header whose text is tiny for the number of tensors it lists. */
static void crowded_headers_are_bounded(void **state)
{
    (void)state;
    fl_make m = fl_make_tiny();
    fl_make_safetensors(&m, fl_files.folder);
    fl_bytes head = {0}, out = {0};
    fl_bytes_text(&head, "{");
    for (int i = 0; i < 20000; i++) {
        char t[96];
        snprintf(t, sizeof t, "%s\"%x\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}",
                 i ? "," : "", i);
        fl_bytes_text(&head, t);
    }
    fl_bytes_text(&head, "}");
    fl_bytes_u64(&out, head.n);
    fl_bytes_put(&out, head.p, head.n);
    fl_tmp_write(st, out.p, out.n);
    assert_int_equal(try_open(fl_files.folder, out.n, "20,000 empty tensors"), FL_E_FORMAT);
    fl_bytes_free(&head);
    fl_bytes_free(&out);
}

int main(void)
{
    fl_heap_watch();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts),
        cmocka_unit_test_setup_teardown(cut_files_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(flips_in_headers_are_harmless, setup, teardown),
        cmocka_unit_test_setup_teardown(flips_in_data_are_harmless, setup, teardown),
        cmocka_unit_test_setup_teardown(flips_beside_the_weights_are_harmless, setup, teardown),
        cmocka_unit_test_setup_teardown(large_claims_take_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(large_headers_are_refused_when_read, setup, teardown),
        cmocka_unit_test_setup_teardown(swelling_json_takes_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(crowded_headers_are_bounded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
