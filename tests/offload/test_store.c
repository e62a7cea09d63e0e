/* The expert store: every byte of every view is the file's, leases hold, failures leave it sane. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "offload/host.h"
#include "offload/io_fake.h"
#include "offload/store.h"
#include "tests/support/test.h"
#include "tests/support/tmp.h"

enum { N_FILES = 2, FILE_BYTES = 600 * 1024, MAX_LAYER = 8, MAX_EXPERT = 12 };

static char *dir, *disk_dir;
static char *paths[N_FILES], *disk_paths[N_FILES];
static uint8_t *content[N_FILES];
static uint64_t seed = 99;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* A store over a random model, with all that it stands on. */
typedef struct house {
    fl_device *dev;
    fl_io *io, *host_io;
    fl_store *store;
    fl_plan plan;
    fl_lane_choice lanes;
    fl_policy_kind policy;
    bool no_prefetch;
    uint32_t host_share; /* of what the device does not keep, in 1/1,000 */
    int n_layer, n_expert;
    fl_expert_place place[MAX_LAYER * MAX_EXPERT];
    uint64_t bytes[MAX_LAYER * MAX_EXPERT], host_bytes[MAX_LAYER * MAX_EXPERT];
} house;

static void make_places(house *h, int n_layer, int n_expert)
{
    h->n_layer = n_layer;
    h->n_expert = n_expert;
    const uint64_t align = rnd(2) ? 4 : 1;
    for (int l = 0; l < n_layer; l++) {
        const bool fused = rnd(2), dense = l == 0 && rnd(4) == 0;
        uint64_t size[FL_EXPERT_PARTS];
        for (int k = 0; k < FL_EXPERT_PARTS; k++) size[k] = 1 + rnd(3000);
        for (int e = 0; e < n_expert; e++) {
            const int i = l * n_expert + e;
            h->place[i] = (fl_expert_place){0};
            h->bytes[i] = 0;
            for (int k = 0; k < FL_EXPERT_PARTS && !dense; k++) {
                if (fused && k == 1) continue;
                fl_extent *x = &h->place[i].part[k];
                x->file = (int32_t)rnd(N_FILES);
                x->bytes = size[k];
                x->offset = rnd(20) ? rnd((uint32_t)(FILE_BYTES - size[k]))
                                    : FILE_BYTES - size[k]; /* some end the file */
                x->offset -= x->offset % align;
                h->bytes[i] += (size[k] + 63) / 64 * 64;
            }
            h->host_bytes[i] = fl_host_place_bytes(&h->place[i]);
        }
    }
}

static void make_plan(house *h, int top_k, uint64_t cap)
{
    fl_err err;
    fl_plan_input in = {.device_cap = cap, .n_layer = h->n_layer, .n_expert = h->n_expert};
    in.top_k = top_k;
    in.expert_bytes = h->bytes;
    in.host_bytes = h->host_bytes;
    ASSERT_OK(fl_plan_make(&in, &h->plan, &err));
    if (h->host_share == 0) return;
    const uint64_t staging = h->plan.staging_bytes, all = h->plan.full_host_cap - staging;
    in.host_cap = staging + all * h->host_share / 1000;
    fl_plan_free(&h->plan);
    ASSERT_OK(fl_plan_make(&in, &h->plan, &err));
}

/* cap_of(least, full) by a share in 1/1,000 of the way from one to the other. */
static void plan_between(house *h, int top_k, uint32_t share)
{
    make_plan(h, top_k, UINT64_MAX);
    const uint64_t lo = h->plan.min_device_cap, hi = h->plan.full_device_cap;
    fl_plan_free(&h->plan);
    make_plan(h, top_k, lo + (hi - lo) * share / 1000);
}

static void open_under(house *h, const char *backend, char *const files[N_FILES], int depth,
                       uint64_t rate)
{
    fl_err err;
    const fl_device_config cfg = {
        .kind = "host", .memory_cap = h->plan.device_bytes + 1, .link_bytes_s = rate};
    ASSERT_OK(fl_device_open(&h->dev, &cfg, &err));
    ASSERT_OK(fl_io_open(&h->io, backend, (const char *const *)files, N_FILES, depth, &err));
    if (h->plan.n_host)
        ASSERT_OK(fl_io_open(&h->host_io, backend, (const char *const *)files, N_FILES,
                             depth < FL_EXPERT_PARTS ? FL_EXPERT_PARTS : depth, &err));
}

