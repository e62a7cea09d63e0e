#include "runtime/model/bpe.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/hash.h"

/* Pieces up to this many bytes are merged by scanning for the lowest rank, longer ones with a
 * heap. */
enum { SHORT_PIECE = 40 };
#define NO_RANK UINT32_MAX

typedef struct merge_slot {
    uint64_t pair; /* left << 32 | right; PAIR_NONE = empty slot */
    uint32_t rank;
    int32_t merged;
} merge_slot;
#define PAIR_NONE UINT64_MAX

struct fl_bpe {
    int32_t byte_id[256];
    merge_slot *slot; /* open addressing, at most half full */
    size_t mask;
    uint32_t n_added, n_merges;
};

fl_status fl_bpe_create(fl_bpe **out, size_t n_merges, const int32_t byte_id[256], fl_err *err)
{
    *out = NULL;
    if (n_merges >= INT32_MAX)
        return FL_FAIL(err, FL_E_FORMAT, 0, "%zu merges are too many for a tokenizer", n_merges);
    size_t size = 64;
    while (size < 2 * n_merges) size *= 2;
    fl_bpe *b = calloc(1, sizeof *b);
    if (b) b->slot = malloc(size * sizeof *b->slot);
    if (!b || !b->slot) {
        free(b);
        return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %zu merges", n_merges);
    }
    memcpy(b->byte_id, byte_id, sizeof b->byte_id);
    memset(b->slot, 0xFF, size * sizeof *b->slot);
    b->mask = size - 1;
    b->n_merges = (uint32_t)n_merges;
    *out = b;
    return FL_OK;
}

void fl_bpe_destroy(fl_bpe **b)
{
    if (!*b) return;
    free((*b)->slot);
    free(*b);
    *b = NULL;
}

