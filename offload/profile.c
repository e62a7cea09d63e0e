#include "offload/profile.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/lock.h"

static const char magic[8] = {'F', 'L', 'P', 'R', 'O', 'F', 'I', 'L'};
enum { VERSION = 1, BLOCK_ROWS = 32, PREFILL_SHARE = 16 };
static const uint64_t LOCK_NS = UINT64_C(5000000000);

/* The file: this, then uses u32 [FL_N_PASS_KINDS][n_keys] and blocks u64 [n_keys]. */
typedef struct head {
    char magic[8];
    uint32_t version, n_layer, n_expert, n_kinds;
    uint64_t passes[FL_N_PASS_KINDS]; /* decayed, FL_PROFILE_USE each */
    uint64_t rest_hash;               /* of what follows */
    uint64_t head_hash;               /* of the head with 0 here */
} head;
_Static_assert(sizeof(head) == 72, "the file's layout");

/* What was counted, in a file or here. */
typedef struct counts {
    uint64_t passes[FL_N_PASS_KINDS];
    uint32_t *uses;   /* [FL_N_PASS_KINDS][n_keys] */
    uint64_t *blocks; /* [n_keys] */
} counts;

struct fl_profile {
    int n_layer, n_expert;
    size_t n_keys;
    counts known; /* of the file */
    counts own;   /* since it was read or written */
    uint64_t own_passes, own_blocks;
    uint64_t *block; /* [n_keys]: 1 = used by the block under way */
    bool in_block;
    fl_pass_kind kind;
    int clean;
    int32_t *rows;  /* [n_expert]: of one layer */
    uint32_t *heat; /* [n_keys] */
};

static uint32_t add(uint32_t a, uint64_t b)
{
    return b > UINT32_MAX - a ? UINT32_MAX : a + (uint32_t)b;
}

static bool make_counts(counts *c, size_t n_keys)
{
    c->uses = calloc(FL_N_PASS_KINDS * n_keys + 1, sizeof *c->uses);
    c->blocks = calloc(n_keys + 1, sizeof *c->blocks);
    return c->uses && c->blocks;
}

static void free_counts(counts *c)
{
    free(c->uses);
    free(c->blocks);
}

static void clear(const fl_profile *p, counts *c)
{
    memset(c->passes, 0, sizeof c->passes);
    memset(c->uses, 0, FL_N_PASS_KINDS * p->n_keys * sizeof *c->uses);
    memset(c->blocks, 0, p->n_keys * sizeof *c->blocks);
}

fl_status fl_profile_create(fl_profile **out, int n_layer, int n_expert, fl_err *err)
{
    const size_t n = (size_t)n_layer * (size_t)n_expert;
    fl_profile *p = calloc(1, sizeof *p);
    *out = NULL;
    bool ok = p != NULL;
    if (ok) {
        p->n_layer = n_layer;
        p->n_expert = n_expert;
        p->n_keys = n;
        p->block = calloc(n + 1, sizeof *p->block);
        p->rows = calloc((size_t)n_expert + 1, sizeof *p->rows);
        p->heat = calloc(n + 1, sizeof *p->heat);
        ok = make_counts(&p->known, n) && make_counts(&p->own, n) && p->block && p->rows && p->heat;
    }
    if (!ok) {
        fl_profile_destroy(&p);
        return FL_FAIL(err, FL_E_NOMEM, 0, "profile: no memory for %zu experts", n);
    }
    *out = p;
    return FL_OK;
}

void fl_profile_destroy(fl_profile **profile)
{
    fl_profile *p = *profile;
    if (!p) return;
    free_counts(&p->known);
    free_counts(&p->own);
    free(p->block);
    free(p->rows);
    free(p->heat);
    free(p);
    *profile = NULL;
}

/* ---- counting ---- */

/* The block under way is over. */
static void end_block(fl_profile *p)
{
    if (!p->in_block) return;
    for (size_t k = 0; k < p->n_keys; k++) p->own.blocks[k] = p->own.blocks[k] << 1 | p->block[k];
    memset(p->block, 0, p->n_keys * sizeof *p->block);
    p->own_blocks++;
    p->in_block = false;
}

void fl_profile_pass(fl_profile *p, fl_pass_kind kind, bool first, int clean)
{
    if (first || kind != FL_PASS_BLOCK) end_block(p);
    p->in_block |= first;
    p->kind = kind;
    p->clean = clean;
    p->own.passes[kind] += FL_PROFILE_USE;
    p->own_passes++;
}