static fl_status create(house *h, fl_err *err)
{
    const fl_store_config c = {.dev = h->dev,
                               .io = h->io,
                               .host_io = h->host_io,
                               .plan = &h->plan,
                               .place = h->place,
                               .lanes = h->lanes,
                               .policy = h->policy,
                               .no_prefetch = h->no_prefetch};
    return fl_store_create(&h->store, &c, err);
}

static void open_store(house *h)
{
    fl_err err;
    ASSERT_OK(create(h, &err));
    assert_int_equal(fl_device_budget(h->dev)->used, h->plan.device_bytes);
    assert_int_equal(fl_store_host_memory(h->store)->used, h->plan.host_bytes);
}

static void close_all(house *h)
{
    fl_store_destroy(&h->store);
    assert_int_equal(fl_device_budget(h->dev)->used, 0);
    fl_io_close(&h->io);
    fl_io_close(&h->host_io);
    fl_device_close(&h->dev);
    fl_plan_free(&h->plan);
}

/* A whole union at once, views in the order of ids. On failure none is held. */
static fl_status acquire(house *h, int layer, const int32_t *ids, int n, fl_expert_view *views,
                         fl_err *err)
{
    fl_expert_view came[MAX_EXPERT];
    fl_status st = FL_OK;
    fl_store_begin(h->store, layer, 1, ids, NULL, n);
    int done = 0;
    for (int got; st == FL_OK && done < n; done += got)
        st = fl_store_next(h->store, came + done, &got, err);
    if (st != FL_OK) {
        fl_store_release(h->store, layer, came, done);
        return st;
    }
    fl_store_end(h->store);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (came[k].expert == ids[i]) views[i] = came[k];
    return FL_OK;
}

/* The router says that the layer will want these, and they are brought. */
static void read_ahead(house *h, int layer, const int32_t *ids, int n)
{
    fl_store_guess(h->store, layer, ids, n);
    fl_store_prefetch(h->store, layer);
}

static void check_view(const house *h, int layer, const fl_expert_view *v)
{
    const int i = layer * h->n_expert + v->expert;
    assert_int_equal(v->slot == FL_VIEW_RESIDENT, h->plan.tier[i] == FL_TIER_DEVICE);
    if (v->slot == FL_VIEW_HOST) assert_int_equal(h->plan.tier[i], FL_TIER_HOST);
    const uint64_t align = v->slot == FL_VIEW_HOST ? 4 : 64;
    for (int k = 0; k < FL_EXPERT_PARTS; k++) {
        const fl_extent *x = &h->place[i].part[k];
        assert_int_equal(v->part[k] == NULL, x->bytes == 0);
        if (!x->bytes) continue;
        assert_int_equal((uintptr_t)v->part[k] % align, 0);
        assert_memory_equal(v->part[k], content[x->file] + x->offset, x->bytes);
    }
}

/* ---- random sequences ---- */

enum { MAX_LEASES = 4 };
typedef struct lease {
    int layer, n;
    fl_expert_view view[MAX_EXPERT];
} lease;

/* Experts that are in slots at once, however large they are. */
static int at_once(const house *h)
{
    return h->plan.n_classes ? h->plan.slot_class[h->plan.n_classes - 1].count : 0;
}

/* n different experts of a layer, of which at most `most` are not resident. */
static int pick(const house *h, int layer, int most, int32_t *ids)
{
    int32_t all[MAX_EXPERT];
    int n = 0;
    const int want = 1 + (int)rnd((uint32_t)h->n_expert);
    for (int e = 0; e < h->n_expert; e++) all[e] = e;
    for (int e = 0; e < want; e++) {
        const int j = e + (int)rnd((uint32_t)(h->n_expert - e));
        const int32_t id = all[j];
        all[j] = all[e];
        if (fl_plan_tier(&h->plan, layer, id) != FL_TIER_DEVICE && most-- <= 0) break;
        ids[n++] = id;
    }
    return n;
}