static merge_slot *find_slot(const fl_bpe *b, uint64_t pair)
{
    size_t i = (size_t)fl_hash64(&pair, sizeof pair) & b->mask;
    while (b->slot[i].pair != pair && b->slot[i].pair != PAIR_NONE) i = (i + 1) & b->mask;
    return &b->slot[i];
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void fl_bpe_add(fl_bpe *b, int32_t left, int32_t right, int32_t merged)
{
    assert(b->n_added < b->n_merges);
    const uint64_t pair = pair_of(left, right);
    merge_slot *s = find_slot(b, pair);
    if (s->pair == PAIR_NONE) *s = (merge_slot){pair, b->n_added, merged};
    b->n_added++;
}

/* Rank of a pair and the token it becomes; NO_RANK when it does not merge. */
static uint32_t rank_of(const fl_bpe *b, int32_t left, int32_t right, int32_t *merged)
{
    const merge_slot *s = find_slot(b, pair_of(left, right));
    *merged = s->merged;
    return s->pair == PAIR_NONE ? NO_RANK : s->rank;
}

static fl_status reserve(fl_bpe_out *o, size_t more, fl_err *err)
{
    if (o->cap - o->n >= more) return FL_OK;
    const size_t cap = o->n + more + o->n / 2 + 64;
    int32_t *ids = cap <= SIZE_MAX / sizeof *ids ? realloc(o->ids, cap * sizeof *ids) : NULL;
    if (!ids) return FL_FAIL(err, FL_E_NOMEM, 0, "no memory for %zu tokens", cap);
    o->ids = ids;
    o->cap = cap;
    return FL_OK;
}

fl_status fl_bpe_push(fl_bpe_out *o, int32_t id, fl_err *err)
{
    FL_TRY(reserve(o, 1, err));
    o->ids[o->n++] = id;
    return FL_OK;
}

void fl_bpe_out_fini(fl_bpe_out *o)
{
    free(o->ids);
    free(o->scratch);
    *o = (fl_bpe_out){0};
}

/* ids[0..n) merged in place; returns how many are left. */
static size_t merge_short(const fl_bpe *b, int32_t *ids, size_t n)
{
    uint32_t rank[SHORT_PIECE]; /* of the pair (i, i + 1) */
    int32_t merged[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, ids[i], ids[i + 1], &merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        ids[best] = merged[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        memmove(merged + best, merged + best + 1, (n - best - 1) * sizeof *merged);
        if (best > 0) rank[best - 1] = rank_of(b, ids[best - 1], ids[best], &merged[best - 1]);
        if (best + 1 < n) rank[best] = rank_of(b, ids[best], ids[best + 1], &merged[best]);
    }
    return n;
}

/* A list of symbols over the bytes of a long piece, and a 4-way heap of candidate pairs. A heap
 * entry is rank << 32 | position of the left symbol, so that its order is the order of merging;
 * an entry whose rank is no longer that of its position is stale. */
typedef struct long_merge {
    const fl_bpe *b;
    int32_t *ids;
    uint32_t *next, *prev; /* n = none */
    uint32_t *rank;        /* of the pair that starts here */
    int32_t *merged;
    uint64_t *heap;
    size_t n_heap, n;
} long_merge;

static void heap_up(uint64_t *h, size_t i)
{
    const uint64_t v = h[i];
    while (i > 0) {
        const size_t parent = (i - 1) / 4;
        if (h[parent] <= v) break;
        h[i] = h[parent];
        i = parent;
    }
    h[i] = v;
}

static void heap_down(uint64_t *h, size_t n, size_t i)
{
    const uint64_t v = h[i];
    for (;;) {
        const size_t first = 4 * i + 1;
        if (first >= n) break;
        const size_t last = first + 4 < n ? first + 4 : n;
        size_t best = first;
        for (size_t k = first + 1; k < last; k++)
            if (h[k] < h[best]) best = k;
        if (h[best] >= v) break;
        h[i] = h[best];
        i = best;
    }
    h[i] = v;
}

static void pair_changed(long_merge *m, uint32_t i)
{
    const uint32_t j = m->next[i];
    m->rank[i] = j < m->n ? rank_of(m->b, m->ids[i], m->ids[j], &m->merged[i]) : NO_RANK;
    if (m->rank[i] == NO_RANK) return;
    m->heap[m->n_heap] = (uint64_t)m->rank[i] << 32 | i;
    heap_up(m->heap, m->n_heap++);
}

static void merge_loop(long_merge *m)
{
    while (m->n_heap) {
        const uint64_t top = m->heap[0];
        m->heap[0] = m->heap[--m->n_heap];
        if (m->n_heap) heap_down(m->heap, m->n_heap, 0);
        const uint32_t i = (uint32_t)top;
        if (m->rank[i] != (uint32_t)(top >> 32)) continue;
        const uint32_t gone = m->next[i], after = m->next[gone];
        m->ids[i] = m->merged[i];
        m->next[i] = after;
        if (after < m->n) m->prev[after] = i;
        m->rank[gone] = NO_RANK;
        pair_changed(m, i);
        if (m->prev[i] < m->n) pair_changed(m, m->prev[i]);
    }
}

static size_t merge_long(const fl_bpe *b, int32_t *ids, size_t n, void *scratch)
{
    long_merge m = {.b = b, .ids = ids, .heap = scratch, .n = n};
    /* Each merge takes one symbol away and adds at most two pairs. */
    m.next = (uint32_t *)(m.heap + 3 * n);
    m.prev = m.next + n;
    m.rank = m.prev + n;
    m.merged = (int32_t *)(m.rank + n);
    for (size_t i = 0; i < n; i++) {
        m.next[i] = (uint32_t)(i + 1);
        m.prev[i] = i ? (uint32_t)(i - 1) : (uint32_t)n;
        m.rank[i] = i + 1 < n ? rank_of(b, ids[i], ids[i + 1], &m.merged[i]) : NO_RANK;
        if (m.rank[i] != NO_RANK) m.heap[m.n_heap++] = (uint64_t)m.rank[i] << 32 | i;
    }
    for (size_t i = m.n_heap / 4 + 1; i-- > 0;)
        if (i < m.n_heap) heap_down(m.heap, m.n_heap, i);
    merge_loop(&m);
    size_t o = 0;
    for (size_t i = 0; i < n; i = m.next[i]) ids[o++] = ids[i];
    return o;
}

static fl_status long_scratch(fl_bpe_out *o, size_t n, fl_err *err)
{
    const size_t bytes = n * (3 * sizeof(uint64_t) + 4 * sizeof(uint32_t));
    if (o->scratch_bytes >= bytes) return FL_OK;
    free(o->scratch);
    o->scratch_bytes = 0;
    o->scratch = malloc(bytes);
    if (!o->scratch)
        return FL_FAIL(err, FL_E_NOMEM, 0, "no memory to tokenize a word of %zu bytes", n);
    o->scratch_bytes = bytes;
    return FL_OK;
}

fl_status fl_bpe_encode(const fl_bpe *b, fl_str piece, fl_bpe_out *o, fl_err *err)
{
    assert(piece.n < INT32_MAX);
    FL_TRY(reserve(o, piece.n, err));
    int32_t *ids = o->ids + o->n;
    for (size_t i = 0; i < piece.n; i++) {
        const uint8_t byte = (uint8_t)piece.p[i];
        ids[i] = b->byte_id[byte];
        if (ids[i] < 0)
            return FL_FAIL(err, FL_E_UNSUPPORTED, 0,
                           "the tokenizer's vocabulary has no token for byte 0x%02X", byte);
    }
    if (piece.n <= SHORT_PIECE) {
        o->n += merge_short(b, ids, piece.n);
        return FL_OK;
    }
    FL_TRY(long_scratch(o, piece.n, err));
    o->n += merge_long(b, ids, piece.n, o->scratch);
    return FL_OK;
}
