/* fourleaf patch: of a file with each difference of the published one, alone and together, it
 * makes the very tensors and keys of the clean file, whose logits the file as it is gives too; what
 * is wrong gets one line and leaves nothing. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/model/source.h"
#include "runtime/tools/patch.h"
#include "tests/support/engine.h"
#include "tests/support/make_model.h"
#include "tests/support/refuse.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;
static char *dir, *in, *clean, *out;

static int setup(void **state)
{
    (void)state;
    dir = fl_tmp_make();
    in = fl_tmp_path(dir, "in.gguf");
    clean = fl_tmp_path(dir, "clean.gguf");
    out = fl_tmp_path(dir, "out.gguf");
    setenv("XDG_CACHE_HOME", dir, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(in);
    free(clean);
    free(out);
    fl_tmp_remove(dir);
    return 0;
}

/* The command with its lines on stderr thrown away. */
static fl_status patch_with(const char *from, const char *to, const char *v_heads, const char *map)
{
    const char *args[2] = {from, to};
    const fl_options o = {
        .command = "patch", .args = args, .n_args = 2, .v_heads = v_heads, .map = map};
    fflush(stderr);
    const int keep = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    err = (fl_err){0};
    const fl_status st = fl_tool_patch(&o, &err);
    fflush(stderr);
    dup2(keep, STDERR_FILENO);
    close(keep);
    close(null);
    return st;
}

static fl_status patch(const char *from, const char *to)
{
    return patch_with(from, to, NULL, NULL);
}

/* A small model; bit 0: the key missing, 1: norms zero-centred, 2: A_log, 3: value heads grouped.
 */
static fl_make model(int differences, uint32_t type)
{
    fl_make m = fl_make_tiny();
    m.arch = "clover_moe";
    m.type = type;
    m.gdn_dim = 32; /* a block of Q8_0 */
    m.no_shared_count = differences & 1;
    m.norms_zero_centred = differences & 2;
    m.a_as_log = differences & 4;
    m.v_grouped = differences & 8;
    return m;
}

static void same_tensors(const char *a, const char *b)
{
    fl_source *x, *y;
    ASSERT_OK(fl_source_open(&x, a, &err));
    ASSERT_OK(fl_source_open(&y, b, &err));
    assert_int_equal(fl_source_n_tensors(x), fl_source_n_tensors(y));
    for (size_t i = 0; i < fl_source_n_tensors(x); i++) {
        const fl_tensor *s = fl_source_tensor(x, i), *t = fl_source_find(y, s->name);
        if (!t) fail_msg("%s: no %s", b, s->name);
        assert_int_equal(s->type, t->type);
        assert_int_equal(s->bytes, t->bytes);
        assert_memory_equal(s->ne, t->ne, sizeof s->ne);
        uint8_t *p = malloc(s->bytes), *q = malloc(t->bytes);
        assert_true(p && q);
        ASSERT_OK(fl_source_read(x, s, 0, p, s->bytes, &err));
        ASSERT_OK(fl_source_read(y, t, 0, q, t->bytes, &err));
        if (memcmp(p, q, s->bytes) != 0) fail_msg("%s differs", s->name);
        free(p);
        free(q);
    }
    fl_source_close(&x);
    fl_source_close(&y);
}

/* Every key of a is in b with the same value. */
static void keys_within(const char *a, const char *b)
{
    fl_source *x, *y;
    ASSERT_OK(fl_source_open(&x, a, &err));
    ASSERT_OK(fl_source_open(&y, b, &err));
    const fl_gguf *g = fl_source_gguf(x);
    for (size_t i = 0; i < fl_gguf_n_kv(g); i++) {
        const fl_kv *s = fl_gguf_kv_at(g, i);
        char key[256];
        snprintf(key, sizeof key, "%.*s", (int)s->key.n, s->key.p);
        if (strcmp(key, "general.alignment") == 0) continue; /* absent: 32 */
        const fl_kv *t = fl_gguf_find(fl_source_gguf(y), key);
        if (!t) fail_msg("%s: no key %s", b, key);
        assert_int_equal(s->data_bytes, t->data_bytes);
        assert_memory_equal(s->data, t->data, s->data_bytes);
    }
    fl_source_close(&x);
    fl_source_close(&y);
}

