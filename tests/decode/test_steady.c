/* A process that goes on answering: the token loop allocates nothing, and memory stands still over
 * 500 requests of random sizes (FL_TEST_LONG=1: 5,000), with experts in every tier. */
#include <stdlib.h>

#include "runtime/decode/generate.h"
#include "runtime/model/chat.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/heap.h"
#include "tests/support/make_model.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_CTX = 256, KINDS = 6 };

static void every_kind_of_allocation_is_counted(void **state)
{
    (void)state;
    void *volatile p;
    uint64_t calls = fl_heap_calls();
    p = malloc(10);
    assert_int_equal(fl_heap_calls(), ++calls);
    p = realloc(p, 100000);
    assert_int_equal(fl_heap_calls(), ++calls);
    free(p);
    p = calloc(3, 10);
    assert_int_equal(fl_heap_calls(), ++calls);
    free(p);
#ifndef __SANITIZE_THREAD__ /* its hooks do not see these two */
    void *aligned = NULL;
    assert_int_equal(posix_memalign(&aligned, 4096, 10), 0);
    assert_int_equal(fl_heap_calls(), ++calls);
    free(aligned);
    p = aligned_alloc(64, 128);
    assert_int_equal(fl_heap_calls(), ++calls);
    free(p);
#endif
    p = strdup("in the C library");
    assert_int_equal(fl_heap_calls(), ++calls);
    free(p);
    assert_int_equal(fl_heap_calls(), calls);
}

/* ---- the token loop ---- */

/* Allocations of the process when text came. */
typedef struct watch {
    fl_chat_stream *chat; /* takes the text apart, as the command does */
    uint64_t first, last;
    int pieces;
} watch;

static bool note_calls(void *arg, const char *text, size_t n)
{
    watch *w = arg;
    fl_err err = {0};
    fl_chat_delta d;
    if (w->pieces++ == 0) w->first = fl_heap_calls();
    ASSERT_OK(fl_chat_stream_push(w->chat, text, n, &d, &err));
    w->last = fl_heap_calls();
    return true;
}

/* Kinds 0 and 1 AR, 2 and 3 blocks, 4 and 5 speculation; the odd ones sampled, with penalties and
 * stop strings. */
static fl_gen_config config_of(const fl_model *model, int kind)
{
    static const char *const stop[] = {"never \x01", "in this text \x02"};
    fl_gen_config c;
    fl_gen_config_init(&c, model);
    c.mode = kind < 2 ? FL_GEN_AR : kind < 4 ? FL_GEN_BLOCK : FL_GEN_SPEC;
    c.sampler = (fl_sampler_config){.top_p = 1.0};
    c.clover.threshold = 0.05f;
    c.draft_min = 0.0f;
    c.ignore_eos = true;
    if (kind % 2 == 0) return c;
    c.sampler = (fl_sampler_config){
        .temp = 0.8, .top_p = 0.9, .top_k = 40, .seed = 11, .presence = 0.5, .repetition = 1.1};
    c.stop = stop;
    c.n_stop = 2;
    return c;
}

/* The second answer of each kind, on a machine of this shape. */
static void check_loops(const fl_engine_params *p)
{
    fl_err err = {0};
    fl_generator *g = NULL;
    int32_t prompt[45];
    for (int i = 0; i < 45; i++) prompt[i] = 'a' + i * 7 % 26;
    fl_loaded l = fl_load(fl_files.gguf, p);
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    for (int kind = 0; kind < KINDS; kind++)
        for (int again = 0; again < 2; again++) {
            fl_gen_config c = config_of(l.model, kind);
            fl_gen_result r;
            watch w = {0};
            c.max_tokens = 40;
            c.on_text = note_calls;
            c.arg = &w;
            ASSERT_OK(fl_chat_stream_open(&w.chat, kind % 2, NULL, &err));
            ASSERT_OK(fl_chat_stream_reserve(w.chat, 4096, &err));
            ASSERT_OK(fl_generate(g, &c, prompt, 45, &r, &err));
            fl_chat_stream_close(&w.chat);
            assert_int_equal(r.n_generated, 40);
            assert_true(w.pieces > 10);
            if (again && w.last != w.first)
                fail_msg("kind %d: %llu allocations in the token loop", kind,
                         (unsigned long long)(w.last - w.first));
        }
    const fl_store_stats s = fl_store_get_stats(l.engine->store);
    if (p->vram) assert_true((p->ram ? s.copied : s.missed) > 0);
    fl_generator_destroy(&g);
    fl_unload(&l);
}

