/* The host tier: the file's bytes in their places, in whatever order reads complete; what cannot be
 * read is simply not there; pinning that is refused somewhere. */
#include <errno.h>
#include <stdlib.h>

#include "offload/host.h"
#include "offload/io_fake.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { FILE_BYTES = 900 * 1024, LAYERS = 3, EXPERTS = 20, N = LAYERS * EXPERTS };

static char *dir, *path;
static uint8_t *content;
static fl_expert_place place[N];
static uint64_t bytes[N], host_bytes[N];
static uint64_t seed = 7;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

typedef struct house {
    fl_device *dev;
    fl_io *io;
    fl_plan plan;
    fl_host *host;
} house;

static void open_house(house *h, const char *backend, int depth, int refuse_pin)
{
    fl_err err;
    *h = (house){0};
    fl_plan_input in = {.n_layer = LAYERS, .n_expert = EXPERTS, .top_k = 2, .host_asked = true};
    in.expert_bytes = bytes;
    in.host_bytes = host_bytes;
    in.host_cap = UINT64_MAX;
    in.device_cap = 2 * 16384 + 9 * 3000;
    ASSERT_OK(fl_plan_make(&in, &h->plan, &err));
    assert_true(h->plan.n_host > N / 2 && h->plan.n_host + h->plan.n_resident == N);
    const fl_device_config cfg = {.memory_cap = 1 << 20, .refuse_pin = refuse_pin};
    ASSERT_OK(fl_device_open(&h->dev, &cfg, &err));
    ASSERT_OK(fl_io_open(&h->io, backend, (const char *const *)&path, 1, depth, &err));
    ASSERT_OK(fl_host_create(&h->host, h->dev, h->io, &h->plan, place, &err));
    assert_int_equal(fl_host_get_stats(h->host).bytes, h->plan.arena_bytes);
}

static void close_house(house *h)
{
    fl_host_destroy(&h->host);
    assert_int_equal(fl_io_in_flight(h->io), 0);
    fl_io_close(&h->io);
    fl_device_close(&h->dev); /* nothing is pinned any more */
    fl_plan_free(&h->plan);
}

static void check_expert(const house *h, int32_t key)
{
    for (int k = 0; k < FL_EXPERT_PARTS; k++) {
        const fl_extent *x = &place[key].part[k];
        const uint8_t *p = fl_host_part(h->host, key, k);
        assert_int_equal(p == NULL, x->bytes == 0);
        if (p) assert_memory_equal(p, content + x->offset, x->bytes);
    }
}

static void must_wait(fl_host *h)
{
    fl_err err;
    ASSERT_OK(fl_host_wait(h, &err));
}

/* All that is there is right; returns how many are. */
static int check_all(const house *h)
{
    int there = 0;
    for (int32_t k = 0; k < N; k++) {
        if (h->plan.tier[k] != FL_TIER_HOST) continue;
        if (fl_host_state_of(h->host, k) != FL_HOST_THERE) continue;
        check_expert(h, k);
        there++;
    }
    return there;
}

static void all_of_it_is_the_files(void **state)
{
    (void)state;
    static const char *const backends[] = {NULL, "pread", "fake"};
    for (int b = 0; b < 3; b++) {
        house h;
        open_house(&h, backends[b], b == 1 ? FL_EXPERT_PARTS : 16, 0);
        if (b == 2)
            fl_io_fake_set(h.io, &(fl_io_fake_config){.fail_at = -1,
                                                      .seed = 3,
                                                      .short_chance = 300,
                                                      .again_chance = 200,
                                                      .stall_chance = 300,
                                                      .stall_polls = 4,
                                                      .reorder = true});
        while (!fl_host_is_loaded(h.host)) must_wait(h.host);
        assert_int_equal(check_all(&h), h.plan.n_host);
        const fl_host_stats s = fl_host_get_stats(h.host);
        assert_true(s.bytes_loaded > 0 && s.bytes_loaded <= s.bytes);
        assert_int_equal(s.pinned, s.bytes);
        assert_int_equal(s.failed, 0);
        assert_true(s.load_ns > 0);
        close_house(&h);
    }
}

/* While many are under way, the one that is wanted does not stand behind all of them. */
static void what_is_hurried_comes_first(void **state)
{
    (void)state;
    house h;
    open_house(&h, "fake", 12, 0);
    const int32_t last = N - 1;
    assert_int_equal(h.plan.tier[last], FL_TIER_HOST);
    fl_host_poll(h.host);
    assert_int_equal(fl_host_state_of(h.host, last), FL_HOST_WAITS);
    int steps = 0;
    while (fl_host_state_of(h.host, last) != FL_HOST_THERE) {
        fl_host_hurry(h.host, last);
        must_wait(h.host);
        assert_true(++steps < 10);
    }
    check_expert(&h, last);
    assert_false(fl_host_is_loaded(h.host));
    close_house(&h); /* with reads under way */
}

static void what_cannot_be_read_is_not_there(void **state)
{
    (void)state;
    house h;
    open_house(&h, "fake", 8, 0);
    fl_io_fake_set(h.io, &(fl_io_fake_config){
                             .fail_at = -1, .fail_chance = 200, .fail_errno = ENXIO, .seed = 11});
    while (!fl_host_is_loaded(h.host)) must_wait(h.host);
    const int failed = fl_host_get_stats(h.host).failed;
    assert_true(failed > 2 && failed < h.plan.n_host);
    assert_int_equal(check_all(&h), h.plan.n_host - failed);
    close_house(&h);
    /* An extent behind the end of the file. */
    const fl_extent kept = place[N - 1].part[2];
    place[N - 1].part[2].offset += UINT64_C(1) << 40;
    open_house(&h, NULL, 8, 0);
    while (!fl_host_is_loaded(h.host)) must_wait(h.host);
    assert_int_equal(fl_host_state_of(h.host, N - 1), FL_HOST_FAILED);
    assert_int_equal(check_all(&h), h.plan.n_host - 1);
    close_house(&h);
    place[N - 1].part[2] = kept;
}

static void refused_pinning_leaves_it_pageable(void **state)
{
    (void)state;
    house h;
    open_house(&h, "fake", 8, 1);
    assert_int_equal(fl_host_get_stats(h.host).pinned, 0);
    while (!fl_host_is_loaded(h.host)) must_wait(h.host);
    assert_int_equal(check_all(&h), h.plan.n_host);
    close_house(&h);
}

static int setup(void **state)
{
    (void)state;
    dir = fl_tmp_make();
    path = fl_tmp_path(dir, "experts.bin");
    content = malloc(FILE_BYTES);
    for (int i = 0; i < FILE_BYTES; i++) content[i] = (uint8_t)rnd(256);
    fl_tmp_write(path, content, FILE_BYTES);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < FL_EXPERT_PARTS; k++) {
            fl_extent *x = &place[i].part[k];
            if (k == 1 && i % 2) continue; /* fused */
            x->bytes = 1 + rnd(5000);
            x->offset = k == 2 && i % 7 == 0 ? FILE_BYTES - x->bytes
                                             : rnd((uint32_t)(FILE_BYTES - x->bytes));
            bytes[i] += (x->bytes + 63) / 64 * 64;
        }
        host_bytes[i] = fl_host_place_bytes(&place[i]);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(path);
    free(content);
    fl_tmp_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_it_is_the_files),
        cmocka_unit_test(what_is_hurried_comes_first),
        cmocka_unit_test(what_cannot_be_read_is_not_there),
        cmocka_unit_test(refused_pinning_leaves_it_pageable),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