static void set_faults(house *h)
{
    fl_io_fake_config c = {.seed = seed, .fail_at = -1, .fail_errno = EIO, .reorder = true};
    c.fail_more = rnd(8) ? (int)rnd(3) : INT_MAX;
    if (rnd(2)) c.fail_errno = ENXIO; /* no drive: not tried again */
    if (rnd(3) == 0) c.short_chance = 300;
    if (rnd(3) == 0) c.again_chance = 200;
    if (rnd(3) == 0) {
        c.stall_chance = 300;
        c.stall_polls = 5;
    }
    if (rnd(6) == 0) c.fail_at = rnd(6);
    if (rnd(50) == 0 && c.fail_errno == ENXIO) c.fail_chance = 500;
    fl_io_fake_set(h->io, &c);
    if (h->host_io) fl_io_fake_set(h->host_io, &c);
}

static void no_faults(house *h)
{
    const fl_io_fake_config none = {.seed = seed, .fail_at = -1};
    fl_io_fake_set(h->io, &none);
    if (h->host_io) fl_io_fake_set(h->host_io, &none);
}

static void step_acquire(house *h, lease *leases, int *n_leases)
{
    fl_err err = {0};
    int32_t ids[MAX_EXPERT];
    lease *l = &leases[*n_leases];
    l->layer = (int)rnd((uint32_t)h->n_layer);
    l->n = pick(h, l->layer, at_once(h), ids);
    fl_status st = acquire(h, l->layer, ids, l->n, l->view, &err);
    if (st == FL_E_IO) { /* nothing is held, and the same call works on a healthy drive */
        assert_non_null(strstr(err.msg, "experts-"));
        assert_true(fl_store_is_sane(h->store));
        no_faults(h);
        err = (fl_err){0};
        st = acquire(h, l->layer, ids, l->n, l->view, &err);
        if (st == FL_E_IO) { /* a prefetch that had failed before the drive was healthy */
            err = (fl_err){0};
            st = acquire(h, l->layer, ids, l->n, l->view, &err);
        }
    }
    if (st == FL_E_BUSY) {
        assert_true(*n_leases > 0);
        assert_non_null(strstr(err.msg, "free of leases"));
        return;
    }
    if (st != FL_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < l->n; i++) {
        assert_int_equal(l->view[i].expert, ids[i]);
        if (l->view[i].slot != FL_VIEW_HOST)
            assert_true(fl_store_is_present(h->store, l->layer, ids[i]));
    }
    ++*n_leases;
}

/* Any union, however few slots there are: each part is given back before the next one comes. */
static void step_union(house *h, int n_leases)
{
    fl_err err = {0};
    int32_t ids[MAX_EXPERT], rows[MAX_EXPERT];
    fl_expert_view v[MAX_EXPERT];
    const int layer = (int)rnd((uint32_t)h->n_layer), n = pick(h, layer, MAX_EXPERT, ids);
    for (int i = 0; i < n; i++) rows[i] = 1 + (int32_t)rnd(40);
    fl_store_begin(h->store, layer, 40, ids, rows, n);
    for (int done = 0, got; done < n; done += got) {
        const fl_status st = fl_store_next(h->store, v, &got, &err);
        if (st == FL_E_BUSY) assert_true(n_leases > 0);
        if (st != FL_OK) {
            assert_true(st == FL_E_BUSY || st == FL_E_IO);
            return;
        }
        assert_true(got > 0 && fl_store_is_sane(h->store));
        for (int i = 0; i < got; i++) check_view(h, layer, &v[i]);
        fl_store_poll(h->store);
        for (int i = 0; i < got; i++) check_view(h, layer, &v[i]);
        fl_store_release(h->store, layer, v, got);
        if (rnd(40) == 0) break; /* not wanted any more */
    }
    fl_store_end(h->store);
}