void fl_profile_layer(fl_profile *p, int layer, int rows, int top_k, const int32_t *experts)
{
    const size_t at = (size_t)layer * (size_t)p->n_expert;
    uint32_t *uses = p->own.uses + p->kind * p->n_keys + at;
    memset(p->rows, 0, (size_t)p->n_expert * sizeof *p->rows);
    for (int i = 0; i < rows * top_k; i++) p->rows[experts[i]]++;
    for (int e = 0; e < p->n_expert; e++) {
        if (!p->rows[e]) continue;
        uint64_t use = FL_PROFILE_USE;
        if (p->kind == FL_PASS_PREFILL) {
            const uint64_t some = (uint64_t)BLOCK_ROWS * (uint64_t)p->rows[e];
            use = use * some / (some + (uint64_t)rows);
        }
        uses[e] = add(uses[e], use);
    }
    if (!p->in_block) return;
    for (int i = p->clean * top_k; i < rows * top_k; i++) p->block[at + (size_t)experts[i]] = 1;
}

/* ---- what is known ---- */

/* `known` weighs as much as if the own passes had come after it. */
static uint64_t decayed(const fl_profile *p, uint64_t known)
{
    return known * FL_PROFILE_PASSES / (FL_PROFILE_PASSES + p->own_passes);
}

uint64_t fl_profile_passes(const fl_profile *p, fl_pass_kind kind)
{
    return (decayed(p, p->known.passes[kind]) + p->own.passes[kind]) / FL_PROFILE_USE;
}

static uint32_t uses_of(const fl_profile *p, int kind, size_t key)
{
    const size_t at = (size_t)kind * p->n_keys + key;
    return add(p->own.uses[at], decayed(p, p->known.uses[at]));
}

const uint32_t *fl_profile_heat(fl_profile *p)
{
    bool decodes = false;
    for (int kind = 0; kind < FL_N_PASS_KINDS; kind++)
        decodes |= kind != FL_PASS_PREFILL && p->known.passes[kind] + p->own.passes[kind] > 0;
    for (size_t k = 0; k < p->n_keys; k++) {
        uint32_t heat = 0;
        for (int kind = 0; kind < FL_N_PASS_KINDS; kind++) {
            const bool less = kind == FL_PASS_PREFILL && decodes;
            heat = add(heat, uses_of(p, kind, k) / (less ? PREFILL_SHARE : 1));
        }
        p->heat[k] = heat;
    }
    return p->heat;
}

int64_t fl_profile_distinct(const fl_profile *p, fl_pass_kind kind)
{
    uint64_t uses = 0, passes = decayed(p, p->known.passes[kind]) + p->own.passes[kind];
    int layers = 0; /* that passes of this kind run */
    if (kind == FL_PASS_PREFILL || fl_profile_passes(p, kind) < FL_PROFILE_FEW) return 0;
    for (int l = 0; l < p->n_layer; l++) {
        const uint64_t before = uses;
        for (int e = 0; e < p->n_expert; e++)
            uses += uses_of(p, kind, (size_t)l * (size_t)p->n_expert + (size_t)e);
        layers += uses > before;
    }
    return layers ? (int64_t)(uses * 1000 / passes / (uint64_t)layers) : 0;
}

static uint64_t blocks_of(const fl_profile *p, size_t key)
{
    const uint64_t known =
        p->own_blocks < FL_PROFILE_BLOCKS ? p->known.blocks[key] << p->own_blocks : 0;
    return known | p->own.blocks[key];
}

fl_profile_pair fl_profile_together(const fl_profile *p, int32_t key_a, int32_t key_b)
{
    const uint64_t a = blocks_of(p, (size_t)key_a), b = blocks_of(p, (size_t)key_b);
    return (fl_profile_pair){__builtin_popcountll(a), __builtin_popcountll(b),
                             __builtin_popcountll(a & b)};
}

/* ---- the file ---- */

static uint64_t rest_bytes(const fl_profile *p)
{
    return p->n_keys * (FL_N_PASS_KINDS * sizeof(uint32_t) + sizeof(uint64_t));
}

static uint64_t hash_head(const head *h)
{
    head copy = *h;
    copy.head_hash = 0;
    return fl_hash64(&copy, sizeof copy);
}

static fl_status check(const fl_profile *p, const head *h, const void *rest, uint64_t n,
                       const char *name, fl_err *err)
{
    if (n < sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: is not a profile of expert use", name);
    if (h->version != VERSION || h->n_kinds != FL_N_PASS_KINDS)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%s: is a profile of version %u, this program reads %d",
                       name, h->version, VERSION);
    if (hash_head(h) != h->head_hash)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the profile is damaged: the checksum of its head is wrong", name);
    if (h->n_layer != (uint32_t)p->n_layer || h->n_expert != (uint32_t)p->n_expert)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: is the profile of a model of %u layers with %u experts, not %d with %d",
                       name, h->n_layer, h->n_expert, p->n_layer, p->n_expert);
    if (n - sizeof *h != rest_bytes(p) || fl_hash64(rest, n - sizeof *h) != h->rest_hash)
        return FL_FAIL(err, FL_E_FORMAT, 0,
                       "%s: the profile is cut short or damaged: the checksum of its counts is "
                       "wrong",
                       name);
    return FL_OK;
}