/* Rows of a clean pass and of a block pass behind them; malloc'ed. */
static float *logits(const char *path, bool exact, int64_t *n)
{
    fl_engine_params p = exact ? fl_exact_params() : fl_engine_defaults();
    p.threads = 1;
    fl_loaded l = fl_load(path, &p);
    const int64_t vocab = l.model->index->hp.n_vocab;
    int32_t ids[72];
    for (int i = 0; i < 72; i++) ids[i] = 'a' + (i * 7) % 26;
    for (int i = 50; i < 72; i++) ids[i] = l.model->index->clover.mask_id;
    float *a = fl_clean_logits(l.engine, ids, 40);
    float *b = fl_block_logits(l.engine, ids + 40, 32, FL_GDN_BIDIR);
    *n = 72 * vocab;
    a = realloc(a, (size_t)*n * sizeof *a);
    assert_non_null(a);
    memcpy(a + 40 * vocab, b, (size_t)(32 * vocab) * sizeof *a);
    free(b);
    fl_unload(&l);
    return a;
}

static void every_difference_is_undone(void **state)
{
    (void)state;
    static const uint32_t types[] = {FL_TYPE_F32, FL_TYPE_Q8_0};
    for (int t = 0; t < 2; t++) {
        int64_t n = 0;
        fl_make m = model(0, types[t]);
        fl_make_gguf(&m, clean);
        float *want = logits(clean, false, &n), *exact = logits(clean, true, &n);
        for (int d = 1; d < 16; d++) {
            m = model(d, types[t]);
            fl_make_gguf(&m, in);
            /* Grouped heads meet ssm_out in another order: the same sums, rounded otherwise. */
            float *got = logits(in, d & 8, &n);
            if (d & 8)
                assert_true(fl_max_error(got, exact, n) < 2e-5);
            else
                assert_memory_equal(got, want, (size_t)n * sizeof *got);
            free(got);
            ASSERT_OK(patch(in, out));
            same_tensors(clean, out);
            keys_within(clean, out);
            keys_within(out, clean);
            got = logits(out, false, &n);
            assert_memory_equal(got, want, (size_t)n * sizeof *got);
            free(got);
            ASSERT_FAILS(patch(out, in), FL_E_ARG, "nothing to patch");
        }
        free(want);
        free(exact);
    }
}

/* --v-heads says what the file does not: the key is missing. */
static void grouped_heads_by_word_alone(void **state)
{
    (void)state;
    fl_make m = model(8, FL_TYPE_F32);
    fl_make_gguf(&m, in);
    m = model(0, FL_TYPE_F32);
    fl_make_gguf(&m, clean);
    /* Cuts the key out of its name: a reader finds none. */
    char *text;
    uint64_t n;
    FILE *f = fopen(in, "r+b");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    n = (uint64_t)ftell(f);
    text = malloc(n);
    assert_non_null(text);
    rewind(f);
    assert_int_equal(fread(text, 1, n, f), n);
    char *at = memmem(text, n, ".ssm.v_head_reordered", 21);
    assert_non_null(at);
    fseek(f, at - text + 1, SEEK_SET);
    assert_int_equal(fwrite("old", 1, 3, f), 3);
    fclose(f);
    free(text);
    ASSERT_FAILS(patch(in, out), FL_E_ARG, "nothing to patch");
    ASSERT_OK(patch_with(in, out, "grouped", NULL));
    same_tensors(clean, out);
}

/* Blocks of 256 values hold several heads of ssm_out: that tensor alone becomes F32, its values
 * in their new places. */