static void step(house *h, lease *leases, int *n_leases)
{
    const uint32_t what = rnd(100);
    set_faults(h);
    if (rnd(20) == 0) fl_store_block_done(h->store);
    if (what < 20) {
        step_union(h, *n_leases);
    } else if (what < 50 && *n_leases < MAX_LEASES) {
        step_acquire(h, leases, n_leases);
    } else if (what < 77 && *n_leases > 0) {
        const int i = (int)rnd((uint32_t)*n_leases);
        fl_store_release(h->store, leases[i].layer, leases[i].view, leases[i].n);
        leases[i] = leases[--*n_leases];
    } else {
        int32_t ids[MAX_EXPERT];
        const int layer = (int)rnd((uint32_t)h->n_layer);
        read_ahead(h, layer, ids, pick(h, layer, MAX_EXPERT, ids));
    }
    if (!fl_store_is_sane(h->store)) fail_msg("the tables disagree");
    assert_int_equal(fl_device_budget(h->dev)->used, h->plan.device_bytes);
    for (int i = 0; i < *n_leases; i++)
        for (int k = 0; k < leases[i].n; k++) check_view(h, leases[i].layer, &leases[i].view[k]);
}

static void test_random_sequences(void **state)
{
    (void)state;
    fl_store_stats sum = {0};
    int with_classes = 0;
    for (int round = 0; round < 60; round++) {
        house h = {.lanes = (fl_lane_choice)rnd(3),
                   .policy = (fl_policy_kind)rnd(FL_N_POLICIES),
                   .no_prefetch = rnd(5) == 0};
        if (round % 3) h.host_share = rnd(2) ? 1000 : rnd(1001);
        lease leases[MAX_LEASES];
        int n_leases = 0;
        if (round % 4 == 0) { /* slots enough for more than one class */
            make_places(&h, MAX_LAYER, MAX_EXPERT);
            plan_between(&h, 1, 700 + rnd(250));
        } else {
            make_places(&h, 1 + (int)rnd(MAX_LAYER), 2 + (int)rnd(MAX_EXPERT - 1));
            plan_between(&h, 1 + (int)rnd((uint32_t)h.n_expert), rnd(4) ? rnd(1001) : 0);
        }
        open_under(&h, "fake", paths, 1 + (int)rnd(24), rnd(2) ? 0 : 200u << 20);
        open_store(&h);
        for (int i = 0; i < 250; i++) step(&h, leases, &n_leases);
        while (n_leases--)
            fl_store_release(h.store, leases[n_leases].layer, leases[n_leases].view,
                             leases[n_leases].n);
        const fl_store_stats s = fl_store_get_stats(h.store);
        with_classes += h.plan.n_classes > 1;
        sum.missed += s.missed;
        sum.hit_slot += s.hit_slot;
        sum.evicted += s.evicted;
        sum.prefetch_used += s.prefetch_used;
        sum.misfetched += s.misfetched;
        if (h.no_prefetch) assert_int_equal(s.prefetched, 0);
        sum.failed += s.failed;
        sum.on_cpu += s.on_cpu;
        sum.copied += s.copied;
        close_all(&h);
    }
    /* The run went where it was meant to go. */
    assert_true(sum.missed > 1000 && sum.hit_slot > 1000 && sum.evicted > 1000);
    assert_true(sum.misfetched > 50 && sum.prefetch_used > 50 && sum.failed > 50);
    assert_true(with_classes > 5);
    assert_true(sum.on_cpu > 1000 && sum.copied > 1000);
}

/* ---- single rules ---- */

/* One layer more than asked, 4 experts each of one size, `slots` slots, nothing resident. */
static void small_house(house *h, const char *backend, int top_k, uint64_t slots)
{
    *h = (house){0};
    do make_places(h, 3, 4);
    while (!h->bytes[0]);
    uint64_t largest = 0;
    for (int i = 0; i < 12; i++) {
        h->place[i] = h->place[0];
        h->place[i].part[0].offset = (uint64_t)i * 5000 + 16;
        h->bytes[i] = h->bytes[0];
        h->host_bytes[i] = fl_host_place_bytes(&h->place[i]);
        if (h->bytes[i] > largest) largest = h->bytes[i];
    }
    make_plan(h, top_k, slots * largest);
    assert_int_equal(h->plan.n_slots, slots);
    assert_int_equal(h->plan.n_resident, 0);
    open_under(h, backend, paths, 8, 0);
    open_store(h);
}

static void get(house *h, int layer, int32_t id)
{
    fl_err err;
    fl_expert_view v;
    ASSERT_OK(acquire(h, layer, &id, 1, &v, &err));
    check_view(h, layer, &v);
    fl_store_release(h->store, layer, &v, 1);
}