fl_status fl_profile_parse(fl_profile *p, const void *data, uint64_t n, const char *name,
                           fl_err *err)
{
    head h = {0};
    clear(p, &p->known);
    memcpy(&h, data, n < sizeof h ? n : sizeof h);
    const uint8_t *rest = (const uint8_t *)data + sizeof h;
    FL_TRY(check(p, &h, rest, n, name, err));
    /* Far from overflow, whatever a file says. */
    for (int k = 0; k < FL_N_PASS_KINDS; k++)
        p->known.passes[k] = h.passes[k] < UINT32_MAX ? h.passes[k] : UINT32_MAX;
    const size_t uses = FL_N_PASS_KINDS * p->n_keys * sizeof *p->known.uses;
    memcpy(p->known.uses, rest, uses);
    memcpy(p->known.blocks, rest + uses, p->n_keys * sizeof *p->known.blocks);
    return FL_OK;
}

fl_status fl_profile_load(fl_profile *p, const char *path, fl_err *err)
{
    char *data = NULL;
    uint64_t n = 0;
    clear(p, &p->known);
    if (access(path, F_OK) != 0) return FL_OK;
    FL_TRY(fl_file_load(path, sizeof(head) + rest_bytes(p), &data, &n, err));
    const fl_status st = fl_profile_parse(p, data, n, path, err);
    free(data);
    return st;
}

static fl_status write_file(const fl_profile *p, const counts *c, const char *path, fl_err *err)
{
    fl_outfile *o = NULL;
    fl_status st = FL_OK;
    const size_t uses = FL_N_PASS_KINDS * p->n_keys * sizeof *c->uses;
    const size_t blocks = p->n_keys * sizeof *c->blocks;
    head h = {.version = VERSION,
              .n_layer = (uint32_t)p->n_layer,
              .n_expert = (uint32_t)p->n_expert,
              .n_kinds = FL_N_PASS_KINDS};
    fl_hasher *hash = fl_hasher_create();
    if (!hash) return FL_FAIL(err, FL_E_NOMEM, 0, "%s: no memory to write it", path);
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.passes, c->passes, sizeof h.passes);
    fl_hasher_add(hash, c->uses, uses);
    fl_hasher_add(hash, c->blocks, blocks);
    h.rest_hash = fl_hasher_value(hash);
    h.head_hash = hash_head(&h);
    FL_GO(fl_outfile_open(&o, path, err));
    FL_GO(fl_outfile_write(o, &h, sizeof h, err));
    FL_GO(fl_outfile_write(o, c->uses, uses, err));
    FL_GO(fl_outfile_write(o, c->blocks, blocks, err));
    st = fl_outfile_commit(&o, err);
out:
    fl_outfile_discard(&o);
    fl_hasher_destroy(&hash);
    return st;
}

static fl_status wait_for_lock(fl_lock **lock, const char *path, fl_err *err)
{
    const uint64_t start = fl_clock_ns();
    const struct timespec a_little = {.tv_nsec = 5000000};
    for (;;) {
        fl_err why = {0};
        const bool late = fl_clock_ns() - start > LOCK_NS;
        const fl_status st = fl_lock_take(lock, path, &why);
        if (st == FL_E_BUSY && !late) {
            nanosleep(&a_little, NULL);
            continue;
        }
        return st == FL_OK ? FL_OK : FL_FAIL(err, st, why.sys, "%s", why.msg);
    }
}

/* The file's counts and the own ones become the known ones. */
static void join(fl_profile *p)
{
    for (int k = 0; k < FL_N_PASS_KINDS; k++) {
        const uint64_t n = decayed(p, p->known.passes[k]) + p->own.passes[k];
        p->known.passes[k] = n < UINT32_MAX ? n : UINT32_MAX;
        for (size_t i = 0; i < p->n_keys; i++)
            p->known.uses[(size_t)k * p->n_keys + i] = uses_of(p, k, i);
    }
    for (size_t i = 0; i < p->n_keys; i++) p->known.blocks[i] = blocks_of(p, i);
}

fl_status fl_profile_save(fl_profile *p, const char *path, fl_err *err)
{
    fl_lock *lock = NULL;
    fl_err why = {0};
    end_block(p);
    if (p->own_passes == 0) return FL_OK;
    FL_TRY(wait_for_lock(&lock, path, err));
    fl_status st = fl_profile_load(p, path, &why);
    if (st == FL_OK || st == FL_E_FORMAT) { /* a damaged one holds nothing */
        join(p);
        st = write_file(p, &p->known, path, err);
    } else {
        st = FL_FAIL(err, st, why.sys, "%s", why.msg);
    }
    fl_lock_release(&lock);
    if (st != FL_OK) { /* the own counts stay the own ones */
        if (fl_profile_load(p, path, NULL) != FL_OK) clear(p, &p->known);
        return st;
    }
    clear(p, &p->own);
    p->own_passes = p->own_blocks = 0;
    return FL_OK;
}
