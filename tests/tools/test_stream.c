/* The stream from a model to a file: slices, guides, failures in any of its threads. */
#include <pthread.h>
#include <stdlib.h>

#include "runtime/model/index.h"
#include "runtime/tools/slices.h"
#include "runtime/tools/stream.h"
#include "tests/support/quantized.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

static fl_err err;
static fl_workplace place;
static fl_source *src;
static fl_index *ix;
static fl_conv conv;

static int setup(void **state)
{
    (void)state;
    fl_make m = fl_layout(1);
    m.st_files = 2;
    place = fl_workplace_make();
    fl_make_safetensors(&m, place.hf);
    src = fl_open_source(place.hf);
    ASSERT_OK(fl_index_build(&ix, src, &err));
    ASSERT_OK(fl_conv_plan(&conv, ix, true, &err));
    for (int i = 0; i < conv.n; i++) fl_conv_set_type(&conv.tensor[i], FL_TYPE_Q8_0);
    ASSERT_OK(fl_conv_settle(&conv, false, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fl_conv_fini(&conv);
    fl_index_free(&ix);
    fl_source_close(&src);
    fl_workplace_remove(&place);
    return 0;
}

static int experts_of(const fl_conv_tensor *t) { return t->n_dims == 3 ? (int)t->ne[2] : 1; }

/* Each row once, in order, no slice over two experts; what they read is the whole tensor. */
static void slices_cover_everything(void **state)
{
    (void)state;
    fl_slice x = {0};
    int64_t row = 0;
    int tensor = 0, n = 0;
    bool end = true;
    while (fl_slice_next(&conv, &x)) {
        const fl_conv_tensor *t = &conv.tensor[x.tensor];
        const int64_t each = t->rows / experts_of(t);
        if (end) {
            assert_int_equal(x.tensor, tensor++);
            row = 0;
        }
        assert_int_equal(x.row0, row);
        assert_int_equal(x.expert, row / each);
        assert_true(x.rows > 0 && (row % each) + x.rows <= each);
        assert_int_equal(x.first, row % each == 0);
        assert_int_equal(x.last, (row + x.rows) % each == 0);
        row += x.rows;
        end = x.end;
        assert_int_equal(end, row == t->rows);
        fl_slice_part part[64];
        const int parts = fl_slice_parts(&conv, &x, part, 64);
        uint64_t bytes = 0;
        assert_true(parts > 0 && parts <= 64);
        assert_int_equal(fl_slice_parts(&conv, &x, NULL, 0), parts);
        for (int i = 0; i < parts; i++) bytes += part[i].bytes;
        assert_true(bytes >= (uint64_t)x.rows * fl_conv_run_at(t, x.row0, 1).row_bytes);
        n++;
    }
    assert_true(end);
    assert_int_equal(tensor, conv.n);
    assert_false(fl_slice_next(&conv, &x));
    print_message("%d tensors, %d slices\n", conv.n, n);
}

typedef struct witness {
    pthread_mutex_t lock;
    int got[128][64], put[128][64];
    int fail_tensor, fail_expert; /* get fails there; -1: nowhere */
    int fail_done;                /* done fails behind this tensor; -1: nowhere */
    int n_done;
    uint64_t ticked;
} witness;

static fl_status get(void *ctx, const fl_conv_tensor *t, int expert, const fl_guide **g, fl_err *e)
{
    witness *w = ctx;
    const int i = (int)(t - conv.tensor);
    if (i == w->fail_tensor && expert == w->fail_expert)
        return FL_FAIL(e, FL_E_NAN, 0, "no guide for %s", t->name);
    pthread_mutex_lock(&w->lock);
    w->got[i][expert]++;
    pthread_mutex_unlock(&w->lock);
    float *diag = malloc((size_t)t->cols * sizeof *diag);
    for (int64_t k = 0; diag && k < t->cols; k++) diag[k] = (float)(1 + k % 7);
    fl_guide *made = NULL;
    const fl_moment m = {.cols = t->cols, .diag = diag};
    const fl_status st = diag ? fl_guide_create(&made, &m, e) : FL_E_NOMEM;
    free(diag);
    *g = made;
    return st;
}

static void put(void *ctx, const fl_conv_tensor *t, int expert, const fl_guide *g)
{
    witness *w = ctx;
    pthread_mutex_lock(&w->lock);
    w->put[t - conv.tensor][expert]++;
    pthread_mutex_unlock(&w->lock);
    fl_guide *mine = (fl_guide *)(uintptr_t)g;
    fl_guide_destroy(&mine);
}

static fl_status done(void *ctx, int tensor, double relative, fl_err *e)
{
    witness *w = ctx;
    assert_int_equal(tensor, w->n_done);
    assert_true(relative >= 0 && relative < 0.02);
    w->n_done++;
    return tensor == w->fail_done ? FL_FAIL(e, FL_E_IO, 0, "enough") : FL_OK;
}

static void tick(void *ctx, const fl_stream_state *s)
{
    witness *w = ctx;
    assert_true(s->values > w->ticked && s->values <= s->values_total);
    assert_true(s->bytes_read > 0 && s->bytes_written > 0);
    w->ticked = s->values;
}

static fl_status run(witness *w, int threads, const atomic_int *stop, const char *io)
{
    fl_gguf_writer *out;
    fl_stream_guides guides = {w, get, put};
    pthread_mutex_init(&w->lock, NULL);
    ASSERT_OK(fl_gguf_writer_create(&out, place.out, 0, &err));
    for (int i = 0; i < conv.n; i++) {
        const fl_conv_tensor *t = &conv.tensor[i];
        ASSERT_OK(fl_gguf_add_tensor(out, t->name, t->type, t->n_dims, t->ne, &err));
    }
    ASSERT_OK(fl_gguf_writer_begin(out, &err));
    const fl_stream_job job = {.conv = &conv,
                               .writer = out,
                               .guides = &guides,
                               .threads = threads,
                               .io = io,
                               .stop = stop,
                               .ctx = w,
                               .done = done,
                               .tick = tick};
    err = (fl_err){0};
    const fl_status st = fl_stream_run(&job, &err);
    fl_gguf_writer_discard(&out);
    pthread_mutex_destroy(&w->lock);
    for (int i = 0; i < conv.n; i++)
        for (int e = 0; e < experts_of(&conv.tensor[i]); e++)
            assert_int_equal(w->got[i][e], w->put[i][e]);
    return st;
}

static void each_guide_is_made_once_and_given_back(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads += 2) {
        witness w = {.fail_tensor = -1, .fail_done = -1};
        ASSERT_OK(run(&w, threads, NULL, NULL));
        assert_int_equal(w.n_done, conv.n);
        for (int i = 0; i < conv.n; i++)
            for (int e = 0; e < experts_of(&conv.tensor[i]); e++) assert_int_equal(w.got[i][e], 1);
    }
}

/* Every failure ends all threads, and what was taken is given back. */
static void failures_end_the_run(void **state)
{
    (void)state;
    static const atomic_int stop = 1;
    for (int threads = 1; threads <= 4; threads++) {
        for (int i = 0; i < conv.n; i += 5) {
            witness w = {.fail_tensor = i, .fail_done = -1};
            w.fail_expert = experts_of(&conv.tensor[i]) / 2;
            ASSERT_FAILS(run(&w, threads, NULL, NULL), FL_E_NAN, conv.tensor[i].name);
            assert_int_equal(w.n_done, i);
            w = (witness){.fail_tensor = -1, .fail_done = i};
            ASSERT_FAILS(run(&w, threads, NULL, "fake"), FL_E_IO, "enough");
            assert_int_equal(w.n_done, i + 1);
        }
        witness w = {.fail_tensor = -1, .fail_done = -1};
        ASSERT_FAILS(run(&w, threads, &stop, NULL), FL_E_CANCELED, "interrupted");
    }
    witness w = {.fail_tensor = -1, .fail_done = -1};
    ASSERT_FAILS(run(&w, 1, NULL, "floppy"), FL_E_ARG, "floppy");
}

/* Known beforehand, and growing with the threads alone. */
static void memory_is_counted(void **state)
{
    (void)state;
    const uint64_t one = fl_stream_bytes(&conv, 1), two = fl_stream_bytes(&conv, 2),
                   three = fl_stream_bytes(&conv, 3);
    assert_true(one > 0 && two > one);
    assert_int_equal(three - two, two - one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_cover_everything),
        cmocka_unit_test(each_guide_is_made_once_and_given_back),
        cmocka_unit_test(failures_end_the_run),
        cmocka_unit_test(memory_is_counted),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