static void test_least_recently_used_goes(void **state)
{
    (void)state;
    house h;
    small_house(&h, "fake", 3, 3);
    get(&h, 0, 0);
    get(&h, 0, 1);
    get(&h, 0, 2);
    get(&h, 0, 0); /* now 1 is the oldest */
    get(&h, 0, 3);
    assert_true(fl_store_is_present(h.store, 0, 0));
    assert_false(fl_store_is_present(h.store, 0, 1));
    assert_true(fl_store_is_present(h.store, 0, 2));
    fl_store_stats s = fl_store_get_stats(h.store);
    assert_int_equal(s.acquired, 5);
    assert_int_equal(s.missed, 4);
    assert_int_equal(s.hit_slot, 1);
    assert_int_equal(s.evicted, 1);
    assert_true(s.wait_ns > 0);
    /* The same set again and again is read once. */
    const uint64_t read = s.bytes_read;
    for (int i = 0; i < 5; i++) get(&h, 0, 3);
    assert_int_equal(fl_store_get_stats(h.store).bytes_read, read);
    close_all(&h);
}

static void test_leases_are_kept(void **state)
{
    (void)state;
    house h;
    fl_err err;
    small_house(&h, "fake", 3, 3);
    const int32_t two[2] = {0, 1}, next[2] = {1, 2};
    fl_expert_view a[2], b[2], c[2];
    ASSERT_OK(acquire(&h, 0, two, 2, a, &err));
    ASSERT_FAILS(acquire(&h, 1, two, 2, b, &err), FL_E_BUSY,
                 "1 of 2 experts are still to come, 0 of 3 slots");
    assert_true(fl_store_is_sane(h.store));
    ASSERT_OK(acquire(&h, 0, next, 2, c, &err)); /* shares expert 1 */
    assert_ptr_equal(a[1].part[0], c[0].part[0]);
    fl_store_release(h.store, 0, a, 2);
    ASSERT_FAILS(acquire(&h, 1, two, 2, b, &err), FL_E_BUSY,
                 "1 of 2 experts are still to come, 0 of 3 slots");
    read_ahead(&h, 1, two, 2); /* may take the one that is free, no more */
    for (int i = 0; i < 2; i++) check_view(&h, 0, &c[i]);
    fl_store_release(h.store, 0, c, 2);
    ASSERT_OK(acquire(&h, 1, two, 2, b, &err));
    for (int i = 0; i < 2; i++) check_view(&h, 1, &b[i]);
    fl_store_release(h.store, 1, b, 2);
    close_all(&h);
}

static void test_prefetch(void **state)
{
    (void)state;
    house h;
    small_house(&h, "fake", 4, 4);
    get(&h, 0, 0);
    get(&h, 0, 1);
    const int32_t four[4] = {0, 1, 2, 3};
    read_ahead(&h, 1, four, 4); /* two empty slots; layer 0 keeps its own */
    assert_int_equal(fl_store_get_stats(h.store).prefetched, 2);
    get(&h, 0, 0);
    get(&h, 0, 1);
    assert_int_equal(fl_store_get_stats(h.store).missed, 2);
    read_ahead(&h, 2, four, 4); /* layer 1's are fresh, layer 0's are in use */
    assert_int_equal(fl_store_get_stats(h.store).prefetched, 2);
    get(&h, 1, 0);
    get(&h, 1, 1);
    const fl_store_stats s = fl_store_get_stats(h.store);
    assert_int_equal(s.prefetch_used, 2);
    assert_int_equal(s.missed, 2);
    read_ahead(&h, 2, four, 4); /* now layer 0's may go */
    assert_int_equal(fl_store_get_stats(h.store).prefetched, 4);
    assert_false(fl_store_is_present(h.store, 0, 0));
    assert_true(fl_store_is_present(h.store, 1, 0));
    get(&h, 2, 1);
    /* A prefetch that fails is forgotten. */
    fl_io_fake_set(h.io,
                   &(fl_io_fake_config){.fail_at = -1, .fail_chance = 1024, .fail_errno = ENXIO});
    read_ahead(&h, 0, four, 4);
    const int32_t one = 0;
    read_ahead(&h, 2, &one, 1); /* takes in what failed */
    no_faults(&h);
    read_ahead(&h, 2, &one, 1);
    assert_true(fl_store_get_stats(h.store).failed > 0);
    assert_true(fl_store_is_sane(h.store));
    for (int i = 0; i < 4; i++) get(&h, 0, i);
    close_all(&h);
}