static void blocks_over_several_heads_become_f32(void **state)
{
    (void)state;
    fl_make m = fl_make_default();
    fl_source *a, *b;
    m.arch = "clover_moe";
    m.v_grouped = true;
    m.type = FL_TYPE_Q4_K;
    fl_make_gguf(&m, in);
    ASSERT_OK(patch(in, out));
    ASSERT_OK(fl_source_open(&a, in, &err));
    ASSERT_OK(fl_source_open(&b, out, &err));
    for (size_t i = 0; i < fl_source_n_tensors(a); i++) {
        const fl_tensor *s = fl_source_tensor(a, i), *t = fl_source_tensor(b, i);
        const bool is_out = strstr(s->name, "ssm_out") != NULL;
        assert_string_equal(s->name, t->name);
        assert_int_equal(t->type, is_out ? FL_TYPE_F32 : s->type);
        if (!is_out) continue;
        const int64_t cols = s->ne[0], heads = m.gdn_v_heads, d = m.gdn_dim, k = m.gdn_k_heads;
        uint8_t *raw = malloc(s->bytes);
        float *was = malloc((size_t)(cols * s->ne[1]) * sizeof *was), *is = malloc(t->bytes);
        assert_true(raw && was && is);
        ASSERT_OK(fl_source_read(a, s, 0, raw, s->bytes, &err));
        ASSERT_OK(fl_source_read(b, t, 0, is, t->bytes, &err));
        fl_type_get(s->type)->dequantize(raw, was, cols * s->ne[1]);
        for (int64_t r = 0; r < s->ne[1]; r++)
            for (int64_t h = 0; h < heads; h++)
                assert_memory_equal(is + r * cols + h * d,
                                    was + r * cols + (heads / k * (h % k) + h / k) * d,
                                    (size_t)d * sizeof *is);
        free(raw);
        free(was);
        free(is);
    }
    fl_source_close(&a);
    fl_source_close(&b);
}

/* A split model becomes one file. */
static void splits_become_one_file(void **state)
{
    (void)state;
    fl_make m = model(15, FL_TYPE_F32);
    m.n_files = 3;
    fl_make_gguf(&m, in);
    m = model(0, FL_TYPE_F32);
    fl_make_gguf(&m, clean);
    char *part = fl_tmp_path(dir, "in-00002-of-00003.gguf");
    ASSERT_OK(patch(part, out));
    same_tensors(clean, out);
    keys_within(out, clean);
    ASSERT_FAILS(patch(part, part), FL_E_ARG, "is a file of the model");
    free(part);
}

/* Renamed tensors are found by the map and get their own names back. */
static void mapped_tensors_are_renamed(void **state)
{
    (void)state;
    fl_make m = model(0, FL_TYPE_F32);
    char *map = fl_tmp_path(dir, "map.txt");
    fl_make_gguf(&m, clean);
    fl_make_gguf(&m, in);
    int fd = open(in, O_RDWR);
    struct stat st;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    char *all = malloc((size_t)st.st_size);
    assert_non_null(all);
    assert_int_equal(read(fd, all, (size_t)st.st_size), st.st_size);
    int n = 0;
    for (char *at = all; (at = memmem(at, (size_t)(all + st.st_size - at), "ssm_bwd_mix", 11)); n++)
        memcpy(at, "new_weights", 11);
    assert_true(n > 0);
    assert_int_equal(pwrite(fd, all, (size_t)st.st_size, 0), st.st_size);
    close(fd);
    free(all);
    const char *text = "# roles\n\nssm_bwd_mix  blk.*.new_weights\n";
    fl_tmp_write(map, text, strlen(text));
    ASSERT_OK(patch_with(in, out, NULL, map));
    same_tensors(clean, out);
    fl_tmp_write(map, "ssm_bwd_mix blk.*.other", 23);
    ASSERT_FAILS(patch_with(in, out, NULL, map), FL_E_FORMAT, "no tensor is named 'blk.*.other'");
    fl_tmp_write(map, "nonsense blk.*.x", 16);
    ASSERT_FAILS(patch_with(in, out, NULL, map), FL_E_FORMAT, "map.txt, line 1: 'nonsense'");
    fl_tmp_write(map, "ssm_bwd_mix\n", 12);
    ASSERT_FAILS(patch_with(in, out, NULL, map), FL_E_FORMAT, "expected two words");
    fl_tmp_write(map, "\nssm_bwd_mix blk.0.x", 20);
    ASSERT_FAILS(patch_with(in, out, NULL, map), FL_E_FORMAT, "line 2: 'blk.0.x': expected");
    free(map);
}

static uint64_t io_counter(const char *name)
{
    char line[128];
    unsigned long long v = 0;
    FILE *f = fopen("/proc/self/io", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0) sscanf(line + strlen(name), ": %llu", &v);
    fclose(f);
    return v;
}

