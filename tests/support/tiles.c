#include "tests/support/tiles.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum { TILES = 8, MAX_ROWS = 16, MAX_BYTES = 64 };

typedef struct tile {
    uint8_t at[MAX_ROWS][MAX_BYTES];
    int rows, bytes; /* both 0: the tile may not be used */
} tile;

static _Thread_local struct {
    bool configured;
    tile t[TILES];
} state;
static atomic_long executed;

bool fl_tiles_released(void) { return !state.configured; }
long fl_tiles_executed(void) { return executed; }

static tile *used(int t)
{
    executed++;
    assert(state.configured && t >= 0 && t < TILES);
    assert(state.t[t].rows > 0 && state.t[t].bytes > 0);
    return &state.t[t];
}

void fl_tile_config(const void *shape)
{
    const uint8_t *c = shape;
    executed++;
    assert(c[0] == 1 && c[1] == 0); /* palette, first row */
    memset(&state, 0, sizeof state);
    state.configured = true;
    for (int i = 2; i < 16; i++) assert(c[i] == 0);
    for (int i = 0; i < 16; i++) {
        int bytes = c[16 + 2 * i] | c[17 + 2 * i] << 8, rows = c[48 + i];
        assert((bytes == 0) == (rows == 0));
        assert(i < TILES ? bytes <= MAX_BYTES && rows <= MAX_ROWS : rows == 0);
        if (i < TILES) {
            state.t[i].bytes = bytes;
            state.t[i].rows = rows;
        }
    }
}

void fl_tile_release(void)
{
    executed++;
    memset(&state, 0, sizeof state);
}

void fl_tile_zero(int t) { memset(used(t)->at, 0, sizeof state.t[t].at); }

/* What lies outside of the shape becomes zero. */
void fl_tile_load(int t, const void *p, int64_t stride)
{
    tile *d = used(t);
    memset(d->at, 0, sizeof d->at);
    for (int i = 0; i < d->rows; i++)
        memcpy(d->at[i], (const char *)p + i * stride, (size_t)d->bytes);
}

void fl_tile_store(int t, void *p, int64_t stride)
{
    const tile *s = used(t);
    for (int i = 0; i < s->rows; i++) memcpy((char *)p + i * stride, s->at[i], (size_t)s->bytes);
}

void fl_tile_dot(int t, int a, int b)
{
    tile *d = used(t);
    const tile *x = used(a), *y = used(b);
    assert(t != a && t != b && a != b);
    assert(d->bytes % 4 == 0 && x->bytes % 4 == 0 && y->bytes % 4 == 0);
    assert(d->rows == x->rows && d->bytes == y->bytes && x->bytes == 4 * y->rows);
    for (int m = 0; m < d->rows; m++) {
        int32_t sum[MAX_BYTES / 4];
        memcpy(sum, d->at[m], sizeof sum);
        for (int k = 0; k < x->bytes; k++) {
            int8_t v = (int8_t)x->at[m][k];
            for (int n = 0; n < d->bytes / 4; n++)
                sum[n] += v * (int8_t)y->at[k / 4][4 * n + k % 4]; /* far from 2^31 here */
        }
        memset(d->at[m], 0, sizeof d->at[m]);
        memcpy(d->at[m], sum, (size_t)d->bytes);
    }
}