/* Reading ahead for a layer must not push out what is there of that layer. */
static void test_prefetch_keeps_its_layer(void **state)
{
    (void)state;
    house h;
    small_house(&h, "fake", 4, 4);
    for (int l = 0; l < 2; l++)
        for (int e = 0; e < 2; e++) get(&h, l, e);
    const int32_t more[2] = {2, 3};
    read_ahead(&h, 0, more, 2); /* layer 1 is running, layer 0 is the one to come */
    assert_int_equal(fl_store_get_stats(h.store).prefetched, 0);
    for (int e = 0; e < 2; e++) assert_true(fl_store_is_present(h.store, 0, e));
    close_all(&h);
}

static void test_prefetch_fails_beside_acquire(void **state)
{
    (void)state;
    house h;
    small_house(&h, "fake", 4, 4);
    fl_io_fake_config c = {.fail_at = -1, .stall_chance = 1024, .stall_polls = 4};
    const int32_t ahead = 0;
    fl_io_fake_set(h.io, &c);
    read_ahead(&h, 1, &ahead, 1);
    c = (fl_io_fake_config){
        .fail_at = 0, .fail_errno = ENXIO, .stall_chance = 1024, .stall_polls = 30};
    fl_io_fake_set(h.io, &c); /* the first read to complete is the prefetch's */
    get(&h, 0, 2);
    assert_int_equal(fl_store_get_stats(h.store).failed, 1);
    get(&h, 1, 0);
    assert_int_equal(fl_store_get_stats(h.store).missed, 2);
    close_all(&h);
}

/* However much is asked for ahead, an acquire finds staging to start at once. */
static void test_prefetch_leaves_staging(void **state)
{
    (void)state;
    house h = {0};
    int32_t ids[MAX_EXPERT];
    do make_places(&h, 4, MAX_EXPERT);
    while (!h.bytes[0]);
    for (int32_t i = 0; i < MAX_EXPERT; i++) ids[i] = i;
    make_plan(&h, MAX_EXPERT, UINT64_MAX);
    const uint64_t cap = MAX_EXPERT * h.plan.min_device_cap; /* that many of the largest */
    fl_plan_free(&h.plan);
    make_plan(&h, MAX_EXPERT, cap);
    assert_int_equal(h.plan.n_slots, MAX_EXPERT);
    open_under(&h, "fake", paths, 64, 0);
    open_store(&h);
    fl_io_fake_set(h.io,
                   &(fl_io_fake_config){.fail_at = -1, .stall_chance = 1024, .stall_polls = 99});
    read_ahead(&h, 1, ids, MAX_EXPERT);
    assert_int_equal(fl_store_get_stats(h.store).prefetched, h.plan.n_stages / 2);
    get(&h, 2, 5);
    close_all(&h);
}

static void test_failed_acquire(void **state)
{
    (void)state;
    house h;
    fl_err err;
    small_house(&h, "fake", 4, 4);
    const int32_t four[4] = {3, 1, 0, 2};
    fl_expert_view v[4];
    fl_io_fake_set(h.io,
                   &(fl_io_fake_config){.fail_at = 4, .fail_more = INT_MAX, .fail_errno = EIO});
    ASSERT_FAILS(acquire(&h, 0, four, 4, v, &err), FL_E_IO, "Input/output error");
    no_faults(&h);
    assert_int_equal(err.sys, EIO);
    assert_true(fl_store_is_sane(h.store));
    assert_true(fl_store_get_stats(h.store).failed >= 1); /* of those that were under way */
    ASSERT_OK(acquire(&h, 0, four, 4, v, &err));
    for (int i = 0; i < 4; i++) check_view(&h, 0, &v[i]);
    fl_store_release(h.store, 0, v, 4);
    close_all(&h);
}

typedef struct progress_log {
    uint64_t calls, done, total;
} progress_log;

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    progress_log *p = arg;
    assert_true(done > p->done && done <= total);
    *p = (progress_log){p->calls + 1, done, total};
}