static void the_token_loop_allocates_nothing(void **state)
{
    (void)state;
    static const char *const io[] = {NULL, "pread"};
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = N_CTX;
    p.chunk = 32;
    p.threads = 2;
    p.held_rows = 32;
    check_loops(&p);
    p.vram = fl_vram_for(fl_files.gguf, &p, 25);
    p.ram = 0;
    for (int i = 0; i < 2; i++) {
        p.io = io[i];
        check_loops(&p);
    }
    p.ram = UINT64_C(1) << 30;
    p.lanes = FL_LANES_DEVICE;
    check_loops(&p);
}

/* ---- many requests ---- */

static bool take(void *arg, const char *text, size_t n)
{
    fl_err err = {0};
    fl_chat_delta d;
    ASSERT_OK(fl_chat_stream_push(arg, text, n, &d, &err));
    return true;
}

/* From a message to an answer taken apart, as a chat does it. Sizes are random up to a full
 * context; some are refused. */
static void answer(fl_generator *g, const fl_model *model, int number)
{
    fl_err err = {0};
    static uint64_t seed = 5;
    char message[200];
    size_t n = 0;
    int32_t *ids = NULL;
    fl_chat_stream *stream = NULL;
    const fl_chat_answer *a = NULL;
    fl_chat_delta rest;
    fl_gen_result r;
    fl_gen_config c = config_of(model, number % KINDS);
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const int length = 1 + (int)((seed >> 33) % 120), most = 1 + (int)((seed >> 48) % 24);
    for (int i = 0; i < length; i++) message[i] = (char)('a' + (number + i * i) % 26);
    message[length] = 0;
    ASSERT_OK(
        fl_chat_encode_simple("system", message, number % 2, model->tokenizer, &ids, &n, &err));
    ASSERT_OK(fl_chat_stream_open(&stream, true, NULL, &err));
    c.max_tokens = most;
    c.sampler.seed = (uint64_t)number;
    c.on_text = take;
    c.arg = stream;
    if (number % 50 == 7)
        ASSERT_FAILS(fl_generate(g, &c, ids, N_CTX + 1, &r, &err), FL_E_ARG, "no room");
    else
        ASSERT_OK(fl_generate(g, &c, ids, (int64_t)n, &r, &err));
    ASSERT_OK(fl_chat_stream_finish(stream, &a, &rest, &err));
    fl_chat_stream_close(&stream);
    free(ids);
}

static void memory_stands_still_over_many_requests(void **state)
{
    (void)state;
    const int requests = getenv("FL_TEST_LONG") ? 5000 : FL_SANITIZED_OR(100, 500);
    fl_err err = {0};
    char *file = fl_tmp_path(fl_files.dir, "tiny.gguf");
    fl_generator *g = NULL;
    fl_engine_params p = fl_engine_defaults();
    p.n_ctx = N_CTX;
    p.threads = 2;
    p.held_rows = 32;
    fl_make make = fl_make_tiny();
    make.arch = "clover_moe";
    fl_make_gguf(&make, file);
    p.vram = fl_vram_for(file, &p, 25);
    p.ram = fl_ram_for(file, &p, 50);
    p.lanes = FL_LANES_DEVICE;
    fl_loaded l = fl_load(file, &p);
    ASSERT_OK(fl_generator_create(&g, l.engine, &err));
    int64_t early = 0;
    for (int i = 0; i < requests; i++) {
        answer(g, l.model, i);
        if (i == 49) early = fl_memory_held();
    }
    const int64_t grown = fl_memory_held() - early;
    const fl_store_stats s = fl_store_get_stats(l.engine->store);
    assert_true(s.hit_resident > 0 && s.copied > 0 && s.missed > 0);
    print_message("# %d requests: %lld KiB more than after 50\n", requests,
                  (long long)grown / 1024);
    assert_true(grown <= 1 << 20);
    fl_generator_destroy(&g);
    fl_unload(&l);
    free(file);
}

int main(void)
{
    fl_heap_watch();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_allocation_is_counted),
        cmocka_unit_test(the_token_loop_allocates_nothing),
        cmocka_unit_test(memory_stands_still_over_many_requests),
    };
    return cmocka_run_group_tests(tests, fl_files_setup_model, fl_files_teardown);
}