/* cp reads and writes each byte once. */
static void at_most_twice_the_bytes_of_cp_move(void **state)
{
    (void)state;
    fl_make m = fl_make_default();
    struct stat st;
    m.arch = "clover_moe";
    m.norms_zero_centred = m.a_as_log = m.no_shared_count = true;
    fl_make_gguf(&m, in);
    assert_int_equal(stat(in, &st), 0);
    const uint64_t before = io_counter("rchar") + io_counter("wchar");
    ASSERT_OK(patch(in, out));
    const uint64_t moved = io_counter("rchar") + io_counter("wchar") - before;
    print_message("%.2f times the bytes of cp\n", (double)moved / (2.0 * (double)st.st_size));
    assert_true(moved >= 2 * (uint64_t)st.st_size * 99 / 100);
    assert_true(moved <= 2 * 2 * (uint64_t)st.st_size);
}

static void what_cannot_be_patched_gets_one_line(void **state)
{
    (void)state;
    fl_make m = model(1, FL_TYPE_F32);
    char *hf = fl_tmp_path(dir, "hf"), *none = fl_tmp_path(dir, "none.gguf");
    fl_make_gguf(&m, in);
    ASSERT_FAILS(patch(none, out), FL_E_IO, "none.gguf");
    ASSERT_FAILS(patch(in, in), FL_E_ARG, "is a file of the model");
    ASSERT_FAILS(patch(in, dir), FL_E_ARG, "a folder");
    fl_make_safetensors(&m, hf);
    ASSERT_FAILS(patch(hf, out), FL_E_ARG, "is no GGUF file");
    fl_tmp_write(none, "hello world, this is no model", 29);
    ASSERT_FAILS(patch(none, out), FL_E_FORMAT, "none.gguf");
    assert_int_not_equal(access(out, F_OK), 0);
    free(hf);
    free(none);
}

/* What stands at OUT survives a failure half way, and no temporary stays. */
static bool full_disk(void *arg)
{
    (void)arg;
    const struct rlimit lim = {300000, 300000};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &lim) != 0) return false;
    return patch(in, out) == FL_E_IO && strstr(err.msg, out) && !strchr(err.msg, '\n');
}

/* A kernel or file system that does not copy. */
static bool without_copy_file_range(void *arg)
{
    fl_refuse(&(fl_refusal){SYS_copy_file_range, -1, 0, 0, *(const int *)arg});
    return patch(in, out) == FL_OK;
}

static bool a_real_copy_error(void *arg)
{
    (void)arg;
    fl_refuse(&(fl_refusal){SYS_copy_file_range, -1, 0, 0, EIO});
    return patch(in, out) == FL_E_IO && strstr(err.msg, "copying from");
}

static void failures_while_copying(void **state)
{
    (void)state;
    const int refusals[] = {EXDEV, ENOSYS, EOPNOTSUPP, EPERM};
    fl_make m = model(1, FL_TYPE_F32);
    fl_make_gguf(&m, in);
    fl_tmp_write(out, "before", 6);
    const int files = fl_tmp_count(dir);
    assert_true(fl_in_child(full_disk, NULL));
    assert_true(fl_in_child(a_real_copy_error, NULL));
    struct stat st;
    assert_int_equal(stat(out, &st), 0);
    assert_int_equal(st.st_size, 6);
    assert_int_equal(fl_tmp_count(dir), files);
    m = model(0, FL_TYPE_F32);
    fl_make_gguf(&m, clean);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        unlink(out);
        assert_true(fl_in_child(without_copy_file_range, (void *)&refusals[i]));
        same_tensors(clean, out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_difference_is_undone, setup, teardown),
        cmocka_unit_test_setup_teardown(grouped_heads_by_word_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(blocks_over_several_heads_become_f32, setup, teardown),
        cmocka_unit_test_setup_teardown(splits_become_one_file, setup, teardown),
        cmocka_unit_test_setup_teardown(mapped_tensors_are_renamed, setup, teardown),
        cmocka_unit_test_setup_teardown(at_most_twice_the_bytes_of_cp_move, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_patched_gets_one_line, setup, teardown),
        cmocka_unit_test_setup_teardown(failures_while_copying, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