static void test_all_resident(void **state)
{
    (void)state;
    fl_err err;
    house h = {0};
    do make_places(&h, 4, 12);
    while (!h.bytes[0]);
    make_plan(&h, 2, UINT64_MAX);
    open_under(&h, "fake", paths, 16, 0);
    fl_io_fake_set(h.io, &(fl_io_fake_config){.fail_at = -1, .short_chance = 300, .reorder = true});
    progress_log p = {0};
    const fl_store_config c = {.dev = h.dev,
                               .io = h.io,
                               .plan = &h.plan,
                               .place = h.place,
                               .progress = on_progress,
                               .progress_arg = &p};
    ASSERT_OK(fl_store_create(&h.store, &c, &err));
    assert_int_equal(p.calls, 48);
    assert_int_equal(p.done, p.total);
    assert_int_equal(fl_store_n_slots(h.store), 0);
    for (int l = 0; l < 4; l++)
        for (int e = 0; e < 12; e++) get(&h, l, e);
    const fl_store_stats s = fl_store_get_stats(h.store);
    assert_int_equal(s.hit_resident, 48);
    assert_int_equal(s.bytes_read, 0);
    assert_int_equal(p.total, h.plan.resident_bytes);
    assert_true(s.bytes_loaded > 0 && s.bytes_loaded <= p.total);
    const int32_t one = 1;
    read_ahead(&h, 0, &one, 1);
    close_all(&h);
}

static void test_create_fails(void **state)
{
    (void)state;
    fl_err err;
    house h = {0};
    do make_places(&h, 3, 8);
    while (h.place[0].part[0].bytes < 2);
    plan_between(&h, 2, 700);
    assert_true(h.plan.n_resident > 4 && h.plan.n_slots > 0 && h.plan.tier[0] == FL_TIER_DEVICE);
    open_under(&h, "fake", paths, 16, 0);
    for (int at = 0; at < 12; at++) {
        fl_io_fake_set(h.io, &(fl_io_fake_config){.fail_at = at, .fail_errno = ENXIO});
        ASSERT_FAILS(create(&h, &err), FL_E_IO, "experts-");
        assert_null(h.store);
        assert_int_equal(fl_device_budget(h.dev)->used, 0);
        assert_int_equal(fl_io_in_flight(h.io), 0);
    }
    no_faults(&h);
    const fl_extent kept = h.place[0].part[0];
    h.place[0].part[0].offset = FILE_BYTES - 1; /* reaches past the end */
    ASSERT_FAILS(create(&h, &err), FL_E_FORMAT, "truncated");
    h.place[0].part[0].bytes = kept.bytes + 64;
    ASSERT_FAILS(create(&h, &err), FL_E_FORMAT, "expert 0 of layer 0");
    h.place[0].part[0].bytes = UINT64_MAX - 10;
    ASSERT_FAILS(create(&h, &err), FL_E_FORMAT, "expert 0 of layer 0");
    h.place[0].part[0] = kept;
    /* A device that is too small by one byte. */
    fl_device_close(&h.dev);
    const fl_device_config cfg = {.memory_cap = h.plan.device_bytes - 1};
    ASSERT_OK(fl_device_open(&h.dev, &cfg, &err));
    ASSERT_FAILS(create(&h, &err), FL_E_NOMEM, "streaming slots");
    assert_int_equal(fl_device_budget(h.dev)->used, 0);
    close_all(&h);
}

/* The real backends, with threads and a slow link, one slot and many. */
static void test_real_backends(void **state)
{
    (void)state;
    static const char *const backends[] = {NULL, "pread", "buffered"};
    for (int b = 0; b < 3; b++)
        for (int tight = 0; tight < 2; tight++) {
            house h = {0};
            fl_err err;
            do make_places(&h, 4, 12);
            while (!h.bytes[0]);
            plan_between(&h, 4, tight ? 0 : 400);
            open_under(&h, backends[b], disk_paths, 6, 100u << 20);
            open_store(&h);
            for (int i = 0; i < 60; i++) {
                int32_t ids[MAX_EXPERT];
                fl_expert_view v[MAX_EXPERT];
                const int layer = i % 4;
                const int n = pick(&h, layer, at_once(&h), ids);
                ASSERT_OK(acquire(&h, layer, ids, n, v, &err));
                for (int k = 0; k < n; k++) check_view(&h, layer, &v[k]);
                int32_t ahead[MAX_EXPERT];
                const int next = (layer + 1) % 4;
                read_ahead(&h, next, ahead, pick(&h, next, MAX_EXPERT, ahead));
                for (int k = 0; k < n; k++) check_view(&h, layer, &v[k]);
                fl_store_release(h.store, layer, v, n);
                assert_true(fl_store_is_sane(h.store));
            }
            close_all(&h); /* some prefetches are still under way */
        }
}

/* The model file is cut while it is in use: the acquire says so, the store lives on. */
static void test_file_shrinks(void **state)
{
    (void)state;
    house h;
    fl_err err;
    small_house(&h, "pread", 2, 2);
    fl_expert_view v;
    const int32_t id = 1;
    get(&h, 2, 0);
    for (int f = 0; f < N_FILES; f++) assert_int_equal(truncate(paths[f], 100), 0);
    ASSERT_FAILS(acquire(&h, 2, &id, 1, &v, &err), FL_E_IO, "changed while in use");
    get(&h, 2, 0); /* what is present still is */
    /* It may have its bytes again, or others: who knows. */
    for (int f = 0; f < N_FILES; f++) fl_tmp_write(paths[f], content[f], FILE_BYTES);
    ASSERT_FAILS(acquire(&h, 2, &id, 1, &v, &err), FL_E_IO, "changed while in use");
    assert_true(fl_store_is_sane(h.store));
    close_all(&h);
}

#ifdef __SANITIZE_ADDRESS__ /* the library keeps its asserts in this variant */
#include "tests/support/refuse.h"

static bool child_open_lease(void *arg)
{
    (void)arg;
    house h;
    fl_expert_view v;
    const int32_t id = 0;
    small_house(&h, "fake", 2, 2);
    if (acquire(&h, 0, &id, 1, &v, NULL) != FL_OK) return true;
    fl_store_destroy(&h.store);
    return true;
}

static bool child_named_twice(void *arg)
{
    (void)arg;
    house h;
    fl_expert_view v[2];
    const int32_t ids[2] = {1, 1};
    small_house(&h, "fake", 2, 2);
    return acquire(&h, 0, ids, 2, v, NULL) != FL_E_ARG;
}

static void test_broken_promises(void **state)
{
    (void)state;
    assert_false(fl_in_child(child_open_lease, NULL));
    assert_false(fl_in_child(child_named_twice, NULL));
}
#endif

static int setup(void **state)
{
    (void)state;
    disk_dir = fl_tmp_make();
    /* In memory where that exists: thousands of tiny direct reads would measure the drive. */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    dir = fl_tmp_make();
    for (int f = 0; f < N_FILES; f++) {
        char name[] = "experts-0.bin";
        name[8] = (char)('0' + f);
        content[f] = malloc(FILE_BYTES);
        for (int i = 0; i < FILE_BYTES; i++) content[f][i] = (uint8_t)rnd(256);
        paths[f] = fl_tmp_path(dir, name);
        fl_tmp_write(paths[f], content[f], FILE_BYTES);
        disk_paths[f] = fl_tmp_path(disk_dir, name);
        fl_tmp_write(disk_paths[f], content[f], FILE_BYTES);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int f = 0; f < N_FILES; f++) {
        free(paths[f]);
        free(disk_paths[f]);
        free(content[f]);
    }
    fl_tmp_remove(dir);
    fl_tmp_remove(disk_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef __SANITIZE_ADDRESS__
        cmocka_unit_test(test_broken_promises),
#endif
        cmocka_unit_test(test_least_recently_used_goes),
        cmocka_unit_test(test_leases_are_kept),
        cmocka_unit_test(test_prefetch),
        cmocka_unit_test(test_prefetch_keeps_its_layer),
        cmocka_unit_test(test_prefetch_fails_beside_acquire),
        cmocka_unit_test(test_prefetch_leaves_staging),
        cmocka_unit_test(test_failed_acquire),
        cmocka_unit_test(test_all_resident),
        cmocka_unit_test(test_create_fails),
        cmocka_unit_test(test_real_backends),
        cmocka_unit_test(test_file_shrinks),
        cmocka_unit_test(test_random_sequences),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
